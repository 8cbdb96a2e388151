"""What has gone wrong in the loops of a node: each loop owns its errors, and it alone clears them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rdzv_core.errors import RendezvousDeniedError, RendezvousError, RendezvousParameterError, again

from ..shortages import is_shortage
from .registration import NodeState, Registration

WATCH, KEEP, LEAD, REGISTER, JOIN = "watch", "keep", "lead", "register", "join"
"""The loops of a node, and what any of them, or a caller, tries again by itself."""

LASTING = 1.0
"""Seconds that a loop must have failed for until the caller gets its error; half a second is a server's restart."""

LASTING_TIMES = 4
"""The same in failures, one after the other: a single one may have taken long. A leader fails so often in two terms."""

REFUSED_TIMES = 2
"""Refusals, one after the other, from which on they may last: time alone passes in a paused process, too."""

REFUSED_AT_FIRST: Final = 30.0
"""Seconds for which a service is asked again that refuses a node before it has taken its record: one that lags takes
less, and a user who has mistyped a password waits no longer."""


def patience(refused: float, registration: Registration) -> float:
    """Seconds for which a service that refuses a node is asked again: to one that has been in it is an outage, which
    needs much longer to be mended.

    Args:
        refused: The most seconds.
        registration: The node's record, and its state.
    """
    is_new = registration.state in (NodeState.NEW, NodeState.REGISTERING)
    return min(REFUSED_AT_FIRST, refused) if is_new else refused


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failures of a loop since its last success.

    Attributes:
        error: The latest error.
        times: How many there were, one after the other; 0: the service does not answer.
        since: The moment of the first.
        lasts: It does not pass: the caller gets the error.
        said: The text of the first, which the log says; empty: of a service that does not answer.
    """

    error: RendezvousError
    times: int
    since: float
    lasts: bool
    said: str = ""

    @property
    def is_refusal(self) -> bool:
        """Whether the service refuses: an outage for this node, until it has lasted for too long."""
        return isinstance(self.error, RendezvousDeniedError)


class Failures:
    """The failures of one node's loops.

    Attributes:
        patience: Seconds after which a refusal lasts.
    """

    def __init__(self, clock: Callable[[], float], patience: Callable[[], float] = lambda: 0.0) -> None:
        """Begin without any.

        Args:
            clock: The node's monotonic clock, in seconds.
            patience: Seconds after which a refusal lasts.
        """
        self._clock = clock
        self.patience = patience
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
        before, ours = self._failing(loop), as_ours(error)
        said = before.said if before else str(ours)
        since, times = (before.since, before.times + 1) if before else (self._clock(), 1)
        lasts = lasts or (before is not None and before.lasts) or isinstance(error, RendezvousParameterError)
        # It came often, for long. Time alone passes in a paused process, too.
        lasts = lasts or (times >= LASTING_TIMES and self._clock() - since >= LASTING)
        self._by_loop[loop] = _Failure(ours, times, since, lasts, said)
        return times

    def unsaid(self, error: BaseException | None) -> str:
        """An error as the end of a line of the log; nothing if a loop fails with it, which the log has said."""
        text = "" if error is None else str(as_ours(error))
        return "" if text in ("", *(failure.said for failure in self._all())) else f": {text}"

    def add_passing(self, loop: str, error: RendezvousError, began: float) -> None:
        """Note a passing fault of a loop: the service does not answer, or refuses; or the machine lacks something.

        A caller gets it with the error of a wait that it gives up; a refusal also if it lasts.

        Args:
            loop: Which: it owns the error until it goes well again.
            error: Why its calls do not succeed.
            began: When it has begun with what failed now.
        """
        if self._failing(loop):
            return
        before = self._by_loop.get(loop)
        if not isinstance(error, RendezvousDeniedError):
            self._by_loop[loop] = _Failure(error, 0, self._clock(), False)
            return
        # Of a service that was away meanwhile it is not known what it would have said.
        since, times = (before.since, before.times + 1) if before and before.is_refusal else (began, 1)
        seconds, most = self._clock() - since, self.patience()
        lasts = times >= REFUSED_TIMES and seconds >= most
        self._by_loop[loop] = _Failure(_refused(error, seconds, most) if lasts else error, times, since, lasts)

    def note_shortage(self, error: OSError | None) -> None:
        """Note what this machine lacks for a node that joins, which tries again; None: nothing any more."""
        if error is None:
            self.clear(JOIN)
        else:
            self.add_passing(JOIN, as_ours(error), self._clock())

    def patience_of_a_call(self) -> float:
        """Seconds for which one call of a loop is asked again while it is refused: a refusal lasts after several."""
        return self.patience() / REFUSED_TIMES

    def clear(self, loop: str) -> None:
        """Note that a loop goes well."""
        self._by_loop.pop(loop, None)

    def count(self, loop: str) -> int:
        """How many times a loop has failed, or was refused, since it last went well."""
        return self._by_loop[loop].times if loop in self._by_loop else 0

    def _all(self) -> tuple[_Failure, ...]:
        # A copy: a caller asks while the loops go on.
        return tuple(self._by_loop.values())

    def _failing(self, loop: str) -> _Failure | None:
        """What goes wrong in a loop, if that is no passing fault."""
        before = self._by_loop.get(loop)
        return before if before is not None and before.times and not before.is_refusal else None

    @property
    def lasting(self) -> RendezvousError | None:
        """What keeps a loop from going on; None: nothing, or not for long yet."""
        return next((failure.error for failure in self._all() if failure.lasts), None)

    @property
    def latest(self) -> RendezvousError | None:
        """The error of a loop that does not go well now, whether that lasts or not."""
        return self.lasting or next((failure.error for failure in self._all()), None)

    @property
    def refusal(self) -> RendezvousDeniedError | None:
        """Why the service refuses what a loop asks for; None: it does not."""
        errors = (failure.error for failure in self._all())
        return next((error for error in errors if isinstance(error, RendezvousDeniedError)), None)

    @property
    def shortage(self) -> RendezvousError | None:
        """What this machine lacks for a loop, or for a node that joins; None: nothing."""
        return next((failure.error for failure in self._all() if is_shortage(failure.error)), None)

    @property
    def refused_since(self) -> float:
        """The moment of the first refusal since which the service has refused a loop; infinite: it refuses none."""
        return min((failure.since for failure in self._all() if failure.is_refusal), default=math.inf)

    def raise_lasting(self) -> None:
        """Give the caller the error that keeps a loop from going on, if there is one.

        Raises:
            RendezvousError: That.
        """
        if (error := self.lasting) is not None:
            raise again(error)


def _refused(error: RendezvousDeniedError, seconds: float, most: float) -> RendezvousDeniedError:
    """The error that a caller gets for a refusal that lasts."""
    ours = RendezvousDeniedError(
        f"The service has refused this node for {seconds:.0f} s, and is asked for {most:g} s (refused_timeout, but "
        f"{REFUSED_AT_FIRST:g} s at most before a node was in): {error}"
    )
    ours.__cause__ = error
    return ours


def as_ours(error: BaseException) -> RendezvousError:
    """An error as a caller gets it: an unexpected exception becomes one of our family."""
    if isinstance(error, RendezvousError):
        return error
    ours = RendezvousError(f"Unexpected {type(error).__name__}: {error}. Please report this.")
    ours.__cause__ = error
    return ours
