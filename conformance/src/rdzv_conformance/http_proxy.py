"""A TCP proxy to a server that speaks HTTP, which loses replies, breaks, or answers by itself."""

import socket
from typing import Final

from .proxy import FaultProxy as AnyProxy

_METHODS: Final = (b"GET ", b"PUT ", b"POST ", b"DELETE ")


def answer(status: str, body: bytes, *headers: str) -> bytes:
    """An answer of HTTP, such as ``answer("200 OK", b"{}", "Content-Type: application/json")``."""
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


STRANGE: Final = (
    answer("301 Moved", b"", "Location: http://192.0.2.1/"),
    answer("502 Bad Gateway", b"<html>"),
    b"SSH-2.0-OpenSSH\r\n\r\n",
    b"\0\xff" * 100,
    b"",
)
"""Answers that no service with an API over HTTP gives."""

GATEWAY_ERRORS: Final = (
    ("502", answer("502 Bad Gateway", b"<html>")),
    ("503", answer("503 Service Unavailable", b"<html>")),
    ("504", answer("504 Gateway Time-out", b"<html>")),
)
"""What a gateway on the way answers while the service is away; and what an error says then."""


class FaultProxy(AnyProxy):
    """The fault proxy; see there. It hangs up after an answer of its own."""

    def pass_requests(self, near: socket.socket, far: socket.socket) -> None:
        while data := near.recv(1 << 20):
            begins = data.startswith(_METHODS)
            self.requests += begins
            if self.answer is None:
                far.sendall(data)
            elif begins:
                near.sendall(self.answer)
                break
