"""How a process learns of changes: it has a wakeup key of its own that does not exist, and waits for it to appear.

A writer creates the wakeup keys of all who watch that part (see `Run.watch`), without waiting for an
answer. The owner removes the key, then looks. A TCPStore can wait for nothing but that a key appears, and a
wait that ends by its timeout makes torch print a warning; so one wakeup key serves all waits of a process, and to
end them its owner rings it itself.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Protocol

from rdzv.errors import RendezvousConnectionError, RendezvousError
from rdzv.threads import start_thread

from .store import FAILURES, Connection, Session, cut
from .values import nonce

__all__ = ["WakeupKey"]

logger = logging.getLogger(__name__)

_LONG: Final = timedelta(days=1)
_CONNECT: Final = 10.0
"""Seconds that making the connection may take."""


class Owner(Protocol):
    """What a wakeup key needs of the connection pool that it belongs to; see `connections.ConnectionPool`."""

    def connect(self, timeout: float) -> Connection: ...

    def lose(self, session: Session) -> None: ...

    def no_answer(self) -> RendezvousError: ...

    def note_end(self) -> None: ...


class WakeupKey:
    """One wakeup key, and the thread that listens to it while a thread waits.

    Attributes:
        key: The store's key.
        rings: How often it has rung, or may have.
    """

    def __init__(self, connections: Owner) -> None:
        self.key = f"rdzv-c10d/wakeup/{nonce()}"
        self.rings = 0
        self._connections = connections
        self._changed = threading.Condition()
        self._alive = False
        self._connection: Connection | None = None
        self._problem: RendezvousError | None = None
        self._listeners = 0
        self._closing = False

    @property
    def alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._alive

    def start(self, deadline: float) -> Session:
        """Connect, unless that was done; from now on no ring is lost.

        Returns:
            The incarnation of the store in which the wakeup key stands.

        Raises:
            RendezvousError: There is no connection.
        """
        with self._changed:
            if not self._alive and not self._closing:
                # Before the thread starts: it may say its problem at once.
                self._problem = None
                start_thread(self._live, name="rdzv-c10d-wakeup")
                self._alive = True
            remaining = max(0.0, deadline - time.monotonic())
            # Its thread may have ended at once.
            self._changed.wait_for(lambda: self._connection or not self._alive or self._closing, remaining)
            if self._connection is None:
                raise self._problem or self._connections.no_answer()
            return self._connection.session

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

    def await_wakeup(self, heard: int, until: float, check_open: Callable[[], None]) -> None:
        """Return when `rings` is not `heard` any more, or at that moment (on the monotonic clock)."""
        with self._changed:
            while self.rings == heard and (remaining := until - time.monotonic()) > 0:
                check_open()
                self._changed.wait(remaining)

    def wake(self, rung: bool = True) -> None:
        """Wake everyone who waits for a ring: as if it had rung, or only to ask whether they are still open."""
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

    def cut(self) -> None:
        """Break the connection."""
        connection = self._connection
        if connection is not None:
            cut(connection.store)

    def _live(self) -> None:
        connection = None
        try:
            connection = self._connections.connect(_CONNECT)
            with self._changed:
                self._connection = connection
                self._changed.notify_all()
            self._listen(connection)
        except RendezvousError as error:
            self._problem = error.with_traceback(None)
        except FAILURES as error:
            self._problem = RendezvousConnectionError(f"The store failed: {error}")
            if connection is not None and not self._closing:
                self._connections.lose(connection.session)
        except Exception as error:
            # The next one who waits starts another.
            logger.exception("the thread that listens to the store has failed")
            self._problem = RendezvousConnectionError(f"Listening to the store has failed: {error!r}.")
        finally:
            connection = None
            with self._changed:
                self._alive, self._connection = False, None
                self.rings += 1
                self._changed.notify_all()
            self._connections.note_end()

    def _listen(self, connection: Connection) -> None:
        store, rung = connection.store, False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._listeners or self._closing)
            if rung:
                store.delete_key(self.key)
                self.wake()
            if self._closing:
                return
            started = time.monotonic()
            try:
                store.wait([self.key], _LONG)
            except FAILURES:
                if time.monotonic() - started < _LONG.total_seconds() / 2:
                    raise
            rung = True
