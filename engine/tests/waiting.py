"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], limit: float = 30.0) -> Any:
    """The condition's value once it is true; fails after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit} s: {condition}"
        time.sleep(0.005)
    return value
