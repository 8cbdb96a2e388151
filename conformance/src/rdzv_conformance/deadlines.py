"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import time
from collections.abc import Callable

__all__ = ["eventually"]


def eventually(condition: Callable[[], bool], what: str, seconds: float = 10) -> None:
    """Return as soon as a condition holds.

    Args:
        condition: Asked again and again.
        what: What is waited for, in words.
        seconds: How long.

    Raises:
        AssertionError: It did not hold within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"Waited {seconds:.1f} s for {what}: it did not happen."
        time.sleep(0.01)
