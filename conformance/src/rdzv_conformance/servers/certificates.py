"""Certificates for servers that speak TLS, and for clients who may and may not; needs `rdzv-conformance[tls]`."""

from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization


class Certificates:
    """An authority, what it signed for a server and a client, and an authority that signed neither.

    All are paths of PEM files; those of certificates hold the private key as well.

    Args:
        folder: Where the files go.

    Attributes:
        ca: The authority.
        server: For a server at ``127.0.0.1``.
        client: For a client.
        foreign_ca: Another authority.
        foreign_client: For a client, signed by that.
    """

    def __init__(self, folder: Path) -> None:
        self.ca, authority = _authority(folder / "ca.pem")
        self.server = _issue(authority, folder / "server.pem", "127.0.0.1")
        self.client = _issue(authority, folder / "client.pem", "client.test")
        self.foreign_ca, foreign = _authority(folder / "foreign.pem")
        self.foreign_client = _issue(foreign, folder / "foreign-client.pem", "client.test")

    def options(self, ca: str = "ca_cert", cert: str = "cert") -> dict[str, Any]:
        """The options of a user who may, by the names that the backend gives them."""
        return {ca: self.ca, cert: self.client}

    def strangers(
        self, ca: str = "ca_cert", cert: str = "cert", *, distrusts: str = "", refused: str = "", **options: Any
    ) -> dict[str, tuple[dict[str, Any], str]]:
        """Those who may not, for `Secured.by_options`.

        Args:
            ca: The option that names the authority.
            cert: The option that names the client's certificate.
            distrusts: What the error must say, as a regular expression, to a client that distrusts the server.
            refused: What it must say to one whom the server distrusts.
            options: Further options of each.
        """
        return {
            "wrong authority": ({ca: self.foreign_ca, cert: self.client, **options}, distrusts),
            "no certificate": ({ca: self.ca, **options}, refused),
            "wrong certificate": ({ca: self.ca, cert: self.foreign_client, **options}, refused),
        }


def _authority(path: Path) -> tuple[Path, trustme.CA]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(path))
    return path, authority


def _issue(authority: trustme.CA, path: Path, name: str) -> Path:
    issued = authority.issue_cert(name)
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    # ZooKeeper wants keys in this form only.
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(*form) + b"".join(cert.bytes() for cert in issued.cert_chain_pems))
    return path
