"""Waiting for changes: one query per prefix, however many threads wait, kept from one wait to the next.

A thread per prefix follows it; any number of threads wait for what it learns.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rdzv.backend import Snapshot
from rdzv.errors import RendezvousConnectionError, RendezvousError, again
from rdzv.threads import start_thread

from .client import CancelToken
from .prefixes import Prefixes
from .sockets import LONGEST

logger = logging.getLogger(__name__)

_IDLE_WATCHES: Final = 4
"""How many prefixes keep their query though no call waits for them now."""

_IDLE_TIMEOUT: Final = 5.0
"""Seconds for which a prefix is followed though no call waits."""

_REUSE_WINDOW: Final = 1.0
"""A snapshot that was received less than so many seconds ago need not be read again."""

WatchSource = Callable[[str, Snapshot | None, CancelToken], Iterator[Snapshot]]
"""Follows a prefix: yields a snapshot whenever there may be news, and now and then without any. It begins with what
is there, unless it is given a snapshot to go on from. It ends when the token is cancelled, and raises a
`RendezvousError` when the service cannot be reached."""


@dataclass(frozen=True, slots=True)
class Revision:
    """When a snapshot was true.

    Attributes:
        index: The service's own count. It falls if the service loses data.
        asked: When the service was asked, on our monotonic clock.
        received: When it had answered; -inf if it is not known.
    """

    index: int
    asked: float
    received: float


class Watches:
    """The watches of one client.

    Args:
        name: For the names of threads.
        follow: Follows a prefix; see `WatchSource`. Its snapshots have a `Revision`.
        check_open: Raises `RendezvousConnectionError` once the client is closed.
    """

    def __init__(self, name: str, follow: WatchSource, check_open: Callable[[], None]) -> None:
        self._watches = Prefixes(
            lambda prefix: _Watch(name, prefix, follow, check_open),
            lambda watch: watch.cancel.cancel(),
            idle=_IDLE_WATCHES,
        )

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        deadline = time.monotonic() + min(timeout, LONGEST)
        with self._watches.using(prefix) as watch:
            return watch.wait(since, deadline)


class _Watch:
    """What is known of one prefix, and the thread that keeps it up to date."""

    def __init__(self, name: str, prefix: str, follow: WatchSource, check_open: Callable[[], None]) -> None:
        self.prefix = prefix
        self._users = 0
        self._left = 0.0
        self.cancel = CancelToken()
        self._name = f"rdzv-{name}-watch-{prefix}"
        self._source = follow
        self._check_open = check_open
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._answer: Snapshot | None = None
        self._failure: RendezvousError | None = None

    def wait(self, since: Snapshot, deadline: float) -> Snapshot:
        with self._changed:
            self._users += 1
            try:
                return self._wait(since, deadline)
            finally:
                self._left = time.monotonic()
                self._users -= 1

    def _wait(self, since: Snapshot, deadline: float) -> Snapshot:
        known = since.revision if isinstance(since.revision, Revision) else Revision(0, float("-inf"), float("-inf"))
        failure = self._failure
        while True:
            self._check_open()
            if self._is_newer(since, known) and self._answer is not None:
                return self._answer
            if self._failure is not None and self._failure is not failure:
                raise again(self._failure)
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return since
            if self._thread is None:
                # After a failure the service may have lost what it had, and what is newer never come.
                is_fresh = self._failure is None and time.monotonic() - known.received < _REUSE_WINDOW
                self._start(since if is_fresh else None)
            self._changed.wait(remaining)

    def _is_newer(self, since: Snapshot, known: Revision) -> bool:
        """Whether a caller who knows `since` should see what is here."""
        if self._answer is None:
            return False
        now: Revision = self._answer.revision
        # What was asked for after `since` was received is newer, even if the service has lost data and counts anew.
        is_newer = now.index >= known.index or now.asked >= known.received
        return is_newer and self._answer.entries != since.entries

    def _start(self, start: Snapshot | None) -> None:
        # It waits for the lock that we hold before it says anything, its end too.
        self._thread = start_thread(self._run, start, name=self._name)

    def _run(self, start: Snapshot | None) -> None:
        failure: RendezvousError | None = None
        try:
            self._take_in(start)
        except RendezvousError as error:
            failure = error
        except Exception as error:
            logger.exception("following '%s' has failed; the next wait begins anew", self.prefix)
            failure = RendezvousConnectionError(f"Following '{self.prefix}' has failed: {error!r}")
            failure.__cause__ = error
        finally:
            # However it ends: a thread that seemed to live on would leave all waits without news.
            with self._changed:
                self._thread = None
                self._failure = failure or self._failure
                self._changed.notify_all()

    def _take_in(self, start: Snapshot | None) -> None:
        """Tell the waiters what comes, as long as a caller wants to know."""
        for answer in self._source(self.prefix, start, self.cancel):
            with self._changed:
                self._answer, self._failure = answer, None
                self._changed.notify_all()
                if self.cancel.cancelled or not (self._users or time.monotonic() - self._left < _IDLE_TIMEOUT):
                    return
        if not self.cancel.cancelled:
            raise RendezvousConnectionError(f"Following '{self.prefix}' has ended.")
