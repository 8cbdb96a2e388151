"""The exhaustive search: what it has learnt is true, it counts the same each time, and finds what is wrong."""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rdzv.admission import AdmissionRule

from .bugs import BUGS, put_back
from .exhaustive import world
from .exhaustive.bounds import Bounds
from .exhaustive.exploration import explore
from .exhaustive.learnt_node import LearntNode, Memory, Outcome, as_learnt
from .exhaustive.searches import SEARCHES, exhaust

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parents[1] / "docs" / "simulator.md"
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
_FAIL, _DRAIN, _SHORT_DRAIN = {"fail": 1}, {"drain": 1}, {"short drain": 1}

_Found = tuple[Bounds, int]


def _begun(programs: Mapping[str, int], fault: str = "", **bounds: Any) -> Bounds:
    """A search with two nodes from a first round on."""
    faults = {fault: 1} if fault else {}
    return Bounds(2, 1, 2, programs=programs, faults=faults, begins_together=True, **bounds)


FOUND: dict[str, _Found] = {
    "own-address": (Bounds(2, 1, 2, 1), 1),
    "small-world": (Bounds(2, 2, 2, 1, faults={"crash": 1}), 3),
    "large-world": (Bounds(2, 1, 1, 1), 3),
    "spares-count-as-waiting": (Bounds(2, 1, 1), 5),
    "no-exclusivity": (Bounds(2, 1, 2, programs=_FAIL), 2),
    "edited-world": (Bounds(2, 1, 2, faults={"crash": 1}), 5),
    "stale-address": (Bounds(2, 1, 2, faults={"crash": 1}), 1),
    "stale-port": (Bounds(2, 1, 2, faults={"crash": 1}), 1),
    "second-reason": (Bounds(2, 1, 2, 1, programs={"close": 2}), 6),
    "any-size": (Bounds(3, 2, 3, 1, rule=_PAIRS), 3),
    "forgotten-rule": (Bounds(3, 2, 3, 1, rule=_PAIRS), 4),
    "useless-news": (Bounds(3, 2, 3, rule=_PAIRS), 5),
    "part-of-a-group": (Bounds(3, 2, 4, 1, rule=_RACKS), 3),
    "unconditional-resign": (_begun({"leave": 1}, "pause"), 7),
    "forgotten-election": (Bounds(2, 1, 2, faults={"late reply": 1}), 4),
    "drain-without-end": (_begun(_SHORT_DRAIN), 0),
    "drain-put-off": (_begun(_SHORT_DRAIN | _DRAIN), 14),
    "drain-too-early": (Bounds(programs=_DRAIN, begins_together=True), 14),
    "quarantine-unread": (Bounds(programs=_FAIL, quarantine_after=1, begins_together=True), 15),
    "quarantine-for-ever": (_begun(_FAIL, quarantine_after=1), 4),
    "quarantine-too-soon": (_begun(_FAIL, quarantine_after=2), 15),
}
"""Bugs of `BUGS` that show within small bounds, and the invariant that the shortest run violates."""

SLOWLY_FOUND: dict[str, _Found] = {
    "unfenced-state": (_begun({}, "pause"), 1),
    "unfenced-return": (_begun({}, "pause"), 2),
    "unannounced-round": (_begun({}, "pause"), 2),
    "late-closing": (_begun({"close": 1, "leave": 1}), 10),
    "drain-again": (_begun(_DRAIN | _FAIL), 15),
    "failures-removed": (Bounds(2, 2, 2, rounds=3, programs={"fail": 2}, quarantine_after=2, begins_together=True), 15),
}
"""The same, for those that take longer."""

BEYOND = {
    "an outage": ("spares-take-places-of-silent-members", "old-contact", "leader-without-grace-period"),
    "a refusal": ("answers-are-renewals", "refused-renewal-counts", "refusal-is-final", "refused-at-once"),
    "data that the service forgets": ("hasty-removal", "removal-by-the-lease", "unforgotten", "unseen-removal"),
    "a purge, or a next attempt": (
        *("foreign-removal", "last-node-removes-next-attempt"),
        *("requeue-waits", "garbage-of-the-next-attempt"),
        *("leftovers-of-the-superseded", "ghosts", "records-by-name"),
    ),
    "nodes of one name": ("quarantine-of-namesakes",),
    "errors and bytes that none expects": (
        *("keep-ends", "lead-ends", "token-of-old", "unreadable-notice"),
        *("endless-number", "believed-notice"),
    ),
    "an operator's pardon": ("pardon-unheard",),
    "programs that break off, or hang": (
        *("loss-as-a-failure", "failures-unjudged", "explained-for-nothing", "first-who-hangs", "one-of-equals"),
        *("behind-those-that-left", "spent-takes-part", "spent-waits"),
    ),
    "heartbeat leases": (
        *("fresh-timeouts", "dead-before-its-first-heartbeat", "unverified-lease"),
        *("end-that-is-forgotten", "resting-observer", "drowsy-observer", "ended-while-looked-at"),
        *("loss-unnoticed", "look-without-end", "late-record-believed", "late-heartbeat-believed"),
    ),
    "a register": ("unreadable-key", "no-answer-is-conflict"),
    "pages, crowds, or the store of a round": (
        *("pages-of-others", "pages-of-another-world", "shared-pages-removed", "page-unread", "page-too-early"),
        *("page-unconfirmed", "only-candidates", "store-under-member", "lost-is-left"),
    ),
    "a plugin that assigns ranks": ("assigns-for-ever", "assigns-meanwhile"),
    "how long it takes, or when time is over": (
        *("long-last-call", "unbounded-arrivals", "wanted-at-any-time", "hasty-growth", "delayed-loss"),
        *("join-past-its-deadline", "timeout-closes-run", "wall-clock", "early-lease-for-ever"),
        *("status-unread", "believes-an-old-answer"),
    ),
    "a watch that is late": ("evicted-by-the-watch", "quarantine-by-the-watch"),
    "more nodes, more rounds, or more faults in one run": (
        *("scattered-group", "forgotten-leftovers", "quarantine-twice", "unconditional-record", "unfenced-rejoin"),
        *("elected-when-gone", "announced-when-gone", "quarantine-of-others"),
    ),
}
"""The other bugs, by what they need that no search has."""


def test_each_bug_is_within_the_bounds_of_a_search_or_beyond_for_a_reason() -> None:
    assert sorted([*FOUND, *SLOWLY_FOUND, *itertools.chain(*BEYOND.values())]) == sorted(BUGS)


@pytest.mark.parametrize("name", FOUND)
def test_bug_is_found_by_the_shortest_run(name: str) -> None:
    assert_found(name, *FOUND[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", SLOWLY_FOUND)
def test_bug_is_found_by_the_shortest_run_in_the_end(name: str) -> None:
    assert_found(name, *SLOWLY_FOUND[name])


def assert_found(name: str, bounds: Bounds, number: int) -> None:
    with put_back(name):
        explored = explore(bounds)
    assert explored.found is not None, explored
    assert explored.found.number == number, explored.found
    assert explored.found.trace.endswith(explored.found.violation)


STATES = {
    "programs": 22_006,
    "faults": 16_453,
    "pause": 50_398,
    "ended-lease": 19_827,
    "drain": 21_471,
    "short-drain": 30_462,
    "quarantine": 2_797,
    "admission": 32_565,
    "two-nodes": 15_292,
    "two-nodes-pause": 12_356,
    "two-nodes-ended-lease": 5_676,
    "all-faults": 68_472,
}
"""The table of ``docs/simulator.md``. Another number is another behaviour of the engine: one that was meant, or not."""


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not part of a distribution")
def test_the_page_has_these_numbers() -> None:
    rows = re.findall(r"\| `([a-z-]+)` \|.*\| ([0-9,]+) \|", PAGE.read_text("utf-8"))
    assert {name: int(states.replace(",", "")) for name, states in rows} == STATES


SMALLEST_FIRST = sorted(SEARCHES, key=STATES.__getitem__)
"""CI runs the first."""


@pytest.mark.soak
@pytest.mark.parametrize("name", SMALLEST_FIRST)
def test_search_is_complete_and_finds_nothing(name: str) -> None:
    ((_, explored),) = exhaust([name])
    print(f"{name}: {explored.bounds}\n    {explored}")
    assert explored.found is None, explored.found
    assert explored.complete
    assert explored.states == STATES[name]
