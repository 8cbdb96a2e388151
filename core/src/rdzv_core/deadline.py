"""The deadline of a call that makes several: one moment for all of them."""

from typing import Final

from .errors import RendezvousConnectionError

_LEAST: Final = 0.1
"""Seconds that are left to the last attempt: one that is cut off hides the reason of those before it."""


def time_left(deadline: float, now: float) -> float:
    """The seconds that the next one of several calls may take.

    Args:
        deadline: When all of them must have ended, in seconds on a monotonic clock.
        now: What that clock shows.

    Raises:
        RendezvousConnectionError: There are none, so the next call must not begin.
    """
    if (left := deadline - now) <= 0:
        raise RendezvousConnectionError(
            f"The time of this call is over ({now - deadline:.1f} s ago); give it a longer timeout."
        )
    return left


def pause_within(left: float, pause: float) -> float | None:
    """The seconds to pause before the next attempt; None: no time is left for one.

    A pause is cut short, so that the last attempt is made shortly before the deadline.

    Args:
        left: The seconds until the deadline.
        pause: The seconds to pause while there is time enough.
    """
    pause = min(pause, left - _LEAST)
    return pause if pause > 0 else None
