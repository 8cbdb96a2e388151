"""What torch may do to a thread that is in it, and to a store that is let go: settled here, for the whole package.

torch heeds no deadline where it waits for a file, a lock or a host, and cannot be interrupted.

* A thread goes into torch by a `Stay`, which says until when; its caller waits no longer than that. A thread that is
  late is *stuck*. Of these a process has nine at most; then no other goes in, and the error says why.
* A FileStore is never freed. Its end reads and writes the file, with Python's lock held: on a full disk it never ends,
  and no other thread runs any more.
* When the interpreter ends, no thread is in torch: one that came back then would abort the process.
"""

import ctypes
import math
import os
import threading
import time
from types import TracebackType
from typing import Any, Final

from rdzv_core.errors import RendezvousConnectionError

from .store import file_of

MOST_STUCK: Final = 9
"""How many threads of a process may be stuck."""
_LATE: Final = 3.0
"""Seconds after which a thread that is late is stuck, and not only slow."""


class Stay:
    """The time of one thread in torch, a context manager.

    Args:
        until: On the monotonic clock, in seconds; infinity: the thread listens, and is ended by a ring.

    Raises:
        RendezvousConnectionError: On entry: so many threads are stuck that no other may go in.
    """

    def __init__(self, until: float) -> None:
        self._until = until

    def is_stuck(self) -> bool:
        """Whether the thread should be back by now."""
        return time.monotonic() > self._until + _LATE

    def __enter__(self) -> "Stay":
        with _lock:
            if sum(stay.is_stuck() for stay in _stays) >= MOST_STUCK:
                raise RendezvousConnectionError(
                    f"{MOST_STUCK} threads of this process are stuck in torch, which waits for stores that do not "
                    "answer, and no other is started. If these stores are gone for good, start this process again."
                )
            _stays.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._until = math.inf
        with _lock:
            _stays.discard(self)
            _changed.notify_all()


def await_none(seconds: float) -> bool:
    """Wait until no thread of this process is in torch; whether that came true in time."""
    with _lock:
        return _changed.wait_for(lambda: not _stays, seconds)


def keep_file(store: Any) -> None:
    """Never free a store if it is a FileStore: not even when the interpreter ends."""
    if file_of(store) is not None:
        # A reference that no object holds is never given up.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))


_stays: Final[set[Stay]] = set()
_lock = threading.RLock()
_changed = threading.Condition(_lock)


def _after_fork() -> None:
    """A child has none of the threads."""
    global _lock, _changed
    _lock = threading.RLock()
    _changed = threading.Condition(_lock)
    _stays.clear()


os.register_at_fork(after_in_child=_after_fork)
