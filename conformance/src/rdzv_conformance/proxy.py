"""A TCP proxy to a server, which holds bytes back, loses replies, breaks, or answers by itself."""

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final, Self

from rdzv_core.endpoints import Endpoint

PARTITIONS: Final = ("everything", "requests", "replies")
"""What may be held back."""

_FLOW: Final = 0.01
"""Seconds between two pieces of a flood."""
_FLOOD: Final = 8 << 20
"""So many bytes of a flood come fast, and then one at a time: who takes all of it fills no memory, and has little left
to do once the flood is over."""
_FIN_WAIT1: Final = 4
"""The state in Linux' ``tcp_info`` of an end that has hung up, which its other end has not acknowledged."""


class FaultProxy:
    """The fault proxy; clients connect to its `endpoint`. Subclasses know what a request is, and count and answer it.

    Args:
        port: Of the server; 0: there is none.
        at: The address of this machine at which clients connect.
        host: The server's address.
        listener: Where clients connect instead; the proxy closes it.

    Attributes:
        endpoint: Its own ``host:port``.
        behind: The server's.
        requests: How many requests came.
        loses_replies: Whether it breaks instead of passing a reply on.
        flood: What it sends again and again, without end, instead of passing a reply on.
        answer: What it answers instead of asking the server.
    """

    def __init__(
        self, port: int, at: str = "127.0.0.1", *, host: str = "127.0.0.1", listener: socket.socket | None = None
    ) -> None:
        self.requests = 0
        self.loses_replies = False
        self.flood = b""
        self.answer: bytes | None = None
        self.behind = str(Endpoint(host, port))
        self._server = host, port
        self._lag = 0.0
        self._gates = {"requests": threading.Event(), "replies": threading.Event()}
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads: set[threading.Thread] = set()
        family = socket.AF_INET6 if ":" in at else socket.AF_INET
        self._listener = listener or socket.create_server((at, 0), family=family, backlog=128)
        self.endpoint = str(Endpoint(at, self._listener.getsockname()[1]))
        self.heal()
        self._accepting = self._start(self._accept)

    def pass_requests(self, near: socket.socket, far: socket.socket) -> None:
        """Pass on what comes from a client, until it or the server hangs up.

        A subclass counts the requests, and sends `answer` to the client instead, if that is set.

        Args:
            near: The client.
            far: The server.
        """
        while data := near.recv(1 << 20):
            self._gates["requests"].wait()
            far.sendall(data)
        self._gates["requests"].wait()

    def pass_replies(self, near: socket.socket, far: socket.socket) -> None:
        """Pass on what comes from the server, until it hangs up or a reply is to be lost."""
        for data in self._late(far):
            self._gates["replies"].wait()
            if self.loses_replies:
                return
            sent = 0
            while self.flood and not self._closed.wait(_FLOW):
                piece = self.flood if sent < _FLOOD else self.flood[:1]
                near.sendall(piece)
                sent += len(piece)
            near.sendall(data)
        self._gates["replies"].wait()

    def partition(self, what: str = "everything") -> None:
        """Hold back one of `PARTITIONS`, new connections with the requests: a client that asks gets no answer."""
        for name, gate in self._gates.items():
            if what in ("everything", name):
                gate.clear()

    def slow(self, seconds: float) -> None:
        """Have each answer come so much later, and each connection."""
        self._lag = seconds

    def heal(self, lose: bool = True) -> None:
        """Let all through again; what was held back is lost with its connections, or comes late."""
        for end in self._break() if lose else ():
            end.close()
        for gate in self._gates.values():
            gate.set()

    def disconnect(self) -> None:
        """Break every connection, and return when the other ends have heard of it."""
        with ExitStack() as stack:
            ends = [stack.enter_context(end) for end in self._break()]
            deadline = time.monotonic() + 1
            while any(map(_is_unheard, ends)) and time.monotonic() < deadline:
                time.sleep(0.001)

    def close(self) -> None:
        """Break every connection, and refuse new ones. Closing twice is fine."""
        with suppress(OSError):
            # Wakes the thread that accepts; only Linux promises that.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self._closed.set()
        self.heal()
        with self._lock:
            threads = self._threads.copy()
        for thread in threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _break(self) -> list[socket.socket]:
        """Hang up at both ends of every connection; gives them again, since who passes on closes its own."""
        with self._lock:
            ends = [end.dup() for end in self._open]
            self._open.clear()
        _hang_up(*ends)
        return ends

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            with self._lock:
                self._open.add(near)
            self._start(self._carry, near)

    def _carry(self, near: socket.socket) -> None:
        """One connection, from its beginning to its end."""
        with ExitStack() as stack:
            self._release(near, stack)
            self._gates["requests"].wait()
            # The client's system has made the connection already: what it sends by it is late instead.
            self._closed.wait(self._lag)
            if near not in self._open:
                return  # it was broken meanwhile: what it has sent is lost
            far = socket.create_connection(self._server) if self._server[1] else socket.socket()
            self._release(far, stack)
            with self._lock:
                if near not in self._open:
                    return  # the same, while the server was connected
                self._open.add(far)
            replies = self._start(self._pass, self.pass_replies, near, far) if self._server[1] else None
            self._pass(self.pass_requests, near, far)
            if replies:
                replies.join()

    def _late(self, far: socket.socket) -> Iterator[bytes]:
        """What comes from the server, piece by piece, as late as `slow` says: no piece waits for the one before it."""
        held: deque[tuple[float, bytes]] = deque()
        with selectors.DefaultSelector() as selector:
            selector.register(far, selectors.EVENT_READ)
            while not held or held[-1][1]:
                rest = max(0.0, held[0][0] - time.monotonic()) if held else None
                if rest != 0 and selector.select(rest):
                    held.append((time.monotonic() + self._lag, far.recv(1 << 20)))
                elif held:
                    yield held.popleft()[1]
        for due, data in list(held)[:-1]:
            self._closed.wait(max(0.0, due - time.monotonic()))
            yield data

    def _release(self, end: socket.socket, stack: ExitStack) -> None:
        """Have an end closed, and no longer hung up from elsewhere; what is sent by it goes at once."""
        stack.enter_context(end)
        with suppress(OSError):
            # Else the second of two small pieces waits for the first one's acknowledgement, 40 ms.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stack.callback(self._forget, end)

    def _forget(self, end: socket.socket) -> None:
        with self._lock:
            self._open.discard(end)

    def _pass(self, work: Callable[..., None], near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            work(near, far)
        _hang_up(near, far)

    def _start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            with suppress(OSError):
                work(*arguments)
            with self._lock:
                self._threads.discard(thread)

        thread = threading.Thread(target=run, daemon=True)
        # Both under the lock: `close` joins every thread that it finds, which must have started.
        with self._lock:
            self._threads.add(thread)
            thread.start()
        return thread


def _is_unheard(end: socket.socket) -> bool:
    """Whether the other end has not yet acknowledged that this one hung up."""
    try:
        return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _FIN_WAIT1
    except (OSError, AttributeError):
        # It is closed, or this system does not tell.
        return False


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
