"""What all backends of one process on one database share: whose turn it is to write, and one look-out for changes.

With it a process is one competitor for the file and one listener at the FIFO, however many
handlers it runs: both cost with the square of their number.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from .notifier import FifoNotifier

_LOOK: Final = 0.1
"""Seconds after which the look-out looks although no writer rang: a lease may have run out, a writer
may have died before it rang."""

_CALM: Final = 0.005
"""Seconds from one change to the next look: many changes in a row wake the waiters once."""


class Shared:
    """See above.

    Attributes:
        turn: Held by the one thread of this process that writes.
        notifier: Rings after every change.
        generation: Counts what `await_change` waits for.
    """

    def __init__(self, path: str) -> None:
        self.turn = threading.Lock()
        self.notifier = FifoNotifier(f"{path}.fifo")
        self.generation = 0
        self._condition = threading.Condition()
        self._watched = False
        self._revision: int | None = None
        self._changed = 0.0

    def await_change(self, generation: int, look: Callable[[], int], deadline: float) -> None:
        """Return when something changed after `generation` was read here, or at the deadline; or for nothing.

        One of the threads that wait keeps watch for all; the others sleep.

        Args:
            generation: What it was before the caller looked at its keys.
            look: Reads the database's revision.
            deadline: On the monotonic clock, in seconds.

        Raises:
            RendezvousError: What `look` raises.
        """
        with self._condition:
            while generation == self.generation and (remaining := deadline - time.monotonic()) > 0:
                if self._watched:
                    self._condition.wait(remaining)
                else:
                    self._keep_watch(look, deadline)

    def wake_all(self) -> None:
        """Make every `await_change` of this process return."""
        with self._condition:
            self.generation += 1
            self._condition.notify_all()
        self.notifier.notify()

    def _keep_watch(self, look: Callable[[], int], deadline: float) -> None:
        self._watched = True
        self._condition.release()
        try:
            revision = self._watch(look, deadline)
        finally:
            self._condition.acquire()
            self._watched = False
            # This thread may leave: another must take over.
            self._condition.notify_all()
        if revision != self._revision:
            self._revision = revision
            self._changed = time.monotonic()
            self.generation += 1

    def _watch(self, look: Callable[[], int], deadline: float) -> int:
        """The revision as soon as it changes or a notification comes, at the latest at the deadline."""
        time.sleep(max(0.0, min(deadline, self._changed + _CALM) - time.monotonic()))
        # Listening begins before looking, so that no change falls between the two.
        with self.notifier.listen() as hear:
            while (revision := look()) == self._revision:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or hear(min(remaining, _LOOK)):
                    break
        return revision


_shared: Final[dict[str, Shared]] = {}


def shared(path: str) -> Shared:
    """What this process shares about the database at `path`. Not to be kept: a forked child has its own."""
    return _shared.get(path) or _shared.setdefault(path, Shared(path))


# The threads that had a turn or kept watch are not copied.
os.register_at_fork(after_in_child=_shared.clear)
