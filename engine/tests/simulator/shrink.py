"""Makes a failing run small: fewer nodes, fewer faults, shorter, a better network."""

from dataclasses import dataclass, replace

from .invariants import Violation
from .plan import Plan
from .simulation import Simulation

__all__ = ["Failure", "shrink", "try_out"]


@dataclass(frozen=True)
class Failure:
    """A run that violated an invariant.

    Attributes:
        plan: What run.
        violation: Which invariant.
        moment: When, in seconds from the beginning.
        trace: What had happened until then.
    """

    plan: Plan
    violation: Violation
    moment: float
    trace: str


def try_out(plan: Plan) -> Failure | None:
    """Run a plan; None if nothing is violated."""
    simulation = Simulation(plan)
    try:
        simulation.run()
    except Violation as violation:
        return Failure(plan, violation, simulation.context.timeline.now, str(simulation.context.trace))
    return None


def shrink(failure: Failure, runs: int = 3000) -> Failure:
    """Find a smaller plan that violates the same invariant.

    Args:
        failure: What to start from.
        runs: How many runs to try at most. A number, not a time, so that the result is always the same.
    """
    shrinker = _Shrinker(failure, runs)
    before = None
    while shrinker.smallest is not before and shrinker.runs > 0:
        before = shrinker.smallest
        shrinker.end_early()
        shrinker.drop_events()
        shrinker.better_conditions()
        shrinker.shorten_pauses()
    return shrinker.smallest


class _Shrinker:
    """The smallest failure so far, and the ways to a smaller one."""

    def __init__(self, failure: Failure, runs: int) -> None:
        self.smallest = failure
        self.runs = runs

    @property
    def plan(self) -> Plan:
        return self.smallest.plan

    def fails(self, plan: Plan) -> bool:
        """Try a plan, and take it if it fails in the same way: as it is, or with other chances."""
        if not plan.limits.largest(plan.max_nodes):
            return False
        stem = plan.seed.partition("/")[0]
        for seed in dict.fromkeys([plan.seed, *(f"{stem}/{number}" for number in range(8))]):
            if self.runs <= 0:
                return False
            self.runs -= 1
            found = try_out(replace(plan, seed=seed))
            if found is not None and found.violation.number == self.smallest.violation.number:
                self.smallest = found
                return True
        return False

    def end_early(self) -> None:
        """Leave out what comes after the violation."""
        moment = self.smallest.moment
        if moment < self.plan.fault_phase:
            events = tuple(event for event in self.plan.events if event.moment <= moment)
            self.fails(replace(self.plan, fault_phase=moment + 0.001, events=events))

    def drop_events(self) -> None:
        """After A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002."""
        size = len(self.plan.events) // 2
        while size:
            begin = len(self.plan.events) - size
            while begin >= 0:
                events = self.plan.events
                self.fails(replace(self.plan, events=events[:begin] + events[begin + size :]))
                begin -= size
            size //= 2

    def better_conditions(self) -> None:
        """Take away what makes the world less than perfect, one thing after the other."""
        best = Plan("", 1, 1)
        for name in (
            "level",
            "lost",
            "late",
            "patience",
            "leases_sleep",
            "lag",
            "drift",
            "delay",
            "crowd",
            "rule",
            "grow_delay",
        ):
            if getattr(self.plan, name) != getattr(best, name):
                self.fails(replace(self.plan, **{name: getattr(best, name)}))
        while self.plan.min_nodes > 1 and self.fails(replace(self.plan, min_nodes=self.plan.min_nodes - 1)):
            pass
        while self.plan.max_nodes > self.plan.min_nodes and self.fails(
            replace(self.plan, max_nodes=self.plan.max_nodes - 1)
        ):
            pass

    def shorten_pauses(self) -> None:
        """Where for a long time no fault comes, let everything after it come earlier."""
        before = 0.0
        for number, event in enumerate(self.plan.events):
            gap = event.moment - before - 1.0
            if gap > 0.5:
                events = self.plan.events
                earlier = (replace(one, moment=one.moment - gap) for one in events[number:])
                self.fails(
                    replace(self.plan, events=(*events[:number], *earlier), fault_phase=self.plan.fault_phase - gap)
                )
            before = self.plan.events[number].moment
