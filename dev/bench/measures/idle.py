"""What nodes cost that are members and have nothing to do, under a launcher that asks now and then who waits."""

from collections.abc import Iterator

from ..rows import Row
from ..samples import Sample
from ..testbed import Meter, Testbed

__all__ = ["KEEP_ALIVE", "idle"]

KEEP_ALIVE = 1
"""Seconds between two keep-alives, where there are any."""


def idle(testbed: Testbed, row: Row, nodes: int, seconds: float) -> Iterator[Sample]:
    """Per node: calls and KB in a second, CPU seconds in a minute; and the CPU of the server for all."""
    service = testbed.service(row)
    meter = Meter(service)
    with testbed.pool(row, nodes, keep_alive=KEEP_ALIVE) as pool:
        pool.join(testbed.limit)
        meter.read(pool)
        before = service.cpu()
        pool.all("idle", seconds + testbed.limit, seconds=seconds)
        after = service.cpu()
        cost = meter.read(pool)
        cost["cpu"] *= 0.06  # in a second, in ms, is seconds in a minute
        for measure, value in cost.items():
            yield Sample(row.name, f"idle-{measure}", nodes, value / nodes / seconds)
        if before is not None and after is not None:
            yield Sample(row.name, "idle-server", nodes, (after - before) / seconds * 60)
        pool.end()
