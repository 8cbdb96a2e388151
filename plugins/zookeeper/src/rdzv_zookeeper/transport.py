"""Connections to ZooKeeper's servers: made within a deadline, with TLS or without, ended from any thread."""

import contextlib
import math
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import Any, Final, TypeVar

from rdzv.endpoints import Endpoint
from rdzv.threads import in_thread

from .failures import BrokenError, EndpointError, NotZooKeeperError, explain_tls

__all__ = ["Line", "Transport"]

_S = TypeVar("_S", bound=socket.socket)

_LENGTH: Final = struct.Struct("!i")
_PIECE: Final = 1 << 18
_LONGEST: Final = 1 << 28
"""No answer of ZooKeeper's is longer, in bytes; what seems to be is something else."""

_LONG: Final = 1e6
"""Seconds that are as good as for ever."""

_AGAIN: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_SOCKET_OPTIONS: Final = [
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        # A server that vanished without a word is noticed after about 5 + 3 * 2 seconds.
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 2),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 10_000),
    )
    if hasattr(socket, name)
]


class Line:
    """A connection that carries frames: a length, then that many bytes.

    One thread may send while another receives.

    Attributes:
        endpoint: Where it leads to.
        has_responded: When the server last said anything, on the monotonic clock.
    """

    def __init__(self, sock: socket.socket, endpoint: Endpoint) -> None:
        """Use a connected socket, which becomes the line's own."""
        sock.setblocking(False)
        self.endpoint = endpoint
        self.has_responded = time.monotonic()
        self._sock = sock
        self._lock = threading.Lock()
        # TLS must not send and receive at once.
        self._moving = threading.Lock()
        self._users = 0
        self._closed = False
        self._frames: deque[bytes] = deque()
        self._rest = bytearray()

    def send(self, data: bytes, deadline: float) -> None:
        """Send everything.

        Raises:
            BrokenError: It could not all be sent by the deadline; the line is no use any more.
        """
        view, sent = memoryview(data), 0
        with self._using():
            while sent < len(view):
                try:
                    with self._moving:
                        sent += self._sock.send(view[sent : sent + _PIECE])
                except _AGAIN as again:
                    if not self._ready(again, deadline, select.POLLOUT):
                        raise BrokenError("it takes no more requests", sent=sent > 0) from again
                except OSError as error:
                    raise _broken(error, sent=sent > 0) from error

    def receive(self, deadline: float) -> list[bytes]:
        """All frames that are there; if there is none, wait for one. Empty when the deadline has come.

        Raises:
            BrokenError: The line has ended, or carries something else than frames.
        """
        with self._using():
            while True:
                try:
                    self._take()
                except _AGAIN as again:
                    if self._frames or not self._ready(again, deadline, select.POLLIN):
                        break
                except OSError as error:
                    # What came before the end counts; the end will be found again.
                    if self._frames:
                        break
                    raise _broken(error) from error
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def receive_one(self, deadline: float) -> bytes:
        """The next frame.

        Raises:
            BrokenError: There is none by the deadline, or as for `receive`.
        """
        frames = self.receive(deadline)
        if not frames:
            raise BrokenError("no answer in time")
        self._frames.extendleft(reversed(frames[1:]))
        return frames[0]

    def local_address(self) -> str:
        """This end's address.

        Raises:
            OSError: The line is closed.
        """
        return str(self._sock.getsockname()[0])

    def close(self) -> None:
        """Close it; a thread that uses it now finds it ended. Closing twice is fine."""
        with self._lock:
            if not self._closed:
                self._closed = True
                _end(self._sock)
                if not self._users:
                    self._sock.close()

    def discard_inherited(self) -> None:
        """Forget, in a forked child, what belongs to the parent: unseen by the server, and without a lock."""
        self._closed = True
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        # The last user closes the socket: its number must not become another file's while a thread waits on it.
        with self._lock:
            if self._closed:
                raise BrokenError("the connection was closed", sent=False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._closed and not self._users:
                    self._sock.close()

    def _ready(self, again: BaseException, deadline: float, usual: int) -> bool:
        """Wait until the socket is; False if it is not by the deadline."""
        if isinstance(again, ssl.SSLError):
            usual = select.POLLIN if isinstance(again, ssl.SSLWantReadError) else select.POLLOUT
        remaining = deadline - time.monotonic()
        poll = select.poll()
        poll.register(self._sock, usual)
        return bool(poll.poll(max(0, math.ceil(min(remaining, _LONG) * 1000))))

    def _take(self) -> None:
        with self._moving:
            data = self._sock.recv(_PIECE)
        if not data:
            raise ConnectionResetError("the server ended it")
        self.has_responded = time.monotonic()
        self._rest += data
        self._cut()

    def _cut(self) -> None:
        start = 0
        while len(self._rest) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, start)
            if not 0 <= length <= _LONGEST:
                raise NotZooKeeperError(_unlike_zookeeper(bytes(self._rest[start : start + 8])))
            end = start + _LENGTH.size + length
            if len(self._rest) < end:
                break
            self._frames.append(bytes(self._rest[start + _LENGTH.size : end]))
            start = end
        del self._rest[:start]


class Transport:
    """Makes the lines of one client, and knows all that are open."""

    def __init__(self, tls: ssl.SSLContext | None, server_name: str | None) -> None:
        self.tls = tls
        self._server_name = server_name
        self._lines: set[Line] = set()
        self._opening: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed: Future[Any] = Future()

    def connect(self, endpoint: Endpoint, deadline: float) -> Line:
        """A new line.

        Raises:
            EndpointError: There is none by the deadline.
        """
        try:
            sock = self._reach(self._resolve(endpoint, deadline), deadline)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise EndpointError(f"not connected: {reason}") from error
        if self.tls is not None:
            sock = self._secure(self.tls, sock, endpoint, deadline)
        line = Line(sock, endpoint)
        with self._lock:
            self._opening.discard(sock)
            self._lines.add(line)
        if self._closed.done():
            self.disconnect(line)
            raise EndpointError("this backend was closed")
        return line

    def disconnect(self, line: Line) -> None:
        """Close a line. Closing twice is fine."""
        with self._lock:
            self._lines.discard(line)
        line.close()

    def local_address(self) -> str | None:
        """The source address of a line that is open."""
        for line in list(self._lines):
            with contextlib.suppress(OSError):
                return line.local_address()
        return None

    def close(self) -> None:
        """End every line, and make no more."""
        with contextlib.suppress(InvalidStateError):
            self._closed.set_result(None)
        with self._lock:
            lines, self._lines = self._lines, set()
            for sock in self._opening:
                _end(sock)
        for line in lines:
            line.close()

    def discard_inherited(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        # Another thread may have held the lock at the fork.
        self._lock = threading.Lock()
        for line in list(self._lines):
            line.discard_inherited()
        for sock in list(self._opening):
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
                self._give_up(sock)
                failure = error
            else:
                return sock
        raise failure

    def _secure(self, tls: ssl.SSLContext, sock: socket.socket, endpoint: Endpoint, deadline: float) -> ssl.SSLSocket:
        host = self._server_name or endpoint.host.partition("%")[0]
        try:
            secure = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        except (OSError, ValueError) as error:
            self._give_up(sock)
            raise EndpointError(f"TLS failed: {error}") from error
        with self._lock:
            self._opening.discard(sock)
        self._register(secure)
        try:
            secure.settimeout(max(deadline - time.monotonic(), 0.001))
            secure.do_handshake()
        except OSError as error:
            self._give_up(secure)
            raise explain_tls(error) from error
        return secure

    def _register(self, sock: _S) -> _S:
        with self._lock:
            self._opening.add(sock)
        if self._closed.done():
            self._give_up(sock)
            raise EndpointError("this backend was closed")
        return sock

    def _give_up(self, sock: socket.socket) -> None:
        with self._lock:
            self._opening.discard(sock)
        sock.close()


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not SSLSocket's own, which removes the TLS layer during another thread's read.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _broken(error: OSError, *, sent: bool = True) -> BrokenError:
    if isinstance(error, ssl.SSLError):
        # With TLS 1.3 a server refuses our certificate only after the handshake.
        explained = explain_tls(error)
        return BrokenError(str(explained), sent=sent, denied=explained.denied)
    return BrokenError(f"the connection broke: {error}", sent=sent)


def _unlike_zookeeper(start: bytes) -> str:
    if start.startswith(b"\x15\x03"):
        return "it speaks TLS; set tls=true, or give its clientPort"
    return f"it is not ZooKeeper: it says {start!r}"
