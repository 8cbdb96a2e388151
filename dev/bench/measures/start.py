"""What a process pays for importing the rendezvous and what it needs."""

from collections.abc import Iterator

from ..crew import CrewError, load
from ..rows import Row
from ..samples import Sample
from ..stage import Stage

__all__ = ["start"]


def start(stage: Stage, row: Row) -> Iterator[Sample]:
    """Seconds, and resident megabytes afterwards, of a process that has done nothing else."""
    figures, error = load(stage.command(row))
    if not figures:
        raise CrewError(error)
    yield Sample(row.name, "import", 1, figures["seconds"])
    yield Sample(row.name, "memory", 1, figures["after"])
