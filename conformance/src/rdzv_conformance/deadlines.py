"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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


@contextmanager
def lasting(seconds: float) -> Iterator[None]:
    """What is within takes so many seconds, and half a second more at most.

    Raises:
        AssertionError: It took another time.
    """
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert seconds <= took + 0.01 <= seconds + 0.5, f"it took {took:.2f} s, and {seconds} s were due"
