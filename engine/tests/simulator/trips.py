"""How many round trips lie between the last call and the moment at which all nodes are in their world: R and W."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

from rdzv.engine.records import State

from . import machine as machines
from .gather import no_garbage_collection, parsing_once
from .invariants import Violation
from .machine import Machine
from .network import NetworkLink
from .plan import Plan
from .simulation import Simulation

__all__ = ["LEGEND", "SERVICES", "WAYS", "Trips", "trips"]

LEGEND: Final = (
    "R, W: so many round trips one after the other, and milliseconds of pauses (none\n"
    "under 0.5), from the last call until all nodes are in their world."
)
SERVICES: Final = {"leases": "", "heartbeats": ", leases are heartbeats"}
"""What a service has for leases, by its level, in the words of a row."""

_LESS: Final = 0.08
_MORE: Final = 0.1
"""Seconds of a round trip in the two runs of which one figure is made: no pause of the leader is long enough to hide
one, and of few trips none makes the leader's view so old (`leader.FRESH`) that it reads once more."""

_SETTLED: Final = 11.0
"""Seconds after which nodes wait, or work."""
_LOOKED: Final = 4.6
"""Seconds after which one that only looks has seen the run."""
_STEP: Final = 0.01
_PATIENCE: Final = 60.0


@dataclass(frozen=True)
class Trips:
    """How long one way of coming together takes.

    Attributes:
        nodes: How many nodes.
        level: What the service has.
        way: One of `WAYS`.
        trips: Round trips, one after the other, from the last call until all are in: R.
        pauses: Seconds of deliberate sleep on that way, which a shorter round trip does not shorten: W.
    """

    nodes: int
    level: str
    way: str
    trips: float
    pauses: float

    def __str__(self) -> str:
        """A cell of the table. A little less than no pause is none: rounding, or a look at a heartbeat."""
        pauses = round(1000 * self.pauses)
        return f"{self.trips:.1f}{f', {pauses} ms' if pauses > 0 else ''}"


def trips(nodes: int, level: str, way: str) -> Trips:
    """Let nodes come together in that way over a network in which each message takes the same time.

    Raises:
        Violation: They are not all in within `_PATIENCE` seconds.
    """
    short, long = (_seconds(nodes, level, way, trip) for trip in (_LESS, _MORE))
    count = (long - short) / (_MORE - _LESS)
    return Trips(nodes, level, way, count, short - count * _LESS)


def _seconds(nodes: int, level: str, way: str, trip: float) -> float:
    """Seconds from the last call until all nodes are in, where each round trip takes so many seconds."""
    plan = Plan("trips", nodes, nodes, ttl=30.0, last_call=1.0, level=level, delay=trip / 2, watch_goes_on=True)
    simulation = Simulation(plan)
    # What programs do costs extra.
    simulation.context.stores = False
    try:
        with (
            parsing_once(),
            no_garbage_collection(),
            patch.object(NetworkLink, "_takes", lambda link: trip / 2),
            # A program looks at once: what it does in between is no business of the rendezvous.
            patch.object(machines, "_LOOK", 0.0),
        ):
            return WAYS[way](simulation, nodes)
    finally:
        simulation.context.fibers.close()


def _first_call(simulation: Simulation, nodes: int) -> float:
    for _ in range(nodes - 1):
        simulation.come()
    _pass(simulation, _SETTLED)
    return _until_all_are_in(simulation, 1, simulation.come)


def _known(simulation: Simulation, nodes: int) -> float:
    for _ in range(nodes - 1):
        simulation.come()
    _pass(simulation, _SETTLED)
    late: Callable[[Machine], None] = lambda machine: None  # noqa: E731 - it stands for a method
    with patch.object(Machine, "join", late):
        simulation.come()
    _pass(simulation, _LOOKED)
    return _until_all_are_in(simulation, 1, simulation.context.machines[-1].join)


def _at_once(simulation: Simulation, nodes: int) -> float:
    def come() -> None:
        for _ in range(nodes):
            simulation.come()

    return _until_all_are_in(simulation, 1, come)


def _back(simulation: Simulation, nodes: int) -> float:
    _at_once(simulation, nodes)
    _pass(simulation, _SETTLED)

    def join() -> None:
        for machine in simulation.context.machines:
            machine.join()

    return _until_all_are_in(simulation, 2, join)


def _back_after_failures(simulation: Simulation, nodes: int) -> float:
    _at_once(simulation, nodes)
    _pass(simulation, _SETTLED)

    def fail() -> None:
        for machine in simulation.context.machines:
            machine.fail()

    return _until_all_are_in(simulation, 2, fail)


def _spare(simulation: Simulation, nodes: int) -> float:
    """A member leaves, and a spare that waits takes its place."""
    _at_once(simulation, nodes)
    simulation.come()
    _pass(simulation, _SETTLED)
    leaves = simulation.invariants.state.world[-1]  # type: ignore[union-attr]
    machine = simulation.context.by_id[leaves]
    return _until_all_are_in(simulation, 2, lambda: machine.leave("its machine ends"))


WAYS: Final[dict[str, Callable[[Simulation, int], float]]] = {
    "the last arrives: first call": _first_call,
    "the last arrives: known": _known,
    "all at once": _at_once,
    "all come back": _back,
    "all come back after failures": _back_after_failures,
    "a spare takes its place": _spare,
}
"""In which ways nodes come together, in the words of the benchmark: the last one arrives, which has read nothing yet,
or has seen `control` before; all call at once; all come back, also after their programs have failed; a spare takes the
place of a member that leaves."""


def _until_all_are_in(simulation: Simulation, number: int, begin: Callable[[], None]) -> float:
    """Begin, and let time go on until all nodes are in that round; returns the seconds until the last one is."""
    timeline, context, returned = simulation.context.timeline, simulation.context, simulation.invariants.returned
    began = last = timeline.now

    def note(machine: Machine, state: State, rank: int) -> None:
        nonlocal last
        last = timeline.now
        returned(machine, state, rank)

    with patch.object(simulation.invariants, "returned", note):
        begin()
        while not all(machine.working and machine.round == number for machine in context.living()):
            if timeline.now > began + _PATIENCE:
                raise Violation(4, f"not all nodes are in round {number} after {_PATIENCE:g} s")
            timeline.run(timeline.now + _STEP)
    return last - began


def _pass(simulation: Simulation, seconds: float) -> None:
    timeline = simulation.context.timeline
    timeline.run(timeline.now + seconds)
