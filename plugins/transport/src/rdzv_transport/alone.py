"""Doing something one thread at a time, in time, and whatever interrupts it."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .sockets import LONGEST

if TYPE_CHECKING:
    import threading

_T = TypeVar("_T")


def alone(lock: "threading.RLock", work: Callable[[], _T], deadline: float) -> _T | None:
    """Do something under a lock, as soon as no other thread has it.

    An interrupt may come between `acquire` with a timeout and a `try` behind it, or before what it has returned is
    noted: then a plain lock is never released again. One that knows its owner is asked for that by its release.

    Returns:
        What `work` has returned; None: others had the lock until `deadline`.
    """
    try:
        seconds = min(max(0.0, deadline - time.monotonic()), LONGEST)
        return work() if lock.acquire(timeout=seconds) else None
    finally:
        try:  # noqa: SIM105 - the release has to be the first call
            lock.release()
        except RuntimeError:
            pass
