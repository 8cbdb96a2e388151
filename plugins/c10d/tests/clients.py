"""What the tests do with clients, again and again."""

import signal
import socket
from contextlib import suppress
from typing import Any, Protocol

from rdzv_conformance.processes import Link, Processes, Worker
from rdzv_conformance.servers import free_ports
from rdzv_core.parameters import RendezvousParameters

from rdzv_c10d import C10dRendezvousBackend, create_backend
from rdzv_c10d.store import stores

CALL = 10.0


class ForkedStore:
    """A TCPStore in a process of its own, made by a fork: torch is imported already.

    What it has that `TcpStoreServer` has, too, does the same.
    """

    def __init__(self, processes: Processes) -> None:
        (port,) = free_ports(1)
        self.endpoint = f"127.0.0.1:{port}"
        self._processes = processes
        self._process: Worker
        self.restart()

    def get_endpoint(self) -> str:
        """The server's ``host:port``."""
        return self.endpoint

    def restart(self) -> None:
        """Serve an empty store, again on the same port."""
        host, _, port = self.endpoint.partition(":")

        def serve(link: Link) -> None:
            listener = socket.create_server((host, int(port)), backlog=100)
            store = stores().TCPStore(
                host, int(port), is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
            link.send(store.port)
            signal.pause()

        self._process = self._processes.fork(serve)
        self._process.receive()

    def pause(self) -> None:
        """Freeze it: its connections stay open, and nothing answers."""
        self._process.pause()

    def resume(self) -> None:
        """Let it go on."""
        self._process.resume()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    terminate = kill


def is_served(endpoint: str) -> bool:
    """Whether a process listens there."""
    host, _, port = endpoint.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


class Connect(Protocol):
    """Makes clients, and closes them in the end."""

    def __call__(self, endpoint: str, run_id: str = "run", **options: Any) -> C10dRendezvousBackend: ...


def apart(connect: Connect, server: ForkedStore) -> C10dRendezvousBackend:
    """A client that shares nothing with those of `connect`."""
    return connect(server.endpoint, is_host=None)


def tcp_client(endpoint: str, run_id: str, **options: Any) -> C10dRendezvousBackend:
    """A client of the TCPStore at an endpoint, which does not serve it unless `options` say so."""
    # An option that is None is one that is not given.
    given = {name: value for name, value in {"is_host": False, "linger": 10, **options}.items() if value is not None}
    backend, _ = create_backend(RendezvousParameters("c10d", endpoint, run_id, 1, 1, **given))
    return backend
