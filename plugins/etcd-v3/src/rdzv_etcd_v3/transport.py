"""Sockets to etcd: connecting within a deadline, TLS, noticing dead peers, ending all of them at once."""

import contextlib
import os
import queue
import socket
import ssl
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import urllib3
import urllib3.connection
from rdzv.endpoints import Endpoint
from rdzv.threads import in_thread

from .failures import NotConnectedError, tls_failure

__all__ = ["Member", "Transport"]

_S = TypeVar("_S", bound=socket.socket)

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


@dataclass(eq=False, slots=True)
class Member:
    """One endpoint.

    Attributes:
        endpoint: Where it is.
        host: What an HTTP request to it says as Host.
        pool: Its kept-alive connections.
        heard: When it last said anything, on the monotonic clock.
    """

    endpoint: Endpoint
    host: str
    pool: urllib3.HTTPConnectionPool
    heard: float = 0.0


class Transport:
    """Makes the connections of one client, and knows all that are open."""

    def __init__(self, tls: ssl.SSLContext | None, server_name: str | None) -> None:
        self._tls = tls
        self._server_name = server_name
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed: Future[Any] = Future()

    def member(self, endpoint: Endpoint) -> "Member":
        """What there is to know of one endpoint. Does not connect."""
        host = endpoint.host.partition("%")[0]
        host = f"[{host}]" if ":" in host else host
        pool = _Pool(host, endpoint.port, transport=self, endpoint=endpoint)
        return Member(endpoint, f"{host}:{endpoint.port}", pool)

    def connect(self, endpoint: Endpoint, timeout: float) -> socket.socket:
        """A new connection.

        Raises:
            NotConnectedError: There is none within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        try:
            sock = self._reach(self._resolve(endpoint, timeout), deadline)
        except (OSError, UnicodeError) as error:
            raise NotConnectedError(f"not connected: {error}") from error
        return sock if self._tls is None else self._secure(self._tls, sock, endpoint, deadline)

    def disconnect(self, sock: socket.socket) -> None:
        """Close one connection. Closing twice is fine."""
        with self._lock:
            self._open.discard(sock)
            # A forked child may hold it open as well: the server learns of the end all the same.
            _end(sock)
            sock.close()

    def interrupt(self, sock: socket.socket) -> None:
        """End a connection that another thread uses; that thread's call ends at once, and closes it."""
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

    def abandon(self) -> None:
        """Forget, in a forked child, what belongs to the parent: unseen by the server, and without a lock."""
        # Another thread may have held it at the fork.
        self._lock = threading.Lock()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    def _resolve(self, endpoint: Endpoint, timeout: float) -> list[tuple[Any, ...]]:
        def look_up(flags: int) -> list[tuple[Any, ...]]:
            return list(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=flags))

        with contextlib.suppress(socket.gaierror):
            return look_up(socket.AI_NUMERICHOST)
        # The system's resolver takes no timeout; a thread that outlives ours ends with the resolver's own.
        answer = in_thread(lambda: look_up(0), f"rdzv-resolve-{endpoint.host}")
        wait((answer, self._closed), timeout, FIRST_COMPLETED)
        if not answer.done():
            raise TimeoutError(f"its name was not resolved within {timeout:.1f} s")
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

    def _secure(self, tls: ssl.SSLContext, sock: socket.socket, endpoint: Endpoint, deadline: float) -> ssl.SSLSocket:
        host = self._server_name or endpoint.host.partition("%")[0]
        try:
            secure = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        except (OSError, ValueError) as error:
            self.disconnect(sock)
            raise NotConnectedError(f"TLS failed: {error}") from error
        with self._lock:
            self._open.discard(sock)
        self._register(secure)
        try:
            secure.settimeout(max(deadline - time.monotonic(), 0.001))
            secure.do_handshake()
        except OSError as error:
            self.disconnect(secure)
            failure = tls_failure(error)
            hint = "" if failure.denied else "; if it does not speak TLS, set protocol=http"
            raise NotConnectedError(f"{failure}{hint}", denied=failure.denied) from error
        return secure

    def _register(self, sock: _S) -> _S:
        with self._lock:
            self._open.add(sock)
        if self._closed.done():
            self.disconnect(sock)
            raise NotConnectedError("this backend was closed")
        return sock


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not SSLSocket's own, which pulls TLS away from under whoever reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Connection(urllib3.connection.HTTPConnection):
    """urllib3's connection on a socket of ours."""

    def __init__(self, *args: Any, transport: Transport, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(*args, **options)
        self._transport = transport
        self._endpoint = endpoint

    def connect(self) -> None:
        # Every request of ours comes with a timeout.
        self.sock = self._transport.connect(self._endpoint, self.timeout or 0.0)

    def close(self) -> None:
        if self.sock is not None:
            self._transport.disconnect(self.sock)
        super().close()


class _Idle(queue.LifoQueue[Any]):
    """The idle connections. No lock: one held by another thread at a fork stays locked in the child for ever."""

    def __init__(self, maxsize: int = 0) -> None:
        del maxsize
        self._items: list[Any] = []

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return self._items.pop()
        except IndexError:
            raise queue.Empty from None


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection
    QueueCls = _Idle
