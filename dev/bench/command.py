"""The command: what to measure, in which order, how often, and what becomes of it."""

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rdzv_conformance.servers import ServiceMissingError

import bench

from . import report
from .measures import gather, idle, late, loss, start, store
from .pool import PROCESSES, WorkerPoolError
from .rows import ROWS, Row
from .samples import Sample, Samples
from .testbed import Testbed

__all__ = ["main"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmark.md"


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        sizes: With how many nodes.
        limit: Seconds that joining may take.
        bound: Seconds after which the event counts as not noticed.
        idle_sizes: With how many idle nodes.
        idle_seconds: For how long.
        store_seconds: For how long the store does each thing.
        repeat: How often everything is measured.
        budget: Seconds after which nothing is measured again.
        deadline: Seconds after which nothing is begun at all.
    """

    sizes: tuple[int, ...] = (2, 8, 32, 128, 256, 512, 1024)
    limit: int = 120
    bound: float = 30.0
    idle_sizes: tuple[int, ...] = (8, 64)
    idle_seconds: float = 10.0
    store_seconds: float = 2.0
    repeat: int = 5
    budget: float = 3600.0
    deadline: float = float("inf")


_FEW: Final = 32

QUICK: Final = Extent((2, 8, 32, 128), 15, 6.0, (4, 16), 2.0, 0.3, 5, 180.0, 250.0)

Measurement = Callable[[Testbed, Row], Iterator[Sample]]
Group = tuple[str, str, int, Measurement]
"""What is measured of one row after the other: for a reader, the first of its samples, nodes, how."""


def groups(extent: Extent) -> Iterator[Group]:
    """Everything, once."""
    gathering = [("gather", "gather", nodes, partial(gather.gather, nodes=nodes)) for nodes in extent.sizes]
    yield from gathering[:-1]
    yield "start", "import", 1, start.start
    yield "store", "store-set", store.NODES, partial(store.store, seconds=extent.store_seconds)
    yield "late", "late", late.NODES, partial(late.late, bound=extent.bound)
    yield "loss", "loss", loss.NODES, partial(loss.loss, bound=extent.bound)
    for nodes in extent.idle_sizes:
        yield "idle", "idle-calls", nodes, partial(idle.idle, nodes=nodes, seconds=extent.idle_seconds)
    # What takes longest comes last: there may be no time left for it.
    yield from gathering[-1:]


class Run:
    """One run of the comparison."""

    def __init__(self, extent: Extent, rows: list[Row], only: list[str], out: Path) -> None:
        self.samples = Samples(about=_about(extent))
        self._out = out
        self._extent = extent
        self._rows = rows
        self._groups = [group for group in groups(extent) if group[0] in only]
        self._failed: dict[tuple[str, str], str] = {}
        self._began = time.monotonic()

    def measure(self, testbed: Testbed) -> None:
        """Measure everything once, and again while there is time."""
        for repetition in range(self._extent.repeat):
            for number, group in enumerate(self._groups):
                for row in self._rows:
                    if self._passed() > (self._extent.budget if repetition else self._extent.deadline):
                        return
                    self._tell(f"{repetition + 1}.{number + 1}/{len(self._groups)} {group[0]} {group[2]} {row.name}")
                    self._measure(testbed, row, *group)
                self.samples.save(self._out / "samples.json")

    def _passed(self) -> float:
        return time.monotonic() - self._began

    def _measure(self, testbed: Testbed, row: Row, name: str, first: str, nodes: int, measurement: Measurement) -> None:
        if earlier := self._failed.get((row.name, name)):
            if not self.samples.values(row.name, first, nodes) and not self.samples.reason(row.name, first, nodes):
                self.samples.add(Sample(row.name, first, nodes, None, earlier))
            return
        # A few that do not find together have bad luck: that shall not be the end of it.
        tries = 2 if name == "gather" and nodes <= _FEW else 1
        if not any(self._succeeds(testbed, row, first, nodes, measurement) for _ in range(tries)):
            # A row that did not manage is not asked again, nor for more.
            self._failed[row.name, name] = f"not tried, after {nodes}"

    def _succeeds(self, testbed: Testbed, row: Row, first: str, nodes: int, measurement: Measurement) -> bool:
        """Measure, and keep what was measured, or why there is nothing; whether there is the first of it."""
        measured = False
        try:
            for sample in measurement(testbed, row):
                self.samples.add(sample)
                measured |= sample.measure == first and sample.value is not None
        except (WorkerPoolError, ServiceMissingError, OSError) as error:
            self.samples.add(Sample(row.name, first, nodes, None, f"{error}".partition(". ")[0]))
        return measured

    def _tell(self, what: str) -> None:
        minutes, seconds = divmod(int(self._passed()), 60)
        line = f"{minutes:2}:{seconds:02} {what}"
        # On a terminal each line takes the place of the one before.
        before, end = ("\r", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{before}{line:60}", end=end, file=sys.stderr, flush=True)


def main() -> None:
    """See the package."""
    arguments = _parse()
    if arguments.load:
        samples = Samples.load(*arguments.load)
    else:
        arguments.out.mkdir(parents=True, exist_ok=True)
        run = Run(_extent(arguments), [ROWS[name] for name in arguments.rows], arguments.only, arguments.out)
        samples = run.samples
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        with Testbed(arguments.peers, _extent(arguments).limit) as testbed:
            try:
                run.measure(testbed)
            except KeyboardInterrupt:
                print("\nStopped; this is what there is.", file=sys.stderr)
    report.save(samples, arguments.out)
    print(report.text(samples))
    print(f"All of it is in {arguments.out}.")
    if arguments.docs:
        report.write_page(samples, PAGE)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 dev.py bench", description=bench.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(dict.fromkeys(name for name, *_ in groups(QUICK)))
    parser.add_argument("--quick", action="store_true", help="small sizes; ends within five minutes")
    parser.add_argument(
        "--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW", help=", ".join(ROWS)
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="what to measure")
    parser.add_argument("--sizes", nargs="+", type=int, help="how many nodes gather")
    parser.add_argument("--repeat", type=int, help="how often at most")
    parser.add_argument("--minutes", type=float, help="after which nothing is measured again")
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--out", type=Path, default=Path("build", "bench"), help="where the results go")
    parser.add_argument("--docs", action="store_true", help="put the results into docs/benchmark.md")
    parser.add_argument("--load", type=Path, nargs="+", metavar="FILE", help="measure nothing; show a samples.json")
    return parser.parse_args()


def _extent(arguments: argparse.Namespace) -> Extent:
    extent = vars(QUICK if arguments.quick else Extent())
    given = {
        "sizes": tuple(arguments.sizes or ()),
        "repeat": arguments.repeat,
        "budget": arguments.minutes and arguments.minutes * 60,
    }
    return Extent(**extent | {name: value for name, value in given.items() if value})


def _about(extent: Extent) -> dict[str, str]:
    return {
        "extent": "quick" if extent.deadline == QUICK.deadline else "full",
        "processors": f"{os.cpu_count()}",
        "processes": f"{PROCESSES} for the nodes of a row; fewer nodes have one each",
        "versions": f"Python {sys.version.split()[0]}, torch {version('torch')}",
    }
