"""What is compared: one row for each client on each service."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rdzv_conformance.servers import SERVERS

__all__ = ["FLOORS", "ROWS", "Row"]

FLOORS: Final = ("sockets", "calls", "bare")
"""The projects whose rows are no rendezvous, and whose figures are floors. Of those on a service the first counts: the
one whose calls are most like rdzv's."""


@dataclass(frozen=True)
class Row:
    """One line of the tables.

    Attributes:
        project: Whose rendezvous it is.
        kind: The module in `nodes` that makes its nodes.
        backend: The name of its backend there.
        elastic: Whether a world may have more nodes than its smallest size.
        alone: Whether its nodes share nothing within a process, where others of the same client do.
        gathers: Whether it only gathers, because nothing else can be measured of it, or nothing new.
    """

    project: str
    kind: str
    backend: str
    elastic: bool = True
    alone: bool = False
    gathers: bool = False

    @property
    def name(self) -> str:
        """Its name, in tables and on the command line."""
        return f"{self.project}/{self.backend}{'-alone' if self.alone else ''}"

    @property
    def ours(self) -> bool:
        """Whether it is rdzv."""
        return self.kind == "ours"

    def does(self, group: str) -> bool:
        """Whether a group of things is measured of it: see `command.groups`."""
        if group in ("death", "spare"):
            return self.ours and not self.gathers
        if group == "trips":
            return self.backend != "sqlite" and not self.gathers
        return group == "gather" or not self.gathers

    def command(self, peers: str) -> Sequence[str]:
        """How to start its nodes; see `worker.py`.

        Args:
            peers: The Python that has the peers.
        """
        return [sys.executable if self.ours else peers, "-m", "bench.worker", self.kind, self.backend]


_PEERS: Final = (
    Row("pytorch", "pytorch", "c10d"),
    Row("nvidia", "nvidia", "c10d", elastic=False),  # what is more are spares
    Row("pytorch", "pytorch", "etcd-v2"),
)

_OURS: Final = (
    *(Row("rdzv", "ours", backend) for backend in ("sqlite", "c10d", *SERVERS)),
    Row("rdzv", "ours", "c10d", alone=True, gathers=True),  # elsewhere each node has a process
)

_FLOOR: Final = (
    *(Row("bare", "bare", backend, elastic=False, gathers=True) for backend in ("sqlite", "c10d", *SERVERS)),
    # What etcd3gw takes for its requests is more than rdzv does for all: it is no floor.
    Row("sockets", "sockets", "etcd-v3", elastic=False, gathers=True),
    # The calls of a bare client on c10d are others than rdzv's.
    Row("calls", "calls", "c10d", elastic=False, gathers=True),
)

# Neighbours are those that are compared: in one repetition they run one after the other.
ROWS: Final = {
    row.name: row
    for row in sorted(
        (*_PEERS, *_OURS, *_FLOOR),
        key=lambda row: (row.backend == "sqlite", row.backend, row.ours, row.name),
    )
}
"""Every row, by its name."""
