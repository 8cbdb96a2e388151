"""What a process knows of one prefix, for all its threads that wait for news of it: one of them looks for all.

So a change costs a process one reading of the prefix, however many handlers it runs, and a change elsewhere wakes none
of its waiters.
"""

import time
from collections.abc import Callable
from typing import Final

from rdzv_core.backend import Snapshot
from rdzv_core.turns import Turns

from .notifier import FifoNotifier

_LOOK: Final = 0.1
"""Seconds after which the look-out looks although no writer rang: a lease may have run out, a writer
may have died before it rang."""

_CALM: Final = 0.005
"""Seconds from one change to the next look: many changes in a row wake the waiters once."""

_EPOCH: Final = 32
"""The bits above these tell one file from its successor, see `schema`."""

_NOTHING: Final = Snapshot()
"""What is known before the first snapshot."""

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
        self._turns = Turns()
        self._latest = _NOTHING
        # The backend of the thread that looks, or was the last to do so, by its function that raises when it is closed.
        self._looks: Callable[[], None] | None = None
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
        if isinstance(since.revision, int):
            self._learn(since, _NOTHING)
        known = since
        if not _is_of_one_file(self._latest, since):
            before = self._latest
            known = look(None)
            self._learn(known, before)
            if known.entries != since.entries:
                return known

        def news() -> Snapshot | None:
            check_open()
            return self._latest if _is_news(self._latest, known) else None

        def look_for_news() -> None:
            self._looks = check_open
            # What happens elsewhere wakes none of the others.
            while news() is None and time.monotonic() < deadline:
                self._look(look, deadline)

        return self._turns.wait(news, look_for_news, deadline) or since

    def wake(self, check_open: Callable[[], None]) -> None:
        """Have those threads leave whose backend was closed."""
        self._turns.wake()
        if self._looks == check_open:
            self._notifier.notify(self._fifo)

    def _look(self, look: Look, deadline: float) -> None:
        """Look until something has changed, or after a ring, or until the deadline."""
        before = self._latest
        time.sleep(max(0.0, min(deadline, self._looked + _CALM) - time.monotonic()))
        # Listening begins before looking, so that no change falls between the two.
        with self._notifier.listen(self._fifo) as hear:
            while (now := look(before)) is before:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or hear(min(remaining, _LOOK)):
                    return
        self._looked = time.monotonic()
        self._learn(now, before)

    def _learn(self, now: Snapshot, before: Snapshot) -> None:
        """Take in what is newer than `before`, unless something newer was taken in meanwhile."""
        with self._turns.lock:
            latest = self._latest
            if latest is before or (_is_of_one_file(latest, now) and latest.revision < now.revision):
                self._latest = now
                if latest.entries != now.entries:
                    self._turns.wake()


def _is_of_one_file(one: Snapshot, other: Snapshot) -> bool:
    """Whether the revisions of two snapshots can be compared."""
    if not isinstance(one.revision, int) or not isinstance(other.revision, int):
        return False
    return one.revision >> _EPOCH == other.revision >> _EPOCH


def _is_news(latest: Snapshot, known: Snapshot) -> bool:
    """Whether there is news in `latest`, if the file is that of `known` or came after it."""
    if _is_of_one_file(latest, known) and latest.revision <= known.revision:
        return False
    return latest.entries != known.entries
