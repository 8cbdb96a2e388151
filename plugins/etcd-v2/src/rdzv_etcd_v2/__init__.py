"""rdzv on etcd's v2 API.

`create_backend` makes the backend and its store from parameters. What PyTorch has for etcd is here by PyTorch's
names; everything but `create_backend` is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

from .plugin import create_backend

if TYPE_CHECKING:
    from .access import Access
    from .backend import EtcdV2Backend
    from .pytorch import EtcdRendezvousBackend, EtcdStore
    from .rendezvous import EtcdRendezvous, EtcdRendezvousHandler, create_rdzv_handler

__all__ = [
    "Access",
    "EtcdRendezvous",
    "EtcdRendezvousBackend",
    "EtcdRendezvousHandler",
    "EtcdStore",
    "EtcdV2Backend",
    "create_backend",
    "create_rdzv_handler",
]

_WHERE = {
    "Access": "access",
    "EtcdRendezvous": "rendezvous",
    "EtcdRendezvousBackend": "pytorch",
    "EtcdRendezvousHandler": "rendezvous",
    "EtcdStore": "pytorch",
    "EtcdV2Backend": "backend",
    "create_rdzv_handler": "rendezvous",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
