"""One simulated run: nodes that join, work, die and rejoin, on a service that fails.

Everything that happens follows from the plan.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from rdzv_core.backend import STATE_KEY

from rdzv.engine import candidacy, lease_observer, pace, records, worlds
from rdzv.engine.notices import DRAINS, FAILURES, QUARANTINES, name_of
from rdzv.engine.records import HEARTBEATS, LEADER_KEY, NODES, PENDING, STATUS_KEY
from rdzv.engine.watch import WATCH_TIMEOUT

from .connection import OvertimeError, contents
from .faults import FAULTS
from .invariants import Invariants, Violation
from .machine import Machine, SimulationContext
from .patience import LOOK, Patience
from .plan import Plan, chance
from .service import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from rdzv.engine.records import State

__all__ = ["CROWD", "LOOK", "Simulation"]

_OVERTAKEN: Final = 0.2
"""Of so many runs, as a part of 1, the next attempt begins before they have ended."""
CROWD: Final[tuple[tuple[ModuleType, str, float], ...]] = (
    (candidacy, "FIRST_CANDIDATES", 1 / 6),
    (candidacy, "CANDIDATES", 1),
    (lease_observer, "_OBSERVERS", 2),
    (records, "NAMED", 1),
    (pace, "WAKES", 2),
    (pace, "SETTLED", 0.02),
)
"""The thresholds from which on many nodes behave unlike a few, and how few are many in a plan with a crowd."""


class Simulation:
    """A run of a plan.

    Attributes:
        context: What the nodes share.
        invariants: What must hold.
        patience: For how long a world that is possible may be waited for.
        name: Names the nodes, by their number.
        settled_in: Seconds of the quiet phase after which every node was where it should be.
        left: What the service still holds when the run has ended.
    """

    def __init__(self, plan: Plan) -> None:
        """Prepare; nothing happens before `run`."""
        self.context = SimulationContext.of(plan)
        self.context.arrive = self.come
        self.invariants = Invariants(self.context)
        self.patience = Patience(self.context, self.invariants)
        self.context.service.wrote = self.invariants.wrote
        self.context.service.lost = self.invariants.lost
        self.settled_in = 0.0
        self.left: frozenset[str] = frozenset()
        self.name: Callable[[int], str] = "n{}".format

    @property
    def steps(self) -> int:
        """How many pieces of coroutines have run, each followed by the checks."""
        return sum(machine.runner.pieces for machine in self.context.machines)

    def run(self) -> None:
        """Run the plan: a fault phase, then a quiet phase, in which a world must form, and one more, and stay, and end.

        Raises:
            Violation: An invariant does not hold.
        """
        try:
            with _thresholds(self.context.plan):
                self.fault_phase()
                self.quiet_phase()
                self._demand_world(peace=0.0)
                self.context.trace.log("all programs fail once more")
                for machine in self.context.living():
                    machine.fail()
                self._demand_world(peace=2 * self.context.plan.ttl)
                self._end()
        except Violation:
            raise
        except (Exception, OvertimeError) as error:
            raise Violation(0, f"the code breaks: {error!r}") from error
        finally:
            self.context.fibers.close()

    def fault_phase(self) -> None:
        """Send all faults of the plan."""
        for event in self.context.plan.events:
            self.context.timeline.at(event.moment, FAULTS[event.fault], self.context, event)
        self.let_pass(self.context.plan.fault_phase)

    def quiet_phase(self) -> None:
        """End everything that goes wrong."""
        context = self.context
        context.trace.log("quiet phase")
        context.conditions.lost = context.conditions.late = context.conditions.watch_lag = 0.0
        context.conditions.delay = context.plan.delay
        context.conditions.refused = Refusal.NOTHING
        context.service.start()
        for machine in context.machines:
            machine.runner.fail_point = machine.runner.hit = None
            machine.spent = False
            machine.link.heal()
            machine.link.refused = Refusal.NOTHING
            machine.process.go_on()

    def let_pass(self, until: float) -> None:
        """Let time pass, and look now and then."""
        timeline = self.context.timeline
        while timeline.now < until:
            timeline.run(min(timeline.now + LOOK, until))
            self.patience.look()

    def come(self) -> None:
        """Let a new node come."""
        name = self._next_id()
        self.context.trace.log("{} comes", name)
        self.invariants.came_at[name] = self.context.timeline.now
        self.context.add(Machine(self.context, self.invariants, name))

    def _next_id(self) -> str:
        """The id of a node that comes: where nodes fail again and again, some were here before, by their names."""
        machines, plan = self.context.machines, self.context.plan
        number = len(machines) + 1
        if plan.namesakes:
            return f"same.{number}"
        if not any(event.fault == "fail_again" for event in plan.events):
            return self.name(number)
        rng = chance(plan.seed, f"id {number}")
        here = {name_of(one.name) for one in machines if one.process.alive}
        gone = sorted({name_of(one.name) for one in machines} - here)
        if gone and rng.random() < 0.5:
            return f"{rng.choice(gone)}.{number}"
        return self.name(number)

    def _see_that_a_world_is_possible(self) -> None:
        """A run that was closed is started again, and one that was abandoned is taken up by others."""
        context, state = self.context, self.invariants.state
        if state is not None and state.closed and state.attempt == context.attempt:
            context.attempt += 1
        while not context.plan.limits.choose(context.living(context.attempt), ()):
            self.come()

    def _demand_world(self, peace: float) -> None:
        """Within a bounded time every node must be where it should be, and stay there for some seconds."""
        plan, timeline = self.context.plan, self.context.timeline
        began = since = timeline.now
        bound = began + WATCH_TIMEOUT + 6 * plan.ttl + 2 * plan.last_call + plan.wanted_timeout + 20.0
        # A leader that is new begins to count anew.
        bound += 2 * plan.grow_delay + 3 * plan.assigning_at_most
        settled: State | None = None
        while settled is None or timeline.now - since < peace:
            if timeline.now >= bound:
                raise Violation(
                    4, f"no world after {timeline.now - began:.0f} s of the quiet phase: {self._what_all_do()}"
                )
            self._see_that_a_world_is_possible()
            self.let_pass(timeline.now + LOOK)
            state = self.invariants.state if self.settled() else None
            if state is None or state != settled:
                settled, since = state, timeline.now
        self.settled_in = max(self.settled_in, since - began)

    def _end(self) -> None:
        """The job is done: all programs end, and so do the leases of those that had no time to leave."""
        self.context.trace.log("all programs shut down")
        began = self.context.timeline.now
        ending = self.context.living()
        if chance(self.context.plan.seed, "end").random() < _OVERTAKEN:
            ending.append(self._overtake())
        for machine in ending:
            machine.shut_down()
        self.context.timeline.run(self.context.timeline.now + 2 * self.context.plan.ttl)
        there = contents(self.context.plan.level, self.context.service.everything())
        self.left = frozenset(there) - self.invariants.late - self.context.litter
        # The last node to leave may have taken one for alive whose record came late.
        seen_undead = self.invariants.undead_at > began - 3 * self.context.plan.ttl
        if not seen_undead and not any(machine.unheard or machine.process.alive for machine in ending):
            self._see_that_nothing_stays()

    def _overtake(self) -> Machine:
        """The next attempt begins too early, and closes the run before it has a world; the one before goes last."""
        self.context.attempt += 1
        self.come()
        newcomer = self.context.machines[-1]
        for does in (partial(newcomer.close, "enough"), newcomer.shut_down):
            does()
            self.let_pass(self.context.timeline.now + LOOK)
        return newcomer

    def _see_that_nothing_stays(self) -> None:
        """When a run has ended, its closed state is all that stays."""
        context = self.context
        # Without leases, the records of an attempt that died are removed by the next attempt's first leader.
        leaves = {STATE_KEY, QUARANTINES} | ({NODES, HEARTBEATS} if context.plan.level != "leases" else set())
        if context.plan.late or context.plan.lost or context.unreliable:
            # What was written to them first may be applied once more, after they are gone: on a slow network, too.
            leaves |= {STATUS_KEY, LEADER_KEY}
        if context.unreliable:
            leaves |= {DRAINS, FAILURES}
        if context.purged:
            # A leader that knew the removed state may have declared a number that its own attempt never reaches.
            leaves.add(PENDING)
        left = sorted(key for key in self.left if not key.startswith(tuple(leaves)))
        if left and not context.data_lost:
            raise Violation(13, f"the run has ended and leaves {', '.join(left)}")

    def _what_all_do(self) -> str:
        doing = {one.name: "joins" if one.joining else f"in {one.round}" for one in self.context.living()}
        return f"{doing}, {self.invariants.state}"

    def settled(self) -> bool:
        """Whether as many as possible work in one world, and all others wait."""
        context, state = self.context, self.invariants.state
        living = context.living()
        if state is None or state.closed or state.attempt != context.attempt:
            return False
        fit = [one for one in living if not self.invariants.is_unfit(one)]
        members = [one for one in living if one.working and one.round == state.round and one.name in state.world]
        possible = len(context.plan.limits.choose(fit, state.world)) or len(state.world)
        as_many_as_possible = len(members) == len(state.world) == possible
        return as_many_as_possible and all(one.joining for one in living if one not in members)


@contextmanager
def _thresholds(plan: Plan) -> Iterator[None]:
    """Have the thresholds of a plan, in all nodes of this process."""
    with ExitStack() as undo:
        for module, name, value in ((worlds, "PAGE", plan.page), *(CROWD if plan.crowd else ())):
            undo.enter_context(patch.object(module, name, value))
        yield
