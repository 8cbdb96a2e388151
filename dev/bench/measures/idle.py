"""What nodes cost that are members and have nothing to do, under a launcher that asks now and then who waits."""

from collections.abc import Iterator
from contextlib import suppress

from ..crew import CrewError
from ..rows import Row
from ..samples import Sample
from ..stage import Meter, Stage

__all__ = ["KEEP_ALIVE", "idle"]

KEEP_ALIVE = 1
"""Seconds between two signs of life, where there are any."""


def idle(stage: Stage, row: Row, nodes: int, seconds: float) -> Iterator[Sample]:
    """Per node: calls and bytes in a second, CPU seconds in a minute; and the CPU of the server for all."""
    service = stage.service(row)
    meter = Meter(service)
    with stage.crew(row, nodes, keep_alive=KEEP_ALIVE) as crew:
        crew.join(stage.limit)
        meter.read(crew)
        before = service.cpu()
        busy = sum(crew.all("idle", seconds + stage.limit, seconds=seconds))
        after = service.cpu()
        cost = meter.read(crew)
        yield Sample(row.name, "idle-calls", nodes, cost.calls / nodes / seconds)
        if cost.carried is not None:
            yield Sample(row.name, "idle-bytes", nodes, cost.carried / nodes / seconds)
        yield Sample(row.name, "idle-cpu", nodes, busy / nodes / seconds * 60)
        if before is not None and after is not None:
            yield Sample(row.name, "idle-server", nodes, (after - before) / seconds * 60)
        with suppress(CrewError):  # what was to be measured, was
            crew.all("end")
