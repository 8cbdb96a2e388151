"""How an etcd is reached, and where that can be read from: options, or a client of python-etcd."""

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from rdzv_core.endpoints import Endpoint, parse_endpoints
from rdzv_core.errors import RendezvousParameterError
from rdzv_transport import Client, OneCluster, Present, Request, tls_context

from .tree import Tree
from .wire import HEADERS, check

_PORT: Final = 2379
_PATIENCE: Final = 3.0


@dataclass(frozen=True, slots=True)
class Access:
    """How an etcd is reached.

    Attributes:
        endpoints: The members of one etcd; the first is tried first, one that fails last.
        tls: How to verify the members, and with which certificate of our own; None: no TLS.
        server_name: The name in the members' certificates, if it is not the endpoint's.
        user: The user that logs in, with `password`; None: no login.
        password: See `user`. One that was taken from a file follows it.
        read_timeout: Seconds that one of several endpoints has to answer before the next is tried.
        same_cluster: Whether only the cluster counts that answers first.
    """

    endpoints: tuple[Endpoint, ...]
    tls: Present[ssl.SSLContext] | None = None
    server_name: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    read_timeout: float = _PATIENCE
    same_cluster: bool = True

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise RendezvousParameterError("etcd needs an endpoint, such as localhost:2379, and none was given.")
        if (self.user is None) != (self.password is None):
            raise RendezvousParameterError("The options 'user' and 'password' need each other; one is missing.")
        if ":" in (self.user or ""):
            raise RendezvousParameterError("A colon ends a user's name in HTTP; the option 'user' has one in it.")

    @classmethod
    def by_options(
        cls, endpoint: str, options: Mapping[str, Any], *, cert: str, key: str, ca_cert: str = "ca_cert"
    ) -> "Access":
        """Read it from options; those that are missing are unset.

        Args:
            endpoint: One or more ``host:port``, separated by commas (port 2379 if none is given).
            options: Parsed.
            cert: The name of the option for our certificate.
            key: The name of the one for its key.
            ca_cert: The name of the one for who must have signed the servers' certificates.

        Raises:
            RendezvousParameterError: An endpoint, an option or a certificate cannot be used.
        """
        server_name = options.get("server_name")
        return cls(
            parse_endpoints(endpoint, _PORT),
            tls_context(
                protocol=options["protocol"],
                ca_cert=(ca_cert, options[ca_cert]),
                cert=(cert, options[cert]),
                key=(key, options[key]),
                server_name=("server_name", server_name),
            ),
            server_name,
            options.get("user"),
            options.get("password"),
            options.get("read_timeout", _PATIENCE),
            options.get("same_cluster", True),
        )

    @classmethod
    def of_client(cls, client: Any) -> "Access":
        """Read it from an ``etcd.Client`` of python-etcd, which itself is not used. An `Access` stays as it is.

        Raises:
            RendezvousParameterError: It is none, or its settings cannot be used.
        """
        if isinstance(client, Access):
            return client
        try:
            uris = [client.base_uri, *client._machines_cache]
            told = client.http.connection_pool_kw
            user, password = client.username, client.password
        except AttributeError as error:
            raise RendezvousParameterError(
                f"{client!r} is no client of python-etcd: {error}. Give an etcd.Client, or use create_backend."
            ) from error
        parts = [urlsplit(uri) for uri in dict.fromkeys(uris)]
        tls = None
        if parts[0].scheme == "https":
            files = [(name, told.get(name)) for name in ("ca_certs", "cert_file", "key_file")]
            tls = tls_context(protocol="https", ca_cert=files[0], cert=files[1], key=files[2])
        endpoints = tuple(Endpoint(part.hostname or "", part.port or _PORT) for part in parts)
        # Its read_timeout, 60 s by default, is made for long polls: far too long to go on to the next endpoint.
        return cls(endpoints, tls, None, user, password)

    def cluster(self, root: str) -> OneCluster | None:
        """The cluster that answers first, as it is asked about the directory `root`; None: any cluster does."""
        question = Request("GET", Tree(root).everything())
        return OneCluster(question, lambda reply: reply.headers.get("x-etcd-cluster-id")) if self.same_cluster else None

    def client(self, root: str, cluster: OneCluster | None) -> Client:
        """A client for the keys under `root`, in `cluster`; does not connect yet."""
        return Client(
            "etcd",
            self.endpoints,
            lambda reply: check(reply, self.user, root),
            headers=HEADERS,
            login=None if self.password is None else Present.secret(self.password).then(self._login),
            tls=self.tls,
            server_name=self.server_name,
            request_timeout=self.read_timeout,
            cluster=cluster,
            # One that leads looks at heartbeats besides, at those of the nodes and at its own.
            early=4,
        )

    def _login(self, password: str) -> dict[str, str]:
        secret = base64.b64encode(f"{self.user}:{password}".encode()).decode("ascii")
        return {"Authorization": f"Basic {secret}"}
