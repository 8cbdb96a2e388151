"""What every kind of node has to offer, and its specification.

A kind is a module with two functions: ``load(backend)`` imports what such a node needs and sets up the counting,
``make(spec)`` makes a node. Making one may connect; that is not part of any time that is measured.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

__all__ = ["TALLY", "FloorNode", "HandlerNode", "NewNode", "Node", "NodeSpec", "Tally"]

_T = TypeVar("_T")


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
        alone: Whether it shares nothing with the other nodes of its process.
        new: Whether it is made only when it joins, and has looked at nothing before.
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
    alone: bool = False
    new: bool = False

    def parameters(self, make: Callable[..., _T]) -> _T:
        """The parameters of PyTorch's handler, and of rdzv's, which are the same."""
        options: dict[str, Any] = {"is_host": False} if self.backend == "c10d" else {}
        return make(
            self.backend,
            self.endpoint,
            self.run_id,
            self.min_nodes,
            self.max_nodes,
            "127.0.0.1",
            join_timeout=self.limit,
            keep_alive_interval=self.keep_alive,
            keep_alive_max_attempt=3,
            last_call_timeout=self.last_call,
            **options,
        )


class Node(ABC):
    """One node."""

    pause = 0.1
    """Seconds between two calls of `waiting`, as the launcher that belongs to it has them: torchrun's
    --monitor-interval."""

    @abstractmethod
    def join(self) -> int:
        """Join the next round; returns the size of the world."""

    @abstractmethod
    def waiting(self) -> bool:
        """Whether the launcher would now have it join again."""

    @abstractmethod
    def store(self) -> Any:
        """The store of the round that it is in, with ``set``, ``get`` and ``add``."""

    def end(self) -> None:  # noqa: B027 - most nodes leave it so
        """Release what would disturb others after the run. Here nothing: the process ends."""


class NewNode(Node):
    """A node that is made when it joins."""

    def __init__(self, make: Callable[[], Node]) -> None:
        self._made = cache(make)

    def join(self) -> int:
        return self._made().join()

    def waiting(self) -> bool:
        return self._made().waiting()

    def store(self) -> Any:
        return self._made().store()

    def end(self) -> None:
        self._made().end()


class FloorNode(Node):
    """A node without a rendezvous, which makes calls as it joins: it has no store, and nothing has it join again."""

    def waiting(self) -> bool:
        return False

    def store(self) -> Any:
        raise NotImplementedError


class HandlerNode(Node):
    """A node that is a handler, of PyTorch's or of rdzv's."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._info: Any = None

    def join(self) -> int:
        self._info = self._handler.next_rendezvous()
        return int(self._info.world_size)

    def waiting(self) -> bool:
        return bool(self._handler.num_nodes_waiting() > 0)

    def store(self) -> Any:
        return self._info.store


@dataclass
class Tally:
    """How many calls to the service the nodes of one process have made, where the service does not count them."""

    calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def call(self) -> None:
        """Count a call."""
        with self._lock:
            self.calls += 1


TALLY = Tally()
"""The count of this process."""
