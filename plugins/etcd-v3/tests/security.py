"""A server with certificates and users, for the tests."""

import base64
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from rdzv_conformance.servers import EtcdServer, EtcdTls
from rdzv_conformance.servers.certificates import Certificates


def secure_etcd(certificates: Certificates) -> EtcdServer:
    """A server that shows its certificate and demands the client's."""
    files = certificates.server, certificates.server, certificates.ca, certificates.client, certificates.client
    # The cheapest hash of passwords: the tests log in a lot.
    return EtcdServer(tls=EtcdTls(*files), extra_args=["--bcrypt-cost=4"])


def demand_login(server: EtcdServer) -> None:
    """Create ``writer`` and ``reader``, who may do so under ``/rdzv/``, and ``stranger``, who may do nothing."""
    call = server.get_client().call
    users = (
        ("root", "toor", "root"),
        ("writer", "secret", "write"),
        ("reader", "secret", "read"),
        ("stranger", "hi", None),
    )
    for user, password, role in users:
        call("auth/user/add", name=user, password=password)
        if role:
            call("auth/role/add", name=role)
            call("auth/user/grant", user=user, role=role)
    for role, permission in (("write", "READWRITE"), ("read", "READ")):
        runs = {"key": _base64(b"/rdzv/"), "range_end": _base64(b"/rdzv0"), "permType": permission}
        call("auth/role/grant", name=role, perm=runs)
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
