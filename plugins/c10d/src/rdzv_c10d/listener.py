"""A thread of a process that waits in torch, on a connection of its own, while other threads wait for what it hears."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar, Final, TypeVar

from rdzv_core.errors import RendezvousConnectionError, RendezvousError, again

from .pool import ConnectionPool
from .store import FAILURES, Connection, Session

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

_LONG: Final = timedelta(days=1)
_CONNECT: Final = 10.0
"""Seconds that making the connection may take."""
PATIENCE: Final = 0.9
"""A call that was given less time than this, in seconds, proves nothing when it gets no answer."""


class Listener(ABC):
    """See above. The thread starts when it is needed, and waits in torch only while others wait for it.

    Attributes:
        thread: Its name.
    """

    thread: ClassVar[str]

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._listening: Future[None] | None = None
        self._session: Session | None = None
        self._listeners = 0
        self._closing = False

    @abstractmethod
    def _hear_next(self, connection: Connection) -> None:
        """Wait for something, and `wake` those who wait for it. After `close` it may return for nothing."""

    @property
    def is_started(self) -> bool:
        """Whether it listens, or has listened."""
        return self._listening is not None

    def start(self, deadline: float) -> Session:
        """Connect, unless that was done; from now on nothing is missed.

        Returns:
            The session of the store in which the thread listens.

        Raises:
            NoAnswerError: There was no answer until the deadline.
            RendezvousError: There is no connection.
        """
        with self._lock:
            if (self._listening is None or self._listening.done()) and not self._closing:
                self._listening = self._connections.start(self._listen, _CONNECT, self.thread)
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
        with self._lock:
            self._listeners += 1
            if self._listeners == 1:
                # For the thread. Were it done every time, all who wait would wake for each one who joins them.
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._lock:
                self._listeners -= 1

    def wake(self) -> None:
        """Wake all that wait: something was heard, or may have been."""
        with self._lock:
            self._changed.notify_all()

    def close(self) -> None:
        """Let the thread end when it hears something next."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()

    def _listen(self, connection: Connection) -> None:
        with self._lock:
            self._session = connection.session
            self._changed.notify_all()
        try:
            while self._is_wanted():
                self._hear_next(connection)
        finally:
            with self._lock:
                self._session = None

    def _is_wanted(self) -> bool:
        """Wait until a thread waits for what is heard; False: it is time to end."""
        with self._lock:
            self._changed.wait_for(lambda: self._listeners or self._closing)
            return not self._closing

    def _note_end(self, listening: Future[None]) -> None:
        error = listening.exception()
        if error is not None and not isinstance(error, RendezvousError):
            # The next one who waits starts another.
            logger.error("the thread that listens to the store has failed", exc_info=error)
        self.wake()


def await_key(connection: Connection, key: str) -> None:
    """Wait until a key is there, for a day at most."""
    _for_a_day(lambda: connection.store.wait([key], _LONG))


def await_value(connection: Connection, key: str) -> bytes:
    """The value of a key as soon as there is one; empty: there was none in a day, or perhaps there is none yet.

    The key of a store without a descriptor is there: such a store may be the user's own, who has set its timeout.
    """
    if connection.descriptor is None:
        return bytes(connection.store.get(key))
    store = connection.store
    before = store.timeout
    store.set_timeout(_LONG)
    try:
        return _for_a_day(lambda: store.get(key)) or b""
    finally:
        store.set_timeout(before)


def _for_a_day(wait: Callable[[], _T]) -> _T | None:
    started = time.monotonic()
    try:
        return wait()
    except FAILURES:
        if time.monotonic() - started < _LONG.total_seconds() / 2:
            raise
        return None
