"""For how long a world that is possible is waited for: no longer than the rules say, while nothing fails."""

import math
from typing import TYPE_CHECKING, Final

from rdzv.engine.records import State
from rdzv.engine.watch import WATCH_TIMEOUT

from .invariants import Invariants, Violation
from .machine import Machine, SimulationContext
from .network import Partition
from .service import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LOOK", "Patience"]

LOOK: Final = 0.25
"""Seconds between two looks."""

_SLACK: Final = 1.5
"""Seconds that it takes besides, until a leader is there and has seen all records."""


class Patience:
    """Watches one run: in a stretch in which nothing fails and nodes enough wait, a world is published in time.

    That is within the last call, if none of them arrives meanwhile; within its longest, if one does; where a size is
    wanted, within the time for which it is waited for.
    """

    def __init__(self, context: SimulationContext, invariants: Invariants) -> None:
        """Watch `context`."""
        self._context = context
        self._invariants = invariants
        self._failed_at = -math.inf
        self._cut_at = -math.inf
        self._gone = 0
        self._possible_since = 0.0
        self._terms = 0
        self._first: frozenset[str] = frozenset()
        self._left: set[tuple[int, int, str]] = set()

    def look(self) -> None:
        """Look at what it holds now.

        Raises:
            Violation: A world has been possible for too long.
        """
        context = self._context
        now, waiting = context.timeline.now, self._waiting()
        names = frozenset(one.name for one in waiting)
        if self._fails():
            self._failed_at = now
        if any(one.link.partition is not Partition.NOTHING for one in context.living()):
            self._cut_at = now
        # A leader that is new begins the last call anew.
        if not self._is_possible(waiting) or self._terms != self._invariants.terms:
            self._possible_since, self._terms, self._first = now, self._invariants.terms, names
        plan = context.plan
        # The watch of a node that was cut off may be silent until it is made again.
        calm_since = max(self._failed_at + 2 * plan.ttl + plan.lag, self._cut_at + WATCH_TIMEOUT)
        seconds = now - max(self._possible_since, calm_since)
        if seconds > self._allowed(len(names - self._first)) + _SLACK:
            raise Violation(4, f"{len(waiting)} nodes wait for {seconds:.1f} s for a world that is possible")

    def _allowed(self, arrived: int) -> float:
        """Seconds that the rules allow, if so many nodes have come meanwhile."""
        plan = self._context.plan
        is_wanted = plan.rule is not None and plan.rule.wanted > 0
        last_call = max((1 + bool(arrived)) * plan.last_call, plan.wanted_timeout if is_wanted else 0.0)
        # A world that has grown while its ranks were assigned is assigned once more.
        return last_call + (1 + arrived) * plan.assigning_at_most

    def _waiting(self) -> "Sequence[Machine]":
        """The nodes that wait; none as long as a member may be in the world, or any node is in another attempt."""
        living, state = self._context.living(), self._invariants.state
        if any(one.settings.attempt != self._context.attempt for one in living):
            return ()
        back = {one.name for one in living if one.joining and (state is None or one.round >= state.round)}
        if state is not None and not back | self._departed(state) >= set(state.world):
            return ()
        return [one for one in living if one.joining and not one.is_out]

    def _departed(self, state: State) -> set[str]:
        """The members of the world that are known to be gone; what was once said of one that left is known for good."""
        status = self._invariants.status
        known = status.departures if status is not None and status.round == state.round else ()
        # Of many a status does not name all that one before has named.
        if not self._context.plan.crowd:
            self._left |= {(state.attempt, state.round, one.node) for one in known if one.left}
        left = {node for attempt, number, node in self._left if (attempt, number) == (state.attempt, state.round)}
        return {one.node for one in known} | left

    def _is_possible(self, waiting: "Sequence[Machine]") -> bool:
        """Whether nodes enough wait for a world of an open run."""
        state = self._invariants.state
        if state is not None and state.closed and state.attempt == self._context.attempt:
            return False
        return bool(self._context.plan.limits.choose(waiting, state.world if state else ()))

    def _fails(self) -> bool:
        """Whether anything fails, or has failed since the last look."""
        context = self._context
        conditions = context.conditions
        before = self._gone
        self._gone = sum(not one.process.alive and (one.unheard or not one.ended) for one in context.machines)
        return (
            self._gone != before
            # What the dead have left, where leases are heartbeats, ends a time to live after others look.
            or bool(context.machines and not context.living() and context.plan.level != "leases")
            or context.service.down
            or conditions.refused is not Refusal.NOTHING
            # The state was taken away, or hidden for a while: the nodes first find out what has become of it.
            or context.data_lost
            or context.corrupt
            or context.purged
            or conditions.lost > 0
            or conditions.late > 0
            or conditions.watch_lag > 0
            # Some messages take so long that leases end, or elections fail.
            or conditions.delay * 100 > context.plan.ttl / 3
            or any(_is_disturbed(one) for one in context.living())
        )


def _is_disturbed(one: Machine) -> bool:
    """Whether anything fails at one node."""
    return one.process.stopped or one.runner.hit is not None or one.link.refused is not Refusal.NOTHING
