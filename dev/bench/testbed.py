"""Where measurements take place: every service and every kind of node, made when first needed, kept till the end."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from .nodes import NodeSpec
from .pool import WorkerFactory, WorkerPool
from .rows import Row
from .services import Service, start
from .traffic import growth

__all__ = ["Cost", "Meter", "Testbed"]


class Testbed:
    """See above.

    Args:
        peers: The Python that has the peers.
        limit: Seconds that joining may take.
    """

    def __init__(self, peers: str, limit: int) -> None:
        self.limit = limit
        self._peers = peers
        self._services: dict[str, Service] = {}
        self._factories: dict[str, WorkerFactory] = {}
        self._cleanup = contextlib.ExitStack()

    def service(self, row: Row) -> Service:
        """The row's service.

        Raises:
            ServiceMissingError: It is not on this machine.
        """
        if row.backend not in self._services:
            self._services[row.backend] = self._cleanup.enter_context(start(row.backend))
        return self._services[row.backend]

    def command(self, row: Row) -> Sequence[str]:
        """How to start the row's nodes."""
        return row.command(self._peers)

    @contextmanager
    def pool(self, row: Row, nodes: int, min_nodes: int | None = None, **more: Any) -> Iterator[WorkerPool]:
        """The nodes of a new run of a row, as many as fit into its world; see `nodes.NodeSpec` for the specification.

        Raises:
            WorkerPoolError: They cannot be made, or what they need cannot be imported.
            ServiceMissingError: Their service is not on this machine.
        """
        endpoint = self.service(row).endpoint
        if row.name not in self._factories:
            self._factories[row.name] = self._cleanup.enter_context(WorkerFactory(self.command(row)))
        run_id = f"bench-{time.monotonic_ns()}"
        sizes = min_nodes or nodes, nodes
        specs = [NodeSpec(row.backend, endpoint, run_id, *sizes, number, self.limit, **more) for number in range(nodes)]
        with self._factories[row.name].pool(specs) as pool:
            yield pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._cleanup.close()


@dataclass(frozen=True)
class Cost:
    """What something cost the service.

    Attributes:
        calls: How many calls.
        lost: How many compare-and-sets lost.
        carried: How many bytes; None: they are not counted.
    """

    calls: int
    lost: int
    carried: int | None


class Meter:
    """Reads what a worker pool costs a service; begin before the worker pool is made."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._calls, self._carried, self._lost = service.calls(), service.carried(), 0
        self._counted = 0

    def read(self, pool: WorkerPool) -> Cost:
        """The cost since the last reading, or since the beginning."""
        counted, lost = pool.tally()
        calls, carried = self._service.calls(), self._service.carried()
        cost = Cost(
            counted - self._counted if calls is None or self._calls is None else calls - self._calls,
            lost - self._lost,
            None if carried is None or self._carried is None else growth(self._carried, carried),
        )
        self._counted, self._lost, self._calls, self._carried = counted, lost, calls, carried
        return cost
