"""Certificates and users for the tests."""

from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from rdzv_conformance.servers import ZooKeeperTls

SASL_USERS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_rdzv="secret"
    user_stranger="hi";
};
"""


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

    def tls(self) -> ZooKeeperTls:
        """For a server that shows its certificate and demands the client's."""
        return ZooKeeperTls(self.server, self.ca)

    @staticmethod
    def _issue(authority: trustme.CA, path: Path, name: str) -> Path:
        issued = authority.issue_cert(name)
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
        # ZooKeeper wants keys in this form only.
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        path.write_bytes(key.private_bytes(*form) + b"".join(cert.bytes() for cert in issued.cert_chain_pems))
        return path
