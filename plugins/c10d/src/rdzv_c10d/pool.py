"""Connections to one store, each for one thread at a time.

A store of torch's heeds no deadline while its host is silent. The client of a TCPStore has a socket, which does: a
caller takes a connection, limits its waits, and asks the store itself; a connection whose answer did not come in time
is of no use any more. Making a connection takes longer than a caller may like, and a store without a socket has no
limits: there a *worker*, a thread with a connection, does the work, and the caller waits for the answer no longer than
it likes. What becomes of a worker that torch keeps says `stuck`.
"""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar, cast

from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError
from rdzv_core.threads import start_thread
from rdzv_transport import keep_in_children

from .locator import StoreLocator, enter
from .store import FAILURES, Connection, NoAnswerError, Session, file_of, limited
from .stuck import Stay, keep_file

_T = TypeVar("_T")

Check = Callable[[], None]
"""Raises when the backend that calls was closed."""

_CONNECTIONS: Final = 9
"""Eight for calls, and one for a thread that listens (of which there are two at most, and mostly one)."""
_CROWDED: Final = 0.002
"""Seconds for which a call waits for a connection that is in use before another one is made: a call takes less."""
_POLL_INTERVAL: Final = 0.2
"""Seconds between two looks whether the caller was closed meanwhile."""
_LAST_WORK: Final = 10.0
"""Seconds that the last work of a worker may take."""
_SHUTDOWN_GRACE: Final = 0.3
"""Seconds that the workers have to end by themselves when the pool closes; healthy ones take milliseconds."""


class ConnectionPool:
    """See above.

    Args:
        locator: Where the store is.
        root: What the keys of the run begin with.

    Attributes:
        on_lost: Called when the connections that were there are trusted no more.
    """

    def __init__(self, locator: StoreLocator, root: str) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self._locator = locator
        self._root = root
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._idle: list[Connection | _Worker] = []
        self._busy: set[Connection] = set()  # Those that their callers use themselves.
        self._workers: set[_Worker] = set()
        # The last one that was started for a call: while it connects, no other one tries.
        self._newest: _Worker | None = None
        self._background = 0  # So many calls wait that leave a connection to others.
        self._session: Session | None = None
        self._closed = False

    @property
    def session(self) -> Session | None:
        """The session of the store that the connections belong to; None while there is none."""
        return self._session

    @property
    def patience(self) -> float:
        """See `StoreLocator.patience`."""
        return self._locator.patience

    def call(self, work: Callable[[Connection], _T], deadline: float, check_open: Check, left: int = 0) -> _T:
        """Do some work on a connection, or have a worker do it.

        Args:
            work: Must not block for anything but the store.
            deadline: On the monotonic clock, in seconds. The work may be done later nevertheless.
            check_open: Asked now and then.
            left: How many idle connections it leaves to other calls.

        Raises:
            RendezvousConnectionError: The store failed, or did not answer in time.
            RendezvousError: The work raised it, or `check_open`.
        """
        taken = self._take(deadline, check_open, left)
        if isinstance(taken, Connection):
            result, error = self._do(taken, work, deadline)
            del taken  # An error is kept for long, and with it what its frames hold.
            if error is None:
                return cast("_T", result)
            check_open()
            raise error
        answer = taken.do(work, deadline)
        if not is_done(answer, deadline, check_open):
            raise self.no_answer()
        return answer.result()

    def start(self, work: Callable[[Connection], _T], timeout: float, name: str) -> Future[_T]:
        """Have a worker with a connection of its own do some work that may take for ever.

        Args:
            work: What.
            timeout: Seconds that making the connection may take.
            name: Of the thread.

        Raises:
            RendezvousConnectionError: There is no room for a thread.
        """
        with self._lock:
            return self._start_worker(name).do(work, time.monotonic() + timeout, lasting=True)

    def no_answer(self) -> NoAnswerError:
        """The error for the caller when the store did not answer in time."""
        why = "its host is stopped, or busy"
        if self._session is None:
            why = f"is it a {self._locator.kind}? Its host may be stopped, or busy"
        return NoAnswerError(f"The store at {self._locator.where} did not answer in time; {why}.")

    def connect(self, timeout: float) -> Connection:
        """Make a connection, for a thread in a `Stay`.

        Args:
            timeout: Seconds until a process must listen. To answer it gets as long as the store's `patience`.

        Raises:
            RendezvousConnectionError: The store cannot be reached.
            RendezvousDeniedError: It is another run's.
        """
        deadline = time.monotonic() + self.patience
        store = keep_in_children(self._locator.connect(min(timeout, self.patience)))
        keep_file(store)
        connection = Connection(store, Session("", ""), limited(store), file_of(store))
        try:
            connection.check_room()
            connection.limit_waits(max(0.1, deadline - time.monotonic()))
            session = connection.session = enter(store)
        except RendezvousError:
            raise
        except FAILURES as error:
            raise RendezvousConnectionError(f"The store failed at once: {error}") from None
        _check_owner(session.owner, self._root)
        with self._lock:
            self._session = session
            stale = [one for one in self._workers if one.session not in (None, session)]
        for worker in stale:
            # One that listens to a host whose machine is gone would not notice for a while.
            worker.cut()
        return connection

    def lose(self, session: Session) -> None:
        """Trust no connection of this session any more, and wake every waiter."""
        with self._lock:
            if self._session != session:
                return
            self._session = None
            stale, self._idle = self._idle, []
        _end(stale)
        self.on_lost()

    def close(self, last_work: Callable[[Connection], None], *, at_once: bool) -> None:
        """End all threads and calls, which takes milliseconds, or about a second if the store's host is silent.

        Args:
            last_work: Done at the end, on a connection that is idle; if none is, it is not done.
            at_once: Do not serve the store any longer either, even if others still need it.
        """
        with self._lock:
            self._changed.wait_for(lambda: self._idle or not (self._workers or self._busy), _SHUTDOWN_GRACE)
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        if idle:
            _do_last(idle[-1], last_work)
        _end(idle)  # From here on nothing refers to a connection: the host counts those that are open.
        if not self._await_end():
            with self._lock:  # Some are stuck in a call to a silent host.
                stuck: list[Connection | _Worker] = [*self._busy, *self._workers]
            for one in stuck:
                one.cut()
            self._locator.cut()
            self._await_end()
        self._locator.cut()  # That of a line, if one is being made.
        self._locator.release(at_once=at_once)

    def put_back(self, one: "Connection | _Worker", session: Session) -> bool:
        """Take a connection, or a worker, whose work is done; False if it is to end."""
        with self._lock:
            if isinstance(one, Connection):
                self._busy.discard(one)
            stays = not self._closed and self._session == session and len(self._idle) < _CONNECTIONS
            if stays:
                self._idle.append(one)
            # One takes it; once it was made, another one may make the next. Of a crowd the others sleep on.
            if is_made := self._newest is not None and not self._newest.is_connecting():
                self._newest = None
            self._changed.notify(1 + is_made + self._background)
            return stays

    def note_end(self, worker: "_Worker") -> None:
        """Note that the thread of a worker has ended."""
        with self._lock:
            self._workers.discard(worker)
            if self._newest is worker:
                self._newest = None
            elif not self._closed:
                return  # Its connection was put back, which has woken those who may go on.
            self._changed.notify_all()

    def _await_end(self) -> bool:
        with self._lock:
            return self._changed.wait_for(lambda: not (self._workers or self._busy), _SHUTDOWN_GRACE)

    def _take(self, deadline: float, check_open: Check, left: int) -> "Connection | _Worker":
        """A connection that is idle, or its worker; one that is in use may come back before another one is made."""
        with self._lock:
            crowded, connecting, patient = 0.0, None, (time.monotonic() + deadline) / 2
            while True:
                check_open()
                if self._closed:
                    raise RendezvousConnectionError("The backend was closed.")
                now, failed = time.monotonic(), None if connecting is None else _error_of(connecting)
                # Where no other one is to be had, one that is left has to do.
                if len(self._idle) > (left if now < patient and failed is None else 0):
                    taken = self._idle.pop()
                    if isinstance(taken, Connection):
                        self._busy.add(taken)
                    return taken
                if failed is not None:
                    raise failed
                crowded = crowded or (now + _CROWDED if self._busy else now)
                is_full = self._is_full()
                if now >= crowded and not is_full:
                    self._newest = self._start_worker("rdzv-c10d-worker")
                    connecting = self._newest.do(lambda connection: None, deadline)
                    continue
                if now >= deadline:
                    raise self.no_answer()
                self._background += left
                self._changed.wait(min(deadline - now, _POLL_INTERVAL if is_full else crowded - now))
                self._background -= left

    def _is_full(self) -> bool:
        """Whether no other connection may be made now. A worker that is stuck is not counted."""
        newest = self._newest
        if newest is not None and newest.is_connecting() and not newest.is_stuck():
            return True
        working = sum(not worker.is_stuck() for worker in self._workers)
        return working + len(self._busy) >= _CONNECTIONS

    def _do(
        self, connection: Connection, work: Callable[[Connection], _T], deadline: float
    ) -> tuple[_T | None, Exception | None]:
        """Do some work on the caller's thread: its result, and why it has failed."""
        stays = False
        try:
            if (seconds := deadline - time.monotonic()) <= 0:
                stays = True
                return None, self.no_answer()
            connection.limit_waits(seconds)
            result = work(connection)
            stays = True
            return result, None
        except Exception as error:
            stays = isinstance(error, RendezvousError) or not isinstance(error, FAILURES)
            if stays:
                return None, error.with_traceback(None)
            if time.monotonic() >= deadline:
                return None, self.no_answer()
            self.lose(connection.session)
            return None, failure(error)
        finally:
            # Work that was interrupted has perhaps not read the store's answer.
            if not (self.put_back(connection, connection.session) if stays else self._drop(connection)):
                connection.cut()

    def _drop(self, connection: Connection) -> bool:
        with self._lock:
            self._busy.discard(connection)
            self._changed.notify_all()
            return False

    def _start_worker(self, name: str) -> "_Worker":
        worker = _Worker(self, name)  # Its end, if that comes at once, waits for the lock that we hold.
        self._workers.add(worker)
        return worker


class _Worker:
    """A thread with a connection."""

    def __init__(self, connections: ConnectionPool, name: str) -> None:
        self._requests: SimpleQueue[tuple[Callable[[Connection], Any], float, float, Future[Any]] | None]
        self._requests = SimpleQueue()
        self._connections = connections
        self._connection: Connection | None = None
        self._stay = Stay(math.inf)
        start_thread(self._run, name=name)

    def do(self, work: Callable[[Connection], _T], deadline: float, *, lasting: bool = False) -> Future[_T]:
        """Have it do some work, unless it cannot begin before the deadline; `lasting` work may go on after it."""
        answer: Future[_T] = Future()
        self._requests.put((work, deadline, math.inf if lasting else deadline, answer))
        return answer

    @property
    def session(self) -> Session | None:
        """The session of its connection; None: it has none."""
        connection = self._connection
        return None if connection is None else connection.session

    def is_connecting(self) -> bool:
        """Whether its connection is not made yet."""
        return self._connection is None

    def is_stuck(self) -> bool:
        """See `Stay`."""
        return self._stay.is_stuck()

    def end(self) -> None:
        """Let it end when its work is done."""
        self._requests.put(None)

    def cut(self) -> None:
        """Break the connection, if it can be had."""
        connection = self._connection
        if connection is not None:
            connection.cut()

    def _run(self) -> None:
        try:
            while (request := self._requests.get()) is not None and self._serve(*request):
                pass
        finally:
            self._connection = None
            self._connections.note_end(self)

    def _serve(self, work: Callable[[Connection], Any], deadline: float, until: float, answer: Future[Any]) -> bool:
        """Do some work; returns whether there may be more."""
        result: Any = None
        error: BaseException | None = None
        stays = False
        try:
            if self._connection is None:
                with self._stay_until(time.monotonic() + self._connections.patience):
                    self._connection = self._connections.connect(deadline - time.monotonic())
            if time.monotonic() > deadline:
                # The deadline of the caller is over: its work is not begun.
                raise self._connections.no_answer()
            with self._stay_until(until):
                self._connection.check_room()
                self._connection.limit_waits(max(0.001, until - time.monotonic()))
                result = work(self._connection)
        except BaseException as raised:
            # Of any class: the caller waits for this answer. Without its frames, which hold the connection.
            error = raised.with_traceback(None)
        store_failed = isinstance(error, FAILURES) and not isinstance(error, RendezvousError)
        is_late = store_failed and time.monotonic() >= until
        if store_failed:
            error = self._connections.no_answer() if is_late else failure(error)
        # Work that was interrupted has perhaps not read the store's answer: its connection is of no use any more.
        interrupted = is_late or (error is not None and not isinstance(error, Exception))
        try:
            stays = self._goes_on(store_failed, interrupted)
        finally:
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)
        return stays

    def _stay_until(self, deadline: float) -> Stay:
        self._stay = Stay(deadline)
        return self._stay

    def _goes_on(self, store_failed: bool, interrupted: bool) -> bool:
        """Whether this worker was put back, for more work."""
        connection = self._connection
        if connection is None or interrupted:
            return False
        if store_failed:
            self._connections.lose(connection.session)
            return False
        if connection.descriptor is None:
            return self._connections.put_back(self, connection.session)
        # From now on callers use it themselves.
        self._connections.put_back(connection, connection.session)
        return False


def _check_owner(owner: str, root: str) -> None:
    if owner not in ("", root):
        raise RendezvousDeniedError(
            f"The store there belongs to another run, '{owner.rstrip('/')}', whose node serves it; this one is "
            f"'{root.rstrip('/')}'. Give this run an endpoint with a port of its own."
        )


def _error_of(answer: Future[Any]) -> BaseException | None:
    return answer.exception() if answer.done() else None


def is_done(answer: Future[Any], deadline: float, check_open: Check) -> bool:
    """Wait until an answer is there, the deadline is over, or the backend is closed; returns whether it is there."""
    while not wait([answer], max(0.0, min(deadline - time.monotonic(), _POLL_INTERVAL))).done:
        check_open()
        if time.monotonic() >= deadline:
            return False
    return True


def failure(cause: BaseException | None) -> RendezvousConnectionError:
    """The error for the caller of a store that failed."""
    error = RendezvousConnectionError(f"The store failed: {cause}")
    error.__cause__ = None if cause is None else cause.with_traceback(None)
    return error


def _do_last(one: "Connection | _Worker", work: Callable[[Connection], None]) -> None:
    if isinstance(one, _Worker):
        one.do(work, time.monotonic() + _LAST_WORK)
        return
    with suppress(*FAILURES, RendezvousError):
        one.limit_waits(_SHUTDOWN_GRACE)
        work(one)


def _end(idle: "list[Connection | _Worker]") -> None:
    """End the workers; a connection ends with what refers to it."""
    for worker in [one for one in idle if isinstance(one, _Worker)]:
        worker.end()
    idle.clear()
