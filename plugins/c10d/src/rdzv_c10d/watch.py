"""Waiting: all who wait for the same prefix in one process look together, once for each wakeup."""

import threading
import time
from contextlib import suppress
from typing import Final, NamedTuple

from rdzv.backend import Snapshot
from rdzv.errors import RendezvousConnectionError
from rdzv_transport import Prefixes

from .pool import Check, ConnectionPool
from .run import Run, is_quiet
from .store import Connection, NoAnswerError, Session
from .wakeup import WakeupKey

_IDLE_WATCHES: Final = 4
"""How many prefixes are watched on though no call waits for them now."""
_LOOK: Final = 30.0
"""Seconds after which a waiter looks without being woken: a writer may have died before it could wake it. (Whatever
changes next wakes it, too.)"""
_LOOK_QUIET: Final = 0.2
"""The same where no client rings."""
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


class Watches:
    """The watches of one process for one run.

    Attributes:
        wakeup: By what they learn that something has changed.
    """

    def __init__(self, connections: ConnectionPool, run: Run) -> None:
        self.wakeup = WakeupKey(connections)
        connections.on_lost = self.wakeup.wake
        # Those that no call has waited for lately, until a thread has taken them out to forget them.
        self._idle: list[_Watch] = []
        self._watches = Prefixes(
            lambda prefix: _Watch(prefix, self, connections, run), self._idle.append, idle=_IDLE_WATCHES
        )

    def wait(self, prefix: str, since: Snapshot, deadline: float, check_open: Check) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        with self._watches.using(prefix) as watch, self.wakeup.listening():
            return watch.wait(since, deadline, check_open)

    def forget_idle(self, connection: Connection) -> None:
        """Have no client ring any more for what no call has waited for lately."""
        taken: list[_Watch] = []
        with suppress(IndexError):
            while True:
                taken.append(self._idle.pop())
        for watch in taken:
            watch.forget(connection)

    def forget(self, connection: Connection) -> None:
        """Have no client ring any more."""
        self._idle += self._watches.all()
        self.forget_idle(connection)


class _Watch:
    """What is known of one prefix."""

    def __init__(self, prefix: str, watches: Watches, connections: ConnectionPool, run: Run) -> None:
        self._prefix = prefix
        self._watches = watches
        self._wakeup = watches.wakeup
        self._connections = connections
        self._run = run
        self._looking = threading.Lock()
        self._session: Session | None = None
        self._now = Snapshot({}, Moment(-1.0, -1.0))
        self._heard = -1
        self._look_at = 0.0
        self._quiet = is_quiet(prefix)

    def wait(self, since: Snapshot, deadline: float, check_open: Check) -> Snapshot:
        while True:
            check_open()
            started = time.monotonic()
            try:
                now, heard = self._look(since, deadline, check_open)
            except NoAnswerError:
                if deadline - started < _PATIENCE:
                    return since
                raise
            if now is not None and now.entries != since.entries:
                return now
            if time.monotonic() >= deadline:
                return since
            self._wakeup.await_wakeup(heard, min(deadline, self._look_at), check_open)
            if self._connections.session != self._session:
                # Told before a new attempt to connect, which may take a while.
                raise RendezvousConnectionError("The connection to the store was lost; its host is gone, it seems.")

    def forget(self, connection: Connection) -> None:
        """Have no client ring for this prefix any more."""
        if self._session == connection.session:
            self._session = None
            if not self._quiet:
                self._run.unwatch(connection, self._wakeup.key, self._prefix)

    def _look(self, since: Snapshot, deadline: float, check_open: Check) -> tuple[Snapshot | None, int]:
        """What is there now, by one's own look or another thread's, and after how many rings; None if time ran out."""
        if not self._looking.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return None, self._heard
        try:
            if not self._is_current(since):
                self._look_again(deadline, check_open)
            return self._now, self._heard
        finally:
            self._looking.release()

    def _is_current(self, since: Snapshot) -> bool:
        """Whether what is known is the latest, as far as any ring told, and not older than `since`."""
        if self._heard != self._wakeup.rings or time.monotonic() >= self._look_at:
            return False
        known = since.revision
        taken: Moment = self._now.revision
        return not isinstance(known, Moment) or known == taken or known.ended <= taken.began

    def _look_again(self, deadline: float, check_open: Check) -> None:
        session = self._wakeup.start(deadline)
        heard = self._wakeup.rings
        began = time.monotonic()

        def look(connection: Connection) -> tuple[Snapshot, bool]:
            # First of all: what was idle may be this very prefix.
            self._watches.forget_idle(connection)
            self._register(connection, session)
            entries, settled = self._run.read_all(connection, self._prefix)
            return Snapshot(entries, Moment(began, time.monotonic())), settled

        self._now, settled = self._connections.call(look, deadline, check_open)
        # Only now: a look that got no answer in time has heard nothing.
        self._heard = heard
        self._look_at = began + (_LOOK_AGAIN if not settled else _LOOK_QUIET if self._quiet else _LOOK)

    def _register(self, connection: Connection, session: Session) -> None:
        if connection.session != session:
            raise RendezvousConnectionError("The store was replaced by a new one just now.")
        if self._session != session:
            if not self._quiet:
                self._run.watch(connection, self._wakeup.key, self._prefix)
            self._session = session
