"""The searches that CI makes, each complete within its bounds, and how they share the cores."""

import logging
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from rdzv.admission import AdmissionRule

from ..bugs import put_back
from .bounds import Bounds
from .exploration import Explored, explore

__all__ = ["SEARCHES", "exhaust"]

FAULTS: Final = ("crash", "pause", "lost reply", "ended lease", "late delete")
"""One of each kind."""

SEARCHES: Final[dict[str, Bounds]] = {
    "programs": Bounds(programs={"fail": 1}),
    "faults": Bounds(faults={"crash": 1, "lost reply": 1, "late delete": 1}),
    "pause": Bounds(faults={"pause": 1}, steps=17, begins_together=True),
    "ended-lease": Bounds(faults={"ended lease": 1}, steps=24, begins_together=True),
    "drain": Bounds(programs={"drain": 1}, steps=29, begins_together=True),
    "short-drain": Bounds(programs={"short drain": 1}, steps=24, begins_together=True),
    "quarantine": Bounds(programs={"fail": 1}, quarantine_after=1, begins_together=True),
    "admission": Bounds(programs={"fail": 1}, rule=AdmissionRule(node_unit=2)),
    "two-nodes": Bounds(2, 1, 2, faults=dict.fromkeys(FAULTS, 1), steps=18),
    "two-nodes-pause": Bounds(2, 1, 2, faults={"pause": 1}, begins_together=True),
    "two-nodes-ended-lease": Bounds(2, 1, 2, faults={"ended lease": 1}, begins_together=True),
    "all-faults": Bounds(faults=dict.fromkeys(FAULTS, 1), most=len(FAULTS), steps=9, begins_together=True),
}
"""By name; see `Bounds`."""


def exhaust(names: Iterable[str], *, jobs: int | None = None, bug: str | None = None) -> Iterator[tuple[str, Explored]]:
    """Make searches, each in a process of its own; gives each when it is done.

    Args:
        names: Which.
        jobs: How many at a time; None: one for each core that we may use.
        bug: A bug to put back; see `bugs`.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    # One process for each search: what it has learnt is of no use to the next one, and takes room.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, logging.disable, max_tasks_per_child=1) as pool:
        running = {pool.submit(_explore, name, bug): name for name in names}
        for done in as_completed(running):
            yield running[done], done.result()


def _explore(name: str, bug: str | None) -> Explored:
    with put_back(bug):
        return explore(SEARCHES[name])
