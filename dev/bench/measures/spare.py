"""From the kill -9 of a member of a full world to the moment at which the node that waited is in the next world."""

import time
from collections.abc import Iterator
from typing import Final

from ..pool import WorkerPool
from ..rows import Row
from ..samples import Sample
from ..testbed import Testbed
from .idle import KEEP_ALIVE

__all__ = ["NODES", "spare"]

NODES = 4
_SETTLE: Final = 3.0
"""Seconds that the spare waits before the kill: nothing tells from outside that it does."""


def spare(testbed: Testbed, row: Row, bound: float) -> Iterator[Sample]:
    """Seconds; the arguments are those of `loss.loss`."""
    with testbed.pool(row, NODES, waiting=1, keep_alive=KEEP_ALIVE) as pool:
        *members, waits = pool.members
        WorkerPool(members).join(testbed.limit)
        waits.order("join", at=0.0)
        time.sleep(_SETTLE)
        *survivors, victim = members
        killed = victim.kill()
        others = WorkerPool(survivors)
        others.all("come_back", bound + testbed.limit, limit=bound)
        span = waits.answer(bound + testbed.limit)
        yield Sample(row.name, "spare", NODES, span["last"] - killed)
        WorkerPool([*survivors, waits]).end()
