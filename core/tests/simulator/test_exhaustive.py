"""The exhaustive search: what it has learnt is true, it counts the same each time, and finds what is wrong."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rdzv.admission import AdmissionRule

from .bugs import put_back
from .exhaustive import world
from .exhaustive.bounds import Bounds
from .exhaustive.exploration import explore
from .exhaustive.learnt_node import LearntNode, Memory, Outcome, as_learnt
from .exhaustive.searches import SEARCHES, exhaust

TESTS = Path(__file__).parents[1]
TINY = Bounds(2, 1, 2, rounds=2, faults={"crash": 1, "late delete": 1})

COUNT = """
import logging
from simulator.exhaustive.exploration import explore
from simulator.test_exhaustive import TINY

logging.disable()
explored = explore(TINY)
print(explored.states, explored.transitions, explored.depth, explored.runs, explored.complete, explored.found)
"""


def test_tiny_bounds_are_searched_completely() -> None:
    explored = explore(TINY)
    assert explored.found is None
    assert explored.complete
    assert 300 < explored.states < explored.transitions


def test_states_are_the_same_in_each_process() -> None:
    # Sets and their like have another order in each of them.
    counts = [
        subprocess.run(
            [sys.executable, "-c", COUNT],
            cwd=TESTS,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=280,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert counts[0] == counts[1]
    assert counts[0].split()[4:] == ["True", "None"]


class Doubting(LearntNode):
    """A node that notes all ways that lead to a memory, not only the first."""

    def __init__(self, *arguments: Any) -> None:
        self.ways: dict[tuple[Any, ...], Memory] = {}
        self.outcomes: dict[tuple[Any, ...], Outcome] = {}
        super().__init__(*arguments)

    def on(self, memory: Memory, given: Any, runs_on: bool = False) -> Outcome:
        at = memory.number, given, runs_on
        outcome = self.outcomes[at] = super().on(memory, given, runs_on)
        self.ways[at] = outcome.memory
        return outcome

    def doubts(self, most: int) -> list[tuple[Any, ...]]:
        """Inputs whose outcome is another one if the memory was reached by another way; looks at so many."""
        found, looked = [], 0
        for way, memory in list(self.ways.items()):
            if memory.before == way:
                continue
            for (number, *given), outcome in list(self.outcomes.items()):
                if number != memory.number or (looked := looked + 1) > most:
                    continue
                live = self._at(self.memories[way[0]])
                live.take(*way[1:])
                told = live.take(*given)
                if self._learn(live, None) is not outcome.memory or repr(told) != repr(outcome.told):
                    found.append((way, given))
        return found


def test_equal_memories_have_equal_futures(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: list[Doubting] = []

    def make(*arguments: Any) -> Doubting:
        nodes.append(Doubting(*arguments))
        return nodes[-1]

    monkeypatch.setattr(world, "LearntNode", make)
    explore(TINY)
    with as_learnt():
        assert [node.doubts(150) for node in nodes] == [[], []]


_PAIRS, _RACKS = AdmissionRule(node_unit=2), AdmissionRule(group_by="rack", group_size=2)

FOUND = {
    "own-address": (Bounds(2, 1, 2, 1), 1),
    "small-world": (Bounds(2, 2, 2, 1, faults={"crash": 1}), 3),
    "large-world": (Bounds(2, 1, 1, 1), 3),
    "spares-count-as-waiting": (Bounds(2, 1, 1), 5),
    "no-exclusivity": (Bounds(2, 1, 2, programs={"fail": 1}), 2),
    "edited-world": (Bounds(2, 1, 2, faults={"crash": 1}), 5),
    "stale-address": (Bounds(2, 1, 2, faults={"crash": 1}), 1),
    "stale-port": (Bounds(2, 1, 2, faults={"crash": 1}), 1),
    "second-reason": (Bounds(2, 1, 2, 1, programs={"close": 2}), 6),
    "any-size": (Bounds(3, 2, 3, 1, rule=_PAIRS), 3),
    "forgotten-rule": (Bounds(3, 2, 3, 1, rule=_PAIRS), 4),
    "useless-news": (Bounds(3, 2, 3, rule=_PAIRS), 5),
    "part-of-a-group": (Bounds(3, 2, 4, 1, rule=_RACKS), 3),
}
"""Bugs of `BUGS` that show within small bounds, and the invariant that the shortest run violates."""


@pytest.mark.parametrize("name", FOUND)
def test_bug_is_found_by_the_shortest_run(name: str) -> None:
    bounds, number = FOUND[name]
    with put_back(name):
        explored = explore(bounds, seconds=60)
    assert explored.found is not None, explored
    assert explored.found.number == number, explored.found
    assert explored.found.trace.endswith(explored.found.violation)


@pytest.mark.soak
def test_searches_are_complete_and_find_nothing() -> None:
    for name, explored in exhaust(SEARCHES):
        print(f"{name}: {explored.bounds}\n    {explored}")
        assert explored.found is None, explored.found
        assert explored.complete
