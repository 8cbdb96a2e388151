"""Waiting: of the threads of a process that wait for the same prefix one looks, for all, once for each wakeup."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from rdzv_core.backend import Snapshot
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.threads import in_thread
from rdzv_core.turns import Turns
from rdzv_transport import Prefixes

from .layout import is_on_page, is_quiet
from .listener import PATIENCE
from .page_watch import PageWatch
from .pool import Check, ConnectionPool, is_done
from .run import Run
from .store import Connection, NoAnswerError, Session
from .values import nonce
from .wakeup import WakeupKey
from .watchers import Watcher

if TYPE_CHECKING:
    from concurrent.futures import Future

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
        # Seconds that a look takes, by the last one; and one that began so late in a wait that another awaits its end.
        self._took = 0.0
        self._late: Future[None] | None = None
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
            self._run.watchers.remove(connection, self._watcher)
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
            if self._late is None and self._heard == rings and now < self._look_at:
                self._wakeup.await_wakeup(rings, min(deadline, self._look_at), check_open)
                self._check_session(self._session)
                continue
            if self._late is not None or deadline - now < 2 * self._took:
                # It may have ended before this wait began: its news is asked for, whatever has changed here.
                self._look_late(deadline, check_open)
                return
            before = self._now
            self._look_in_time(now, deadline, check_open)
            with self.turns.lock:
                if self._is_behind or self._now.entries != before.entries:
                    self._is_behind = False
                    return

    def _look_in_time(self, now: float, deadline: float, check_open: Check) -> None:
        try:
            self._look_again(deadline, check_open)
        except NoAnswerError:
            if deadline - now >= PATIENCE:
                raise
            # So little time proves nothing against the store. The next look has more, however short its wait is.
            self._took = PATIENCE

    def _look_late(self, deadline: float, check_open: Check) -> None:
        """Look, though the wait may end first: a look that gets no answer in time would cost its connection."""
        if self._late is None:
            until = time.monotonic() + self._took + PATIENCE
            # The backend that has begun it may be closed before another one awaits its end.
            self._late = in_thread(lambda: self._look_again(until, lambda: None), "rdzv-c10d-look")
        if is_done(self._late, deadline, check_open):
            late, self._late = self._late, None
            # Of an error a wait with more time makes sure itself: that one may be old, and had less.
            if late.exception() is None or deadline - time.monotonic() < self._took + PATIENCE:
                late.result()

    def _look_again(self, deadline: float, check_open: Check) -> None:
        if not self._quiet:
            # A client that sees a page which this process writes from now on rings, also while the listener connects.
            self._run.page.wakeup = self._watcher.wakeup
        session = self._wakeup.start(deadline)
        heard = self._wakeup.begin_look()
        began = time.monotonic()

        def look(connection: Connection) -> Snapshot:
            connected = time.monotonic()
            # First of all: what was idle may be this very prefix.
            self._watches.forget_idle(connection)
            self._register(connection, session)
            entries = self._run.read_all(connection, self._watcher.prefix)
            # The answer says that the store has got what was sent before.
            self._session = session
            self._took = time.monotonic() - connected
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
            self._run.watchers.add(connection, self._watcher)
