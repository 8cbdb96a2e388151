"""How a process learns of changes: it has a wakeup key of its own that does not exist, and waits for it to appear.

A writer creates the wakeup keys of all who watch that part (see `Run.watch`), without waiting for an
answer. The owner removes the key, then looks. A TCPStore can wait for nothing but that a key appears, and a
wait that ends by its timeout makes torch print a warning; so one wakeup key serves all waits of a process, and to
end them its owner rings it itself.
"""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from rdzv_core.errors import RendezvousConnectionError, RendezvousError, again

from .pool import Check, ConnectionPool
from .store import FAILURES, Connection, Session
from .values import nonce

logger = logging.getLogger(__name__)

_LONG: Final = timedelta(days=1)
_CONNECT: Final = 10.0
"""Seconds that making the connection may take."""


class WakeupKey:
    """One wakeup key, and the thread that listens to it while a thread waits.

    Attributes:
        key: The store's key.
        rings: How often it has rung, or may have.
    """

    def __init__(self, connections: ConnectionPool) -> None:
        self.key = f"rdzv-c10d/wakeup/{nonce()}"
        self.rings = 0
        self._connections = connections
        self._changed = threading.Condition()
        self._listening: Future[None] | None = None
        self._session: Session | None = None
        self._listeners = 0
        self._closing = False

    def start(self, deadline: float) -> Session:
        """Connect, unless that was done; from now on no ring is lost.

        Returns:
            The session of the store in which the wakeup key stands.

        Raises:
            NoAnswerError: There was no answer until the deadline.
            RendezvousError: There is no connection.
        """
        with self._changed:
            if (self._listening is None or self._listening.done()) and not self._closing:
                self._listening = self._connections.start(self._listen, _CONNECT, "rdzv-c10d-wakeup")
                self._listening.add_done_callback(self._note_end)
            listening = self._listening
            remaining = max(0.0, deadline - time.monotonic())
            self._changed.wait_for(
                lambda: self._session or self._closing or not listening or listening.done(), remaining
            )
            if self._session is not None:
                return self._session
            if self._closing:
                # Of another kind than a store that does not answer: to ask again would be of no use.
                raise RendezvousConnectionError("The backend was closed.")
        error = listening.exception() if listening and listening.done() else None
        if error is None:
            raise self._connections.no_answer()
        if isinstance(error, RendezvousError):
            # All who wait have the one future.
            raise again(error)
        raise RendezvousConnectionError(f"Listening to the store has failed: {error!r}.") from error

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Have the thread listen meanwhile."""
        with self._changed:
            self._listeners += 1
            if self._listeners == 1:
                # For the thread. Were it done every time, all who wait would wake for each one who joins them.
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._listeners -= 1

    def await_wakeup(self, heard: int, until: float, check_open: Check) -> None:
        """Return when `rings` is not `heard` any more, or at that moment (on the monotonic clock)."""
        with self._changed:
            while self.rings == heard and (remaining := until - time.monotonic()) > 0:
                check_open()
                self._changed.wait(remaining)

    def wake(self, rung: bool = True) -> None:
        """Wake all that wait for a ring: as if it had rung, or only to ask whether they are still open."""
        with self._changed:
            self.rings += rung
            self._changed.notify_all()

    def ring(self, connection: Connection) -> None:
        """Create this wakeup key."""
        connection.store.set(self.key, b"1")

    def close(self) -> None:
        """Let the thread end when it rings next."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _listen(self, connection: Connection) -> None:
        with self._changed:
            self._session = connection.session
            self._changed.notify_all()
        try:
            self._hear(connection)
        finally:
            with self._changed:
                self._session = None

    def _note_end(self, listening: Future[None]) -> None:
        error = listening.exception()
        if error is not None and not isinstance(error, RendezvousError):
            # The next one who waits starts another.
            logger.error("the thread that listens to the store has failed", exc_info=error)
        self.wake()

    def _hear(self, connection: Connection) -> None:
        store = connection.store
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._listeners or self._closing)
                if self._closing:
                    return
            started = time.monotonic()
            try:
                store.wait([self.key], _LONG)
            except FAILURES:
                if time.monotonic() - started < _LONG.total_seconds() / 2:
                    raise
            # At once, though perhaps no thread waits now: the next one need not wait for this.
            connection.check_room()
            store.delete_key(self.key)
            self.wake()
