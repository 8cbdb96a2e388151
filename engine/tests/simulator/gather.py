"""What it costs to gather many nodes, in calls and bytes: invariant 11."""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rdzv.engine import client, leader
from rdzv.engine.client import DecodedSnapshot
from rdzv.engine.effects import Coroutine
from rdzv.engine.worlds import PAGE

from .invariants import Violation
from .plan import Plan, chance
from .simulation import Simulation

__all__ = ["ENDS", "Cost", "gather", "no_garbage_collection", "parsing_once"]

CALLS = 6
"""What invariant 11 allows per node and round."""
PAGE_READ = 1
"""What a world on pages costs besides: each node reads one."""
ONE_BY_ONE = 1
"""What the leader may spend on each arrival besides, when they do not come together: another look."""
CONSTANT = 50
"""And what all nodes together may."""

ENDS: Final[Mapping[str, tuple[int, str]]] = {
    "leases": (100_000, "each takes 0.13 MB of this process, and 10 ms of its time or more"),
    "heartbeats": (100_000, "each takes 0.16 MB of this process, and 15 ms of its time or more"),
    "register": (
        100,
        "every node polls the one value, which has 0.6 KB for each node: reading it takes most of the time, "
        "and with 430 nodes it has 256 KiB",
    ),
}
"""For each level, how many nodes are tried, and why not more."""

_ARRIVING = 1.0
"""Seconds in which all nodes come, and then watch nothing happen."""
_IDLE = 60.0


@dataclass(frozen=True)
class Cost:
    """What gathering has cost.

    Attributes:
        nodes: How many nodes.
        level: What the service had.
        calls: Calls per node, without those that only keep a lease alive, for the first round, for the one after it,
            and for the one without those that died.
        bytes: Bytes of keys and values, in and out, per node, for the same rounds.
        took: Seconds from the arrival of the last node to its return, from the first failure to the last return, and
            from the first node that learns of the deaths to the last return.
        turns: How often the leader has looked at the nodes and decided, for the same rounds.
        idle: Calls per node and interval while nothing happens, by kind.
        seconds: How long the simulation of it all took, in real time.
    """

    nodes: int
    level: str
    calls: tuple[float, float, float]
    bytes: tuple[float, float, float]
    took: tuple[float, float, float]
    turns: tuple[int, int, int]
    idle: dict[str, float]
    seconds: float


def gather(nodes: int, level: str = "leases") -> Cost:
    """Let `nodes` nodes gather, all fail at once, gather again, and idle; then one in a hundred dies.

    Raises:
        Violation: It costs more than it may.
    """
    began = time.monotonic()
    arrivals = chance("gather", "arrivals")
    die = max(1, nodes // 100)
    plan = Plan("gather", nodes - die, nodes, fault_phase=_ARRIVING, ttl=15.0, last_call=2 * _ARRIVING, level=level)
    simulation = Simulation(plan)
    # What programs do costs extra.
    simulation.context.stores = False
    simulation.name = f"node{{:05}}.{arrivals.randbytes(6).hex()}".format
    for _ in range(nodes):
        simulation.context.timeline.at(arrivals.uniform(0.0, _ARRIVING), simulation.come)
    try:
        with parsing_once(), no_garbage_collection(), _counting_turns() as turns:
            first = _Meter(simulation, turns)
            simulation.fault_phase()
            first.read_when_all_are_in(1)
            second = _Meter(simulation, turns)
            for machine in simulation.context.machines:
                machine.fail()
            second.read_when_all_are_in(2)
            idle = _idle(simulation)
            for machine in arrivals.sample(simulation.context.machines, die):
                machine.kill()
            third = _meter_from_the_news_on(simulation, turns)
            third.read_when_all_are_in(3)
    finally:
        simulation.context.fibers.close()
    cost = Cost(
        nodes,
        level,
        (first.calls / nodes, second.calls / nodes, third.calls / nodes),
        (first.bytes / nodes, second.bytes / nodes, third.bytes / nodes),
        (first.seconds - _ARRIVING, second.seconds, third.seconds),
        (first.turns, second.turns, third.turns),
        idle,
        time.monotonic() - began,
    )
    if level == "leases":
        _check(cost)
    return cost


class _Meter:
    """Counts what the service has to do."""

    def __init__(self, simulation: Simulation, turns: Callable[[], int]) -> None:
        self._simulation = simulation
        self._turns = turns
        self._began = simulation.context.timeline.now
        self._before = (self._count(), simulation.context.service.bytes, turns())
        self.calls = self.bytes = self.turns = 0
        self.seconds = 0.0

    def read_when_all_are_in(self, number: int) -> None:
        """Let time go on until all work in that round."""
        context = self._simulation.context
        living = context.living()
        while not all(machine.working and machine.round == number for machine in living):
            if context.timeline.now - self._began > 600:
                raise Violation(4, f"{len(living)} nodes have not gathered within 600 s")
            context.timeline.run(context.timeline.now + 0.01)
        self.seconds = context.timeline.now - self._began
        self.calls = self._count() - self._before[0]
        self.bytes = context.service.bytes - self._before[1]
        self.turns = self._turns() - self._before[2]

    def _count(self) -> int:
        """Every call but those that keep a lease alive, which a node makes whether it gathers or idles."""
        calls = self._simulation.context.service.calls
        return sum(calls.values()) - calls["keep_alive"]


def _meter_from_the_news_on(simulation: Simulation, turns: Callable[[], int]) -> _Meter:
    """Let time go on until a node learns that others have died: what it costs to be alive until then is not counted."""
    timeline, joins = simulation.context.timeline, simulation.context.joins
    while simulation.context.joins == joins:
        timeline.run(timeline.now + 0.01)
    return _Meter(simulation, turns)


def _idle(simulation: Simulation) -> dict[str, float]:
    """Calls per node and interval while nothing happens."""
    context = simulation.context
    context.timeline.run(context.timeline.now + context.plan.ttl)
    before, state = Counter(context.service.calls), simulation.invariants.state
    context.timeline.run(context.timeline.now + _IDLE)
    if simulation.invariants.state is not state:
        raise Violation(11, f"the state was written while nothing happened: {simulation.invariants.state}")
    intervals = len(context.machines) * _IDLE / (context.plan.ttl / 3)
    return {kind: count / intervals for kind, count in (context.service.calls - before).items()}


def _check(cost: Cost) -> None:
    allowed = CALLS + ONE_BY_ONE + PAGE_READ * (cost.nodes > PAGE) + CONSTANT / cost.nodes
    if max(cost.calls) > allowed:
        raise Violation(11, f"{cost.nodes} nodes make {cost.calls} calls each, more than {allowed:.2f}")
    keep_alives = cost.idle.get("keep_alive", 0.0)
    if keep_alives > 1.05 or cost.idle.get("put", 0.0) > 0:
        raise Violation(11, f"while nothing happens, {cost.nodes} nodes make {cost.idle} calls each per interval")


@contextmanager
def _counting_turns() -> Iterator[Callable[[], int]]:
    """Count the turns of whichever node leads; what is given says how many they are so far."""
    term, original, count = leader._LeaderTerm, leader._LeaderTerm.turn, 0

    def turn(self: leader._LeaderTerm, snapshot: DecodedSnapshot) -> Coroutine[DecodedSnapshot]:
        nonlocal count
        count += 1
        return original(self, snapshot)

    term.turn = turn  # type: ignore[method-assign]
    try:
        yield lambda: count
    finally:
        term.turn = original  # type: ignore[method-assign]


@contextmanager
def parsing_once() -> Iterator[None]:
    """Let all nodes share what was parsed: ten thousand copies of a page fit nowhere."""
    original = client.unwrap
    client.unwrap = lru_cache(None)(original)
    try:
        yield
    finally:
        client.unwrap = original


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep what is in a cycle: to look for it among a hundred thousand nodes takes most of the time, to no end."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
