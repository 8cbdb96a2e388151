"""The services that all are measured on, and what they say it cost them."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdzv_conformance.servers import SERVERS, ClusterMember, EtcdServer, LocalService, TcpStoreServer

from .traffic import traffic

__all__ = ["Service", "start"]


@dataclass(frozen=True)
class Service:
    """A service that runs.

    Attributes:
        endpoint: Where.
        server: Its server, if it has one.
        own: The ends of its own connections to itself: etcd's JSON gateway is a client of etcd.
    """

    endpoint: str
    server: Any = None
    own: frozenset[bytes] = frozenset()

    def calls(self) -> int | None:
        """How many calls its clients have made since it started; None if it does not count them."""
        return self.server.calls().total() if isinstance(self.server, ClusterMember) else None

    def carried(self) -> dict[bytes, int] | None:
        """The bytes on its clients' connections, as `traffic` tells; None if there is no network, or nothing tells."""
        found = _traffic(self.server)
        return None if found is None else {ends: carried for ends, carried in found.items() if ends not in self.own}

    def cpu(self) -> float | None:
        """Seconds of CPU that its server has taken; None if it has none."""
        if self.server is None:
            return None
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _TcpStore(TcpStoreServer):
    """Reached by every address of this machine, so that nodes may each use another one."""

    host = "0.0.0.0"

    def get_endpoint(self) -> str:
        return f"127.0.0.1:{self.get_port()}"


@contextmanager
def start(backend: str) -> Iterator[Service]:
    """Start the service that a backend needs.

    Raises:
        ServiceMissingError: It is not on this machine; the message says how to get it.
    """
    if backend == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield Service(str(Path(folder, "rdzv.db")))
        return
    servers: dict[str, Callable[[], LocalService]] = {
        "c10d": _TcpStore,
        "etcd-v2": lambda: EtcdServer(enable_v2=True),
        **SERVERS,
    }
    with servers[backend]() as server:
        yield Service(server.get_endpoint(), server, frozenset(_traffic(server) or ()))


def _traffic(server: Any) -> dict[bytes, int] | None:
    try:
        return traffic(server.get_port()) if server else None
    except OSError:
        return None
