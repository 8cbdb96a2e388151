"""rdzv on Apache ZooKeeper.

`create_backend` makes the backend from parameters, `ZooKeeperBackend` is the class itself.
"""

from .backend import ZooKeeperBackend
from .plugin import create_backend

__all__ = ["ZooKeeperBackend", "create_backend"]
