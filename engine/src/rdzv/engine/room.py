"""What a machine has no room for may be there a moment later: a thread, a port."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from rdzv_core.errors import RendezvousConnectionError

_T = TypeVar("_T")

_PATIENCE: Final = 15.0
"""Seconds for which it is tried again."""

_PAUSE: Final = 0.25
"""Seconds between two tries."""


def with_room(take: Callable[[], _T], deadline: float) -> _T:
    """What `take` returns; if the machine has no room for it, it is tried again.

    Args:
        take: Takes something of this machine, and asks the service for nothing.
        deadline: Until when at most, on the monotonic clock.

    Raises:
        RendezvousConnectionError: There is no room for long.
    """
    until = min(deadline, time.monotonic() + _PATIENCE)
    while True:
        try:
            return take()
        except RendezvousConnectionError:
            if time.monotonic() + _PAUSE > until:
                raise
        time.sleep(_PAUSE)
