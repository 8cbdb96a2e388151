"""Certificates and tokens for the tests."""

from pathlib import Path

import trustme
from rdzv_conformance.servers import ConsulServer, ConsulTls


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

    def consul(self) -> ConsulServer:
        """A server that shows its certificate and demands the client's, and a token."""
        tls = ConsulTls(self.server, self.server, self.ca, self.client, self.client)
        return ConsulServer(tls=tls, settings={"acl": {"enabled": True, "default_policy": "deny"}})

    @staticmethod
    def _issue(authority: trustme.CA, path: Path, name: str) -> Path:
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(path))
        return path


class LockedConsul:
    """A server with tokens.

    Attributes:
        server: The server.
        writer: A token that may write under ``rdzv/``.
        reader: One that may only read there.
        stranger: One that may do nothing.
    """

    def __init__(self, server: ConsulServer) -> None:
        self.server = server
        self._accessors: dict[str, str] = {}
        server.bootstrap_acl()
        self.writer = self.add("writer", 'key_prefix "rdzv/" { policy = "write" }')
        self.reader = self.add("reader", 'key_prefix "rdzv/" { policy = "read" }')
        self.stranger = self.add("stranger", 'key_prefix "else/" { policy = "write" }')

    def add(self, name: str, rules: str) -> str:
        """Make a token that may do what `rules` say."""
        client = self.server.get_client()
        client.call("PUT", "acl/policy", {"Name": name, "Rules": rules})
        made = client.call("PUT", "acl/token", {"Policies": [{"Name": name}]})
        self._accessors[name] = made["AccessorID"]
        return str(made["SecretID"])

    def remove(self, name: str) -> None:
        """Take the token away again."""
        self.server.get_client().call("DELETE", f"acl/token/{self._accessors[name]}")
