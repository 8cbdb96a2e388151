"""A line to a server that does to what it carries whatever a test likes."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

PING = 11
PINGED = -2


class Line:
    """A TCP line that loses replies, breaks, or answers by itself.

    Attributes:
        requests: How many requests came, heartbeats not counted; the first of each connection is one.
        loses_replies: Whether it breaks instead of passing a reply on, unless to a heartbeat.
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
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._open):
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open += (near, far)
                for work in (self._pass_requests, self._pass_replies):
                    self._start(work, near, far)

    def _start(
        self, work: Callable[[socket.socket, socket.socket], None], near: socket.socket, far: socket.socket
    ) -> None:
        thread = threading.Thread(target=work, args=(near, far))
        self._threads.append(thread)
        thread.start()

    def _pass_requests(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError, struct.error), near.makefile("rb") as requests:
            while frame := _read_frame(requests.read):
                self.requests += struct.unpack_from("!i", frame, 8)[0] != PING
                if self.answer is None:
                    far.sendall(frame)
                else:
                    near.sendall(self.answer)
        self._hang_up(near, far)

    def _pass_replies(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError, struct.error), far.makefile("rb") as replies:
            while frame := _read_frame(replies.read):
                # The answer to a heartbeat may come before the request whose answer is to be lost.
                if self.loses_replies and struct.unpack_from("!i", frame, 4)[0] != PINGED:
                    break
                near.sendall(frame)
        self._hang_up(near, far)

    @staticmethod
    def _hang_up(*ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _read_frame(read: Callable[[int], bytes]) -> bytes:
    head = read(4)
    return head + read(struct.unpack("!i", head)[0])
