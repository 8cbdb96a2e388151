"""How fast the store is that the members of a world share: one node at work, one call after the other."""

from collections.abc import Iterator

from ..rows import Row
from ..samples import Sample
from ..testbed import Testbed

__all__ = ["NODES", "store"]

NODES = 2


def store(testbed: Testbed, row: Row, seconds: float) -> Iterator[Sample]:
    """Calls of ``set`` (64 bytes), ``get`` and ``add`` in a second, each tried for so many seconds."""
    with testbed.pool(row, NODES) as pool:
        pool.join(testbed.limit)
        pool.members[0].order("store", seconds=seconds)
        for name, rate in pool.members[0].answer(3 * seconds + testbed.limit).items():
            yield Sample(row.name, f"store-{name}", NODES, rate)
        pool.end()
