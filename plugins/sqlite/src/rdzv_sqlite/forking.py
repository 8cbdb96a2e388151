"""What a fork must not copy.

SQLite remembers per process which locks it holds on a file; a fork copies that memory, and the
locks stay behind. A child that opened the same file again would rely on locks that nobody holds.
So before a fork every connection is closed, between two transactions; both sides connect again.
"""

import os
import threading
from typing import Final, Protocol
from weakref import WeakSet

__all__ = ["Forkable", "disconnect_before_fork"]


class Forkable(Protocol):
    """Something with a connection.

    Attributes:
        lock: Held while the connection is in use.
    """

    lock: threading.RLock

    def disconnect(self) -> None:
        """Close the connection, if there is one; called with `lock` held."""


_all: Final[WeakSet[Forkable]] = WeakSet()
_registering: Final = threading.RLock()
_held: Final[list[Forkable]] = []


def disconnect_before_fork(forkable: Forkable) -> None:
    """Do so for as long as `forkable` lives."""
    with _registering:
        _all.add(forkable)


def _before() -> None:
    _registering.acquire()
    for forkable in list(_all):
        forkable.lock.acquire()
        _held.append(forkable)
        forkable.disconnect()


def _after() -> None:
    while _held:
        _held.pop().lock.release()
    _registering.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
