"""One simulated run: nodes that come, work, die and come back, on a service that has bad days.

Everything that happens follows from the seed. After every piece of every lane, and after every
write of the state, the invariants of the design are checked.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rdzv import Event, EventKind, RendezvousError, RendezvousSettings, RendezvousTimeout
from rdzv.dynamic import member
from rdzv.dynamic.node import Node
from rdzv.dynamic.records import STATE_KEY, State, decode
from rdzv.envelope import Envelope

from .clock import Timeline
from .driver import Network, SimulatedDriver
from .service import SimulatedService

__all__ = ["Plan", "Simulation", "Violation"]


class Violation(AssertionError):
    """An invariant does not hold; the message names it by number."""


@dataclass(frozen=True)
class Plan:
    """What a seed does. Every field is drawn from the seed, or given to look at one thing.

    Attributes:
        nodes: How many nodes there are at most at once.
        min_nodes: The smallest world.
        max_nodes: The largest.
        chaos: Seconds of virtual time during which things go wrong.
        ttl: Seconds after which a silent node is dead.
        faults: How often which fault strikes, in strikes per second of virtual time.
        lost: The probability that a message is lost.
        late: The probability that a request is applied after its sender gave up.
        leases_sleep: Whether leases stand still while the service is down.
    """

    nodes: int
    min_nodes: int
    max_nodes: int
    chaos: float = 60.0
    ttl: float = 3.0
    faults: dict[str, float] = field(default_factory=dict)
    lost: float = 0.0
    late: float = 0.0
    leases_sleep: bool = True

    @classmethod
    def draw(cls, rng: random.Random) -> "Plan":
        """A plan by chance: some seeds are calm, some are all storm."""
        nodes = rng.randint(2, 8)
        low = rng.randint(1, nodes)
        names = ("kill", "pause", "cut", "outage", "leave", "fail", "join", "give_up")
        faults = {name: rng.choice((0.0, 0.02, 0.1, 0.3)) for name in names}
        return cls(
            nodes,
            low,
            rng.randint(low, nodes + 1),
            faults=faults,
            lost=rng.choice((0.0, 0.0, 0.01, 0.05)),
            late=rng.choice((0.0, 0.0, 0.01, 0.05)),
            leases_sleep=rng.random() < 0.7,
        )


class _Machine:
    """One node with the program it runs: joins, works until the world changes, joins again."""

    def __init__(self, simulation: "Simulation", name: str) -> None:
        self._simulation = simulation
        plan, rng = simulation.plan, simulation.rng
        # Clocks of different machines have nothing in common.
        offset = rng.uniform(-1e6, 1e6)
        timeline = simulation.timeline
        self.settings = RendezvousSettings(
            "run",
            plan.min_nodes,
            plan.max_nodes,
            RendezvousTimeout(join=timedelta(seconds=rng.choice((5, 30, 600))), last_call=timedelta(seconds=2)),
            timedelta(seconds=plan.ttl / 3),
            3,
        )
        self.node = Node(
            self.settings,
            "simulated",
            lambda: timeline.now + offset,
            rng=random.Random(rng.random()),
            id=name,
        )
        self.driver = SimulatedDriver(
            self.node, simulation.service, timeline, simulation.network, self._tell, self._check
        )
        self.name = name
        self.alive = True
        self.joining = True
        self.disturbed = False
        self.round = 0
        self.driver.start(member.watch(self.node))
        self.driver.start(member.keep(self.node))
        self.join()

    @property
    def working(self) -> bool:
        """Whether its program believes to be in a world."""
        return self.alive and not self.joining

    def join(self) -> None:
        """Call ``next_rendezvous``."""
        self.joining = True
        deadline = self.node.clock() + self.settings.timeout.join.total_seconds()

        def lane() -> Any:
            yield from member.first_look(self.node, deadline)
            return (yield from member.join(self.node, f"{self.name}.host", 1, deadline))

        self.driver.start(lane(), self._joined)

    def _joined(self, state: State | None, error: BaseException | None) -> None:
        if error is not None:
            if not isinstance(error, RendezvousError):
                raise error
            self._simulation.say(f"{self.name} does not join: {type(error).__name__}: {error}")
            self.end("failed to join")
            return
        assert state is not None
        self.joining = False
        self.round = state.round
        self._simulation.returned(self, state)
        self._poll()

    def _poll(self) -> None:
        if not self.working:
            return
        if self.node.closed():
            self.end("closed")
        elif self.node.waiting():
            self._simulation.say(f"{self.name} sees {self.node.waiting()} waiting and joins again")
            self.join()
        else:
            self._simulation.timeline.after(self._simulation.rng.uniform(0.05, 0.3), self._poll)

    def fail(self) -> None:
        """Its program failed: it wants the next world."""
        if self.working:
            self.join()

    def kill(self) -> None:
        """kill -9."""
        self.alive = False
        self.driver.kill()

    def end(self, reason: str) -> None:
        """Leave politely, then end."""
        if not self.alive:
            return
        self.alive = False
        lane = member.leave(self.node, reason, self.node.clock() + 5.0)
        self.driver.start(lane, lambda result, error: self.driver.stop())

    def _tell(self, event: Event) -> None:
        if event.kind in (EventKind.EVICTED, EventKind.NODE_LOST, EventKind.NODE_LEFT):
            self._simulation.say(f"{self.name} hears: {event.kind.value} {event.node} ({event.cause})")
        if event.kind is EventKind.EVICTED and not self.disturbed and not self._simulation.rough:
            raise Violation(f"10: {self.name} was evicted although it was never away")

    def _check(self) -> None:
        self._simulation.check_member(self)


class Simulation:
    """A run of a plan."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        """Prepare; nothing happens before `run`."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.plan = plan or Plan.draw(self.rng)
        self.timeline = Timeline()
        self.service = SimulatedService(self.timeline, leases_sleep=self.plan.leases_sleep)
        self.service.watched = self._written
        self.network = Network(self.rng, lost=self.plan.lost, late=self.plan.late)
        self.machines: list[_Machine] = []
        self.state: State | None = None
        self.story: list[str] = []
        self.rounds = 0
        self._names = 0
        # In such weather even a node that was never paused or cut off may be away for a TTL.
        self.rough = self.plan.lost > 0 or self.plan.late > 0 or not self.plan.leases_sleep

    def run(self) -> None:
        """Run the plan: a stormy part, then calm, in which a world must form.

        Raises:
            Violation: An invariant does not hold.
        """
        for _ in range(self.plan.nodes):
            self.timeline.after(self.rng.uniform(0.0, 1.0), self._add)
        self.timeline.after(1.5, self._strike)
        self.timeline.run(self.plan.chaos)
        self._calm()
        self._demand_progress()

    def say(self, what: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.timeline.now:9.3f}  {what}")

    # What goes wrong.

    def _add(self) -> None:
        self._names += 1
        name = f"n{self._names}"
        self.say(f"{name} comes")
        self.machines.append(_Machine(self, name))

    def _strike(self) -> None:
        faults = {name: rate for name, rate in self.plan.faults.items() if rate}
        if faults and self.timeline.now < self.plan.chaos:
            names = list(faults)
            name = self.rng.choices(names, [faults[name] for name in names])[0]
            getattr(self, f"_{name}")()
            self.timeline.after(self.rng.expovariate(sum(faults.values())), self._strike)

    def _victim(self, wanted: Callable[[_Machine], bool] = lambda machine: True) -> "_Machine | None":
        living = [machine for machine in self.machines if machine.alive and wanted(machine)]
        if not living:
            return None
        leaders = [machine for machine in living if machine.node.leading]
        return self.rng.choice(leaders if leaders and self.rng.random() < 0.4 else living)

    def _kill(self) -> None:
        if victim := self._victim():
            self.say(f"{victim.name} is killed")
            victim.kill()

    def _pause(self) -> None:
        if victim := self._victim():
            seconds = self.rng.choice((0.5, 1.0, 1.5)) * self.plan.ttl
            self.say(f"{victim.name} stands still for {seconds:.1f} s")
            victim.disturbed = True
            victim.driver.pause()
            self.timeline.after(seconds, victim.driver.unpause)

    def _cut(self) -> None:
        if victim := self._victim():
            seconds = self.rng.choice((0.5, 1.0, 1.5)) * self.plan.ttl
            self.say(f"{victim.name} is cut off for {seconds:.1f} s")
            victim.disturbed = True
            victim.driver.cut_off = True

            def heal() -> None:
                victim.driver.cut_off = False

            self.timeline.after(seconds, heal)

    def _outage(self) -> None:
        seconds = self.rng.choice((0.5, 2.0, 10.0))
        self.say(f"the service is away for {seconds:.1f} s")
        self.service.stop()
        self.timeline.after(seconds, self.service.start)

    def _leave(self) -> None:
        if victim := self._victim():
            self.say(f"{victim.name} leaves")
            victim.end("it was told to")

    def _fail(self) -> None:
        if victim := self._victim(lambda machine: machine.working):
            self.say(f"the program of {victim.name} fails")
            victim.fail()

    def _join(self) -> None:
        if sum(machine.alive for machine in self.machines) < self.plan.nodes + 2:
            self._add()

    def _give_up(self) -> None:
        """Many may fail at once."""
        for machine in self.machines:
            if machine.working and self.rng.random() < 0.5:
                self.say(f"the program of {machine.name} fails")
                machine.fail()

    def _calm(self) -> None:
        self.say("calm")
        self.network.lost = self.network.late = 0.0
        self.service.start()
        for machine in self.machines:
            machine.driver.cut_off = False
            machine.driver.unpause()

    # What must hold.

    def _written(self, key: str, value: bytes) -> None:
        if key != STATE_KEY:
            return
        before, state = self.state, decode(State, Envelope.unpack(value).payload)
        self.state = state
        if before is not None and state.round == before.round and state.world != before.world:
            raise Violation(f"5: the world of round {state.round} was edited: {before.world} -> {state.world}")
        if before is not None and before.closed and state.attempt == before.attempt and state.closed != before.closed:
            raise Violation(f"6: {before.closed} became {state.closed}")
        if state.round == (before.round if before else 0):
            return
        self.rounds += 1
        self.say(f"round {state.round} is published: {', '.join(state.world)}")
        if not state.min_nodes <= len(state.world) <= state.max_nodes or len(set(state.world)) != len(state.world):
            raise Violation(f"3: a world of {state.world} for {state.min_nodes} to {state.max_nodes} nodes")
        for machine in self.machines:
            self.check_member(machine)

    def check_member(self, machine: _Machine) -> None:
        """Whoever trusts its world must be right."""
        node = machine.node
        if not machine.working or self.state is None or self.state.round <= machine.round:
            return
        if node.round == machine.round and node.may_trust_world() and not node.is_evicted():
            # It may not have heard yet that a round was formed; but none could, while its lease lives.
            raise Violation(
                f"2: {machine.name} is in round {machine.round} and round {self.state.round} exists: {self.state.world}"
            )

    def returned(self, machine: _Machine, state: State) -> None:
        """A node got a world."""
        self.say(f"{machine.name} is rank {state.world.index(machine.name)} of {len(state.world)} in round {state.round}")
        published = self._worlds.setdefault(state.round, (state.world, state.address, state.port))
        if published != (state.world, state.address, state.port):
            raise Violation(f"1: {machine.name} got {state} where others got {published}")

    @property
    def _worlds(self) -> dict[int, Any]:
        return self.__dict__.setdefault("worlds", {})

    def _demand_progress(self) -> None:
        bound = self.timeline.now + 4 * self.plan.ttl + 20.0
        while self.timeline.now < bound:
            self.timeline.run(self.timeline.now + 0.5)
            living = [machine for machine in self.machines if machine.alive]
            if len(living) < self.plan.min_nodes or (self.state is not None and self.state.closed):
                return
            members = [machine for machine in living if machine.working and machine.round == self.state_round()]
            wanted = min(len(living), self.plan.max_nodes)
            if len(members) == wanted and self.state is not None and len(self.state.world) == wanted:
                return
        waiting = {machine.name: machine.joining for machine in self.machines if machine.alive}
        raise Violation(f"4: no progress: {waiting} live, state {self.state}")

    def state_round(self) -> int:
        """The number of the latest round."""
        return self.state.round if self.state else 0
