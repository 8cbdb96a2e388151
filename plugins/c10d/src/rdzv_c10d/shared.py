"""What the backends of one process share for one run in one store."""

import atexit
import os
import threading
from collections.abc import Hashable
from typing import Final

from .line import Line
from .locator import StoreLocator
from .pool import ConnectionPool
from .run import Run
from .stuck import await_none
from .watch import Watches

_LAST_STAY: Final = 2.0
"""Seconds that threads which are still in torch have to end when the interpreter does."""


class Shared:
    """See above.

    Attributes:
        pool: The connections.
        run: The run's keys.
        watches: What threads wait for.
        line: The calls of round stores.
        users: How many backends use it.
    """

    def __init__(self, locator: StoreLocator, root: str) -> None:
        self.pool = ConnectionPool(locator, root)
        self.run = Run(root)
        self.watches = Watches(self.pool, self.run)
        self.line = Line(self.pool)
        self.users = 0

    def close(self, *, at_once: bool = False) -> None:
        """See `ConnectionPool.close`."""
        self.line.close()
        self.watches.close()
        self.pool.close(self.watches.end, at_once=at_once)


_by_store: Final[dict[Hashable, Shared]] = {}
_joining = threading.Lock()


def join(locator: StoreLocator, root: str) -> Shared:
    """What this process shares for a run in a store. The caller must `leave` it."""
    key = (locator.key, root)
    with _joining:
        if (shared := _by_store.get(key)) is None:
            shared = _by_store[key] = Shared(locator, root)
        shared.users += 1
        return shared


def leave(shared: Shared) -> None:
    """Close it if it has no other user."""
    with _joining:
        shared.users -= 1
        if shared.users:
            shared.watches.wake()
            return
        for key in [key for key, one in _by_store.items() if one is shared]:
            del _by_store[key]
    shared.close()


def _close_all() -> None:
    while _by_store:
        _by_store.popitem()[1].close(at_once=True)
    await_none(_LAST_STAY)


def _after_fork() -> None:
    global _joining
    _joining = threading.Lock()
    _inherited.append(dict(_by_store))
    _by_store.clear()


_inherited: Final[list[dict[Hashable, Shared]]] = []
"""What a fork has copied; never touched again, since it looks alive and is not."""

atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
