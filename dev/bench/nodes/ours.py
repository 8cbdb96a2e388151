"""A node of rdzv's own."""

import importlib
from typing import Any

from . import Node, NodeSpec
from .counting import count_calls, count_losses, count_store_calls

__all__ = ["load", "make"]


def load(backend: str) -> None:
    """Import rdzv, the plugin and what it needs; count lost writes, and calls where no server counts them."""
    import rdzv

    kind = rdzv.load_backend_plugin(backend).backend_type
    count_losses(kind, "put", lambda put, _: put.outcome is rdzv.PutOutcome.CONFLICT)
    if backend == "c10d":
        count_store_calls(importlib.import_module("torch.distributed").Store)
    if backend == "sqlite":
        count_calls(kind, ("read", "read_all", "put", "delete", "wait", "open_lease"))
        count_calls(importlib.import_module("rdzv_sqlite.backend").SqliteLease, ("keep_alive", "revoke"))


def make(spec: NodeSpec) -> Node:
    """Make a node, and let it look at the run, so that it is connected as its peers are when they are made."""
    node = _Node(spec)
    node.look()
    return node


class _Node:
    pause = 0.1  # it costs nothing: the answer is in the node's memory

    def __init__(self, spec: NodeSpec) -> None:
        import rdzv

        options: dict[str, Any] = {"is_host": False} if spec.backend == "c10d" else {}
        self._handler = rdzv.get_rendezvous_handler(
            rdzv.RendezvousParameters(
                spec.backend,
                spec.endpoint,
                spec.run_id,
                spec.min_nodes,
                spec.max_nodes,
                "127.0.0.1",
                join_timeout=spec.limit,
                keep_alive_interval=spec.keep_alive,
                keep_alive_max_attempt=3,
                last_call_timeout=spec.last_call,
                **options,
            )
        )
        self._info: rdzv.RendezvousInfo | None = None

    def look(self) -> None:
        self._handler.is_closed()

    def join(self) -> int:
        self._info = self._handler.next_rendezvous()
        return self._info.world_size

    def waiting(self) -> bool:
        return self._handler.num_nodes_waiting() > 0

    def store(self) -> Any:
        assert self._info is not None
        return self._info.store

    def end(self) -> None:
        self._handler.shutdown()
