"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], what: str, seconds: float = 10) -> None:
    """Return as soon as the condition holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(0.01)
