"""How fast the store is that the members of a world share: one node at work, one call after the other."""

from collections.abc import Iterator
from contextlib import suppress

from ..crew import CrewError
from ..rows import Row
from ..samples import Sample
from ..stage import Stage

__all__ = ["NODES", "store"]

NODES = 2


def store(stage: Stage, row: Row, seconds: float) -> Iterator[Sample]:
    """Calls of ``set`` (64 bytes), ``get`` and ``add`` in a second, each tried for so many seconds."""
    with stage.crew(row, NODES) as crew:
        crew.join(stage.limit)
        crew.members[0].order("store", seconds=seconds)
        for name, rate in crew.members[0].answer(3 * seconds + stage.limit).items():
            yield Sample(row.name, f"store-{name}", NODES, rate)
        with suppress(CrewError):  # what was to be measured, was
            crew.all("end")
