"""One answer that does not end: JSON messages, line by line, as they arrive.

Read from the socket itself, by whichever thread waits for the messages, so that no stream needs a
thread of its own, and a wait can be given up and taken up again. (Python's buffered readers refuse
to go on after a timeout.)
"""

import ssl
import time
from typing import Any, Final

from .failures import AttemptError, NoReplyError, parse_reply, tls_failure
from .transport import Member, Transport

__all__ = ["HttpLines", "Stream"]

_PIECE: Final = 65536
_MOST_PIECES: Final = 64


class HttpLines:
    """Takes the bytes of one HTTP/1.1 answer as they come, and gives the lines of its body.

    Attributes:
        status: Of the answer; 0 until its head is complete.
        rest: What follows the last complete line. If the status is not 200, all of the body.
    """

    def __init__(self) -> None:
        self.status = 0
        self.rest = b""
        self._raw = bytearray()
        self._chunked = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes.

        Returns:
            The lines that are complete now.

        Raises:
            ValueError: This is no HTTP.
        """
        self._raw += data
        if not self.status and not self._take_head():
            return []
        self.rest += self._take_body()
        if self.status != 200:
            return []
        *lines, self.rest = self.rest.split(b"\n")
        return [line for line in lines if line]

    def _take_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *fields = bytes(self._raw[:end]).lower().split(b"\r\n")
        if not first.startswith(b"http/1."):
            raise ValueError(f"an HTTP status line is expected, not {first[:80]!r}")
        self.status = int(first.split()[1])
        self._chunked = any(b"chunked" in field for field in fields if field.startswith(b"transfer-encoding:"))
        del self._raw[: end + 4]
        return True

    def _take_body(self) -> bytes:
        if not self._chunked:
            body = bytes(self._raw)
            self._raw.clear()
            return body
        body = b""
        while (end := self._raw.find(b"\r\n")) >= 0:
            start, length = end + 2, int(self._raw[:end].partition(b";")[0], 16)
            if not length or len(self._raw) < start + length + 2:
                break
            body += self._raw[start : start + length]
            del self._raw[: start + length + 2]
        return body


class Stream:
    """An open answer; its user closes it. One thread at a time may receive.

    Attributes:
        member: Who answers.
        token: The login with which it was opened.
        opened: When, on the monotonic clock.
    """

    def __init__(
        self, transport: Transport, member: Member, path: str, data: bytes, *, token: str, timeout: float
    ) -> None:
        """Connect, and send the request; the answer may come later.

        Raises:
            AttemptError: It could not be sent within `timeout` seconds.
        """
        self.member = member
        self.token = token
        self._transport = transport
        self._lines = HttpLines()
        self._failure: AttemptError | None = None
        self._sock = transport.connect(member.endpoint, timeout)
        self.opened = time.monotonic()
        try:
            self._sock.sendall(_request(member.host, path, data, token))
        except OSError as error:
            self.close()
            raise _broken(error) from error

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """All messages that are there; if there is none, wait up to `timeout` seconds for the first.

        Raises:
            AttemptError: The stream has ended or is broken; everything before that was received.
            RefusedError: etcd answered with an error.
        """
        lines = [] if self._failure else self._read(time.monotonic() + timeout)
        if self._failure and not lines:
            if self._lines.status not in (0, 200):
                parse_reply(self._lines.status, self._lines.rest)
            raise self._failure
        return [parse_reply(200, line) for line in lines]

    def interrupt(self) -> None:
        """Make the thread that receives, now or later, find the stream ended. From any thread."""
        self._transport.interrupt(self._sock)

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self._transport.disconnect(self._sock)

    def _read(self, deadline: float) -> list[bytes]:
        lines: list[bytes] = []
        try:
            for _ in range(_MOST_PIECES):
                self._sock.settimeout(0.0 if lines else max(0.0, deadline - time.monotonic()))
                data = self._sock.recv(_PIECE)
                if not data:
                    self._failure = NoReplyError("the connection ended")
                    break
                self.member.heard = time.monotonic()
                lines += self._lines.feed(data)
        except (BlockingIOError, ssl.SSLWantReadError, TimeoutError):
            pass  # that is all for now
        except (OSError, ValueError) as error:
            self._failure = _broken(error)
        return lines


def _broken(error: OSError | ValueError) -> AttemptError:
    return tls_failure(error) if isinstance(error, ssl.SSLError) else NoReplyError(f"the connection broke: {error}")


def _request(host: str, path: str, data: bytes, token: str) -> bytes:
    fields = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        # A member that lost the others would otherwise stay silent for ever.
        "Grpc-Metadata-hasleader: true",
    ]
    if token:
        fields.append(f"Authorization: {token}")
    return "\r\n".join([*fields, "", ""]).encode("latin-1") + data
