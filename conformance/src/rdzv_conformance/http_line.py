"""A TCP line to a server that speaks HTTP, which loses replies, breaks, or answers by itself."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

__all__ = ["Line", "answer"]

_METHODS: Final = (b"GET ", b"PUT ", b"POST ", b"DELETE ")


def answer(status: str, body: bytes, *headers: str) -> bytes:
    """An answer of HTTP, such as ``answer("200 OK", b"{}", "Content-Type: application/json")``."""
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


class Line:
    """The line; clients connect to its `endpoint`.

    Args:
        port: Of the server, on this machine; 0: there is none.

    Attributes:
        endpoint: Its own ``host:port``.
        requests: How many requests came.
        loses_replies: Whether it breaks instead of passing a reply on.
        answer: What it answers instead of asking the server.
    """

    def __init__(self, port: int) -> None:
        self.requests = 0
        self.loses_replies = False
        self.answer: bytes | None = None
        self._port = port
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """Break every connection."""
        _hang_up(*self._open)

    def close(self) -> None:
        """Let nobody use it any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
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
                self._start(self._pass_requests, near, far)
                if self._port:
                    self._start(self._pass_replies, near, far)

    def _start(
        self, work: Callable[[socket.socket, socket.socket], None], near: socket.socket, far: socket.socket
    ) -> None:
        thread = threading.Thread(target=work, args=(near, far))
        self._threads.append(thread)
        thread.start()

    def _pass_requests(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(1 << 20):
                begins = data.startswith(_METHODS)
                self.requests += begins
                if self.answer is None:
                    far.sendall(data)
                elif begins:
                    near.sendall(self.answer)
                    break
        _hang_up(near, far)

    def _pass_replies(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(1 << 20):
                if self.loses_replies:
                    break
                near.sendall(data)
        _hang_up(near, far)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
