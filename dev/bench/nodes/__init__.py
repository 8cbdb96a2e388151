"""What every kind of node has to offer, and its specification.

A kind is a module with two functions: ``load(backend)`` imports what such a node needs and sets up the counting,
``make(spec)`` makes a node. Making one may connect; that is not part of any time that is measured.
"""

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["TALLY", "Node", "NodeSpec", "Tally"]


@dataclass(frozen=True)
class NodeSpec:
    """The specification of a node.

    Attributes:
        backend: The name of its backend.
        endpoint: Where the service is.
        run_id: Which run.
        min_nodes: The smallest world.
        max_nodes: The largest world.
        number: Which of the nodes it is, from 0.
        limit: Seconds that joining may take.
        keep_alive: Seconds between two keep-alives, where there are any.
        last_call: Seconds that a world with its minimum waits for more, where it does.
    """

    backend: str
    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    number: int
    limit: int
    keep_alive: int = 5
    last_call: int = 30


class Node(Protocol):
    """One node."""

    pause: float
    """Seconds between two calls of `waiting`, as the launcher that belongs to it has them."""

    def join(self) -> int:
        """Join the next round; returns the size of the world."""

    def waiting(self) -> bool:
        """Whether the launcher would now have it join again."""

    def store(self) -> Any:
        """The store of the round that it is in, with ``set``, ``get`` and ``add``."""

    def end(self) -> None:
        """Release everything; the run is over."""


@dataclass
class Tally:
    """What the nodes of one process have asked for, counted by themselves.

    Attributes:
        calls: Calls to the service, where the service does not count them.
        lost: Compare-and-sets that lost.
    """

    calls: int = 0
    lost: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def call(self) -> None:
        """Count a call."""
        with self._lock:
            self.calls += 1

    def lose(self) -> None:
        """Count a compare-and-set that lost."""
        with self._lock:
            self.lost += 1


TALLY = Tally()
"""The count of this process."""
