"""From the kill -9 of a member to the new world of the others, who come back when they are told to."""

from collections.abc import Iterator
from contextlib import suppress

from ..crew import Crew, CrewError
from ..rows import Row
from ..samples import Sample
from ..stage import Stage
from .idle import KEEP_ALIVE

__all__ = ["NODES", "loss"]

NODES = 4


def loss(stage: Stage, row: Row, bound: float) -> Iterator[Sample]:
    """Seconds; a node is dead after three intervals without a sign of life, where that is noticed at all.

    Args:
        stage: Where.
        row: Of whom.
        bound: Seconds after which the survivors are taken to have noticed nothing.
    """
    with stage.crew(row, NODES, min_nodes=2 if row.elastic else NODES, keep_alive=KEEP_ALIVE) as crew:
        crew.join(stage.limit)
        *survivors, victim = crew.members
        killed = victim.kill()
        others = Crew(survivors)
        back = others.all("come_back", bound + stage.limit, limit=bound)
        worlds = {size for span in back for size in span["worlds"]}
        if not worlds:
            yield Sample(row.name, "loss", NODES, None, f"unnoticed for {bound:.0f} s")
        elif worlds != {str(NODES - 1)}:
            raise CrewError(f"the survivors found themselves in worlds of {sorted(worlds)}")
        else:
            yield Sample(row.name, "loss", NODES, max(span["last"] for span in back) - killed)
        with suppress(CrewError):  # what was to be measured, was
            others.all("end")
