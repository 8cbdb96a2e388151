"""An answer that does not end, line by line as it comes.

Read from the socket itself, by whichever thread waits for the lines, so that no stream needs a thread of its
own, and a wait can be given up and taken up again.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final, Generic, TypeVar

from rdzv_core.errors import RendezvousError

from .answer import ENDED, Answer
from .connection import PIECE, Connection, Reply
from .sockets import EndpointError

_T = TypeVar("_T")

_SILENCE: Final = 3
"""After how many request timeouts without a word an endpoint is asked whether it lives. (In a process that calls it
more often, it never is.)"""

_MOST_PIECES: Final = 64
"""How many pieces of an answer are read before those lines are given out that are there."""


class StreamEndedError(Exception):
    """The service has ended an answer, as it may; what came before was received."""


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
        may_end: bool,
        begin: Callable[[Reply], object] | None,
        closing: ExitStack,
    ) -> None:
        """Its request was sent by `connection`.

        Args:
            connection: Of its own.
            understand: Makes something of a line, or of a whole answer that is an error.
            probe: Asks the endpoint for any answer, until that moment; else raises an `EndpointError`.
            fail: Makes the error for the user.
            patience: Seconds that the endpoint may take to answer.
            may_end: Whether the service may end the answer.
            begin: Hears of the head, in an answer without a body, unless it is that of an error.
            closing: Closes the connection, and lets go of what belongs to it.
        """
        self.opened = time.monotonic()
        self._connection = connection
        self._understand = understand
        self._probe = probe
        self._fail = fail
        self._patience = patience
        self._may_end = may_end
        self._begin = begin
        self._closing = closing
        self._lines = Lines()
        self._spoke = False
        self._failure: EndpointError | StreamEndedError | None = None

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Of the answer, if its head has come and is none of an error."""
        answer = self._lines.answer
        return answer.headers if answer.status == 200 else None

    def receive(self, deadline: float) -> list[_T]:
        """The lines that are there, with TLS perhaps not all; if there is none, wait for the first until `deadline`.

        Returns:
            Nothing also if only the head of the answer has come, or a silent endpoint has shown that it lives.

        Raises:
            StreamEndedError: See there.
            RendezvousConnectionError: It has ended or is broken (`RendezvousDeniedError`: and the only endpoint
                refuses us); what came before was received.
            RendezvousError: From the client's `check`, or the stream's `read`.
        """
        try:
            lines = [] if self._failure else self._receive(deadline)
            if self._begin is not None and self.headers is not None:
                begin, self._begin = self._begin, None
                begin(self._reply(b""))
            if self._failure and not lines:
                if self._lines.answer.status not in (0, 200):
                    self._understand(self._reply(bytes(self._lines.answer.rest)))
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
        self._spoke = self._spoke or bool(self._lines.answer.status)
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
                knew = self.headers
                lines += self._lines.feed(data)
                if self._may_end and self._lines.ended == ENDED and self.headers is not None:
                    raise StreamEndedError
                if self._lines.ended:
                    raise EndpointError(self._lines.ended, applied=True)
                if (lines or self.headers is not knew) and len(data) < PIECE:
                    # That was all. With TLS there may be more, which the next call gives out.
                    break
        except (EndpointError, StreamEndedError) as failure:
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
        return Reply(self._lines.answer.status, self._lines.answer.headers, body)


class Lines:
    """Takes the bytes of one answer as they come, and gives the lines of its body.

    Attributes:
        answer: The answer. What follows the last complete line stays in its `rest`; if the status is not 200, all of
            the body.
        ended: Why nothing more comes of it; empty while more may come.
    """

    def __init__(self) -> None:
        self.answer = Answer()
        self.ended = ""

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes.

        Returns:
            The lines that are complete now; with the end of the answer, also one that no newline ends.
        """
        known = len(self.answer.rest)
        self.answer.feed(data)
        self.ended = self.answer.ended
        if self.ended not in ("", ENDED):
            self.ended = f"the connection broke: {self.ended}"
        return self._take_lines(known) if self.answer.status == 200 else []

    def _take_lines(self, known: int) -> list[bytes]:
        """Those that are complete; of what is in `rest`, so many bytes were looked through before."""
        rest = self.answer.rest
        end = len(rest) if self.ended == ENDED else rest.rfind(b"\n", known) + 1
        lines = bytes(rest[:end]).split(b"\n")
        del rest[:end]
        return [line for line in lines if line]
