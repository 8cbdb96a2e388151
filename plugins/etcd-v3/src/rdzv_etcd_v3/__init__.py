"""rdzv on etcd v3, over etcd's JSON gateway.

`create_backend` makes the backend and its store from parameters, `EtcdV3Backend` is the class itself;
it is imported (and ssl with it) when it is first used.
"""

from typing import TYPE_CHECKING, Any

from .plugin import create_backend

if TYPE_CHECKING:
    from .backend import EtcdV3Backend

__all__ = ["EtcdV3Backend", "create_backend"]


def __getattr__(name: str) -> Any:
    if name == "EtcdV3Backend":
        from .backend import EtcdV3Backend

        return EtcdV3Backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
