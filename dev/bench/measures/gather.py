"""How long nodes need to gather, twice, and what it costs.

All call at once; the time is from the first call to the last return. Then all come back at once, for round two.
"""

from collections.abc import Iterator
from contextlib import suppress

from ..crew import CrewError
from ..rows import Row
from ..samples import Sample
from ..stage import Cost, Meter, Stage

__all__ = ["gather"]


def gather(stage: Stage, row: Row, nodes: int) -> Iterator[Sample]:
    """Seconds, and per node: calls, lost compare-and-sets and bytes, of round one and of round two.

    What connecting costs comes first, since it is in neither: a node connects when it is made.
    """
    meter = Meter(stage.service(row))
    with stage.crew(row, nodes) as crew:
        yield from _cost(row, "connect-", nodes, meter.read(crew))
        for prefix in ("", "again-"):
            try:
                yield Sample(row.name, f"{prefix}gather", nodes, crew.join(stage.limit))
            except CrewError as error:
                yield Sample(row.name, f"{prefix}gather", nodes, None, str(error))
                return
            yield from _cost(row, prefix, nodes, meter.read(crew))
        with suppress(CrewError):  # what was to be measured, was
            crew.all("end")


def _cost(row: Row, prefix: str, nodes: int, cost: Cost) -> Iterator[Sample]:
    yield Sample(row.name, f"{prefix}calls", nodes, cost.calls / nodes)
    yield Sample(row.name, f"{prefix}lost", nodes, cost.lost / nodes)
    if cost.carried is not None:
        yield Sample(row.name, f"{prefix}bytes", nodes, cost.carried / nodes)
