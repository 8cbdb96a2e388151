"""How long nodes need to gather, twice, and what it costs.

All call at once; the time is from the first call to the last return. Then all come back at once, for round two.
"""

from collections.abc import Iterator
from contextlib import suppress

from ..pool import WorkerPoolError
from ..rows import Row
from ..samples import Sample
from ..testbed import Cost, Meter, Testbed

__all__ = ["gather"]


def gather(testbed: Testbed, row: Row, nodes: int) -> Iterator[Sample]:
    """Seconds, and per node: calls, lost compare-and-sets and bytes, of round one and of round two.

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
        with suppress(WorkerPoolError):  # what was to be measured, was
            pool.all("end")


def _cost(row: Row, prefix: str, nodes: int, cost: Cost) -> Iterator[Sample]:
    yield Sample(row.name, f"{prefix}calls", nodes, cost.calls / nodes)
    yield Sample(row.name, f"{prefix}lost", nodes, cost.lost / nodes)
    if cost.carried is not None:
        yield Sample(row.name, f"{prefix}bytes", nodes, cost.carried / nodes)
