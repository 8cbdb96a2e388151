"""Doing something one thread at a time, in time, and whatever interrupts it."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["LockedError", "alone"]

_T = TypeVar("_T")


class LockedError(Exception):
    """Other threads had the lock until the deadline: nothing was done. It never leaves a backend."""


def alone(lock: "threading.RLock", work: Callable[[], _T], deadline: float) -> _T:
    """Do something under a lock, as soon as no other thread has it.

    An interrupt may come between `acquire` with a timeout and a `try` behind it, or before what it has returned is
    noted: then a plain lock is never released again. One that knows its owner is asked for that by its release.

    Args:
        lock: One that this thread may take again.
        work: What is done; its result is returned, and its error raised.
        deadline: Until when the lock is waited for, on the monotonic clock.

    Raises:
        LockedError: Others had it until then.
    """
    try:
        seconds = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
        if not lock.acquire(timeout=seconds):
            raise LockedError
        return work()
    finally:
        try:  # noqa: SIM105 - the release has to be the first call
            lock.release()
        except RuntimeError:
            pass
