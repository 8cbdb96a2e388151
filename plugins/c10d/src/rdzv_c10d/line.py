"""One connection for the calls of a process's round stores, which reach the store in the order in which they were made.

torch waits for no answer to a `set`: on two connections a later call could overtake it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from rdzv_core.threads import in_thread

from .pool import Check, ConnectionPool, failure, is_done
from .store import FAILURES, Connection, NoAnswerError, Store, stores
from .stuck import Stay

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")

_ATTEMPT: Final = 10.0
"""Seconds that one call may take: while a caller waits for torch, Python hears no Ctrl-C."""
_GRACE: Final = 0.3
"""Seconds that a call has to end when its connection is broken."""


class UnansweredError(NoAnswerError):
    """The request was sent, and may have been done or not."""


class Line:
    """See above.

    Args:
        connections: Makes the connection.
    """

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._using = threading.Lock()
        self._connection: Connection | None = None
        # One at a time: a host that is stopped holds its thread until it goes on.
        self._connecting: Future[Connection] | None = None

    def call(self, work: Callable[[Store], _T], seconds: float, check_open: Check) -> _T:
        """Ask the store.

        Args:
            work: A call of the store.
            seconds: How long it may take; no call takes longer than `_ATTEMPT`.
            check_open: Raises when the backend that calls was closed.

        Raises:
            UnansweredError: The store failed, or did not answer in time.
            RendezvousConnectionError: There is no connection, or no turn in time; nothing was sent.
        """
        seconds = max(0.001, min(seconds, _ATTEMPT))
        if not self._using.acquire(timeout=seconds):
            raise self._connections.no_answer()
        try:
            check_open()
            connection = self._connection
            if connection is None or connection.session != self._connections.session:
                connection = self._connect(time.monotonic() + seconds, check_open)
            connection.limit_waits(seconds)
            began = time.monotonic()
            try:
                return work(connection.store)
            except FAILURES as raised:
                self._connection = None
                connection.cut()
                if time.monotonic() - began < seconds * 0.9:
                    self._connections.lose(connection.session)
                error = UnansweredError(str(failure(raised)))
                error.__cause__ = raised.with_traceback(None)
        finally:
            self._using.release()
        # An error is kept for long, and with it what its frames hold.
        del connection
        check_open()
        raise error

    def await_keys(self, keys: Sequence[str], deadline: float, check_open: Check) -> None:
        """Return when all keys are there, or at the deadline.

        Raises:
            RendezvousConnectionError: The store cannot be reached.
        """

        def listen(connection: Connection) -> None:
            # torch's own timeout, of which it prints a warning.
            with suppress(stores().DistStoreError):
                connection.store.wait(list(keys), timedelta(seconds=max(0.001, deadline - time.monotonic())))

        waiting = self._connections.start(listen, _ATTEMPT, "rdzv-c10d-store-wait")
        if is_done(waiting, deadline, check_open):
            waiting.result()

    def close(self) -> None:
        """Break the connection if a call uses it, and end that call."""
        connection, idle = self._connection, self._using.acquire(blocking=False)
        if not idle and connection is not None:
            connection.cut()
            idle = self._using.acquire(timeout=_GRACE)
        self._connection = self._connecting = None
        if idle:
            self._using.release()

    def _connect(self, deadline: float, check_open: Check) -> Connection:
        self._connection = None
        if self._connecting is None or self._connecting.done():
            self._connecting = in_thread(lambda: self._make(deadline), "rdzv-c10d-connect")
        if not is_done(self._connecting, deadline, check_open):
            raise self._connections.no_answer()
        made, self._connecting = self._connecting, None
        self._connection = made.result()
        return self._connection

    def _make(self, deadline: float) -> Connection:
        with Stay(time.monotonic() + self._connections.patience):
            return self._connections.connect(deadline - time.monotonic())
