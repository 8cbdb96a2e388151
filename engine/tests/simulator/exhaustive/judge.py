"""The invariants as an automaton: what they remember is a number, and what happens leads from one to another."""

import copy
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

from rdzv.engine.records import State

from ..invariants import Invariants, Violation
from ..machine import SimulationContext
from ..plan import Plan
from .learnt_node import Facts

__all__ = ["Judge", "Judgement", "Shown"]

_REMEMBERED = (
    *("state", "late", "_leads", "_lost", "_seen", "_pages", "_worlds"),
    *("_failures", "_counted", "_times", "_failed_at", "_quarantined", "_drains_since"),
)

_EARLIER, _LONG_AGO = -0.1, -10.0
"""Moments that stand for all before now, which is always 0, and for all so long ago that no quarantine lasts."""


class Shown(NamedTuple):
    """What the invariants see of a machine: its name, its facts, and whether it was ever away."""

    name: str
    facts: Facts
    disturbed: bool


class Judgement(NamedTuple):
    """What comes of something that happened: what is remembered then, what the trace says, what was violated."""

    number: int
    lines: tuple[str, ...]
    violation: Violation | None


class Judge:
    """The invariants of one search."""

    def __init__(self, plan: Plan) -> None:
        """Remember nothing."""
        self._context = SimulationContext.of(plan)
        self._memories: list[Invariants] = []
        self._numbers: dict[str, int] = {}
        self._known: dict[Any, Judgement] = {}
        self._later: dict[tuple[int, float], int] = {}
        self._remember(Invariants(self._context))

    def state(self, number: int) -> State | None:
        """The state that the service holds."""
        return self._memories[number].state

    def on(self, number: int, shown: tuple[Shown, ...], what: str, *arguments: Any) -> Judgement:
        """What comes of something: `what` is a method of `Invariants`; a node to which it happens is shown alone."""
        at = number, shown, what, arguments
        if (known := self._known.get(at)) is None:
            known = self._known[at] = self._judge(number, shown, what, *arguments)
        return known

    def passes(self, number: int, seconds: float) -> int:
        """What is remembered when time has passed."""
        before = self._memories[number]
        if not (before._failed_at or before._quarantined or before._drains_since):
            return number
        at = number, seconds
        if (known := self._later.get(at)) is None:
            invariants = self._copy(number)
            invariants._failed_at = {key: _earlier(since, seconds) for key, since in before._failed_at.items()}
            invariants._drains_since = {key: _earlier(since, seconds) for key, since in before._drains_since.items()}
            invariants._quarantined = {
                key: (number, _earlier(since, seconds, _LONG_AGO), cooldown)
                for key, (number, since, cooldown) in before._quarantined.items()
            }
            known = self._later[at] = self._remember(invariants)
        return known

    def _copy(self, number: int) -> Invariants:
        before = self._memories[number]
        invariants = copy.copy(before)
        for name in _REMEMBERED:
            setattr(invariants, name, copy.copy(getattr(before, name)))
        return invariants

    def _judge(self, number: int, shown: tuple[Shown, ...], what: str, *arguments: Any) -> Judgement:
        context = self._context
        invariants = self._copy(number)
        machines: list[Any] = [_machine(one, context.plan.racks) for one in shown]
        context.machines, context.by_id = machines, {machine.name: machine for machine in machines}
        context.closers = {one.name for one in shown if one.facts.closes}
        lines, violation = context.trace._lines, None
        lines.clear()
        try:
            getattr(invariants, what)(*([] if what == "wrote" else machines), *arguments)
        except Violation as violated:
            violation = violated
        except Exception as error:
            violation = Violation(0, f"the code breaks: {error!r}")
        said = tuple(line.format(*values) for _, line, values in lines)
        return Judgement(self._remember(invariants), said, violation)

    def _remember(self, invariants: Invariants) -> int:
        parts = [getattr(invariants, name) for name in _REMEMBERED]
        key = repr([_in_order(part) for part in parts])
        number = self._numbers.setdefault(key, len(self._memories))
        if number == len(self._memories):
            self._memories.append(invariants)
        return number


def _in_order(part: Any) -> Any:
    return sorted(part.items()) if isinstance(part, dict) else sorted(part) if isinstance(part, set) else part


def _earlier(moment: float, seconds: float, oldest: float = _EARLIER) -> float:
    return max(round(moment - seconds, 6), oldest)


def _machine(shown: Shown, racks: int) -> SimpleNamespace:
    """What stands for a machine before the invariants."""
    facts = shown.facts
    node = SimpleNamespace(
        has_valid_lease=lambda: facts.has_valid_lease,
        is_evicted=lambda: facts.is_evicted,
        in_running_round=lambda: facts.in_running_round,
        countdown=SimpleNamespace(served=facts.served),
    )
    return SimpleNamespace(
        **facts._asdict() | {"has_valid_lease": None},
        name=shown.name,
        disturbed=shown.disturbed,
        node=node,
        labels={"rack": f"r{(int(shown.name[1:]) - 1) % racks}"},
        runner=SimpleNamespace(hits=0),
        clock=lambda: 0.0,
        gives_up_at=1.0,
        died_in=0,
        is_out=False,
        outcome=None,
        before=0,
        drains_at=(0.0 if facts.drained else 1.0) if facts.drains else math.inf,
        settings=SimpleNamespace(attempt=0),
    )
