"""rdzv on SQLite: the embedded default, for the processes of one machine.

`create_backend` makes the backend from parameters, `SqliteBackend` is the class itself.
"""

from .backend import SqliteBackend
from .plugin import create_backend

__all__ = ["SqliteBackend", "create_backend"]
