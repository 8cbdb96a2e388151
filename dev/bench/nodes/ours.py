"""A node of rdzv's own."""

import importlib
from dataclasses import replace

from . import HandlerNode, Node, NodeSpec
from .counting import count_calls, count_store_calls

__all__ = ["load", "make"]


def load(backend: str) -> None:
    """Import rdzv, the plugin and what it needs; count calls where no server counts them."""
    import rdzv

    kind = rdzv.load_backend_plugin(backend).backend_type
    if backend == "c10d":
        count_store_calls(importlib.import_module("torch.distributed").Store)
    if backend == "sqlite":
        count_calls(kind, ("read", "read_all", "put", "create_all", "delete", "delete_version", "wait", "open_lease"))
        count_calls(importlib.import_module("rdzv_sqlite.backend").SqliteLease, ("keep_alive", "revoke"))


def make(spec: NodeSpec) -> Node:
    """Make a node; unless it is new, it looks at the run, and so is connected as its peers are when they are made."""
    if spec.alone:
        # By an address that no other node uses: what has another endpoint is not shared.
        host, port = f"127.1.{spec.number >> 8}.{spec.number & 255}", spec.endpoint.rpartition(":")[2]
        spec = replace(spec, endpoint=f"{host}:{port}")
    import rdzv

    handler = rdzv.get_rendezvous_handler(spec.parameters(rdzv.RendezvousParameters))
    if not spec.new:
        handler.is_closed()
    return _Node(handler)


class _Node(HandlerNode):
    def end(self) -> None:
        self._handler.shutdown()
