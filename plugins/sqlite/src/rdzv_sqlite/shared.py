"""What all backends of one process on one database share: whose turn it is to write, and one look-out per prefix.

With it a process is one competitor for the file and one listener at a FIFO, however many
handlers it runs: both cost with the square of their number.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from .lookout import Lookout
from .notifier import FifoNotifier


class Shared:
    """See above.

    Attributes:
        turn: Held by the one thread of this process that writes.
        opening: Held by the one that opens the file: while the first makes it, others fail and try again.
        notifier: Tells of every change.
    """

    def __init__(self, path: str) -> None:
        self.turn = threading.Lock()
        self.opening = threading.Lock()
        self.notifier = FifoNotifier(path)
        self._lock = threading.Lock()
        self._lookouts: dict[str, Lookout] = {}

    @contextmanager
    def lookout(self, path: str, fifo: int) -> Iterator[Lookout]:
        """The look-out for what is at or under a path, of which the FIFO of this number tells."""
        with self._lock:
            lookout = self._lookouts.setdefault(path, Lookout(self.notifier, fifo))
            lookout.users += 1
        try:
            yield lookout
        finally:
            with self._lock:
                lookout.users -= 1
                if not lookout.users:
                    del self._lookouts[path]

    def wake_all(self, check_open: Callable[[], None]) -> None:
        """Have the threads of a backend that was closed leave the look-outs; see `Lookout.wait`."""
        with self._lock:
            lookouts = list(self._lookouts.values())
        for lookout in lookouts:
            lookout.wake(check_open)


_shared: Final[dict[str, Shared]] = {}


def shared(path: str) -> Shared:
    """What this process shares about the database at `path`. Not to be kept: a forked child has its own."""
    return _shared.get(path) or _shared.setdefault(path, Shared(path))


# The threads that had a turn or look are not copied.
os.register_at_fork(after_in_child=_shared.clear)
