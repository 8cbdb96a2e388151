"""What a machine lacks for a moment: room for a thread, a process or a file; a port."""

import errno
import math
import time
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from rdzv_core.errors import RendezvousConnectionError

__all__ = ["is_shortage", "outlast"]

_T = TypeVar("_T")

_PATIENCE: Final = 15.0
"""Seconds for which it is tried again."""

_PAUSE: Final = 0.25
"""Seconds between two tries."""

_SHORTAGES: Final = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EADDRINUSE)


def is_shortage(error: BaseException | None) -> bool:
    """Whether this machine lacks something, and not the service an answer: that is what an error comes from."""
    if isinstance(error, OSError) and error.errno in _SHORTAGES:
        return True
    if isinstance(error, RendezvousConnectionError) and isinstance(error.__cause__, RuntimeError):
        # Python's error for a thread that cannot start, as `start_thread` hands it on.
        return True
    return error is not None and is_shortage(error.__cause__)


def outlast(
    take: Callable[[], _T],
    is_over: Callable[[], bool] = lambda: False,
    *,
    deadline: float = math.inf,
    passing: Collection[int] = (),
    tell: Callable[[OSError | None], None] = lambda error: None,
) -> _T:
    """What `take` returns; while the machine lacks what it takes, it is tried again.

    Args:
        take: Takes something of this machine, and asks the service for nothing.
        is_over: Whether that is of no use any more.
        deadline: Until when at most, on the monotonic clock.
        passing: The numbers of other errors of the system that may pass, too.
        tell: Told of each error after which it is tried again; None: it is not any more.

    Raises:
        OSError: It lasts, cannot pass, or is over; a `RendezvousConnectionError` is one.
    """
    until = min(deadline, time.monotonic() + _PATIENCE)
    try:
        while True:
            try:
                return take()
            except OSError as error:
                may_pass = is_shortage(error) or error.errno in passing
                if not may_pass or is_over() or time.monotonic() + _PAUSE > until:
                    raise
                tell(error)
            time.sleep(_PAUSE)
    finally:
        tell(None)
