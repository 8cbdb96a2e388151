"""Sockets to a service: made within a deadline, used within deadlines, closed at will from any thread."""

import contextlib
import errno
import math
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from rdzv_core.endpoints import Endpoint
from rdzv_core.threads import in_thread

from .forks import NO_FORK
from .present import Present

_T = TypeVar("_T")

LONGEST: Final = 86400.0
"""The longest time, in seconds, that anything here waits in one go: sockets overflow after 24 days."""

_PIECE: Final = 1 << 18

_PROMPT: Final = 1.0
"""Seconds from its beginning for which a connection that was begun early is waited for: its first packet may have been
lost, and then another connection is there sooner."""

_AGAIN: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

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


class NotConnectedError(EndpointError):
    """There is no connection to the endpoint: nothing was sent."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"not connected: {getattr(error, 'strerror', None) or error}", applied=False)


class Address(NamedTuple):
    """One of the places that a host's name stands for: the family of sockets, and what they connect to."""

    family: int
    place: tuple[Any, ...]

    @property
    def host(self) -> str:
        """It without the port, as messages show it."""
        return str(self.place[0])


class TimedSocket:
    """A socket whose every use has one deadline, also for a peer that drips.

    One thread may send while another one receives.

    Attributes:
        has_tls: Whether it speaks TLS.
    """

    def __init__(self, owner: "Sockets", sock: socket.socket) -> None:
        self.has_tls = False
        self._owner = owner
        self._sock = sock
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    def uses(self, context: ssl.SSLContext) -> bool:
        """Whether it speaks TLS by this context."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.context is context

    def connect(self, address: Any, seconds: float) -> None:
        """Connect it."""
        with self as sock:
            for option in _SOCKET_OPTIONS:
                sock.setsockopt(*option)
            sock.settimeout(max(seconds, 0.001))
            sock.connect(address)
            sock.setblocking(False)

    def begin(self, address: Any) -> None:
        """Begin to connect it, without waiting."""
        with self as sock:
            for option in _SOCKET_OPTIONS:
                sock.setsockopt(*option)
            sock.setblocking(False)
            if (error := sock.connect_ex(address)) not in (0, errno.EINPROGRESS):
                raise OSError(error, os.strerror(error))

    def is_begun(self, deadline: float) -> bool:
        """Whether what was begun is a connection by `deadline`, and its other end has not ended it since."""
        with contextlib.suppress(OSError), self as sock:
            if self._ready(select.POLLOUT, deadline) and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return self.is_silent()
        return False

    def start_tls(self, context: ssl.SSLContext, host: str, deadline: float) -> None:
        """Speak TLS from now on."""
        with self as sock:
            with NO_FORK, self._lock:
                self._sock = secure = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
                self.has_tls = True
            try:
                self._step(secure.do_handshake, select.POLLIN, deadline)
            except _AGAIN as again:
                raise TimeoutError("the TLS handshake was not answered") from again

    def send(self, data: bytes, deadline: float) -> None:
        """Send everything.

        Raises:
            TimeoutError: It was not all sent by `deadline`.
        """
        left = memoryview(data)
        with self as sock:
            try:
                while left:
                    left = left[self._step(partial(sock.send, left[:_PIECE]), select.POLLOUT, deadline) :]
            except _AGAIN as again:
                raise TimeoutError("it takes no more requests") from again

    def receive(self, deadline: float, most: int = _PIECE) -> bytes | None:
        """The bytes that are there, `most` at most; if there are none, wait for them until `deadline`.

        Returns:
            None if none came; nothing if the connection has ended.
        """
        try:
            with self as sock:
                # An answer is seldom there already; but what TLS has received and not given out, no poll can see.
                if not self.has_tls and time.monotonic() < deadline and not self._ready(select.POLLIN, deadline):
                    return None
                return self._step(partial(sock.recv, most), select.POLLIN, deadline)
        except _AGAIN:
            return None
        except ConnectionAbortedError:
            return b""

    def is_silent(self) -> bool:
        """Whether it is open, and its other end has neither ended it nor sent anything unasked."""
        try:
            # One byte is enough to know, and takes no buffer.
            return self.receive(0.0, 1) is None
        except OSError:
            return False

    def explain(self, error: OSError) -> EndpointError:
        """What it means that using it failed, after a request was sent."""
        if isinstance(error, ssl.SSLError):
            return _tls_failure(error, self._owner.without_tls, applied=True)
        return EndpointError(f"the connection broke: {error}", applied=True)

    def local_address(self) -> str:
        """This end's address; raises an OSError if it is not connected."""
        with self as sock:
            sock.getpeername()
            return str(sock.getsockname()[0])

    def close(self) -> None:
        """Close it; the threads that use it now find it ended, and the last of them frees it. Twice is fine."""
        self._owner.forget(self)
        with self._lock:
            if not self._closed:
                self._closed = True
                # A forked child may hold it open as well: the service learns of the end all the same.
                with contextlib.suppress(OSError):
                    # Not SSLSocket's own, which removes the TLS layer during another thread's read.
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
                if not self._users:
                    self._sock.close()

    def discard_inherited(self) -> None:
        """Forget, in a forked child, what belongs to the parent: unseen by the service, and without a lock."""
        self._closed = True
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())

    def __enter__(self) -> socket.socket:
        # The last user frees it: its number must not become another file's while a thread waits on it.
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("the connection was closed")
            self._users += 1
        return self._sock

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._users -= 1
            if self._closed and not self._users:
                self._sock.close()

    def _step(self, step: Callable[[], _T], usual: int, deadline: float) -> _T:
        """Do what does not wait, as soon as it can be done; raise one of `_AGAIN` if it cannot by `deadline`."""
        while True:
            try:
                if not self.has_tls:
                    return step()
                # Nor may TLS send and receive at once.
                with NO_FORK:
                    return step()
            except _AGAIN as again:
                event = usual
                if isinstance(again, ssl.SSLError):
                    event = select.POLLIN if isinstance(again, ssl.SSLWantReadError) else select.POLLOUT
                if not self._ready(event, deadline):
                    raise

    def _ready(self, event: int, deadline: float) -> bool:
        """Wait until it can go on; False if it cannot by `deadline`."""
        if (seconds := min(deadline - time.monotonic(), LONGEST)) <= 0:
            return False
        poll = select.poll()
        poll.register(self._sock, event)
        return bool(poll.poll(math.ceil(seconds * 1000)))


class Sockets:
    """Makes the sockets of one client, and knows all that are open.

    Args:
        tls: How to verify the endpoints, and with which certificate of our own; None: no TLS.
        server_name: The name in the endpoints' certificates, if it is not the endpoint's.
        without_tls: What the user sets to go without TLS, for messages.
    """

    def __init__(self, tls: Present[ssl.SSLContext] | None, server_name: str | None, without_tls: str) -> None:
        self.without_tls = without_tls
        self._tls = tls
        self._server_name = server_name
        self._open: set[TimedSocket] = set()
        self._begun: dict[Address, tuple[TimedSocket, float]] = {}
        self._lock = threading.Lock()
        self._closed: Future[Any] = Future()

    def resolve(self, endpoint: Endpoint, deadline: float) -> list[Address]:
        """The addresses of an endpoint, in the resolver's order.

        Raises:
            NotConnectedError: There is none, or it was not found by `deadline`.
        """
        try:
            found = self._look_up(endpoint, deadline)
        except (OSError, ValueError) as error:
            raise NotConnectedError(error) from error
        return list(dict.fromkeys(Address(family, place) for family, *_, place in found))

    def connect(self, address: Address, host: str, deadline: float) -> TimedSocket:
        """A new connection.

        Args:
            address: Where to.
            host: The name in its certificate, unless it has one of its own.
            deadline: Until when, on the monotonic clock.

        Raises:
            EndpointError: There is none by `deadline`; nothing was sent.
        """
        try:
            sock = self._reach(address, deadline)
            if self._tls is not None:
                self._secure(self._tls(), sock, host, deadline)
        except ssl.SSLError as error:
            raise _tls_failure(error, self.without_tls, applied=False) from error
        except (OSError, ValueError) as error:
            raise NotConnectedError(error) from error
        return sock

    def begin(self, address: Address) -> None:
        """Begin to connect one that the next `connect` takes: it costs that one no round trip then."""
        with contextlib.suppress(OSError), self._new(address) as sock:
            sock.begin(address.place)
            kept, _ = self._begun.setdefault(address, (sock, time.monotonic() + _PROMPT))
            if kept is not sock:
                sock.close()  # another thread was sooner

    def abandon(self, address: Address) -> None:
        """Close what was begun."""
        if begun := self._begun.pop(address, None):
            begun[0].close()

    def is_outdated(self, sock: TimedSocket) -> bool:
        """Whether a file for TLS has changed since it was connected."""
        return self._tls is not None and not sock.uses(self._tls())

    def forget(self, sock: TimedSocket) -> None:
        """One of them is closed."""
        with self._lock:
            self._open.discard(sock)

    def local_address(self) -> str | None:
        """The source address of a live connection."""
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                return sock.local_address()
        return None

    def close(self) -> None:
        """End every connection, and make no more."""
        with contextlib.suppress(InvalidStateError):
            self._closed.set_result(None)
        for sock in list(self._open):
            sock.close()

    def discard_inherited(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        # Another thread may have held it at the fork.
        self._lock = threading.Lock()
        for sock in list(self._open):
            sock.discard_inherited()

    def _look_up(self, endpoint: Endpoint, deadline: float) -> list[tuple[Any, ...]]:
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

    def _reach(self, address: Address, deadline: float) -> TimedSocket:
        if begun := self._begun.pop(address, None):
            sock, until = begun
            if sock.is_begun(max(min(until, deadline), time.monotonic() + 0.001)):
                return sock
            sock.close()
        with self._new(address) as sock:
            sock.connect(address.place, deadline - time.monotonic())
        return sock

    @contextlib.contextmanager
    def _new(self, address: Address) -> Iterator[TimedSocket]:
        """A socket, which is closed if connecting it fails."""
        sock = TimedSocket(self, socket.socket(address.family, socket.SOCK_STREAM))
        with self._lock:
            self._open.add(sock)
        try:
            if self._closed.done():
                raise OSError("this backend was closed")
            yield sock
        except OSError:
            sock.close()
            raise

    def _secure(self, tls: ssl.SSLContext, sock: TimedSocket, host: str, deadline: float) -> None:
        try:
            sock.start_tls(tls, self._server_name or host, deadline)
        except ConnectionError as error:
            sock.close()
            # A server that takes TLS for something else may hang up before it answers.
            hint = f"if it does not speak TLS, set {self.without_tls}"
            raise EndpointError(f"TLS failed: {error.strerror}; {hint}", applied=False) from error
        except (OSError, ValueError):
            sock.close()
            raise


def _tls_failure(error: ssl.SSLError, without_tls: str, *, applied: bool) -> EndpointError:
    """What a TLS failure means, and whether trying again is pointless."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"its certificate cannot be trusted: {error.verify_message.rstrip('.')}; check ca_cert and server_name"
        return EndpointError(text, applied=False, denied=True)
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}:
        return EndpointError(f"it does not speak TLS; set {without_tls}", applied=False, denied=True)
    if "ALERT" in reason and "INTERNAL" not in reason:
        wanted = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        text = f"it refused this client's certificate ({wanted}); check the options for the certificate and its key"
        # With TLS 1.3 it does so only after the handshake: nothing was done.
        return EndpointError(text, applied=False, denied=True)
    hint = "" if applied else f"; if it does not speak TLS, set {without_tls}"
    return EndpointError(f"TLS failed: {error}{hint}", applied=applied)
