"""What a process knows of one prefix, for all its threads that wait for news of it: one of them looks for all.

So a change costs a process one reading of the prefix, however many handlers it runs, and a change elsewhere wakes none
of its waiters.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from rdzv_core.backend import Snapshot

from .notifier import FifoNotifier

_LOOK: Final = 0.1
"""Seconds after which the look-out looks although no writer rang: a lease may have run out, a writer
may have died before it rang."""

_CALM: Final = 0.005
"""Seconds from one change to the next look: many changes in a row wake the waiters once."""

_EPOCH: Final = 32
"""The bits above these tell one file from its successor, see `schema`."""

Look = Callable[[Snapshot | None], Snapshot]
"""Returns the present entries: the snapshot that it is given, if the file has not changed since."""


class Lookout:
    """See above.

    Args:
        notifier: By which writers wake it.
        fifo: The number of the FIFO that tells of this prefix.

    Attributes:
        users: How many threads wait.
    """

    def __init__(self, notifier: FifoNotifier, fifo: int) -> None:
        self.users = 0
        self._notifier = notifier
        self._fifo = fifo
        self._changed = threading.Condition()
        self._latest: Snapshot | None = None
        self._looks: Any = None
        self._looked = 0.0

    def wait(self, since: Snapshot, look: Look, check_open: Callable[[], None], deadline: float) -> Snapshot:
        """Something newer than `since` as soon as there is, or `since` itself at the deadline.

        Args:
            since: What the caller knows.
            look: By which this thread looks while it is the one that does.
            check_open: Raises when the caller's backend is closed, after `wake` at the latest.
            deadline: On the monotonic clock, in seconds.

        Raises:
            RendezvousError: What `look` and `check_open` raise.
        """
        with self._changed:
            if self._latest is None and isinstance(since.revision, int):
                self._latest = since
        known = since
        if not _is_of_one_file(self._latest, since):
            known = self._learn(look(None))
            if known.entries != since.entries:
                return known
        with self._changed:
            try:
                while True:
                    check_open()
                    if self._latest is not None and _is_newer(self._latest, known):
                        return self._latest
                    if (remaining := deadline - time.monotonic()) <= 0:
                        return since
                    if self._looks:
                        self._changed.wait(remaining)
                    else:
                        self._keep_looking(look, check_open, deadline)
            finally:
                if not self._looks:
                    # Another must take over.
                    self._changed.notify()

    def wake(self, check_open: Callable[[], None]) -> None:
        """Have those threads leave whose backend was closed."""
        with self._changed:
            self._changed.notify_all()
            looks = self._looks == check_open
        if looks:
            self._notifier.notify(self._fifo)

    def _learn(self, now: Snapshot) -> Snapshot:
        with self._changed:
            self._latest = now
            self._changed.notify_all()
        return now

    def _keep_looking(self, look: Look, check_open: Callable[[], None], deadline: float) -> None:
        """Look until there may be news, without the lock."""
        before = self._latest
        self._looks = check_open
        self._changed.release()
        try:
            now = self._look_until(before, look, deadline)
        finally:
            self._changed.acquire()
            self._looks = None
        if now is before or self._latest is not before:
            return
        self._looked = time.monotonic()
        if before is not None and before.entries == now.entries:
            self._latest = Snapshot(before.entries, now.revision)
        else:
            self._latest = now
            self._changed.notify_all()

    def _look_until(self, before: Snapshot | None, look: Look, deadline: float) -> Snapshot:
        """What differs from `before` as soon as something does; `before` itself after a ring, or at the deadline."""
        time.sleep(max(0.0, min(deadline, self._looked + _CALM) - time.monotonic()))
        # Listening begins before looking, so that no change falls between the two.
        with self._notifier.listen(self._fifo) as hear:
            while (now := look(before)) is before:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or hear(min(remaining, _LOOK)):
                    break
        return now


def _is_of_one_file(one: Snapshot | None, other: Snapshot) -> bool:
    """Whether the revisions of two snapshots can be compared."""
    if one is None or not isinstance(other.revision, int):
        return False
    return bool(one.revision >> _EPOCH == other.revision >> _EPOCH)


def _is_newer(latest: Snapshot, known: Snapshot) -> bool:
    """Whether there is news in `latest`, if the file is that of `known` or came after it."""
    if _is_of_one_file(latest, known) and latest.revision <= known.revision:
        return False
    return latest.entries != known.entries
