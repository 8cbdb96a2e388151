"""Waiting: of the threads of a process that wait for the same prefix one looks, for all, once for each wakeup."""

import time
from contextlib import suppress
from typing import Final, NamedTuple

from rdzv_core.backend import Snapshot
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.turns import Turns
from rdzv_transport import Prefixes

from .layout import is_on_page, is_quiet
from .listener import PATIENCE
from .page_watch import PageWatch
from .pool import Check, ConnectionPool
from .run import Run
from .store import Connection, NoAnswerError, Session
from .values import nonce
from .wakeup import WakeupKey
from .watchers import Watcher

_IDLE_WATCHES: Final = 4
"""How many prefixes are watched on though no call waits for them now."""
_LOOK: Final = 30.0
"""Seconds after which a waiter looks without being woken: a writer may have died before it could wake it. (Whatever
changes next wakes it, too.)"""
_LOOK_QUIET: Final = 0.2
"""The same where no client rings."""


class Moment(NamedTuple):
    """When a snapshot was taken, on this machine's monotonic clock: its `Snapshot.revision`, unless it is of the page.

    Attributes:
        began: Everything that was written before is in it.
        ended: Nothing that was written after is in it.
    """

    began: float
    ended: float


class Watches:
    """The watches of one process for one run.

    Attributes:
        wakeup: By what they learn that something has changed that is not on the page.
    """

    def __init__(self, connections: ConnectionPool, run: Run) -> None:
        self.wakeup = WakeupKey(connections)
        self._page = PageWatch(connections, run.page)
        connections.on_lost = self._note_loss
        # Those that no call has waited for lately, until a thread has taken them out to forget them.
        self._idle: list[_Watch] = []
        self._watches = Prefixes(
            lambda prefix: _Watch(prefix, self, connections, run), self._idle.append, idle=_IDLE_WATCHES
        )

    def wait(self, prefix: str, since: Snapshot, deadline: float, check_open: Check) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        if is_on_page(prefix):
            return self._page.wait(prefix, since, deadline, check_open)
        with self._watches.using(prefix) as watch, self.wakeup.listening():
            return watch.wait(since, deadline, check_open)

    def wake(self) -> None:
        """Have every thread that waits ask whether its backend is still open."""
        self._page.wake()
        self.wakeup.wake(rung=False)
        for watch in self._watches.all():
            watch.turns.wake()

    def forget_idle(self, connection: Connection) -> None:
        """Have no client ring any more for what no call has waited for lately."""
        taken: list[_Watch] = []
        with suppress(IndexError):
            while True:
                taken.append(self._idle.pop())
        for watch in taken:
            watch.forget(connection)

    def close(self) -> None:
        """Let the threads that listen end when they hear something next."""
        self.wakeup.close()
        self._page.close()

    def end(self, connection: Connection) -> None:
        """After `close`: have no client ring any more; then end the threads that listen, of which one hears its wakeup
        key."""
        self._idle += self._watches.all()
        self.forget_idle(connection)
        if self.wakeup.is_started:
            self.wakeup.ring(connection)
        self._page.end()

    def _note_loss(self) -> None:
        self.wakeup.wake()
        self._page.wake()


class _Watch:
    """What is known of one prefix. Of the threads that wait for it one at a time looks, for all."""

    def __init__(self, prefix: str, watches: Watches, connections: ConnectionPool, run: Run) -> None:
        self.turns = Turns()
        self._watches = watches
        self._wakeup = watches.wakeup
        self._watcher = Watcher(watches.wakeup.key, prefix, nonce())
        self._connections = connections
        self._run = run
        # The session in which this prefix is watched; and the one in which the store was asked for that, by a request
        # that may be lost.
        self._session: Session | None = None
        self._asked: Session | None = None
        self._now = Snapshot({}, Moment(-1.0, -1.0))
        # Whether a thread waits that knows something newer than this.
        self._is_behind = False
        self._heard = -1
        self._look_at = 0.0
        # Seconds that the last look took; and the end of the wait that was too short for the next one.
        self._took = 0.0
        self._put_off: float | None = None
        # Whether the last look had too little time for an answer.
        self._is_unanswered = False
        self._quiet = is_quiet(prefix)

    def wait(self, since: Snapshot, deadline: float, check_open: Check) -> Snapshot:
        session = self._current_session()
        # Of what another service has said, nothing is known.
        known = since.revision if isinstance(since.revision, Moment) else Moment(-1.0, time.monotonic())

        def news() -> Snapshot | None:
            nonlocal session
            check_open()
            taken: Moment = self._now.revision
            if taken.began < known.ended and taken != known:
                # What has changed since that look rings.
                self._is_behind = True
                if known.began < taken.ended:
                    # Unless both were at the same time: then that look may have heard the ring.
                    self._wakeup.wake()
            elif self._now.entries != since.entries:
                return self._now
            self._check_session(session)
            session = self._current_session()
            return None

        return self.turns.wait(news, lambda: self._look_for_news(deadline, check_open), deadline) or since

    def forget(self, connection: Connection) -> None:
        """Have no client ring for this prefix any more."""
        if self._asked == connection.session:
            self._run.unwatch(connection, self._watcher)
        self._asked = self._session = None

    def _check_session(self, session: Session | None) -> None:
        """Say that the store in which this prefix was watched is gone, before another attempt to connect, which may
        take a while.

        Raises:
            RendezvousConnectionError: It is.
        """
        if session is not None and self._connections.session != session:
            raise RendezvousConnectionError("The connection to the store was lost; its host is gone, it seems.")

    def _current_session(self) -> Session | None:
        """The session in which this prefix is watched; None: it is not."""
        return self._session if self._session == self._connections.session else None

    def _look_for_news(self, deadline: float, check_open: Check) -> None:
        """Look whenever it rings, until there may be news for a thread that waits, or the deadline is over."""
        while (now := time.monotonic()) < deadline:
            rings = self._wakeup.rings
            if (until := self._look_time(rings, now, deadline)) > now:
                self._wakeup.await_wakeup(rings, until, check_open)
                self._check_session(self._session)
                continue
            before = self._now
            try:
                self._look_again(deadline, check_open)
            except NoAnswerError:
                # So little time proves nothing against the store; but if it is always too little, no news ever comes.
                if deadline - now >= PATIENCE or self._is_unanswered:
                    raise
                self._is_unanswered = True
            with self.turns.changed:
                if self._is_behind or self._now.entries != before.entries:
                    self._is_behind = False
                    return

    def _look_time(self, rings: int, now: float, deadline: float) -> float:
        """When to look, unless it rings before."""
        if self._heard == rings and now < self._look_at:
            return min(deadline, self._look_at)
        if deadline - now < self._took and self._put_off in (None, deadline):
            # A look that gets no answer in time costs its connection. The next wait begins with it, however short.
            self._put_off = deadline
            return deadline
        return now

    def _look_again(self, deadline: float, check_open: Check) -> None:
        if not self._quiet:
            # Whoever sees a page that this process writes from now on rings, also while the listener connects.
            self._run.page.wakeup = self._watcher.wakeup
        session = self._wakeup.start(deadline)
        heard = self._wakeup.begin_look()
        began, self._put_off = time.monotonic(), None

        def look(connection: Connection) -> Snapshot:
            connected = time.monotonic()
            # First of all: what was idle may be this very prefix.
            self._watches.forget_idle(connection)
            self._register(connection, session)
            entries = self._run.read_all(connection, self._watcher.prefix)
            # The answer says that the store has got what was sent before.
            self._session = session
            self._took, self._is_unanswered = time.monotonic() - connected, False
            return Snapshot(entries, Moment(began, time.monotonic()))

        self._now = self._connections.call(look, deadline, check_open)
        # Only now: a look that got no answer in time has heard nothing.
        self._heard = heard
        self._look_at = began + (_LOOK_QUIET if self._quiet else _LOOK)

    def _register(self, connection: Connection, session: Session) -> None:
        if connection.session != session:
            raise RendezvousConnectionError("The store was replaced by a new one just now.")
        if self._session != session and not self._quiet:
            self._asked = session
            self._run.watch(connection, self._watcher)
