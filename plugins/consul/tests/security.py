"""A server with certificates and tokens, for the tests."""

from rdzv_conformance.servers import ConsulServer, ConsulTls
from rdzv_conformance.servers.certificates import Certificates


def secure_consul(certificates: Certificates) -> ConsulServer:
    """A server that shows its certificate and demands the client's, and a token."""
    files = certificates.server, certificates.server, certificates.ca, certificates.client, certificates.client
    return ConsulServer(tls=ConsulTls(*files), settings={"acl": {"enabled": True, "default_policy": "deny"}})


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
