"""One of something per process: what a backend made before a fork belongs to the parent."""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from rdzv_core.errors import RendezvousConnectionError

_T = TypeVar("_T")


class ProcessLocal(Generic[_T]):
    """Makes one thing for each process that asks.

    Without a lock, since one may be held for ever by a thread that a fork did not copy.

    Args:
        make: Makes it. Of two threads that ask first, both may; one of the two is closed unused.
        discard_inherited: Forgets, in a child, what belongs to the parent, without the parent's noticing.
        close: Ends it.
        owner: Whose it is, for the message of a call after `close`.
    """

    def __init__(
        self,
        make: Callable[[], _T],
        discard_inherited: Callable[[_T], None],
        close: Callable[[_T], None],
        owner: str = "This backend",
    ) -> None:
        self._make = make
        self._discard_inherited = discard_inherited
        self._close = close
        self._owner = owner
        self._made: dict[int, _T] = {}
        self._closed = False

    def get(self) -> _T:
        """What belongs to this process.

        Raises:
            RendezvousConnectionError: It is closed.
        """
        self.check_open()
        pid = os.getpid()
        mine = self._made.get(pid)
        if mine is None:
            made = self._make()
            if (mine := self._made.setdefault(pid, made)) is not made:
                self._close(made)
            self._forget(pid)
        if self._closed:
            # Closed while it was made: `close` has not seen it.
            self.close()
        self.check_open()
        return mine

    def check_open(self) -> None:
        """Raise `RendezvousConnectionError` after `close`."""
        if self._closed:
            raise RendezvousConnectionError(f"{self._owner} was closed.")

    def close(self) -> None:
        """End what belongs to this process; there will be no other. Twice is fine."""
        self._closed = True
        pid = os.getpid()
        self._forget(pid)
        if (mine := self._made.pop(pid, None)) is not None:
            self._close(mine)

    def _forget(self, pid: int) -> None:
        for other in list(self._made):
            if other != pid and (inherited := self._made.pop(other, None)) is not None:
                self._discard_inherited(inherited)
