"""A node of PyTorch's: its handler on one of its backends, as torchrun makes it."""

import importlib
from typing import Any

from . import Node, NodeSpec
from .counting import count_losses, count_store_calls

__all__ = ["load", "make"]

_RENDEZVOUS = "torch.distributed.elastic.rendezvous"
_MODULES = {
    "c10d": ("c10d_rendezvous_backend", "C10dRendezvousBackend"),
    "etcd-v2": ("etcd_rendezvous_backend", "EtcdRendezvousBackend"),
}


def load(backend: str) -> None:
    """Import torch's handler; count lost writes of its state, and calls where no server counts them."""
    if backend == "c10d":
        count_store_calls(importlib.import_module("torch.distributed").Store)
    if backend == "etcd-v2":
        importlib.import_module("etcd")  # without it, torch has a stub
    importlib.import_module(f"{_RENDEZVOUS}.registry")
    module, kind = _MODULES[backend]
    # None: the key is gone, and the write with it. Otherwise the last item says whether it was written.
    count_losses(
        getattr(importlib.import_module(f"{_RENDEZVOUS}.{module}"), kind),
        "set_state",
        lambda answer, _: answer is None or not answer[2],
    )


def make(spec: NodeSpec) -> Node:
    """Make a node; it connects at once."""
    return _Node(spec)


class _Node:
    pause = 0.1  # torchrun's --monitor-interval

    def __init__(self, spec: NodeSpec) -> None:
        registry = importlib.import_module(f"{_RENDEZVOUS}.registry")
        options: dict[str, Any] = {"is_host": False} if spec.backend == "c10d" else {}
        self._handler = registry.get_rendezvous_handler(
            importlib.import_module(_RENDEZVOUS).RendezvousParameters(
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
        self._info: Any = None

    def join(self) -> int:
        self._info = self._handler.next_rendezvous()
        return int(self._info.world_size)

    def waiting(self) -> bool:
        return bool(self._handler.num_nodes_waiting() > 0)

    def store(self) -> Any:
        return self._info.store

    def end(self) -> None:
        """Nothing: the process ends, and there is nothing of it that would disturb another."""
