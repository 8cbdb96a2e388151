"""What a process pays for importing the rendezvous and what it needs."""

from collections.abc import Iterator

from ..pool import WorkerPoolError, load
from ..rows import Row
from ..samples import Sample
from ..testbed import Testbed

__all__ = ["start"]


def start(testbed: Testbed, row: Row) -> Iterator[Sample]:
    """Seconds, and resident megabytes afterwards, of a process that has done nothing else."""
    figures, error = load(testbed.command(row))
    if not figures:
        raise WorkerPoolError(error)
    yield Sample(row.name, "import", 1, figures["seconds"])
    yield Sample(row.name, "memory", 1, figures["after"])
