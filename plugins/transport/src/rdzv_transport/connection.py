"""Connections to a service: made within a deadline, kept alive, ended at will from any thread."""

import contextlib
import http.client
import io
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from rdzv.endpoints import Endpoint
from rdzv.threads import in_thread

__all__ = ["LONGEST", "Connection", "EndpointError", "Member", "Reply", "Request", "ResponseTimeoutError", "Transport"]

_S = TypeVar("_S", bound=socket.socket)

LONGEST: Final = 86400.0
"""The longest time, in seconds, that anything here waits in one go: sockets overflow after 24 days."""

_IDLE: Final = 4
"""How many connections to one endpoint are kept for later."""

_PIECE: Final = 1 << 20
_RAW_PIECE: Final = 1 << 16

_SOCKET_OPTIONS: Final = [
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        # A peer that vanished without a word is noticed after about 5 + 3 * 2 seconds.
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 2),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 10_000),
    )
    if hasattr(socket, name)
]


class EndpointError(Exception):
    """One attempt at one endpoint failed; another one may do better. It never leaves a backend.

    Attributes:
        applied: Whether the request may have been applied nevertheless.
        denied: Whether trying this endpoint again is pointless.
    """

    def __init__(self, reason: str, *, applied: bool, denied: bool = False) -> None:
        super().__init__(reason)
        self.applied = applied
        self.denied = denied


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


@dataclass(eq=False, slots=True)
class Member:
    """One endpoint of a service.

    Attributes:
        endpoint: Where it is.
        idle: The connections to it that nobody uses now.
        has_responded: When it last said anything, on the monotonic clock; 0: never.
    """

    endpoint: Endpoint
    idle: "list[Connection]" = field(default_factory=list)
    has_responded: float = 0.0


class Connection:
    """One connection to an endpoint, for one request at a time.

    Attributes:
        member: The endpoint.
    """

    def __init__(self, transport: "Transport", member: Member, sock: socket.socket) -> None:
        self._transport = transport
        self.member = member
        self._sock = sock
        self._http = http.client.HTTPConnection(member.endpoint.host.partition("%")[0], member.endpoint.port)
        self._http.auto_open = False
        self._timed = _Timed(sock)
        self._http.sock = self._timed

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
                self.member.has_responded = time.monotonic()
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
            self._sock.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                data = self._sock.recv(_RAW_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError, TimeoutError):
                return None
            self.member.has_responded = time.monotonic()
            return data

    def _send(self, request: Request, headers: Mapping[str, str], deadline: float) -> None:
        self._timed.deadline = deadline
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
            # With TLS 1.3 a server refuses our certificate only after the handshake: nothing was done.
            raise _tls_failure(error, applied=True) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise EndpointError(f"the connection broke: {error!r}{self._hint()}", applied=True) from error

    def _hint(self) -> str:
        """What may be wrong if an endpoint hangs up without ever having said anything."""
        if self.member.has_responded:
            return ""
        if isinstance(self._sock, ssl.SSLSocket):
            return "; if it demands a certificate, give it one"
        return "; if it speaks TLS, set protocol=https"

    def keep(self) -> None:
        """Leave it for the next request, unless it has served its time."""
        if self._http.sock is not None and len(self.member.idle) < _IDLE:
            self.member.idle.append(self)
        else:
            self.close()

    def is_silent(self) -> bool:
        """Whether it is open, and its other end has neither ended it nor said anything that nobody asked for."""
        if self._sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    def interrupt(self) -> None:
        """End it for the thread that uses it now. From any thread."""
        self._transport.interrupt(self._sock)

    def close(self) -> None:
        """Close it. Closing twice is fine."""
        self._transport.disconnect(self._sock)
        self._http.close()


class _Timed(io.RawIOBase):
    """A socket as `http.client` uses one, with one deadline for all that is sent and received.

    A socket's own timeout begins again with every piece, so that a peer that drips is waited for without end.

    Attributes:
        deadline: On the monotonic clock.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.deadline = 0.0

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._limit()
            left = left[self._sock.send(left) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._limit()
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        """Nothing: `http.client` closes it with each answer, and `Connection.close` the socket."""

    def _limit(self) -> None:
        if (remaining := self.deadline - time.monotonic()) <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining)


class Transport:
    """Makes the connections of one client, and knows all that are open."""

    def __init__(self, tls: ssl.SSLContext | None, server_name: str | None) -> None:
        self._tls = tls
        self._server_name = server_name
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed: Future[Any] = Future()

    def connection(self, member: Member, deadline: float) -> Connection:
        """A connection to use: an idle one, or a new one.

        Raises:
            EndpointError: There is none by `deadline`; nothing was sent.
        """
        with contextlib.suppress(IndexError):
            while not (idle := member.idle.pop()).is_silent():
                idle.close()
            return idle
        return self.connect(member, deadline)

    def connect(self, member: Member, deadline: float) -> Connection:
        """A new connection.

        Raises:
            EndpointError: There is none by `deadline`; nothing was sent.
        """
        try:
            sock = self._reach(self._resolve(member.endpoint, deadline), deadline)
            return Connection(self, member, self._secure(sock, member.endpoint, deadline))
        except ssl.SSLError as error:
            raise _tls_failure(error, applied=False) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise EndpointError(f"not connected: {reason}", applied=False) from error

    def disconnect(self, sock: socket.socket) -> None:
        """Close a socket. Closing twice is fine."""
        with self._lock:
            self._open.discard(sock)
            # A forked child may hold it open as well: the service learns of the end all the same.
            _end(sock)
            sock.close()

    def interrupt(self, sock: socket.socket) -> None:
        """End a socket that another thread uses; that thread's call ends at once, and closes it."""
        with self._lock:
            if sock in self._open:
                _end(sock)

    def local_address(self) -> str | None:
        """The source address of a live connection."""
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.getpeername()
                return str(sock.getsockname()[0])
        return None

    def close(self) -> None:
        """End every connection, and make no more."""
        with contextlib.suppress(InvalidStateError):
            self._closed.set_result(None)
        with self._lock:
            for sock in self._open:
                _end(sock)

    def discard_inherited(self) -> None:
        """Forget, in a forked child, what belongs to the parent: unseen by the service, and without a lock."""
        # Another thread may have held it at the fork.
        self._lock = threading.Lock()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    def _resolve(self, endpoint: Endpoint, deadline: float) -> list[tuple[Any, ...]]:
        def look_up(flags: int) -> list[tuple[Any, ...]]:
            return list(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=flags))

        with contextlib.suppress(socket.gaierror):
            return look_up(socket.AI_NUMERICHOST)
        # The system's resolver takes no timeout; a thread that outlives ours ends with the resolver's own.
        answer = in_thread(lambda: look_up(0), f"rdzv-resolve-{endpoint.host}")
        seconds = max(0.0, deadline - time.monotonic())
        wait((answer, self._closed), seconds, FIRST_COMPLETED)
        if not answer.done():
            raise TimeoutError(f"its name was not resolved within {seconds:.1f} s")
        return list(answer.result())

    def _reach(self, addresses: list[tuple[Any, ...]], deadline: float) -> socket.socket:
        failure = OSError("its name has no address")
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            share = (deadline - time.monotonic()) / (len(addresses) - position)
            sock = self._register(socket.socket(family, kind, protocol))
            try:
                for option in _SOCKET_OPTIONS:
                    sock.setsockopt(*option)
                sock.settimeout(max(share, 0.001))
                sock.connect(address)
            except OSError as error:
                self.disconnect(sock)
                failure = error
            else:
                return sock
        raise failure

    def _secure(self, sock: socket.socket, endpoint: Endpoint, deadline: float) -> socket.socket:
        if self._tls is None:
            return sock
        host = self._server_name or endpoint.host.partition("%")[0]
        try:
            secure = self._tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        except (OSError, ValueError):
            self.disconnect(sock)
            raise
        with self._lock:
            self._open.discard(sock)
        self._register(secure)
        try:
            secure.settimeout(max(deadline - time.monotonic(), 0.001))
            secure.do_handshake()
        except OSError as error:
            self.disconnect(secure)
            if isinstance(error, ConnectionError):
                # A server that takes TLS for something else may hang up before it answers.
                hint = "if it does not speak TLS, set protocol=http"
                raise EndpointError(f"TLS failed: {error.strerror}; {hint}", applied=False) from error
            raise
        return secure

    def _register(self, sock: _S) -> _S:
        with self._lock:
            self._open.add(sock)
        if self._closed.done():
            self.disconnect(sock)
            raise OSError("this backend was closed")
        return sock


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not SSLSocket's own, which removes the TLS layer during another thread's read.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _tls_failure(error: ssl.SSLError, *, applied: bool) -> EndpointError:
    """What a TLS failure means, and whether trying again is pointless."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"its certificate cannot be trusted: {error.verify_message.rstrip('.')}; check ca_cert and server_name"
        return EndpointError(text, applied=False, denied=True)
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}:
        return EndpointError("it does not speak TLS; set protocol=http", applied=False, denied=True)
    if "ALERT" in reason and "INTERNAL" not in reason:
        wanted = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        text = f"it refused this client's certificate ({wanted}); check the options for the certificate and its key"
        return EndpointError(text, applied=False, denied=True)
    hint = "" if applied else "; if it does not speak TLS, set protocol=http"
    return EndpointError(f"TLS failed: {error}{hint}", applied=applied)
