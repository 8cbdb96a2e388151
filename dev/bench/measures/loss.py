"""From the kill -9 of a member to the new world of the others, who come back on an order."""

from collections.abc import Iterator

from ..pool import WorkerPool, WorkerPoolError
from ..rows import Row
from ..samples import Sample
from ..testbed import Testbed
from .idle import KEEP_ALIVE

__all__ = ["NODES", "loss"]

NODES = 4


def loss(testbed: Testbed, row: Row, bound: float) -> Iterator[Sample]:
    """Seconds; a node is dead after three intervals without a keep-alive, where that is noticed at all.

    Args:
        testbed: Where.
        row: Of whom.
        bound: Seconds after which the survivors are taken to have noticed nothing.
    """
    with testbed.pool(row, NODES, min_nodes=2 if row.elastic else NODES, keep_alive=KEEP_ALIVE) as pool:
        pool.join(testbed.limit)
        *survivors, victim = pool.members
        killed = victim.kill()
        others = WorkerPool(survivors)
        back = others.all("come_back", bound + testbed.limit, limit=bound)
        worlds = {size for span in back for size in span["worlds"]}
        if not worlds:
            yield Sample(row.name, "loss", NODES, None, f"unnoticed for {bound:.0f} s")
        elif worlds != {str(NODES - 1)}:
            raise WorkerPoolError(f"the survivors found themselves in worlds of {sorted(worlds)}")
        else:
            yield Sample(row.name, "loss", NODES, max(span["last"] for span in back) - killed)
        others.end()
