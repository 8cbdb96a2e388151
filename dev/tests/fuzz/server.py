"""A server on this machine that answers whatever a test wants."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from rdzv_core.endpoints import Endpoint

Answer = Callable[[bytes], bytes]
"""Makes an answer of what was received."""


_IDLE = 1.0
"""Seconds without a request after which it hangs up."""


class Server:
    """It answers each piece that it receives, and hangs up when it has no answer.

    Attributes:
        endpoint: Where it listens.
        answer: What it answers. It is asked for each piece that arrives; nothing: it hangs up.
        hangs_up: It does so after each answer.
    """

    def __init__(self) -> None:
        self.answer: Answer = lambda received: b""
        self.hangs_up = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(*self._listener.getsockname()[:2])

    def serve(self) -> None:
        """Answer until it is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(_IDLE)
            while (received := connection.recv(1 << 20)) and (data := self.answer(received)):
                connection.sendall(data)
                if self.hangs_up:
                    return

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def running() -> Iterator[Server]:
    """A server that has a thread of its own."""
    server = Server()
    thread = Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(30)
