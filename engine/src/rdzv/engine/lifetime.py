"""Whether a handler has begun and ended, and in which process: a fork's copy of it has no node."""

import os
import threading
from collections.abc import Callable
from enum import Enum

from rdzv_core.errors import RendezvousClosedError, RendezvousError


class Life(Enum):
    """How far a handler has come; none goes back."""

    NEW = "it has asked the service for nothing yet"
    BEGUN = "its loops run"
    ENDED = "it has shut down, or left"


class Lifetime:
    """The life of one handler, in the process that has made it."""

    def __init__(self, run: str) -> None:
        """Of a handler of `run`, for messages."""
        self._run = run
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._life = Life.NEW

    @property
    def has_ended(self) -> bool:
        """Whether the handler has ended."""
        return self._life is Life.ENDED

    def is_copy(self) -> bool:
        """Whether this is a fork's copy: the node is the parent's."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Refuse a copy.

        Raises:
            RendezvousError: This is one.
        """
        if self.is_copy():
            raise RendezvousError(
                f"This handler of the rendezvous '{self._run}' belongs to process {self._process}; "
                "a process that was forked from it needs one of its own."
            )

    def begin(self, start: Callable[[], None]) -> None:
        """Begin, by `start`, unless it has begun. If that fails it has not, and the next call tries again.

        Raises:
            RendezvousClosedError: It has ended.
            RendezvousError: This is a fork's copy.
        """
        # First, for a fork has a copy of the lock as well.
        self.check_process()
        with self._lock:
            if self.has_ended:
                raise RendezvousClosedError(
                    f"This handler of the rendezvous '{self._run}' has shut down; create a new one."
                )
            if self._life is Life.NEW:
                start()
                self._life = Life.BEGUN

    def end(self) -> bool:
        """End; returns whether it had not ended before."""
        with self._lock:
            before, self._life = self._life, Life.ENDED
        return before is not Life.ENDED
