"""One connection to an HTTP service, and what goes over it."""

import contextlib
import http.client
import io
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .failover import Member
from .sockets import EndpointError, Sockets, TimedSocket

_PIECE: Final = 1 << 20
_RAW_PIECE: Final = 1 << 16


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
        held: Seconds for which the service may keep it before it answers.
        headers: Sent with it, besides those of the client.
    """

    method: str
    target: str
    body: bytes | None = None
    repeatable: bool = True
    held: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; of one that does not end, a line."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        """The beginning of the body, for messages."""
        return self.body[:200].decode("utf-8", "replace").strip()


class Connection:
    """One connection to an endpoint, for one request at a time.

    Attributes:
        member: The endpoint.
        sock: What it goes over. From any thread, closing this ends it for the thread that uses it now.
    """

    def __init__(self, sockets: Sockets, member: Member, deadline: float) -> None:
        """Make it.

        Raises:
            EndpointError: There is none by `deadline`; nothing was sent.
        """
        self.member = member
        self._http = http.client.HTTPConnection(member.endpoint.host.partition("%")[0], member.endpoint.port)
        self._http.auto_open = False
        self.sock = sockets.connect(member.endpoint, deadline)
        self._file = _SocketFile(self.sock)
        self._http.sock = self._file

    def exchange(self, request: Request, headers: Mapping[str, str], deadline: float) -> Reply:
        """Send a request and receive its answer.

        Raises:
            EndpointError: There was no answer until `deadline`; the connection is closed.
        """
        with self._closed_by_failure():
            self._send(request, headers, deadline)
            with self._http.getresponse() as response:
                pieces = [response.read1(_PIECE)]
                # Python 3.13 closes it with the last byte.
                while pieces[-1] and not response.isclosed():
                    pieces.append(response.read1(_PIECE))
                if response.length:
                    raise http.client.IncompleteRead(b"".join(pieces), response.length)
                self.member.responded_at = time.monotonic()
                return Reply(response.status, response.headers, b"".join(pieces))

    def send(self, request: Request, headers: Mapping[str, str], deadline: float) -> None:
        """Send a request whose answer is to be received piece by piece; nothing else is sent after it.

        Raises:
            EndpointError: It could not be sent until `deadline`; the connection is closed.
        """
        with self._closed_by_failure():
            self._send(request, {**headers, "Connection": "close"}, deadline)

    def receive(self, deadline: float) -> bytes | None:
        """The bytes of an answer that are there, its head too; if there are none, wait for them until `deadline`.

        Returns:
            None if none came; nothing if the other end has ended the connection.

        Raises:
            EndpointError: The connection broke, and is closed.
        """
        with self._closed_by_failure():
            data = self.sock.receive(deadline, _RAW_PIECE)
            if data is not None:
                self.member.responded_at = time.monotonic()
            return data

    @property
    def is_persistent(self) -> bool:
        """Whether another request may follow the last one."""
        return self._http.sock is not None

    def close(self) -> None:
        """Close it. Closing twice is fine."""
        self.sock.close()
        self._http.close()

    def _send(self, request: Request, headers: Mapping[str, str], deadline: float) -> None:
        self._file.deadline = deadline
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            # A server that refuses the client, or a request that is too large, answers and hangs up during the send.
            self._http.request(request.method, request.target, request.body, {**headers, **request.headers})

    @contextlib.contextmanager
    def _closed_by_failure(self) -> Iterator[None]:
        """Close it if this fails, and say what the failure means for the request."""
        began = time.monotonic()
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise ResponseTimeoutError(f"no answer within {time.monotonic() - began:.1f} s", applied=True) from error
        except ssl.SSLError as error:
            self.close()
            raise self.sock.explain(error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise EndpointError(f"the connection broke: {error!r}{self._hint()}", applied=True) from error

    def _hint(self) -> str:
        """What may be wrong if an endpoint hangs up without ever having said anything."""
        if self.member.responded_at:
            return ""
        if self.sock.has_tls:
            return "; if it demands a certificate, give it one"
        return "; if it speaks TLS, set protocol=https"


class _SocketFile(io.RawIOBase):
    """A socket as `http.client` uses one, with one deadline for all that is sent and received.

    Attributes:
        deadline: On the monotonic clock.
    """

    def __init__(self, sock: TimedSocket) -> None:
        self._sock = sock
        self.deadline = 0.0

    def sendall(self, data: bytes) -> None:
        self._sock.send(data, self.deadline)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._sock.receive(self.deadline, len(buffer)) if time.monotonic() < self.deadline else None
        if data is None:
            raise TimeoutError
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Nothing: `http.client` closes it with each answer, and `Connection.close` the socket."""
