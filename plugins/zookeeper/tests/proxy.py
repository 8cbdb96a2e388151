"""A fault proxy to a server, with the faults that a test asks for."""

import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from rdzv_conformance.proxy import FaultProxy as AnyProxy

PING = 11
PINGED = -2


class FaultProxy(AnyProxy):
    """The fault proxy. Heartbeats are no requests, and their replies are not lost; connecting is one."""

    def pass_requests(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(struct.error), near.makefile("rb") as requests:
            while frame := _read_frame(requests.read):
                self.requests += struct.unpack_from("!i", frame, 8)[0] != PING
                if self.answer is None:
                    far.sendall(frame)
                else:
                    near.sendall(self.answer)

    def pass_replies(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(struct.error), far.makefile("rb") as replies:
            while frame := _read_frame(replies.read):
                # The answer to a heartbeat may come before the request whose answer is to be lost.
                if self.loses_replies and struct.unpack_from("!i", frame, 4)[0] != PINGED:
                    break
                near.sendall(frame)


def _read_frame(read: Callable[[int], bytes]) -> bytes:
    head = read(4)
    return head + read(struct.unpack("!i", head)[0])
