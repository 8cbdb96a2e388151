"""One connection to an HTTP service, and what goes over it."""

import contextlib
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rdzv_core.endpoints import Endpoint

from .answer import ENDED, Answer
from .failover import Member
from .sockets import EndpointError, TimedSocket

PIECE: Final = 1 << 16
"""Bytes of an answer that are received at once, at most."""


class ResponseTimeoutError(EndpointError):
    """The request was sent, and no answer came in time."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a service is asked.

    Attributes:
        method: Of HTTP.
        target: Path and query, quoted.
        body: What is sent with it.
        repeatable: Whether it may be sent to another endpoint though it may have been applied already.
        headers: Sent with it, besides those of the client.
    """

    method: str
    target: str
    body: bytes | None = None
    repeatable: bool = True
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; of one that does not end, a line. The names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The beginning of the body, for messages."""
        return self.body[:200].decode("utf-8", "replace").strip()


class Connection:
    """One connection to a member, for one request at a time.

    Attributes:
        sock: What it goes over. From any thread, closing this ends it for the thread that uses it now.
        member: Who is at its other end.
        headers: Sent with every request.
        is_persistent: Whether another request may follow the last one.
    """

    def __init__(self, sock: TimedSocket, member: Member, headers: Mapping[str, str]) -> None:
        self.sock = sock
        self.member = member
        host = str(Endpoint(member.name, member.endpoint.port))
        self.headers = {"Host": host, "Accept-Encoding": "identity", **headers}
        self.is_persistent = True
        self._answer = Answer()

    def exchange(self, request: Request, deadline: float) -> Reply:
        """Send a request and receive its answer.

        Raises:
            EndpointError: There was no answer until `deadline`; the connection is closed.
        """
        began = time.monotonic()
        with _ClosedByFailure(self):
            self._ask(request, deadline)
            if (reply := self._finish(deadline)) is None:
                raise TimeoutError
            self.member.took = time.monotonic() - began
            return reply

    def ask(self, request: Request, deadline: float) -> None:
        """Send a request whose answer is received by `finish`.

        Raises:
            EndpointError: It could not be sent until `deadline`; the connection is closed.
        """
        with _ClosedByFailure(self):
            self._ask(request, deadline)

    def finish(self, deadline: float) -> Reply | None:
        """The answer to what was asked; None if it is not complete by `deadline`: what has come of it is kept.

        Raises:
            EndpointError: The connection broke, and is closed.
        """
        with _ClosedByFailure(self):
            return self._finish(deadline)

    def _ask(self, request: Request, deadline: float) -> None:
        self.is_persistent = False
        self._answer = Answer()
        self._send(request, {}, deadline)

    def _finish(self, deadline: float) -> Reply | None:
        answer = self._answer
        while not answer.ended:
            data = self.sock.receive(deadline, PIECE)
            if data is None:
                return None
            if data:
                answer.feed(data)
            else:
                answer.end()
                if not answer.ended:
                    raise ConnectionResetError("it ended in the middle of an answer" if answer.status else "it ended")
            if not answer.ended and time.monotonic() >= deadline:
                return None
        if answer.ended != ENDED:
            raise ValueError(answer.ended)
        self.member.responded_at = time.monotonic()
        self.is_persistent = answer.is_persistent
        return Reply(answer.status, answer.headers, bytes(answer.rest))

    def send(self, request: Request, deadline: float) -> None:
        """Send a request whose answer is to be received piece by piece; nothing else is sent after it.

        Raises:
            EndpointError: It could not be sent until `deadline`; the connection is closed.
        """
        with _ClosedByFailure(self):
            self._send(request, {"Connection": "close"}, deadline)

    def receive(self, deadline: float) -> bytes | None:
        """The bytes of an answer that are there, its head too; if there are none, wait for them until `deadline`.

        Returns:
            None if none came; nothing if the other end has ended the connection.

        Raises:
            EndpointError: The connection broke, and is closed.
        """
        with _ClosedByFailure(self):
            data = self.sock.receive(deadline, PIECE)
            if data is not None:
                self.member.responded_at = time.monotonic()
            return data

    def close(self) -> None:
        """Close it. Closing twice is fine."""
        self.sock.close()

    def _send(self, request: Request, headers: dict[str, str], deadline: float) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            # A server that refuses the client, or a request that is too large, answers and hangs up during the send.
            self.sock.send(_bytes(request, self.headers | headers), deadline)

    def close_by(self, error: OSError | ValueError, began: float) -> EndpointError:
        """Close it, since what has begun at that moment has failed; returns what that means for the request."""
        self.close()
        if isinstance(error, TimeoutError):
            return ResponseTimeoutError(f"no answer within {time.monotonic() - began:.1f} s", applied=True)
        if isinstance(error, ssl.SSLError):
            return self.sock.explain(error)
        return EndpointError(f"the connection broke: {error!r}{self._hint()}", applied=True)

    def _hint(self) -> str:
        """What may be wrong if an endpoint hangs up without ever having said anything."""
        if self.member.responded_at:
            return ""
        if self.sock.has_tls:
            return "; if it demands a certificate, give it one"
        return "; if it speaks TLS, set protocol=https"


class _ClosedByFailure:
    """Closes a connection if what is within this fails, and says what the failure means for the request."""

    # No generator: all that a connection does is in it, several times in each call.
    __slots__ = ("_began", "_connection")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._began = time.monotonic()

    def __enter__(self) -> None:
        """Nothing has failed yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | ValueError):
            raise self._connection.close_by(error, self._began) from error
        if error is not None:
            # What was interrupted is not gone on with.
            self._connection.close()


def _bytes(request: Request, headers: Mapping[str, str]) -> bytes:
    """A request as it is sent.

    Raises:
        ValueError: A header, or the target, would end its line.
    """
    named = {**headers, **request.headers}
    if request.body is not None or request.method != "GET":
        named["Content-Length"] = str(len(request.body or b""))
    head = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    text = "\r\n".join([*head, "", ""])
    if not text.count("\r") == text.count("\n") == len(head) + 1:
        raise ValueError("a request has a line in its head that ends early")
    return text.encode("latin-1") + (request.body or b"")
