"""What holds for the tests of every package."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """A test leaves the environment as it was, and no thread of a node: what stays breaks a later test."""
    environment, threads = dict(os.environ), set(threading.enumerate())
    yield
    changed = {name for name, _ in dict(os.environ).items() ^ environment.items()} - {"PYTEST_CURRENT_TEST"}
    if changed:
        pytest.fail(f"the test has changed the environment: {sorted(changed)}")
    deadline = time.monotonic() + 5
    while left := {thread for thread in set(threading.enumerate()) - threads if thread.name.startswith("rdzv-")}:
        if time.monotonic() > deadline:
            frames = sys._current_frames()
            for thread in left:
                traceback.print_stack(frames.get(thread.ident or 0))
            pytest.fail(f"the test has left threads: {sorted(thread.name for thread in left)}")
        time.sleep(0.01)
