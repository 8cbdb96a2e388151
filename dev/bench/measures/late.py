"""From the call of a node that comes late to the moment at which every member knows that a node waits."""

from collections.abc import Iterator

from ..pool import WorkerPool
from ..rows import Row
from ..samples import Sample
from ..testbed import Testbed
from .idle import KEEP_ALIVE

__all__ = ["NODES", "late"]

NODES = 4


def late(testbed: Testbed, row: Row, bound: float) -> Iterator[Sample]:
    """Seconds; the arguments are those of `loss.loss`."""
    with testbed.pool(row, NODES + 1, min_nodes=NODES, keep_alive=KEEP_ALIVE, last_call=1) as pool:
        *members, newcomer = pool.members
        world = WorkerPool(members)
        world.join(testbed.limit)
        for member in members:
            member.order("watch", limit=bound)
        newcomer.order("call")
        called = newcomer.answer(bound)
        seen = [moment for moments in world.answers(bound + testbed.limit) for moment in moments]
        if None in seen:
            yield Sample(row.name, "late", NODES, None, f"unnoticed for {bound:.0f} s")
        else:
            yield Sample(row.name, "late", NODES, max(seen) - called)
        world.end()
