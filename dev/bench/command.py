"""The command: what to measure, in which order, how often, and what becomes of it."""

import argparse
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rdzv_conformance.servers import ServiceMissingError

import bench

from . import report
from .arguments import at_least
from .measures import death, gather, idle, late, loss, spare, start, store, trips
from .pool import PROCESSES, WorkerPoolError
from .quiet import Quiet
from .rows import ROWS, Row
from .samples import Sample, Samples
from .testbed import Testbed

__all__ = ["main"]


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        name: What it is called.
        sizes: With how many nodes.
        limit: Seconds that joining may take.
        bound: Seconds after which the event counts as not noticed.
        idle_sizes: With how many idle nodes.
        idle_seconds: For how long.
        store_seconds: For how long the store does each thing.
        ttls: For leases of which times to live a death is waited for, in seconds.
        repeat: How often everything is measured of up to `_SMALL` nodes.
        repeat_large: How often of more.
    """

    name: str = "full"
    sizes: tuple[int, ...] = (2, 8, 32, 128, 256, 512, 1024)
    limit: int = 120
    bound: float = 30.0
    idle_sizes: tuple[int, ...] = (8, 64)
    idle_seconds: float = 10.0
    store_seconds: float = 2.0
    ttls: tuple[int, ...] = (3, 30)
    repeat: int = 5
    repeat_large: int = 3

    def times(self, group: str, nodes: int) -> int:
        """How often a group is measured: of deaths, all are waited for at once."""
        if group == "death":
            return 1
        return self.repeat if nodes <= _SMALL else self.repeat_large


_SMALL: Final = 256
_FEW: Final = 32

QUICK: Final = Extent("quick", (2, 8, 32, 128), 15, 6.0, (4, 16), 2.0, 0.3, (3,), 1, 1)

Measurement = Callable[[Testbed, Row], Iterator[Sample]]
Group = tuple[str, str, int, Measurement]
"""What is measured of one row after the other: for a reader, the first of its samples, nodes, how."""


def groups(extent: Extent) -> Iterator[Group]:
    """Everything, once."""
    for nodes in extent.sizes:
        yield "gather", "gather", nodes, partial(gather.gather, nodes=nodes)
    yield "start", "import", 1, start.start
    yield "store", "store-set", store.NODES, partial(store.store, seconds=extent.store_seconds)
    yield "late", "late", late.NODES, partial(late.late, bound=extent.bound)
    yield "loss", "loss", loss.NODES, partial(loss.loss, bound=extent.bound)
    for ttl in extent.ttls:
        yield "death", f"death-{ttl}", death.NODES, partial(death.death, ttl=ttl, worlds=extent.repeat)
    yield "spare", "spare", spare.NODES, partial(spare.spare, bound=extent.bound)
    yield "trips", "trips-all-at-once", trips.NODES, trips.trips
    for nodes in extent.idle_sizes:
        yield "idle", "idle-calls", nodes, partial(idle.idle, nodes=nodes, seconds=extent.idle_seconds)


class Run:
    """One run of the comparison."""

    def __init__(self, extent: Extent, rows: list[Row], only: list[str], patience: float, out: Path) -> None:
        self.samples = Samples(_about(extent))
        self._out = out
        self._extent = extent
        self._rows = rows
        self._groups = [group for group in groups(extent) if group[0] in only]
        self._failed: dict[tuple[str, str], int] = {}
        self._began = time.monotonic()
        self._quiet = Quiet(patience, self._tell)
        self._took: defaultdict[str, float] = defaultdict(float)

    def measure(self, testbed: Testbed) -> None:
        """Measure everything as often as it should be: the rows take turns."""
        for repetition in range(max(self._extent.repeat, self._extent.repeat_large)):
            for number, group in enumerate(self._groups):
                if repetition >= self._extent.times(group[0], group[2]):
                    continue
                for row in self._rows:
                    if not row.does(group[0]):
                        continue
                    self._tell(f"{repetition + 1}.{number + 1}/{len(self._groups)} {group[0]} {group[2]} {row.name}")
                    began = time.monotonic()
                    self._measure(testbed, row, *group)
                    self._took[group[0]] += time.monotonic() - began
                self._save()

    def _save(self) -> None:
        took = (f"{name} {seconds / 60:.1f} min" for name, seconds in self._took.items())
        self.samples.about["took"] = ", ".join(took)
        self.samples.save(self._out / "results.json")

    def _measure(self, testbed: Testbed, row: Row, name: str, first: str, nodes: int, measurement: Measurement) -> None:
        failed = self._failed.get((row.name, name))
        if failed is not None and nodes >= failed:
            if nodes > failed:
                self.samples.add(Sample(row.name, first, nodes, None, f"not tried, after {failed:,}"))
            return
        # A few that do not find together have bad luck: that shall not be the end of it.
        tries = 2 if name == "gather" and nodes <= _FEW else 1
        if not any(self._succeeds(testbed, row, name, first, nodes, measurement) for _ in range(tries)):
            # A row that did not manage is not asked again for so many, nor for more.
            self._failed[row.name, name] = nodes

    def _succeeds(
        self, testbed: Testbed, row: Row, name: str, first: str, nodes: int, measurement: Measurement
    ) -> bool:
        """Measure, and keep what was measured, or why there is nothing; whether there is the first of it."""
        measured = False
        try:
            testbed.prepare(row)
            self.samples.add(Sample(row.name, f"load-{name}", nodes, self._quiet.wait()))
            for sample in measurement(testbed, row):
                self.samples.add(sample)
                measured |= sample.measure == first and sample.value is not None
        except (WorkerPoolError, ServiceMissingError, OSError) as error:
            self.samples.add(Sample(row.name, first, nodes, None, f"{error}"))
        return measured

    def _tell(self, what: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        line = f"{minutes:2}:{seconds:02} {what}"
        # On a terminal each line takes the place of the one before.
        before, end = ("\r", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{before}{line:100}", end=end, file=sys.stderr, flush=True)


def main() -> None:
    """See the package."""
    arguments = _parse()
    samples = Samples.load(*arguments.load) if arguments.load else _run(arguments)
    report.save(samples, arguments.out)
    print(report.text(samples))
    print(f"All of it is in {arguments.out}.")
    if arguments.docs:
        report.write_page(samples)


def _run(arguments: argparse.Namespace) -> Samples:
    arguments.out.mkdir(parents=True, exist_ok=True)
    extent = QUICK if arguments.quick else Extent()
    if arguments.sizes:
        extent = replace(extent, sizes=tuple(sorted(arguments.sizes)))
    if arguments.repeat:
        extent = replace(extent, repeat=arguments.repeat, repeat_large=arguments.repeat)
    rows, only = [ROWS[name] for name in arguments.rows], arguments.only
    if arguments.goals:
        rows, only = [row for row in rows if row.project != "pytorch"], ["gather"]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    run = Run(extent, rows, only, arguments.patience * 60, arguments.out)
    with Testbed(arguments.peers, extent.limit) as testbed:
        try:
            run.measure(testbed)
        except KeyboardInterrupt:
            print("\nStopped; this is what there is.", file=sys.stderr)
    return run.samples


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 dev.py bench", description=bench.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(dict.fromkeys(name for name, *_ in groups(QUICK)))
    parser.add_argument("--quick", action="store_true", help="small sizes, once")
    parser.add_argument("--goals", action="store_true", help="only what the table of goals needs")
    parser.add_argument(
        "--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW", help=", ".join(ROWS)
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="what to measure")
    parser.add_argument("--sizes", nargs="+", type=at_least(1), metavar="N", help="how many nodes gather")
    parser.add_argument("--repeat", type=at_least(1), metavar="N", help="how often, at any size")
    parser.add_argument(
        "--patience",
        type=at_least(0),
        default=10,
        metavar="MINUTES",
        help="of waiting for a quiet machine, in all (10)",
    )
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--out", type=Path, default=Path("build", "bench"), help="where the results go")
    parser.add_argument("--docs", action="store_true", help="put the results into docs/benchmark.md")
    parser.add_argument(
        "--load",
        type=_results,
        nargs="+",
        metavar="FILE",
        help="measure nothing; show a results.json, with what later ones measured besides or anew",
    )
    arguments = parser.parse_args()
    if arguments.goals and arguments.only not in (names, ["gather"]):
        only = " ".join(arguments.only)
        parser.error(f"--goals measures gather alone, and --only {only} asks for more. Leave out one of the two")
    if arguments.sizes and "gather" not in arguments.only:
        only = " ".join(arguments.only)
        parser.error(
            f"--sizes {' '.join(map(str, arguments.sizes))} would do nothing: only gather has sizes to choose, and "
            f"--only {only} is without it. Leave --sizes out, or add gather to --only"
        )
    return arguments


def _results(text: str) -> Path:
    path = Path(text)
    try:
        Samples.load(path)
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(
            f"{text!r} has no results ({why}): give a results.json of this command, such as that of its last run, "
            "build/bench/results.json"
        ) from error
    return path


def _about(extent: Extent) -> dict[str, str]:
    return {
        "measured": time.strftime("%Y-%m-%d"),
        "extent": f"{extent.name}; medians of {extent.repeat} up to {_SMALL} nodes, of {extent.repeat_large} above",
        "machine": f"{os.cpu_count()} processors",
        "processes": f"{PROCESSES} for the nodes of a row; fewer nodes have one each",
        "versions": f"Python {sys.version.split()[0]}, torch {version('torch')}",
    }
