"""rdzv on etcd v3, over etcd's JSON gateway.

`create_backend` makes the backend from parameters, `EtcdV3Backend` is the class itself.
"""

from .backend import EtcdV3Backend
from .plugin import create_backend

__all__ = ["EtcdV3Backend", "create_backend"]
