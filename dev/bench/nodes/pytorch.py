"""A node of PyTorch's: its handler on one of its backends, as torchrun makes it."""

import importlib

from . import HandlerNode, Node, NodeSpec
from .counting import count_store_calls

__all__ = ["load", "make"]

_RENDEZVOUS = "torch.distributed.elastic.rendezvous"


def load(backend: str) -> None:
    """Import torch's handler; count calls where no server counts them."""
    if backend == "c10d":
        count_store_calls(importlib.import_module("torch.distributed").Store)
    if backend == "etcd-v2":
        importlib.import_module("etcd")  # without it, torch has a stub
    importlib.import_module(f"{_RENDEZVOUS}.registry")


def make(spec: NodeSpec) -> Node:
    """Make a node; it connects at once."""
    parameters = spec.parameters(importlib.import_module(_RENDEZVOUS).RendezvousParameters)
    return HandlerNode(importlib.import_module(f"{_RENDEZVOUS}.registry").get_rendezvous_handler(parameters))
