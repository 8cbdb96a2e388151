"""How many round trips lie one after the other between the last node's call and the world that all know.

The nodes are processes, and the service is far away: see `lines.py`. All call at once, or come back from a
world in which they have been for a while, or the last of them arrives when the others wait:

* known: it has seen `control` before, as a node has that was made in time;
* first call: its process has had another node before, but it is made by its call, and has read nothing;
* from nothing: its process has imported what it needs and done nothing else.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from ..lines import Line, TimedLine
from ..pool import Member, WorkerPool, WorkerPoolError
from ..rows import Row
from ..samples import Sample
from ..testbed import Testbed

__all__ = ["NODES", "trips"]

NODES = 4
KEEP_ALIVE = 15
"""Seconds: nothing else shall pass on the line."""


def trips(testbed: Testbed, row: Row, line: Callable[[int], Line] = TimedLine) -> Iterator[Sample]:
    """Round trips, in each of these ways: see above."""
    port = int(testbed.service(row).endpoint.rpartition(":")[2])
    with line(port) as far:
        nodes = partial(testbed.pool, row, NODES, endpoint=far.endpoint, keep_alive=KEEP_ALIVE)
        with nodes() as pool:
            for name in ("all-at-once", "all-come-back"):
                far.settle()
                yield Sample(row.name, f"trips-{name}", NODES, _passed(far, pool, pool.members, testbed.limit))
        for name in ("known", "first-call", "from-nothing"):
            with nodes(new=name == "from-nothing") as pool:
                *others, last = pool.members
                if name == "first-call":
                    WorkerPool([last]).make([replace(pool.specs[-1], new=True)])
                for member in others:
                    member.order("join", at=0.0)
                far.settle()
                yield Sample(row.name, f"trips-{name}", NODES, _passed(far, pool, [last], testbed.limit))


def _passed(line: Line, pool: WorkerPool, callers: Iterable[Member], limit: float) -> float:
    """How many pass until all are in their world, from the call of some of them on."""
    began = line.trips()
    line.call(partial(member.order, "join", at=0.0) for member in callers)
    if (worlds := {size for span in pool.answers(limit) for size in span["worlds"]}) != {str(NODES)}:
        raise WorkerPoolError(f"in worlds of {', '.join(sorted(worlds))}")
    return line.trips() - began
