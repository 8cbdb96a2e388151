"""Real Consul servers on this machine: one, or a cluster."""

import contextlib
import json
import os
import re
import resource
import shutil
import ssl
import urllib.error
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cluster import ClusterMember, LocalCluster
from .consul_client import ConsulClient
from .requirement import ServiceMissingError

__all__ = ["ConsulCluster", "ConsulServer", "ConsulTls"]

_BINARY_VARIABLE = "RDZV_CONSUL_BINARY"
_SERVED = re.compile(r'^consul_(?:http_(\w+)_count|api_http_count\{method="(\w+)",path="(\w+)"\}) (\S+)$', re.MULTILINE)
_BEGUN = re.compile(r"^consul_rpc_query (\S+)$", re.MULTILINE)
_OUR_OWN = ("agent/metrics", "status/leader")
"""What these servers are asked by this file, which nobody wants to count."""


@dataclass(frozen=True)
class ConsulTls:
    """The certificates of a Consul server that speaks TLS to its clients, as paths of PEM files.

    Attributes:
        cert: The server's certificate; it must name ``127.0.0.1``.
        key: The server's private key.
        ca: Who signed the certificates.
        client_cert: A client's certificate; with it the server demands one of everybody.
        client_key: Its private key.
    """

    cert: str | Path
    key: str | Path
    ca: str | Path
    client_cert: str | Path | None = None
    client_key: str | Path | None = None

    def settings(self) -> dict[str, Any]:
        """The server's settings."""
        files = {"cert_file": str(self.cert), "key_file": str(self.key), "ca_file": str(self.ca)}
        return files | {"verify_incoming_https": self.client_cert is not None}

    def client_context(self) -> ssl.SSLContext:
        """The context with which a client connects."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.client_cert:
            context.load_cert_chain(str(self.client_cert), str(self.client_key) if self.client_key else None)
        return context


class ConsulServer(ClusterMember):
    """A real Consul server on a free port of 127.0.0.1.

    ::

        with ConsulServer() as server:
            backend = connect_to(server.get_endpoint())

    The program comes from the variable ``RDZV_CONSUL_BINARY``, else from ``PATH``. The process never outlives
    its owner, not even one that is killed with -9. What is written survives the server's crash.

    Args:
        data_dir: Where Consul keeps its data, and leaves it. None: a temporary folder, removed by `stop`.
        settings: More of Consul's settings, by the names of its configuration files, such as
            ``{"acl": {"enabled": True, "default_policy": "deny"}}``.
        tls: Speak TLS to clients.
        name: The member's name in its cluster.
    """

    program = "consul"
    port_count = 4

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        tls: ConsulTls | None = None,
        name: str = "default",
    ) -> None:
        super().__init__(data_dir)
        self.name = name
        self.tls = tls
        self.token: str | None = None
        """The ACL token that `get_client` and `calls` use; see `bootstrap_acl`."""
        self._settings = dict(settings or {})
        self._others: list[str] = []

    @classmethod
    def find_binary(cls) -> Path:
        """Where Consul is on this machine.

        Raises:
            ServiceMissingError: Nowhere; the message says how to get it.
        """
        named = os.environ.get(_BINARY_VARIABLE)
        found = named or shutil.which("consul")
        if named and not os.access(named, os.X_OK):
            raise ServiceMissingError(f"{_BINARY_VARIABLE} names {named!r}, which is not a program.")
        if not found:
            raise ServiceMissingError(
                "No Consul on this machine. Install it, so that `consul` is in PATH (no root needed: it is one file), "
                f"or name the program in {_BINARY_VARIABLE}."
            )
        return Path(found)

    def get_host(self) -> str:
        """The address the server listens on."""
        return self.host

    def get_port(self) -> int:
        """The port the server listens on, or -1 if it was not started."""
        return self._ports[0] if self._ports else -1

    def get_endpoint(self) -> str:
        """The server's ``host:port``."""
        return f"{self.host}:{self.get_port()}"

    def get_client(self) -> ConsulClient:
        """A small client, to prepare and check what a test needs beside its backend."""
        scheme, context = ("https", self.tls.client_context()) if self.tls else ("http", None)
        return ConsulClient(f"{scheme}://{self.get_endpoint()}", context, token=self.token)

    def bootstrap_acl(self) -> str:
        """Make the token that may do everything, where the settings enable ACLs; once in a server's life."""
        self.token = str(self.get_client().call("PUT", "acl/bootstrap")["SecretID"])
        return self.token

    def stop(self) -> None:
        """Stop the server and remove its temporary files. Stopping twice is fine."""
        if self._wanted_data_dir is None and self.is_running():
            # Nobody needs its data any more, and asked politely it takes half a second.
            self.kill()
        super().stop()

    def calls(self) -> Counter[str]:
        """How many calls, such as ``GET kv`` or ``PUT txn``, the server has answered since its start.

        Two of them can be subtracted. A blocking query counts when it is answered.

        Raises:
            OSError: The server does not answer.
        """
        served = Counter[str]()
        for joined, method, path, count in _SERVED.findall(self._metrics()):
            name = f"{method}_{path}" if method else joined
            method, _, path = name.partition("_v1_")
            path = path.strip("_").replace("_", "/")
            if path not in _OUR_OWN:
                served[f"{method} {path}"] += int(float(count))
        return +served

    def queries_begun(self) -> int:
        """How many times the server has begun to answer a query since its start: as `calls`, but at the beginning.

        A few are its own, and a blocking query counts again whenever it looks whether it may be answered.

        Raises:
            OSError: The server does not answer.
        """
        return sum(int(float(count)) for count in _BEGUN.findall(self._metrics()))

    def is_leader(self) -> bool:
        """Whether this member leads its cluster, as far as it knows; False if it does not answer."""
        try:
            return bool(self._observer().call("GET", "status/leader") == f"{self.host}:{self._ports[2]}")
        except OSError:
            return False

    def _metrics(self) -> str:
        return self._observer().request("GET", "agent/metrics?format=prometheus").decode()

    def _observer(self) -> ConsulClient:
        """A client of the plain HTTP port, which is the server's only one unless it speaks TLS."""
        port = self._ports[1] if self.tls else self._ports[0]
        return ConsulClient(f"http://{self.host}:{port}", token=self.token, timeout=1)

    def _peer(self) -> str:
        """Where the other members of the cluster find this one."""
        return f"{self.host}:{self._ports[3]}"

    def _command(self, data_dir: Path) -> Sequence[str | Path]:
        first, second, server, gossip = self._ports
        ports = {"http": second, "https": first} if self.tls else {"http": first}
        settings = {
            "server": True,
            "bootstrap_expect": 1 + len(self._others),
            "retry_join": self._others,
            "retry_interval": "1s",
            "node_name": self.name,
            "data_dir": str(data_dir),
            "bind_addr": self.host,
            "client_addr": self.host,
            "ports": ports | {"server": server, "serf_lan": gossip, "serf_wan": -1, "dns": -1, "grpc": -1},
            # Elections within seconds, as Consul's own guide has it for production.
            "performance": {"raft_multiplier": 1},
            # Many nodes on one machine share its address; by default the 201st connection would be dropped.
            "limits": {"http_max_conns_per_client": _open_files() - 100},
            "telemetry": {"prometheus_retention_time": "24h", "disable_hostname": True},
            "disable_update_check": True,
            **(self.tls.settings() if self.tls else {}),
            **self._settings,
        }
        file = data_dir / "settings.json"
        file.write_text(json.dumps(settings))
        return [self.find_binary(), "agent", f"-config-file={file}"]

    def _environment(self) -> Mapping[str, str]:
        # The user's own settings are not for this server.
        return {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_")}

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            try:
                self._observer().request("GET", "kv/ready?consistent")
            except urllib.error.HTTPError as error:
                with error:
                    # No such key, or no permission to read it: its leader says so.
                    return error.code in (403, 404)
            return True
        return False


class ConsulCluster(LocalCluster[ConsulServer]):
    """A cluster of real Consul servers.

    Args:
        size: How many; 3 survive the loss of one.
        settings: More of Consul's settings for each; see `ConsulServer`.
        tls: Speak TLS to clients.
    """

    def __init__(
        self, size: int = 3, *, settings: Mapping[str, Any] | None = None, tls: ConsulTls | None = None
    ) -> None:
        super().__init__([ConsulServer(settings=settings, tls=tls, name=f"member{n}") for n in range(size)])

    def _introduce(self) -> None:
        for member in self.members:
            member._others = [other._peer() for other in self.members if other is not member]


def _open_files() -> int:
    """How many files a process may open here; Consul refuses to start if its other limits cannot be kept."""
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 10_000)
