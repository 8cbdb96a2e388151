"""A run of 288 nodes that take part by groups of eight, which become whole late, and some of them never.

In another project a check by groups got the labels after the joins: it forgot 262 of 288 nodes, and the others
waited for 90 minutes. Here each node has its label when it comes, and none is forgotten.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from rdzv.admission import AdmissionRule

from .gather import no_garbage_collection, parsing_once
from .invariants import Violation
from .machine import Machine
from .plan import Plan, chance
from .simulation import LOOK, Simulation

__all__ = ["Gathered", "gather_groups"]

SIZE: Final = 8
GROUPS: Final = 36

_ENOUGH: Final = 24
"""Groups that are a world: when so many are whole, the last call begins."""

_ARRIVING: Final = 20.0
"""Seconds in which all nodes come, in any order, but for those that are late."""

_LATE: Final = {"g0": 30.0, "g1": 40.0, "g2": 48.0, "g3": 54.0}
"""When the last node of a group comes that is not whole before: the third one near the end of the last call, the
fourth when that is over, unless arrivals extend it."""

_DIE: Final = {"g5": 24.0, "g6": 25.0, "g7": 57.0}
"""When a node of a group dies: two in time for the leases to end within the last call, one too late for that."""

_MORE: Final = {"g5": 45.0}
"""When another node of a group comes."""

_MISSING: Final = "g4"
"""The group of which one node never comes."""


@dataclass(frozen=True)
class Gathered:
    """What has become of the nodes.

    Attributes:
        worlds: The size of each world, and the seconds from the beginning until it was there.
        waiting: How many nodes wait in the end, as the rest of a group that is not whole.
        seconds: Seconds from the last death until every node was where it should be.
        calls: Calls per node, without those that only keep a lease alive, or wait.
        waits: Waits per node: each ends with some news, of which there is about one a second while nodes come.
    """

    worlds: tuple[tuple[int, float], ...]
    waiting: int
    seconds: float
    calls: float
    waits: float


def gather_groups() -> Gathered:
    """Let all nodes come, some die, and the others gather.

    Raises:
        Violation: An invariant does not hold, or a node is forgotten.
    """
    rule = AdmissionRule(group_by="rack", group_size=SIZE)
    plan = Plan("groups", _ENOUGH * SIZE, GROUPS * SIZE, ttl=15.0, last_call=30.0, rule=rule)
    simulation = Simulation(plan)
    context, arrivals = simulation.context, _arrivals()
    # What programs do costs extra.
    context.stores = False
    context.rack = lambda order: arrivals[order][1]
    for moment, _ in arrivals:
        context.timeline.at(moment, simulation.come)
    for group, moment in _DIE.items():
        context.timeline.at(moment, _kill_one, context.machines, group)
    try:
        with parsing_once(), no_garbage_collection():
            worlds = _let_all_settle(simulation)
        waiting = _see_that_none_is_forgotten(simulation)
    finally:
        context.fibers.close()
    calls = Counter(context.service.calls)
    waits, _ = calls.pop("wait"), calls.pop("keep_alive")
    seconds = context.timeline.now - max(_DIE.values())
    return Gathered(tuple(worlds.items()), waiting, seconds, calls.total() / len(arrivals), waits / len(arrivals))


def _let_all_settle(simulation: Simulation) -> dict[int, float]:
    """Let time go on until every node is where it should be; returns the size of each world, and when it was there."""
    timeline, plan, worlds = simulation.context.timeline, simulation.context.plan, dict[int, float]()
    last_death = max(_DIE.values())
    # The lease of the dead ends, and those who are left wait for others during a last call.
    bound = last_death + plan.ttl + plan.last_call + plan.ttl
    while timeline.now <= last_death or not simulation.settled():
        if timeline.now > bound:
            seconds = timeline.now - last_death
            raise Violation(4, f"all whole groups are in no world {seconds:.0f} s after the last death")
        simulation.let_pass(timeline.now + LOOK)
        state = simulation.invariants.state
        if state is not None and state.size:
            worlds.setdefault(state.size, timeline.now)
    return worlds


def _arrivals() -> list[tuple[float, str]]:
    """When a node of which group comes."""
    rng = chance("groups", "arrivals")
    nodes = [
        (rng.uniform(0.0, _ARRIVING), f"g{group}")
        for group in range(GROUPS)
        for _ in range(SIZE - (f"g{group}" in (*_LATE, _MISSING)))
    ]
    return sorted(nodes + [(moment, group) for later in (_LATE, _MORE) for group, moment in later.items()])


def _kill_one(machines: list[Machine], group: str) -> None:
    next(one for one in machines if one.labels["rack"] == group and one.alive).kill()


def _see_that_none_is_forgotten(simulation: Simulation) -> int:
    """Find each live node in the world, or waiting for its group; returns how many wait."""
    state = simulation.invariants.state
    assert state is not None
    living = simulation.context.living()
    here = Counter(one.labels["rack"] for one in living)
    outside = [one for one in living if one.name not in state.world]
    forgotten = [one.name for one in outside if here[one.labels["rack"]] >= SIZE]
    if forgotten:
        raise Violation(4, f"{', '.join(forgotten)}: forgotten, although their groups are whole")
    return len(outside)
