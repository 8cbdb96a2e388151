"""Real Consul servers on this machine: one, or a cluster."""

import json
import re
import resource
import shutil
import urllib.error
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..deadlines import eventually
from .cluster import ClusterMember, LocalCluster
from .consul_client import ConsulClient
from .http_client import ServerTls
from .requirement import ServiceMissingError, named_program

_BINARY_VARIABLE = "RDZV_CONSUL_BINARY"
_SERVED = re.compile(r'^consul_(?:http_(\w+)_count|api_http_count\{method="(\w+)",path="(\w+)"\}) (\S+)$', re.MULTILINE)
_BEGUN = re.compile(r"^consul_rpc_query (\S+)$", re.MULTILINE)
_OUR_OWN = ("agent/metrics", "status/leader")
"""What this file asks of these servers: it is not counted."""


class ConsulTls(ServerTls):
    """The certificates of a Consul server."""

    def settings(self) -> dict[str, Any]:
        """The server's settings."""
        files = {"cert_file": str(self.cert), "key_file": str(self.key), "ca_file": str(self.ca)}
        return files | {"verify_incoming_https": self.client_cert is not None}


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
    """

    program = "consul"
    port_count = 4
    settings_elsewhere = ("CONSUL_",)

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        tls: ConsulTls | None = None,
    ) -> None:
        super().__init__(data_dir)
        self.tls = tls
        self.token: str | None = None
        """The ACL token that `get_client` and `calls` use; see `bootstrap_acl`."""
        self._settings = dict(settings or {})

    @classmethod
    def find_binary(cls) -> Path:
        """Where Consul is on this machine.

        Raises:
            ServiceMissingError: Nowhere; the message says how to get it.
        """
        found = named_program(_BINARY_VARIABLE) or shutil.which("consul")
        if not found:
            raise ServiceMissingError(
                "No Consul on this machine. Install it, so that `consul` is in PATH (no root needed: it is one file), "
                f"or name the program in {_BINARY_VARIABLE}."
            )
        return Path(found)

    def get_client(self) -> ConsulClient:
        """A small client, to prepare and check what a test needs beside its backend."""
        scheme, context = ("https", self.tls.client_context()) if self.tls else ("http", None)
        return ConsulClient(f"{scheme}://{self.get_endpoint()}", context, token=self.token)

    def bootstrap_acl(self) -> str:
        """Make the token that may do everything, where the settings enable ACLs; once in a server's life."""
        tokens: list[str] = []

        def make() -> bool:
            try:
                tokens.append(self.get_client().call("PUT", "acl/bootstrap")["SecretID"])
            except urllib.error.HTTPError as error:
                with error:
                    # A busy machine's leader has lost its office: there is another in a moment.
                    if error.code != 500:
                        raise
            return bool(tokens)

        eventually(make, "Consul to make its first token")
        (self.token,) = tokens
        return self.token

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

    def _leads(self) -> bool:
        return bool(self._observer().call("GET", "status/leader") == f"{self.host}:{self._ports[2]}")

    def _metrics(self) -> str:
        return self._observer().request("GET", "agent/metrics?format=prometheus").decode()

    def _observer(self) -> ConsulClient:
        """A client of the plain HTTP port, which is the server's only one unless it speaks TLS."""
        port = self._ports[1] if self.tls else self._ports[0]
        return ConsulClient(f"http://{self.host}:{port}", token=self.token, timeout=1)

    def _peer(self) -> str:
        return f"{self.host}:{self._ports[3]}"

    def _command(self, data_dir: Path) -> Sequence[str | Path]:
        first, second, server, gossip = self._ports
        ports = {"http": second, "https": first} if self.tls else {"http": first}
        settings = {
            "server": True,
            "bootstrap_expect": len(self._members),
            "retry_join": [member._peer() for member in self._members if member is not self],
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

    def _is_ready(self) -> bool:
        try:
            self._observer().request("GET", "kv/ready?consistent")
        except urllib.error.HTTPError as error:
            with error:
                # No such key, or no permission to read it: its leader says so.
                return error.code in (403, 404)
        return True


class ConsulCluster(LocalCluster[ConsulServer]):
    """A cluster of real Consul servers."""

    member_type = ConsulServer


def _open_files() -> int:
    """How many files a process may open here; Consul refuses to start if its other limits cannot be kept."""
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 10_000)
