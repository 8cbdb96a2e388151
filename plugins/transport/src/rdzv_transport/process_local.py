"""One of something per process: what a backend made before a fork belongs to the parent."""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["ProcessLocal"]

_T = TypeVar("_T")


class ProcessLocal(Generic[_T]):
    """Makes one thing for each process that asks.

    Without a lock, since one may be held for ever by a thread that a fork did not copy.

    Args:
        make: Makes it. Of two threads that ask first, both may; one of the two is thrown away unused, so
            making it must open nothing.
        discard_inherited: Forgets, in a child, what belongs to the parent, without the parent's noticing.
    """

    def __init__(self, make: Callable[[], _T], discard_inherited: Callable[[_T], None]) -> None:
        self._make = make
        self._discard_inherited = discard_inherited
        self._made: dict[int, _T] = {}

    def get(self) -> _T:
        """What belongs to this process."""
        pid = os.getpid()
        if (made := self._made.get(pid)) is not None:
            return made
        mine = self._made.setdefault(pid, self._make())
        self._forget(pid)
        return mine

    def pop(self) -> _T | None:
        """Take it out, to close it; None if this process has none."""
        pid = os.getpid()
        self._forget(pid)
        return self._made.pop(pid, None)

    def _forget(self, pid: int) -> None:
        for other in list(self._made):
            if other != pid and (inherited := self._made.pop(other, None)) is not None:
                self._discard_inherited(inherited)
