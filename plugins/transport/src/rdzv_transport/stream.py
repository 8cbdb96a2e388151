"""An answer that does not end, line by line as it comes.

Read from the socket itself, by whichever thread waits for the lines, so that no stream needs a thread of its
own, and a wait can be given up and taken up again. (Python's buffered readers refuse to go on after a timeout.)
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPMessage
from typing import Final, Generic, TypeVar

from rdzv.errors import RendezvousError

from .connection import Connection, Reply
from .sockets import EndpointError

_T = TypeVar("_T")

_SILENCE: Final = 3
"""After how many request timeouts without a word an endpoint is asked whether it lives. (In a process that calls it
more often, it never is.)"""

_MOST_PIECES: Final = 64
"""How many pieces of an answer are read before those lines are given out that are there."""

_LONGEST_HEAD: Final = 1 << 16

_LONGEST_LINE: Final = 1 << 26
"""64 MiB: more than a service says in one line, and less than a machine has."""

_ENDED: Final = "the answer ended"


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
        fail: Callable[[EndpointError], RendezvousError],
        patience: float,
        closing: ExitStack,
    ) -> None:
        """Its request was sent by `connection`.

        Args:
            connection: Of its own.
            understand: Makes something of a line, or of a whole answer that is an error.
            probe: Asks the endpoint for any answer, until that moment; else raises an `EndpointError`.
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
        self._failure: EndpointError | None = None

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
                    self._understand(self._reply(bytes(self._lines.rest)))
                raise self._failure
            return [self._understand(self._reply(line)) for line in lines]
        except EndpointError as failure:
            raise self._fail(failure) from failure

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self._closing.close()

    def _receive(self, deadline: float) -> list[bytes]:
        silence = self._patience * (_SILENCE if self._spoke else 1)
        quiet_until = max(self.opened, self._connection.member.responded_at) + silence
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
                    raise EndpointError("the connection ended", applied=True)
                lines += self._lines.feed(data)
                if self._lines.ended:
                    raise EndpointError(self._lines.ended, applied=True)
        except EndpointError as failure:
            self._failure = failure
        return lines

    def _make_sure(self, quiet_until: float, deadline: float) -> None:
        """Ask an endpoint that was silent for too long whether it lives: a frozen one keeps its connections."""
        try:
            self._probe(min(time.monotonic() + self._patience, deadline))
        except EndpointError:
            # Too little time for an answer proves nothing, but silence adds up from wait to wait.
            if time.monotonic() < deadline or time.monotonic() > quiet_until + self._patience:
                raise

    def _reply(self, body: bytes) -> Reply:
        return Reply(self._lines.status, HTTPMessage(), body)


class Lines:
    """Takes the bytes of one HTTP/1.1 answer as they come, and gives the lines of its body.

    Attributes:
        status: Of the answer; 0 until its head is complete.
        ended: Why nothing more comes of it: it said so, or it is no HTTP; empty while more may come. (It may also
            end with the connection.)
        rest: What follows the last complete line. If the status is not 200, all of the body.
    """

    def __init__(self) -> None:
        self.status = 0
        self.ended = ""
        self.rest = bytearray()
        self._raw = bytearray()
        self._chunked = False
        self._left: int | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes.

        Returns:
            The lines that are complete now; with the end of the answer, also one that no newline ends.
        """
        self._raw += data
        known = len(self.rest)
        try:
            while not self.status:
                if not self._take_head():
                    return []
            if self._chunked:
                self._take_chunks()
            else:
                self._take_body()
            if len(self.rest) > _LONGEST_LINE:
                raise ValueError(f"more than {_LONGEST_LINE} bytes without the end of a line are invalid")
        except ValueError as error:
            self.ended = f"the connection broke: {error}"
        return self._take_lines(known) if self.status == 200 else []

    def _take_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0 and len(self._raw) < _LONGEST_HEAD:
            return False
        first, *fields = bytes(self._raw[: max(end, 0)]).lower().split(b"\r\n")
        _, _, code = first.partition(b" ")
        if not first.startswith(b"http/1.") or not code[:3].isdigit():
            raise ValueError(f"an HTTP status line is expected, not {bytes(self._raw[:80])!r}")
        named = dict(field.split(b":", 1) for field in fields if b":" in field)
        self._chunked = b"chunked" in named.get(b"transfer-encoding", b"")
        if b"content-length" in named:
            self._left = _size(named[b"content-length"], 10)
        del self._raw[: end + 4]
        if not code.startswith(b"1"):  # 100 Continue and its like come before the answer.
            self.status = int(code[:3])
        return True

    def _take_body(self) -> None:
        self.rest += self._raw[: self._left]
        if self._left is not None:
            self._left -= min(self._left, len(self._raw))
            self.ended = "" if self._left else _ENDED
        self._raw.clear()

    def _take_chunks(self) -> None:
        while (end := self._raw.find(b"\r\n", 0, _LONGEST_HEAD)) >= 0:
            start, length = end + 2, _size(self._raw[:end].partition(b";")[0], 16)
            if not length:
                self.ended = _ENDED
            if not length or len(self._raw) < start + length + 2:
                return
            self.rest += self._raw[start : start + length]
            del self._raw[: start + length + 2]
        if len(self._raw) >= _LONGEST_HEAD:
            raise ValueError(f"a chunk without a size is invalid: {bytes(self._raw[:80])!r}")

    def _take_lines(self, known: int) -> list[bytes]:
        """Those that are complete; of what is in `rest`, so many bytes were looked through before."""
        end = len(self.rest) if self.ended == _ENDED else self.rest.rfind(b"\n", known) + 1
        lines = bytes(self.rest[:end]).split(b"\n")
        del self.rest[:end]
        return [line for line in lines if line]


def _size(text: bytes | bytearray, base: int) -> int:
    """Of a body or a chunk, in bytes."""
    if not 0 <= (size := int(text, base)) <= _LONGEST_LINE:
        raise ValueError(f"{size} bytes in one piece are invalid: at most {_LONGEST_LINE}")
    return size
