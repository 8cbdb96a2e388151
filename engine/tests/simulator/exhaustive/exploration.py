"""Goes to every moment that runs within some bounds can come to, the nearest first, and says what is violated."""

import gc
import itertools
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..invariants import Violation
from .bounds import Bounds
from .happenings import HAPPENINGS
from .learnt_node import as_learnt
from .world import Next, NodeAt, World, WorldAt

__all__ = ["Explored", "Finding", "explore"]


@dataclass(frozen=True)
class Finding:
    """A violation, after as few steps as possible.

    Attributes:
        number: Which invariant was violated; 0: the code itself breaks.
        violation: How.
        trace: What had happened until then.
    """

    number: int
    violation: str
    trace: str


@dataclass
class Explored:
    """What a search has seen.

    Attributes:
        bounds: What it looks at.
        states: How many different states there are.
        transitions: How many steps lead from one to another.
        depth: How many steps the last of them is away.
        runs: How many pieces of real nodes were run to learn how they behave.
        seconds: How long it took of one core's time.
        complete: Whether these are all.
        found: What was violated; it ends the search.
    """

    bounds: Bounds
    states: int = 0
    transitions: int = 0
    depth: int = 0
    runs: int = 0
    seconds: float = 0.0
    complete: bool = False
    found: Finding | None = None

    def __str__(self) -> str:
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.depth} steps deep, "
            f"{self.runs:,} runs of nodes, {self.seconds:.0f} s of one core, "
            f"{'complete' if self.complete else 'NOT complete'}"
        )


def explore(bounds: Bounds, *, progress: Callable[[Explored], None] = lambda explored: None) -> Explored:
    """Search all runs within bounds, until something is violated.

    Args:
        bounds: What to look at.
        progress: Called after each step away from the beginning.
    """
    with as_learnt(), _little_garbage():
        exploration = _Exploration(bounds, progress)
        exploration.run()
    return exploration.explored


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Collect garbage seldom: most of what is learnt stays, and looking through it takes time."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@dataclass
class _Exploration:
    bounds: Bounds
    progress: Callable[[Explored], None]
    numbers: dict[WorldAt, int] = field(default_factory=dict)
    before: "array[int]" = field(default_factory=lambda: array("q", [-1]))
    edges: "array[int]" = field(default_factory=lambda: array("q"))
    nodes: dict[NodeAt, NodeAt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(self.bounds, HAPPENINGS)
        self.explored = Explored(self.bounds)

    def run(self) -> None:
        """Go on step by step."""
        began = time.process_time()
        level = [self.world.first()]
        self.numbers[level[0]] = 0
        while level and self.explored.found is None:
            if self.explored.depth == self.bounds.steps:
                break
            level = self._step(level, began)
            if level:
                self.explored.depth += 1
            self._count(began)
            self.progress(self.explored)
        if self.explored.found is None and (not level or self.explored.depth == self.bounds.steps):
            self._look_for_ends({self.numbers[at] for at in level})
            self.explored.complete = self.explored.found is None
        self._count(began)

    def _count(self, began: float) -> None:
        self.explored.states = len(self.numbers)
        self.explored.seconds = time.process_time() - began
        self.explored.runs = sum(node.runs for node in self.world.nodes)

    def _step(self, level: list[WorldAt], began: float) -> list[WorldAt]:
        """All that are one step further."""
        ahead = []
        for at in level:
            number = self.numbers[at]
            for found in self.world.nexts(at):
                self.explored.transitions += 1
                if found.violation is not None:
                    self.explored.found = self._finding(found.violation, number, found)
                    return []
                there = self.numbers.get(found.then)
                if there is None:
                    then = found.then._replace(nodes=tuple(self.nodes.setdefault(one, one) for one in found.then.nodes))
                    there = self.numbers[then] = len(self.numbers)
                    self.before.append(number)
                    ahead.append(then)
                if found.by_itself and there != number:
                    self.edges.extend((number, there))
            if time.process_time() - began >= self.seconds:
                return ahead
        return ahead

    def _look_for_ends(self, ends: Iterable[int]) -> None:
        """From everywhere a world must still be possible without further faults (invariant 4).

        Args:
            ends: What comes after these was not looked at.
        """
        states = list(self.numbers)
        ends = [*ends]
        ends += [number for at, number in self.numbers.items() if self.world.is_over(at) or self.world.is_settled(at)]
        comes_from: list[list[int]] = [[] for _ in states]
        for edge in range(0, len(self.edges), 2):
            comes_from[self.edges[edge + 1]].append(self.edges[edge])
        good = bytearray(len(states))
        while ends:
            number = ends.pop()
            if not good[number]:
                good[number] = True
                ends += comes_from[number]
        if (stuck := good.find(0)) >= 0:
            violation = Violation(4, "from here on no world forms, or one that does not stay")
            self.explored.found = self._finding(violation, stuck)

    def _finding(self, violation: Violation, number: int, last: Next | None = None) -> Finding:
        """A violation, with what has happened on the way to a state, and then."""
        states = list(self.numbers)
        path = [number]
        while (number := self.before[number]) >= 0:
            path.append(number)
        path.reverse()
        steps = []
        for at, then in itertools.pairwise(path):
            steps.append(next(step for step in self.world.nexts(states[at]) if step.then == states[then]))
        now, lines = 0.0, []
        for step in [*steps, *([last] if last else [])]:
            now += step.seconds
            what = [step.what[0].format(*map(_short, step.what[1:]))] if step.what is not None else []
            lines += [f"{now:9.3f}  {line}" for line in (*what, *step.lines)]
        return Finding(violation.number, str(violation), "\n".join([*lines, f"{now:9.3f}  {violation}"]))


def _short(what: object) -> str:
    """A request in few words: the method, and the key."""
    return str(what) if not isinstance(what, tuple) else " ".join(str(part) for part in what[:2])
