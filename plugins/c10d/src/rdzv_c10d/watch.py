"""Waiting: all who wait for the same prefix in one process look together, once for each wakeup."""

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from rdzv.backend import Snapshot
from rdzv.errors import RendezvousConnectionError

from .run import Run
from .store import Connection, NoAnswerError, Session
from .wakeup import WakeupKey

__all__ = ["Moment", "Watches"]

_T = TypeVar("_T")

_IDLE: Final = 4
"""How many prefixes are watched on though nobody waits for them now."""
_LOOK: Final = 5.0
"""Seconds after which a waiter looks without being woken: a writer may have died before it could wake it."""
_LOOK_AGAIN: Final = 0.02
"""The same while a key is known to be on its way."""
_PATIENCE: Final = 0.9
"""A look that was given less time than this, in seconds, proves nothing when it gets no answer."""


class Moment(NamedTuple):
    """When a snapshot was taken, on this machine's monotonic clock: its `Snapshot.revision`.

    Attributes:
        began: Everything that was written before is in it.
        ended: Nothing that was written after is in it.
    """

    began: float
    ended: float


class Owner(Protocol):
    """What watches need of the connection pool that they belong to; see `connections.ConnectionPool`."""

    wakeup: WakeupKey
    run: Run

    @property
    def session(self) -> Session | None: ...

    def call(self, work: Callable[[Connection], _T], deadline: float, check_open: Callable[[], None]) -> _T: ...


class Watches:
    """The watches of one process for one run."""

    def __init__(self, connections: Owner) -> None:
        self._connections = connections
        self._lock = threading.Lock()
        # The one that was waited for last is last.
        self._by_prefix: dict[str, _Watch] = {}
        self._idle: list[_Watch] = []

    def wait(self, prefix: str, since: Snapshot, deadline: float, check_open: Callable[[], None]) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        with self._lock:
            watch = self._by_prefix.pop(prefix, None) or _Watch(self, self._connections, prefix)
            self._by_prefix[prefix] = watch
            watch.users += 1
            idle = [one for one in self._by_prefix.values() if not one.users]
            for one in idle[: max(0, len(idle) - _IDLE)]:
                self._idle.append(self._by_prefix.pop(one.prefix))
        try:
            with self._connections.wakeup.listening():
                return watch.wait(since, deadline, check_open)
        finally:
            with self._lock:
                watch.users -= 1

    def forget_idle(self, connection: Connection) -> None:
        """Have nobody ring any more for what nobody has waited for lately."""
        with self._lock:
            idle, self._idle = self._idle, []
        for watch in idle:
            watch.forget(connection)

    def forget(self, connection: Connection) -> None:
        """Have nobody ring any more."""
        with self._lock:
            self._idle += self._by_prefix.values()
            self._by_prefix.clear()
        self.forget_idle(connection)


class _Watch:
    """What is known of one prefix."""

    def __init__(self, watches: Watches, connections: Owner, prefix: str) -> None:
        self.prefix = prefix
        self.users = 0
        self._watches = watches
        self._connections = connections
        self._looking = threading.Lock()
        self._session: Session | None = None
        self._now: Snapshot | None = None
        self._taken = Moment(-1.0, -1.0)
        self._heard = -1
        self._look_at = 0.0

    def wait(self, since: Snapshot, deadline: float, check_open: Callable[[], None]) -> Snapshot:
        while True:
            check_open()
            started = time.monotonic()
            try:
                now = self._look(since, deadline, check_open)
            except NoAnswerError:
                if deadline - started < _PATIENCE:
                    return since
                raise
            if now is not None and now.entries != since.entries:
                return now
            if time.monotonic() >= deadline:
                return since
            self._connections.wakeup.await_wakeup(self._heard, min(deadline, self._look_at), check_open)
            if self._connections.session != self._session:
                # Told before anybody tries to connect again, which may take a while.
                raise RendezvousConnectionError("The connection to the store was lost; its host is gone, it seems.")

    def forget(self, connection: Connection) -> None:
        """Have nobody ring for this prefix any more."""
        if self._session == connection.session:
            self._session = None
            self._connections.run.unwatch(connection, self._connections.wakeup.key, self.prefix)

    def _look(self, since: Snapshot, deadline: float, check_open: Callable[[], None]) -> Snapshot | None:
        """What is there now, by one's own look or another thread's; None if time ran out."""
        if not self._looking.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return None
        try:
            if not self._is_current(since):
                self._look_again(deadline, check_open)
            return self._now
        finally:
            self._looking.release()

    def _is_current(self, since: Snapshot) -> bool:
        """Whether what is known is the latest, as far as anybody told, and not older than `since`."""
        if self._heard != self._connections.wakeup.rings or time.monotonic() >= self._look_at:
            return False
        known = since.revision
        return not isinstance(known, Moment) or known == self._taken or known.ended <= self._taken.began

    def _look_again(self, deadline: float, check_open: Callable[[], None]) -> None:
        session = self._connections.wakeup.start(deadline)
        self._heard = self._connections.wakeup.rings
        began = time.monotonic()

        def look(connection: Connection) -> tuple[Snapshot, bool]:
            self._register(connection, session)
            self._watches.forget_idle(connection)
            entries, settled = self._connections.run.read_all(connection, self.prefix)
            return Snapshot(entries, Moment(began, time.monotonic())), settled

        self._now, settled = self._connections.call(look, deadline, check_open)
        self._taken = self._now.revision
        self._look_at = began + (_LOOK if settled else _LOOK_AGAIN)

    def _register(self, connection: Connection, session: Session) -> None:
        if connection.session != session:
            raise RendezvousConnectionError("The store was replaced by a new one just now.")
        if self._session != session:
            self._connections.run.watch(connection, self._connections.wakeup.key, self.prefix)
            self._session = session
