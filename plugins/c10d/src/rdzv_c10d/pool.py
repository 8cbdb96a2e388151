"""What the backends of one process share for one run in one store: connections, each on a thread of its own.

A store of torch's heeds no deadline while its host is silent, and a connection serves one thread at a
time. So no caller touches a store: a *worker*, a thread with a connection, does the work, and the caller
waits for the answer no longer than it likes. A worker that is stuck comes back when its host does.
"""

import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Hashable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError
from rdzv.threads import start_thread
from rdzv_transport.forks import keep_in_children

from .locator import StoreLocator, enter
from .run import Run
from .store import FAILURES, Connection, NoAnswerError, Session, cut
from .wakeup import WakeupKey
from .watch import Watches

__all__ = ["ConnectionPool", "join_pool", "leave_pool"]

_T = TypeVar("_T")

Work = Callable[[Connection], Any]
Check = Callable[[], None]
"""Raises when the backend that calls was closed."""

_WORKERS: Final = 8
_POLL_INTERVAL: Final = 0.2
"""Seconds between two looks whether the caller was closed meanwhile."""
_SHUTDOWN_GRACE: Final = 0.3
"""Seconds that the workers have to end by themselves when the pool closes; healthy ones take milliseconds."""


class ConnectionPool:
    """See above.

    Attributes:
        run: The run's keys.
        watches: Who waits for what.
    """

    def __init__(self, locator: StoreLocator, root: str) -> None:
        self.run = Run(root)
        self.watches = Watches(self)
        self.wakeup = WakeupKey(self)
        self.users = 0
        self._locator = locator
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._session: Session | None = None
        self._closed = False

    @property
    def session(self) -> Session | None:
        """The life of the store that the connections are to; None while there is none."""
        return self._session

    def call(self, work: Callable[[Connection], _T], deadline: float, check_open: Check) -> _T:
        """Have a worker do some work, and wait for its result.

        Args:
            work: Must not block for anything but the store.
            deadline: On the monotonic clock, in seconds. The work may be done later nevertheless.
            check_open: Asked now and then.

        Raises:
            RendezvousConnectionError: The store failed, or did not answer in time.
            RendezvousError: The work raised it, or `check_open`.
        """
        worker = self._take(deadline, check_open)
        answers: SimpleQueue[tuple[_T, Exception | None]] = SimpleQueue()
        worker.requests.put((work, deadline, answers))
        while True:
            remaining = deadline - time.monotonic()
            try:
                result, error = answers.get(timeout=max(0.0, min(remaining, _POLL_INTERVAL)))
            except Empty:
                check_open()
                if remaining > 0:
                    continue
                raise self.no_answer() from None
            if error is not None:
                raise error
            return result

    def no_answer(self) -> NoAnswerError:
        """The error for the caller when the store did not answer in time."""
        why = "its host is stopped, or busy"
        if self._session is None:
            why = f"is it a {self._locator.kind}? Its host may be stopped, or busy"
        return NoAnswerError(f"The store at {self._locator.where} did not answer in time; {why}.")

    def connect(self, timeout: float) -> Connection:
        """Make a connection, for a thread that may be stuck in it.

        Raises:
            RendezvousConnectionError: The store cannot be reached.
            RendezvousDeniedError: It is another run's.
        """
        store = keep_in_children(self._locator.connect(timeout))
        try:
            session = enter(store)
        except FAILURES as error:
            raise RendezvousConnectionError(f"The store failed at once: {error}") from None
        if session.owner not in ("", self.run.root):
            raise RendezvousDeniedError(
                f"The store there belongs to another run, '{session.owner.rstrip('/')}', whose node serves it; this "
                f"one is '{self.run.root.rstrip('/')}'. Give this run an endpoint with a port of its own."
            )
        with self._changed:
            if self._session is None or self._session.id != session.id:
                self._session = session
        return Connection(store, session)

    def lose(self, session: Session) -> None:
        """Trust no connection to this life of the store any more, and tell everybody who waits."""
        with self._changed:
            if self._session is None or self._session.id != session.id:
                return
            self._session = None
            stale, self._idle = self._idle, []
        for worker in stale:
            worker.requests.put(None)
        self.wakeup.wake()

    def close(self, *, at_once: bool = False) -> None:
        """End all threads, which takes milliseconds, or about a second if the store's host is silent.

        Args:
            at_once: Do not serve the store any longer either, even if others still need it.
        """
        self.wakeup.close()
        with self._changed:
            self._changed.wait_for(lambda: self._idle or not self._workers, _SHUTDOWN_GRACE)
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        if idle:
            idle[-1].requests.put((self._close_session, math.inf, SimpleQueue()))
        for worker in idle:
            worker.requests.put(None)
        if not self._await_end():
            # Some are stuck in a call to a silent host.
            for worker in list(self._workers):
                worker.cut()
            self.wakeup.cut()
            self._await_end()
        self._locator.release(at_once=at_once)

    def note_end(self, worker: "_Worker | None" = None) -> None:
        """Note that a thread of ours has ended."""
        with self._changed:
            if worker is not None:
                self._workers.discard(worker)
            self._changed.notify_all()

    def _await_end(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._workers and not self.wakeup.alive, _SHUTDOWN_GRACE)

    def _close_session(self, connection: Connection) -> None:
        """Have nobody ring for us any more; then end the wakeup key's thread, by creating it."""
        self.watches.forget(connection)
        self.wakeup.ring(connection)

    def _take(self, deadline: float, check_open: Check) -> "_Worker":
        with self._changed:
            while True:
                check_open()
                if self._closed:
                    raise RendezvousConnectionError("The backend was closed.")
                if self._idle:
                    return self._idle.pop()
                if len(self._workers) < _WORKERS:
                    worker = _Worker(self)
                    # Its end, if that comes at once, waits for the lock that we hold.
                    worker.start()
                    self._workers.add(worker)
                    return worker
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise self.no_answer()
                self._changed.wait(min(remaining, _POLL_INTERVAL))

    def put_back(self, worker: "_Worker", session: Session) -> bool:
        """Take a worker whose work is done; False if it should end."""
        with self._changed:
            if self._closed or self._session is None or self._session.id != session.id:
                return False
            self._idle.append(worker)
            self._changed.notify()
            return True


class _Worker:
    """A thread with a connection."""

    def __init__(self, connections: ConnectionPool) -> None:
        self.requests: SimpleQueue[Any] = SimpleQueue()
        self._connections = connections
        self._connection: Connection | None = None

    def start(self) -> None:
        start_thread(self._live, name="rdzv-c10d-worker")

    def cut(self) -> None:
        """Break the connection, if it can be had."""
        connection = self._connection
        if connection is not None:
            cut(connection.store)

    def _live(self) -> None:
        try:
            while (request := self.requests.get()) is not None and self._serve(*request):
                pass
        finally:
            self._connection = None
            self._connections.note_end(self)

    def _serve(self, work: Work, deadline: float, answers: "SimpleQueue[Any]") -> bool:
        """Do some work; returns whether there may be more."""
        result = error = None
        try:
            if self._connection is None:
                self._connection = self._connections.connect(deadline - time.monotonic())
            if time.monotonic() > deadline:
                # The caller has left; what it wanted may be wrong by now.
                raise self._connections.no_answer()
            result = work(self._connection)
        except Exception as raised:
            # Without its frames, which hold the connection.
            error = raised.with_traceback(None)
        connection = self._connection
        if isinstance(error, FAILURES) and not isinstance(error, RendezvousError):
            cause, error = error, RendezvousConnectionError(f"The store failed: {error}")
            error.__cause__ = cause
            if connection is not None:
                self._connections.lose(connection.session)
                connection = None
        stays = connection is not None and self._connections.put_back(self, connection.session)
        answers.put((result, error))
        return stays


_pools: Final[dict[Hashable, ConnectionPool]] = {}
_joining = threading.Lock()


def join_pool(locator: StoreLocator, root: str) -> ConnectionPool:
    """The connection pool of this process for a run in a store. A client that joins must leave."""
    key = (locator.key, root)
    with _joining:
        connections = _pools.get(key) or _pools.setdefault(key, ConnectionPool(locator, root))
        connections.users += 1
        return connections


def leave_pool(connections: ConnectionPool) -> None:
    """Close the connection pool if nobody else is in it."""
    with _joining:
        connections.users -= 1
        if connections.users:
            connections.wakeup.wake(rung=False)
            return
        for key in [key for key, one in _pools.items() if one is connections]:
            del _pools[key]
    connections.close()


def _close_all() -> None:
    # A thread that is in torch while the interpreter ends would take the process down.
    while _pools:
        _pools.popitem()[1].close(at_once=True)


def _after_fork() -> None:
    global _joining
    _joining = threading.Lock()
    _inherited.append(dict(_pools))
    _pools.clear()


_inherited: Final[list[dict[Hashable, ConnectionPool]]] = []
"""What a fork has copied; never touched again, since it looks alive and is not."""

atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
