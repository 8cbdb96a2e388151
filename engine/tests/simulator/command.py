"""The command: many seeds, one seed as a trace, all runs within bounds, or what gathering costs in calls or trips."""

import argparse
import itertools
import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence

from .arguments import positive
from .bugs import BUGS, draw, put_back
from .connection import LEVELS
from .exhaustive.searches import SEARCHES, exhaust
from .gather import ENDS, Cost, gather
from .invariants import Violation
from .search import Found, search
from .shrink import Failure, shrink, try_out
from .simulation import Simulation
from .trips import LEGEND, SERVICES, WAYS, trips

__all__ = ["main", "tell"]

SIZES = (10, 100, 1_000, 10_000)
TRIPS = (2, 4, 64, 65, 1_000, 10_000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 1 if an invariant was violated, 130 after an early Ctrl-C."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if unused := _unused(asked):
        parser.error(unused)
    logging.disable(logging.CRITICAL)
    try:
        return _run(asked)
    except KeyboardInterrupt:
        return 130


def _run(asked: argparse.Namespace) -> int:
    if asked.nodes is not None:
        return _gather(asked.nodes, asked.level)
    if asked.trips is not None:
        return _count_trips(asked.trips, asked.level)
    if asked.exhaustive is not None:
        return _exhaust(asked.exhaustive or list(SEARCHES), asked.jobs, asked.bug)
    with put_back(asked.bug):
        if asked.seed is not None:
            return _tell_one(asked.seed, asked.bug)
        return _search(asked.seeds, asked.minutes, asked.jobs, asked.bug)


def _unused(asked: argparse.Namespace) -> str | None:
    """What is wrong if an option would do nothing beside the others."""
    counts = asked.nodes is not None or asked.trips is not None
    if asked.level is not None and not counts:
        return "--level is for --nodes and --trips only: a seed decides what its service has"
    if asked.level is not None and asked.trips is not None and asked.level not in SERVICES:
        return f"--level {asked.level} is not for --trips: every node polls the one value, at its own pace"
    if asked.bug is not None and counts:
        return "--bug is not for --nodes and --trips, which count what the code costs as it is"
    if asked.jobs is not None and (counts or asked.seed is not None):
        return "--jobs is for many seeds only: --seed, --nodes and --trips run in one process"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 dev.py simulate",
        description="Runs the engine's real coroutines and rules for many nodes in virtual time, checks the invariants "
        "after every step. A seed that fails is reported as a small trace. Exit code 1: something was violated.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seeds", type=_range, metavar="A:B", help="run the seeds from A up to B, without B")
    what.add_argument("--minutes", type=positive, default=1.0, help="run seeds from 0 on for so long (default: 1)")
    what.add_argument("--seed", type=int, help="run one seed, and print its trace")
    what.add_argument(
        "--nodes",
        type=_count,
        nargs="*",
        metavar="N",
        help="gather so many nodes in one round, and print what it costs (default: 10 100 1000 10000, "
        "as far as each kind of service goes)",
    )
    what.add_argument(
        "--trips",
        type=_count,
        nargs="*",
        metavar="N",
        help="count the round trips until so many nodes are in their world, and print the table of docs/scale.md "
        "(default: 2 4 64 65 1000 10000)",
    )
    what.add_argument(
        "--exhaustive",
        choices=SEARCHES,
        nargs="*",
        metavar="SEARCH",
        help=f"go through all runs within bounds, and say how many states there are: {', '.join(SEARCHES)} "
        "(default: all of these)",
    )
    parser.add_argument(
        "--level",
        choices=LEVELS,
        help="with --nodes or --trips: only for a service that has this (register: with --nodes only)",
    )
    parser.add_argument(
        "--jobs", type=_count, help="with seeds or --exhaustive: how many processes (default: one for each core)"
    )
    parser.add_argument(
        "--bug", choices=BUGS, metavar="NAME", help=f"put a bug back, to see it found; one of: {', '.join(BUGS)}"
    )
    return parser


def _range(text: str) -> Iterator[int]:
    begin, _, end = text.partition(":")
    try:
        seeds = range(int(begin or 0), int(end))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, such as 0:100") from error
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} has no seed in it: A:B is from A up to B, without B")
    return iter(seeds)


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return count


def _search(seeds: Iterator[int] | None, minutes: float, jobs: int | None, bug: str | None) -> int:
    seconds = 60 * minutes if seeds is None else float("inf")
    progress = _Progress(seconds)
    found = search(seeds or itertools.count(), seconds=seconds, jobs=jobs, bug=bug, progress=progress)
    progress.end()
    if found.interrupted and not found.seeds:
        raise KeyboardInterrupt
    print(f"{found}; slowest world after {found.settled_in:.1f} s of the quiet phase", flush=True)
    if found.interrupted:
        print("Ctrl-C has ended the search early.", file=sys.stderr)
    for seed, violation in found.violations:
        print(f"seed {seed}: {violation}")
    if not found.violations:
        return 0
    print("Making the first one small...", file=sys.stderr)
    return _tell_one(found.violations[0][0], bug)


class _Progress:
    """What is going on: one line that changes on a terminal, and a line a minute in a log."""

    def __init__(self, seconds: float) -> None:
        """For a search that takes so long; infinite: it is not known."""
        self._seconds = seconds
        self._terminal = sys.stderr.isatty()
        self._next = 0.0 if self._terminal else 60.0

    def __call__(self, found: Found) -> None:
        if found.seconds < self._next:
            return
        left = max(0.0, self._seconds - found.seconds)
        line = f"{found}{f', {left:.0f} s left' if math.isfinite(left) else ''}"
        if self._terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            self._next += 60.0
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Make room for the result."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr)


def _tell_one(seed: int, bug: str | None) -> int:
    failure = try_out(draw(seed, bug))
    if failure is None:
        simulation = Simulation(draw(seed, bug))
        simulation.run()
        print(simulation.context.trace)
        return 0
    print(tell(failure, shrink(failure), bug))
    return 1


def tell(whole: Failure, small: Failure, bug: str | None = None) -> str:
    """The trace of a failing run, and how to see it again."""
    plan = small.plan
    conditions = f"{plan.lost:.0%} of messages lost, {plan.late:.0%} late, {plan.delay * 1000:.0f} ms each"
    return "\n".join(
        [
            f"{small.violation}",
            "",
            f"{plan.limits}{' that behave as many do' * plan.crowd}, "
            f"time to live {plan.ttl:.0f} s, {plan.level}; {conditions}",
            f"({len(whole.plan.events)} faults made {len(plan.events)}, "
            f"{whole.moment:.1f} s made {small.moment:.1f} s)",
            "",
            small.trace,
            f"{small.moment:9.3f}  {small.violation}",
            "",
            f"Again: python3 dev.py simulate --seed {whole.plan.seed}{f' --bug {bug}' if bug else ''}",
        ]
    )


def _exhaust(names: Sequence[str], jobs: int | None, bug: str | None) -> int:
    began, states, found = time.monotonic(), 0, 0
    for name, explored in exhaust(names, jobs=jobs, bug=bug):
        print(f"{name}: {explored.bounds}\n    {explored}", flush=True)
        states += explored.states
        if explored.found is not None:
            found += 1
            again = f"python3 dev.py simulate --exhaustive {name}{f' --bug {bug}' if bug else ''}"
            print(f"{explored.found.violation}\n\n{explored.found.trace}\n\nAgain: {again}", flush=True)
    print(f"{len(names)} searches, {states:,} states, {found} violations, {time.monotonic() - began:.0f} s")
    return 1 if found else 0


def _gather(asked: Sequence[int], level: str | None) -> int:
    columns = f"{'calls/node':>17} {'bytes/node':>26} {'virtual s':>16} {'turns':>9} {'real s':>8}"
    print(f"{'nodes':>6} {'service':>9} {columns}  idle")
    for chosen in (level,) if level else LEVELS:
        most, reason = ENDS[chosen]
        for nodes in asked or [size for size in SIZES if size <= most]:
            try:
                _print(gather(nodes, chosen))
            except Violation as violation:
                print(violation)
                return 1
        if not asked:
            print(f"{most:6} {chosen:>9} are the most: {reason}")
    return 0


def _print(cost: Cost) -> None:
    rounds = (cost.calls, 2), (cost.bytes, 0), (cost.took, 2)
    calls, sizes, took = (" ".join(f"{one:,.{digits}f}" for one in each) for each, digits in rounds)
    turns = " ".join(map(str, cost.turns))
    idle = ", ".join(f"{count:.2f} {kind}" for kind, count in sorted(cost.idle.items()))
    costs = f"{calls:>17} {sizes:>26} {took:>16} {turns:>9} {cost.seconds:8.1f}"
    print(f"{cost.nodes:6} {cost.level:>9} {costs}  {idle}", flush=True)


def _count_trips(asked: Sequence[int], level: str | None) -> int:
    print(f"{LEGEND}\n\n| nodes | {' | '.join(WAYS)} |\n|{' --- |' * (1 + len(WAYS))}")
    for chosen in (level,) if level else SERVICES:
        for nodes in asked or TRIPS:
            print(f"| {nodes:,}{SERVICES[chosen]} |", end="", flush=True)
            for way in WAYS:
                try:
                    print(f" {trips(nodes, chosen, way)} |", end="", flush=True)
                except Violation as violation:
                    print(f"\n{way}: {violation}")
                    return 1
            print()
    return 0
