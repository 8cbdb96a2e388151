"""Where measurements take place: every service and every kind of node, made when first needed, kept till the end."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from .nodes import NodeSpec
from .pool import WorkerFactory, WorkerPool
from .rows import Row
from .services import Service, start
from .traffic import growth

__all__ = ["Meter", "Testbed"]


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

    def prepare(self, row: Row) -> None:
        """Start what the row needs and has not yet; raises what `pool` does."""
        self.service(row)
        if row.name not in self._factories:
            self._factories[row.name] = factory = WorkerFactory(self.command(row))
            self._cleanup.callback(factory.close)

    def command(self, row: Row) -> Sequence[str]:
        """How to start the row's nodes."""
        return row.command(self._peers)

    @contextmanager
    def pool(
        self,
        row: Row,
        nodes: int,
        min_nodes: int | None = None,
        waiting: int = 0,
        endpoint: str | None = None,
        **more: Any,
    ) -> Iterator[WorkerPool]:
        """The nodes of a new run of a row: as many as fit into its world, and those that wait for room.

        See `nodes.NodeSpec` for what `more` may say. `endpoint` leads to the service on a way of its own.

        Raises:
            WorkerPoolError: They cannot be made, or what they need cannot be imported.
            ServiceMissingError: Their service is not on this machine.
        """
        self.prepare(row)
        endpoint = endpoint or self.service(row).endpoint
        run_id = f"bench-{time.monotonic_ns()}"
        sizes = min_nodes or nodes, nodes
        more |= {"alone": row.alone}
        numbers = range(nodes + waiting)
        specs = [NodeSpec(row.backend, endpoint, run_id, *sizes, number, self.limit, **more) for number in numbers]
        with self._factories[row.name].pool(specs) as pool:
            yield pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._cleanup.close()


class Meter:
    """Reads what a worker pool costs a service; begin before the worker pool is made."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._before = service.calls(), service.carried(), (0, 0.0)

    def read(self, pool: WorkerPool) -> dict[str, float]:
        """Since the last reading, or since the beginning: calls, ms of client CPU, and KB if they are counted."""
        calls, carried, (counted, cpu) = now = self._service.calls(), self._service.carried(), pool.tally()
        calls_before, carried_before, (counted_before, cpu_before) = self._before
        self._before = now
        cost = {"calls": float(counted - counted_before), "cpu": (cpu - cpu_before) * 1e3}
        if calls is not None and calls_before is not None:
            cost["calls"] = calls - calls_before
        if carried is not None and carried_before is not None:
            cost["kb"] = growth(carried_before, carried) / 1e3
        return cost
