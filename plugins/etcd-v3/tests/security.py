"""Certificates and users for the tests."""

import base64
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from rdzv_conformance.servers import EtcdServer, EtcdTls


class Certificates:
    """An authority, what it signed for a server and a client, and an authority that signed neither."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.server = self._issue(authority, folder / "server.pem", "127.0.0.1")
        self.client = self._issue(authority, folder / "client.pem", "client.test")
        self.foreign_ca = folder / "foreign.pem"
        foreign = trustme.CA()
        foreign.cert_pem.write_to_path(str(self.foreign_ca))
        self.foreign_client = self._issue(foreign, folder / "foreign-client.pem", "client.test")

    def etcd(self) -> EtcdServer:
        """A server that shows its certificate and demands the client's."""
        tls = EtcdTls(self.server, self.server, self.ca, self.client, self.client)
        # The cheapest hash of passwords: the tests log in a lot.
        return EtcdServer(tls=tls, extra_args=["--bcrypt-cost=4"])

    @staticmethod
    def _issue(authority: trustme.CA, path: Path, name: str) -> Path:
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(path))
        return path


def demand_login(server: EtcdServer) -> None:
    """Create the user ``writer``, who may write under ``/rdzv/``, and ``stranger``, who may do nothing."""
    call = server.get_client().call
    for user, password, role in (("root", "toor", "root"), ("writer", "secret", "runs"), ("stranger", "hi", None)):
        call("auth/user/add", name=user, password=password)
        if role:
            call("auth/role/add", name=role)
            call("auth/user/grant", user=user, role=role)
    everything = {"key": _base64(b"/rdzv/"), "range_end": _base64(b"/rdzv0"), "permType": "READWRITE"}
    call("auth/role/grant", name="runs", perm=everything)
    call("auth/enable")


def token_keys(folder: Path) -> str:
    """The argument that makes a server sign its logins, with keys in `folder`."""
    private, public = folder / "private.pem", folder / "public.pem"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return f"--auth-token=jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=5m"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
