"""How long nodes need to gather, twice, and what it costs.

All call at once; the time is from the first call to the last return. Then all come back at once, for round two.
"""

from collections.abc import Iterator

from ..pool import WorkerPoolError
from ..rows import Row
from ..samples import Sample
from ..testbed import Meter, Testbed

__all__ = ["gather"]


def gather(testbed: Testbed, row: Row, nodes: int) -> Iterator[Sample]:
    """Seconds, and per node calls, ms of client CPU and KB, of round one and of round two.

    What connecting costs comes first, since it is in neither: a node connects when it is made.
    """
    meter = Meter(testbed.service(row))
    with testbed.pool(row, nodes) as pool:
        yield from _cost(row, "connect-", nodes, meter.read(pool))
        for prefix in ("", "again-"):
            try:
                yield Sample(row.name, f"{prefix}gather", nodes, pool.join(testbed.limit))
            except WorkerPoolError as error:
                yield Sample(row.name, f"{prefix}gather", nodes, None, str(error))
                return
            yield from _cost(row, prefix, nodes, meter.read(pool))
        pool.end()


def _cost(row: Row, prefix: str, nodes: int, cost: dict[str, float]) -> Iterator[Sample]:
    for measure, value in cost.items():
        yield Sample(row.name, f"{prefix}{measure}", nodes, value / nodes)
