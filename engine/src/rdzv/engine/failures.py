"""What has gone wrong in the loops of a node: each loop owns its errors, and it alone clears them."""

from collections.abc import Callable
from dataclasses import dataclass

from rdzv_core.errors import RendezvousDeniedError, RendezvousError, RendezvousParameterError, again

WATCH, KEEP, LEAD = "watch", "keep", "lead"
"""The loops of a node."""

LASTING = 1.0
"""Seconds that a loop must have failed for until the caller gets its error; half a second is a server's restart."""

LASTING_TIMES = 4
"""The same in failures, one after the other: a single one may have taken long. A leader fails so often in two terms."""

_FINAL = (RendezvousDeniedError, RendezvousParameterError)
"""What trying again does not mend: the caller gets it at once."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failures of a loop since its last success.

    Attributes:
        error: The latest error.
        times: How many there were, one after the other; 0: a passing fault.
        since: The moment of the first.
        lasts: It is not a passing fault: the caller gets the error.
    """

    error: RendezvousError
    times: int
    since: float
    lasts: bool


class Failures:
    """The failures of one node's loops."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without any.

        Args:
            clock: The node's monotonic clock, in seconds.
        """
        self._clock = clock
        self._by_loop: dict[str, _Failure] = {}

    def add(self, loop: str, error: BaseException, *, lasts: bool = False) -> int:
        """Note that a loop has failed; the caller gets the error if that lasts.

        Args:
            loop: Which: it owns the error until it goes well again.
            error: Why.
            lasts: Trying again does not mend it.

        Returns:
            How many times it has failed now, one after the other.
        """
        before = self._by_loop.get(loop)
        since, times = (before.since, before.times + 1) if before and before.times else (self._clock(), 1)
        lasts = lasts or (before is not None and before.lasts) or isinstance(error, _FINAL)
        # It came often, for long. Time alone passes in a paused process, too.
        lasts = lasts or (times >= LASTING_TIMES and self._clock() - since >= LASTING)
        ours = error if isinstance(error, RendezvousError) else unexpected(error)
        self._by_loop[loop] = _Failure(ours, times, since, lasts)
        return times

    def add_passing(self, loop: str, error: RendezvousError) -> None:
        """Note a passing fault of a loop: a caller gets it only with the error of a wait that it gives up.

        Args:
            loop: Which: it owns the error until it goes well again.
            error: Why its calls do not succeed.
        """
        if not self.count(loop):
            self._by_loop[loop] = _Failure(error, 0, self._clock(), False)

    def clear(self, loop: str) -> None:
        """Note that a loop goes well."""
        self._by_loop.pop(loop, None)

    def count(self, loop: str) -> int:
        """How many times a loop has failed since it last went well."""
        return self._by_loop[loop].times if loop in self._by_loop else 0

    @property
    def lasting(self) -> RendezvousError | None:
        """What keeps a loop from going on; None: nothing, or not for long yet."""
        # A copy: a caller asks while the loops go on.
        return next((failure.error for failure in tuple(self._by_loop.values()) if failure.lasts), None)

    @property
    def latest(self) -> RendezvousError | None:
        """The error of a loop that does not go well now, whether that lasts or not."""
        return self.lasting or next((failure.error for failure in tuple(self._by_loop.values())), None)

    def raise_lasting(self) -> None:
        """Give the caller the error that keeps a loop from going on, if there is one.

        Raises:
            RendezvousError: That.
        """
        if (error := self.lasting) is not None:
            raise again(error)


def unexpected(error: BaseException) -> RendezvousError:
    """The error that a caller gets for an unexpected exception."""
    ours = RendezvousError(f"Unexpected {type(error).__name__}: {error}. Please report this.")
    ours.__cause__ = error
    return ours
