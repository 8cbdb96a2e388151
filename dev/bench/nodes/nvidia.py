"""A node of NVIDIA's barrier rendezvous (nvidia-resiliency-ext), on a TCPStore.

Its ``next_rendezvous`` installs signal handlers, which only a main thread may, and checks the health of GPUs. So a
node here does what that one does for the rendezvous itself: the barrier, then the address of rank 0. The first node
is what it calls the store's host, who decides.
"""

import importlib
from datetime import timedelta
from typing import Any

from . import Node, NodeSpec
from .counting import count_store_calls

__all__ = ["load", "make"]

_BARRIER = "nvidia_resiliency_ext.fault_tolerance.ft_rendezvous_barrier"


def load(backend: str) -> None:
    """Import the barrier; count its calls."""
    assert backend == "c10d"
    importlib.import_module(_BARRIER)
    count_store_calls(importlib.import_module("torch.distributed").Store)


def make(spec: NodeSpec) -> Node:
    """Make a node; it connects at once."""
    return _Node(spec)


class _Node(Node):
    pause = 0.3  # the --monitor-interval of its launcher

    def __init__(self, spec: NodeSpec) -> None:
        distributed = importlib.import_module("torch.distributed")
        barrier = importlib.import_module(_BARRIER)
        host, port = spec.endpoint.split(":")
        self._spec = spec
        self._store = distributed.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=60))
        self._description = barrier._NodeDesc("127.0.0.1", spec.number, 0)
        self._state = barrier._RendezvousBarrierState(self._store, spec.run_id, spec.number == 0, spec.limit)
        self._joined = False

    def join(self) -> int:
        if self._joined:
            # As its launcher does when it restarts its workers.
            self._state.open_rendezvous()
        rank, total = self._state.perform_rendezvous(self._description, self._spec.min_nodes, self._spec.max_nodes)
        self._joined = True
        api = importlib.import_module("torch.distributed.elastic.rendezvous.api")
        api.RendezvousStoreInfo.build(rank, self.store(), local_addr="127.0.0.1")
        return int(total)

    def waiting(self) -> bool:
        return bool(self._state.is_next_round_open())

    def store(self) -> Any:
        distributed = importlib.import_module("torch.distributed")
        return distributed.PrefixStore(f"torch.rendezvous.{self._spec.run_id}.{self._state._round}", self._store)
