"""A file that one holds at a time, among processes and threads.

A dead process lets it go.
"""

import fcntl
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rdzv_core import RendezvousConnectionError


@contextmanager
def locked(
    path: Path, timeout: float, gave_up: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold the lock; its folder must be there.

    Args:
        path: The file; it is made, and it stays.
        timeout: Seconds to wait for it.
        gave_up: Asked while it is waited for: whether to stop.

    Raises:
        RendezvousConnectionError: It was not to be had.
    """
    deadline = time.monotonic() + timeout
    with path.open("ab") as file:
        # flock cannot wait with a timeout, and a holder may be frozen.
        while not _try(file):
            if gave_up() or time.monotonic() >= deadline:
                raise RendezvousConnectionError(
                    f"'{path}' stayed locked; waited {timeout:g} s at most. "
                    "Is a process stopped that holds it?"
                )
            time.sleep(random.uniform(0.0005, 0.002))
        try:
            yield
        finally:
            # Closing the file is not enough: a process that was forked
            # meanwhile has it open, too.
            fcntl.flock(file, fcntl.LOCK_UN)


def _try(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
