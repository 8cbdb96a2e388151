"""Waiting for the page: the next version of it is a key, whose writer wakes all who wait for it.

One thread of a process waits for that key and reads it, for all threads that wait for the page. What they return needs
no call of their own.
"""

import threading
import time
from contextlib import ExitStack
from typing import ClassVar, Final

from rdzv_core.backend import Snapshot
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.turns import Turns

from .listener import PATIENCE, Listener, await_value
from .page import PageVersion, SharedPage
from .pool import Check, ConnectionPool
from .store import Connection, NoAnswerError
from .values import Page

_LOOK: Final = 30.0
"""Seconds without a word of the store after which a waiter asks it whether it still answers."""
_POLL_INTERVAL: Final = 0.01
"""Seconds between two looks where no thread may wait in torch, as often as torch looks at a file; and after a wait that
brought nothing."""


class PageWatch(Listener):
    """See above."""

    thread: ClassVar[str] = "rdzv-c10d-page"

    def __init__(self, connections: ConnectionPool, page: SharedPage) -> None:
        super().__init__(connections)
        self._turns = Turns()
        self._page = page
        self._heard_at = 0.0
        # The last version for which it has woken all who wait.
        self._told: Page | None = None
        # The connection on which the thread waits in torch.
        self._waiting: Connection | None = None
        # What to close when it has come back.
        self._to_close = ExitStack()
        self._ended = threading.Event()

    def wait(self, prefix: str, since: Snapshot, deadline: float, check_open: Check) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        seen = since.revision
        if not (isinstance(seen, PageVersion) and self._is_current(seen.session)):
            # Of another service, or of a store that is gone.
            now = self._look(prefix, deadline, check_open)
            if now is None or now.entries != since.entries:
                return now or since
            seen = now.revision
        asked = seen.number

        def news() -> Snapshot | None:
            nonlocal asked
            check_open()
            if not self._is_current(seen.session):
                raise RendezvousConnectionError("The connection to the store was lost; its host is gone, it seems.")
            page = self._page.known(seen.session) or Page()
            asked = max(page.version, seen.number)
            if page.version > seen.number and (entries := page.under(prefix)) != since.entries:
                return Snapshot(entries, PageVersion(seen.session, page.version))
            return None

        def listen() -> None:
            began = time.monotonic()
            try:
                self.start(deadline)
            except NoAnswerError:
                if deadline - began >= PATIENCE:
                    raise
                return
            self._await_version(PageVersion(seen.session, asked), min(deadline, self._heard_at + _LOOK), check_open)
            if time.monotonic() >= self._heard_at + _LOOK or self._has_failed(seen.session):
                self._look(prefix, deadline, check_open)

        with self.listening():
            return self._turns.wait(news, listen, deadline) or since

    def wake(self) -> None:
        """Have every thread that waits ask for its news, and whether its backend is still open."""
        super().wake()
        self._turns.wake()

    def close(self) -> None:
        super().close()
        self._ended.set()

    def end(self) -> None:
        """After `close`: end the thread at once, though it may wait in torch."""
        with self._lock:
            if self._waiting is not None:
                self._to_close.enter_context(self._waiting.end_wait())

    def _has_failed(self, session: str) -> bool:
        """Whether the thread that listens has ended, though the store is there: a look says why."""
        return self._listening is not None and self._listening.done() and self._is_current(session)

    def _is_current(self, session: str) -> bool:
        now = self._connections.session
        return now is not None and now.id == session

    def _look(self, prefix: str, deadline: float, check_open: Check) -> Snapshot | None:
        """Read the page; None: there was no answer in a time that was too short for one."""
        began = time.monotonic()
        try:
            now = self._connections.call(
                lambda connection: self._page.snapshot(connection, prefix), deadline, check_open
            )
        except NoAnswerError:
            if deadline - began >= PATIENCE:
                raise
            return None
        self._heard_at = max(self._heard_at, began)
        return now

    def _await_version(self, seen: PageVersion, until: float, check_open: Check) -> None:
        """Return when there may be a later version, or the connection is lost, or at that moment."""
        with self._lock:
            check_open()
            page = self._page.known(seen.session)
            if self._is_current(seen.session) and (page is None or page.version <= seen.number):
                # The thread that listens wakes us for each version, also for one that another thread has read.
                self._changed.wait(max(0.0, until - time.monotonic()))

    def _listen(self, connection: Connection) -> None:
        self._heard_at = time.monotonic()
        super()._listen(connection)

    def _hear_next(self, connection: Connection) -> None:
        session = connection.session.id
        page = self._page.known(session) or self._page.read(connection)
        if page is not self._told:
            # Another thread has read or written it.
            self._told = page
            self.wake()
        key = self._page.key_of(page.version + 1)
        if connection.descriptor is None:
            while not connection.store.check([key]):
                if not self._listeners or self._ended.wait(_POLL_INTERVAL):
                    return
        if raw := self._await_value(connection, key):
            self._told = self._page.follow(connection, page, raw)
            self._heard_at = time.monotonic()
            self.wake()
        else:
            # Some client that is not ours keeps it empty, or wakes us for nothing.
            self._ended.wait(_POLL_INTERVAL)

    def _await_value(self, connection: Connection, key: str) -> bytes:
        """Wait for a key; empty: it is not there, or the thread is to end, and its connection is of no use any more."""
        with self._lock:
            if self._closing:
                return b""
            self._waiting = connection
        try:
            return await_value(connection, key)
        finally:
            with self._lock:
                self._waiting = None
                self._to_close.close()
