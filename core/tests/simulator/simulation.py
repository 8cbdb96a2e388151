"""One simulated run: nodes that come, work, die and come back, on a service that has bad days.

Everything that happens follows from the plan.
"""

from typing import TYPE_CHECKING

from rdzv.engine.member import WATCH_SLICE
from rdzv.engine.records import BEATS, LEADER_KEY, NODES, NOTICE_KEY, STATE_KEY

from .connection import OvertimeError, names
from .faults import FAULTS
from .invariants import Invariants, Violation
from .machine import Machine, Scene
from .plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from rdzv.engine.records import State

__all__ = ["Simulation"]


class Simulation:
    """A run of a plan.

    Attributes:
        scene: What the nodes share.
        invariants: What must hold.
        name: Names the nodes, by their number.
        settled_in: Seconds of calm after which everyone was where it should be.
        left: What the service still holds when the run has ended.
    """

    def __init__(self, plan: Plan) -> None:
        """Prepare; nothing happens before `run`."""
        self.scene = Scene.of(plan)
        self.scene.arrive = self.come
        self.invariants = Invariants(self.scene)
        self.scene.service.wrote = self.invariants.wrote
        self.scene.service.lost = lambda keys: self.scene.story.say("a lease runs out, with {}", ", ".join(keys))
        self.settled_in = 0.0
        self.left: frozenset[str] = frozenset()
        self.name: Callable[[int], str] = "n{}".format

    @property
    def steps(self) -> int:
        """How many pieces of lanes have run, each followed by the checks."""
        return sum(machine.driver.pieces for machine in self.scene.machines)

    def run(self) -> None:
        """Run the plan: a stormy part, then calm, in which a world must form, and one more, and stay, and end.

        Raises:
            Violation: An invariant does not hold.
        """
        try:
            self.storm()
            self.calm()
            self._demand_world(peace=0.0)
            self.scene.story.say("all programs fail once more")
            for machine in self.scene.living():
                machine.fail()
            self._demand_world(peace=2 * self.scene.plan.ttl)
            self._end()
        except Violation:
            raise
        except (Exception, OvertimeError) as error:
            raise Violation(0, f"the code breaks: {error!r}") from error
        finally:
            self.scene.strands.close()

    def storm(self) -> None:
        """Let everything strike that is planned."""
        for strike in self.scene.plan.strikes:
            self.scene.timeline.at(strike.moment, FAULTS[strike.fault], self.scene, strike)
        self.scene.timeline.run(self.scene.plan.storm)

    def calm(self) -> None:
        """End everything that goes wrong."""
        scene = self.scene
        scene.story.say("calm")
        scene.weather.lost = scene.weather.late = 0.0
        scene.weather.delay = scene.plan.delay
        scene.service.start()
        for machine in scene.machines:
            machine.driver.fuse = machine.driver.hit = None
            machine.line.heal()
            machine.process.go_on()

    def come(self) -> None:
        """Let a new node come."""
        name = self.name(len(self.scene.machines) + 1)
        self.scene.story.say("{} comes", name)
        self.scene.machines.append(Machine(self.scene, self.invariants, name))

    def _see_that_a_world_is_possible(self) -> None:
        """A run that was closed is started again, and one that was abandoned is taken up by others."""
        scene, state = self.scene, self.invariants.state
        if state is not None and state.closed and state.attempt == scene.attempt:
            scene.attempt += 1
        for _ in range(scene.plan.min_nodes - len(scene.living(scene.attempt))):
            self.come()

    def _demand_world(self, peace: float) -> None:
        """Within a bounded time everyone must be where it should be, and stay there for some seconds."""
        plan, timeline = self.scene.plan, self.scene.timeline
        began = since = timeline.now
        bound = began + WATCH_SLICE + 6 * plan.ttl + plan.last_call + 20.0
        settled: State | None = None
        while settled is None or timeline.now - since < peace:
            if timeline.now >= bound:
                raise Violation(4, f"no world after {timeline.now - began:.0f} s of calm: {self._what_all_do()}")
            self._see_that_a_world_is_possible()
            timeline.run(timeline.now + 0.25)
            state = self.invariants.state if self._settled() else None
            if state is None or state != settled:
                settled, since = state, timeline.now
        self.settled_in = max(self.settled_in, since - began)

    def _end(self) -> None:
        """The job is done: all programs end, and so do the leases of those that had no time to say goodbye."""
        self.scene.story.say("all programs shut down")
        ending = self.scene.living()
        for machine in ending:
            machine.shut_down()
        self.scene.timeline.run(self.scene.timeline.now + 2 * self.scene.plan.ttl)
        self.left = names(self.scene.plan.level, self.scene.service.everything()) - self.invariants.late
        if not any(machine.unheard or machine.process.alive for machine in ending):
            self._see_that_nothing_stays()

    def _see_that_nothing_stays(self) -> None:
        """When a run has ended, its closed state is all that stays."""
        scene = self.scene
        # Without leases, nobody removes the records of an attempt that died, but the next attempt's first leader.
        leaves = {STATE_KEY, NODES, BEATS} if scene.plan.level != "leases" else {STATE_KEY}
        if scene.plan.late or scene.plan.lost:
            # What was written to them first may be applied once more, after they are gone.
            leaves |= {NOTICE_KEY, LEADER_KEY}
        left = sorted(key for key in self.left if not key.startswith(tuple(leaves)))
        if left and not scene.amnesia:
            raise Violation(13, f"the run has ended and leaves {', '.join(left)}")

    def _what_all_do(self) -> str:
        doing = {one.name: "joins" if one.joining else f"in {one.round}" for one in self.scene.living()}
        return f"{doing}, {self.invariants.state}"

    def _settled(self) -> bool:
        """Whether as many as possible work in one world, and all others wait."""
        scene, state = self.scene, self.invariants.state
        living = scene.living()
        if state is None or state.closed or state.attempt != scene.attempt:
            return False
        members = [one for one in living if one.working and one.round == state.round and one.name in state.world]
        as_many_as_possible = len(members) == len(state.world) == min(len(living), scene.plan.max_nodes)
        return as_many_as_possible and all(one.joining for one in living if one not in members)
