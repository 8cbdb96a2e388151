"""An answer that does not end, line by line as it comes.

Read from the socket itself, by whichever thread waits for the lines, so that no stream needs a thread of its
own, and a wait can be given up and taken up again. (Python's buffered readers refuse to go on after a timeout.)
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPMessage
from typing import Final, Generic, TypeVar

from ..errors import RendezvousError
from .connection import AttemptError, Connection, Reply

__all__ = ["Lines", "Stream"]

_T = TypeVar("_T")

_SILENCE: Final = 3
"""After how many request timeouts without a word an endpoint is asked whether it lives. (In a process that calls it
more often, it never is.)"""

_MOST_PIECES: Final = 64
"""How many pieces of an answer are read before those lines are given out that are there."""

_LONGEST_HEAD: Final = 1 << 16


class Stream(Generic[_T]):
    """An answer in progress, made by `Client.open_stream`; its user closes it. One thread at a time may receive.

    Attributes:
        opened: When, on the monotonic clock.
    """

    def __init__(
        self,
        connection: Connection,
        understand: Callable[[Reply], _T],
        *,
        probe: Callable[[float], None],
        fail: Callable[[AttemptError], RendezvousError],
        patience: float,
        closing: ExitStack,
    ) -> None:
        """Its request was sent by `connection`.

        Args:
            connection: Of its own.
            understand: Makes something of a line, or of a whole answer that is an error.
            probe: Asks the endpoint for any sign of life, until then; else raises an `AttemptError`.
            fail: Makes the error for the user.
            patience: Seconds that the endpoint may take to answer.
            closing: Closes the connection, and lets go of what belongs to it.
        """
        self.opened = time.monotonic()
        self._connection = connection
        self._understand = understand
        self._probe = probe
        self._fail = fail
        self._patience = patience
        self._closing = closing
        self._lines = Lines()
        self._spoke = False
        self._failure: AttemptError | None = None

    def receive(self, deadline: float) -> list[_T]:
        """All lines that are there; if there is none, wait for the first until `deadline`.

        Returns:
            Nothing also if a silent endpoint has only shown that it lives.

        Raises:
            RendezvousConnectionError: It has ended or is broken (`RendezvousDeniedError`: and the only endpoint
                refuses us); what came before was received.
            RendezvousError: From the client's `check`, or the stream's `read`.
        """
        try:
            lines = [] if self._failure else self._receive(deadline)
            if self._failure and not lines:
                if self._lines.status not in (0, 200):
                    self._understand(self._reply(self._lines.rest))
                raise self._failure
            return [self._understand(self._reply(line)) for line in lines]
        except AttemptError as failure:
            raise self._fail(failure) from failure

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self._closing.close()

    def _receive(self, deadline: float) -> list[bytes]:
        silence = self._patience * (_SILENCE if self._spoke else 1)
        quiet_until = max(self.opened, self._connection.member.heard) + silence
        lines = self._read(min(quiet_until, deadline))
        self._spoke = self._spoke or bool(lines)
        if not lines and not self._failure and quiet_until <= time.monotonic() < deadline:
            self._make_sure(quiet_until, deadline)
        return lines

    def _read(self, deadline: float) -> list[bytes]:
        lines: list[bytes] = []
        try:
            for _ in range(_MOST_PIECES):
                data = self._connection.receive(0.0 if lines else deadline)
                if data is None:
                    break
                if not data:
                    raise AttemptError("the connection ended", applied=True)
                lines += self._lines.feed(data)
                if self._lines.ended:
                    raise AttemptError("the answer ended", applied=True)
        except AttemptError as failure:
            self._failure = failure
        except ValueError as error:
            self._failure = AttemptError(f"the connection broke: {error}", applied=True)
        return lines

    def _make_sure(self, quiet_until: float, deadline: float) -> None:
        """Ask an endpoint that was silent for too long whether it lives: a frozen one keeps its connections."""
        try:
            self._probe(min(time.monotonic() + self._patience, deadline))
        except AttemptError:
            # Too little time for an answer proves nothing, but silence adds up from wait to wait.
            if time.monotonic() < deadline or time.monotonic() > quiet_until + self._patience:
                raise

    def _reply(self, body: bytes) -> Reply:
        return Reply(self._lines.status, HTTPMessage(), body)


class Lines:
    """Takes the bytes of one HTTP/1.1 answer as they come, and gives the lines of its body.

    Attributes:
        status: Of the answer; 0 until its head is complete.
        ended: Whether the answer says that this was all of it. (It may also end with the connection.)
        rest: What follows the last complete line. If the status is not 200, all of the body.
    """

    def __init__(self) -> None:
        self.status = 0
        self.ended = False
        self.rest = b""
        self._raw = bytearray()
        self._chunked = False
        self._left: int | None = None

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
        if end < 0 and len(self._raw) < _LONGEST_HEAD:
            return False
        first, *fields = bytes(self._raw[: max(end, 0)]).lower().split(b"\r\n")
        if not first.startswith(b"http/1."):
            raise ValueError(f"an HTTP status line is expected, not {bytes(self._raw[:80])!r}")
        _, _, code = first.partition(b" ")
        self.status = int(code[:3])
        named = dict(field.split(b":", 1) for field in fields if b":" in field)
        self._chunked = b"chunked" in named.get(b"transfer-encoding", b"")
        self._left = int(named[b"content-length"]) if b"content-length" in named else None
        del self._raw[: end + 4]
        return True

    def _take_body(self) -> bytes:
        if not self._chunked:
            body = bytes(self._raw[: self._left])
            self._raw.clear()
            if self._left is not None:
                self._left -= len(body)
                self.ended = not self._left
            return body
        body = b""
        while (end := self._raw.find(b"\r\n")) >= 0:
            start, length = end + 2, int(self._raw[:end].partition(b";")[0], 16)
            if length < 0:
                raise ValueError(f"a chunk of {length} bytes is invalid")
            self.ended = not length
            if self.ended or len(self._raw) < start + length + 2:
                break
            body += self._raw[start : start + length]
            del self._raw[: start + length + 2]
        return body
