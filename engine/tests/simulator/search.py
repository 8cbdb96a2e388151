"""Runs many seeds on all cores."""

import itertools
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

from .bugs import draw, put_back
from .invariants import Violation
from .simulation import Simulation

__all__ = ["Found", "search"]

_CHUNK = 20


@dataclass
class Found:
    """What a search has seen.

    Attributes:
        seeds: How many seeds were run.
        steps: How many steps of coroutines, each followed by the checks.
        rounds: How many worlds were published.
        settled_in: Seconds of the quiet phase after which a world had formed, in the slowest run.
        seconds: How long the search took.
        violations: Seed and message of each run that failed.
        interrupted: Ctrl-C has ended it.
    """

    seeds: int = 0
    steps: int = 0
    rounds: int = 0
    settled_in: float = 0.0
    seconds: float = 0.0
    violations: list[tuple[int, str]] = field(default_factory=list)
    interrupted: bool = False

    def add(self, other: "Found") -> None:
        """Take in what another process has seen."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.rounds += other.rounds
        self.settled_in = max(self.settled_in, other.settled_in)
        self.violations = sorted(self.violations + other.violations)

    def __str__(self) -> str:
        return (
            f"{self.seeds:,} seeds, {self.steps:,} steps, {self.rounds:,} rounds, "
            f"{len(self.violations)} violations, {self.steps / max(self.seconds, 1e-9):,.0f} steps/s"
        )


def search(
    seeds: Iterator[int],
    *,
    seconds: float = float("inf"),
    jobs: int | None = None,
    bug: str | None = None,
    progress: Callable[[Found], None] = lambda found: None,
) -> Found:
    """Run seeds until there are no more, time is over, an invariant is violated, or Ctrl-C; what runs then is finished.

    Args:
        seeds: Which.
        seconds: How long to go on.
        jobs: How many processes; None: one for each core that we may use.
        bug: A bug to put back; see `bugs`.
        progress: Called now and then.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    found, began = Found(), time.monotonic()
    # Not forked: a pytest process, say, has threads.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare) as pool:
        running: set[Future[Found]] = set()
        try:
            while True:
                over = bool(found.violations) or time.monotonic() - began >= seconds
                while not over and len(running) < 2 * jobs and (chunk := list(itertools.islice(seeds, _CHUNK))):
                    with _ctrl_c_later():
                        running.add(pool.submit(run_seeds, chunk, bug))
                if not running:
                    break
                done, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for one in done:
                    found.add(one.result())
                found.seconds = time.monotonic() - began
                progress(found)
        except KeyboardInterrupt:
            found.interrupted = True
            pool.shutdown(wait=False, cancel_futures=True)
    return found


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Hold Ctrl-C back, here and in the processes that start meanwhile: while they import, they would complain."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    """In a process of the pool: what it would log is part of the simulation, and Ctrl-C ends it without a word."""
    logging.disable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def run_seeds(seeds: list[int], bug: str | None) -> Found:
    """Run some seeds in this process; ends with the first that fails."""
    found = Found()
    with put_back(bug):
        for seed in seeds:
            simulation = Simulation(draw(seed, bug))
            try:
                simulation.run()
            except Violation as violation:
                found.violations.append((seed, str(violation)))
            found.add(Found(1, simulation.steps, simulation.invariants.rounds, simulation.settled_in))
            if found.violations:
                break
    return found
