"""From the call of a node that comes late to the moment at which every member knows that somebody waits."""

from collections.abc import Iterator
from contextlib import suppress

from ..crew import Crew, CrewError
from ..rows import Row
from ..samples import Sample
from ..stage import Stage
from .idle import KEEP_ALIVE

__all__ = ["NODES", "late"]

NODES = 4


def late(stage: Stage, row: Row, bound: float) -> Iterator[Sample]:
    """Seconds; the arguments are those of `loss.loss`."""
    with stage.crew(row, NODES + 1, min_nodes=NODES, keep_alive=KEEP_ALIVE, last_call=1) as crew:
        *members, newcomer = crew.members
        world = Crew(members)
        world.join(stage.limit)
        for member in members:
            member.order("watch", limit=bound)
        newcomer.order("call")
        called = newcomer.answer(bound)
        seen = [moment for moments in world.answers(bound + stage.limit) for moment in moments]
        if None in seen:
            yield Sample(row.name, "late", NODES, None, f"unnoticed for {bound:.0f} s")
        else:
            yield Sample(row.name, "late", NODES, max(seen) - called)
        with suppress(CrewError):  # what was to be measured, was
            world.all("end")
