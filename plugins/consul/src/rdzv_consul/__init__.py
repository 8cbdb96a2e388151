"""rdzv on Consul, over its HTTP API.

`create_backend` makes the backend from parameters, `ConsulBackend` is the class itself.
"""

from .backend import ConsulBackend
from .plugin import create_backend

__all__ = ["ConsulBackend", "create_backend"]
