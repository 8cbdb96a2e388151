"""rdzv on Consul, over its HTTP API.

`create_backend` makes the backend and its store from parameters, `ConsulBackend` is the class itself;
it is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

from .plugin import create_backend

if TYPE_CHECKING:
    from .backend import ConsulBackend

__all__ = ["ConsulBackend", "create_backend"]


def __getattr__(name: str) -> Any:
    if name == "ConsulBackend":
        from .backend import ConsulBackend

        return ConsulBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
