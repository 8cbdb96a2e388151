"""rdzv on Apache ZooKeeper.

`create_backend` makes the backend and its store from parameters, `ZooKeeperBackend` is the class itself;
it is imported (and kazoo with it) when it is first used.
"""

from typing import TYPE_CHECKING, Any

from .plugin import create_backend

if TYPE_CHECKING:
    from .backend import ZooKeeperBackend

__all__ = ["ZooKeeperBackend", "create_backend"]


def __getattr__(name: str) -> Any:
    if name == "ZooKeeperBackend":
        from .backend import ZooKeeperBackend

        return ZooKeeperBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
