"""rdzv on etcd's v2 API.

`create_backend` makes the backend and a store from parameters. What PyTorch has for etcd is here by PyTorch's names.
"""

from .access import Access
from .backend import EtcdV2Backend
from .pytorch import EtcdRendezvousBackend, EtcdStore, create_backend
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
