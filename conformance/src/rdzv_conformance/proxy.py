"""A TCP proxy to a server, which loses replies, breaks, or answers by itself; what a request is, its subclasses
know."""

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from rdzv.endpoints import Endpoint

__all__ = ["FaultProxy"]

_FIN_WAIT1: Final = 4
"""The state in Linux' ``tcp_info`` of an end that has hung up, which its other end has not acknowledged."""


class FaultProxy(ABC):
    """The fault proxy; clients connect to its `endpoint`.

    Args:
        port: Of the server, at 127.0.0.1; 0: there is none.
        host: The address of this machine at which clients connect.

    Attributes:
        endpoint: Its own ``host:port``.
        behind: The server's.
        requests: How many requests came.
        loses_replies: Whether it breaks instead of passing a reply on.
        answer: What it answers instead of asking the server.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.requests = 0
        self.loses_replies = False
        self.answer: bytes | None = None
        self.behind = f"127.0.0.1:{port}"
        self._port = port
        self._open: list[socket.socket] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.endpoint = str(Endpoint(host, self._listener.getsockname()[1]))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @abstractmethod
    def pass_requests(self, near: socket.socket, far: socket.socket) -> None:
        """Pass on, count or answer what comes from a client, until it or the server hangs up."""

    def pass_replies(self, near: socket.socket, far: socket.socket) -> None:
        """Pass on what comes from the server, until it hangs up or a reply is to be lost."""
        while data := far.recv(1 << 20):
            if self.loses_replies:
                break
            near.sendall(data)

    def disconnect(self) -> None:
        """Break every connection, and return when the other ends have heard of it."""
        _hang_up(*self._open)
        deadline = time.monotonic() + 1
        while any(map(_is_unheard, self._open)) and time.monotonic() < deadline:
            time.sleep(0.001)

    def close(self) -> None:
        """Let nobody use it any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.disconnect()
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._open):
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port)) if self._port else socket.socket()
                self._open += (near, far)
                self._start(self.pass_requests, near, far)
                if self._port:
                    self._start(self.pass_replies, near, far)

    def _start(
        self, work: Callable[[socket.socket, socket.socket], None], near: socket.socket, far: socket.socket
    ) -> None:
        def run() -> None:
            with suppress(OSError):
                work(near, far)
            _hang_up(near, far)

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()


def _is_unheard(end: socket.socket) -> bool:
    """Whether the other end has not yet acknowledged that this one hung up."""
    try:
        return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _FIN_WAIT1
    except (OSError, AttributeError):
        # It is closed, or this system does not tell.
        return False


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
