"""Doing something one thread at a time, in time, and whatever interrupts it."""

import time
from collections.abc import Callable
from typing import TypeVar

from rdzv_core.turns import Turns

_T = TypeVar("_T")


def alone(turns: Turns, work: Callable[[], _T], deadline: float) -> _T | None:
    """Do something as soon as no other thread does something in these turns.

    An interrupt may come between `Lock.acquire` with a timeout and the `try` behind it, and then that lock is never
    released again. A turn always is.

    Returns:
        What `work` has returned; None: others were at it until `deadline`.
    """
    done: list[_T] = []

    def is_over() -> bool:
        return bool(done) or (turns.is_taken() and time.monotonic() >= deadline)

    while not turns.take(is_over, lambda: done.append(work()), deadline):
        pass
    return done[0] if done else None
