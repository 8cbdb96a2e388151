"""The deadline of a call that makes several: one moment for all of them."""

from .errors import RendezvousConnectionError

__all__ = ["time_left"]


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
