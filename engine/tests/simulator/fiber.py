"""Blocking code in virtual time.

The engine's adapters (register, heartbeats) make several calls to a service one after the other and block for
each. Here such code runs on greenlets, of which only one runs at any moment, and the timeline
waits meanwhile: as coroutines would, and as deterministic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent, greenlet

from .network import Answer

__all__ = ["Fibers"]


class _Killed(BaseException):
    """Unwinds a fiber whose node was killed."""


@dataclass(frozen=True)
class _Work:
    owner: object
    ended: Answer


class Fibers:
    """The fibers of one simulation."""

    def __init__(self) -> None:
        """Begin without any."""
        self._busy: dict[greenlet, _Work] = {}

    def run(self, owner: object, work: Callable[[], Any], ended: Answer) -> None:
        """Do blocking work for `owner`; `ended` gets its result or its error."""
        fiber = greenlet(_outcome)
        self._busy[fiber] = _Work(owner, ended)
        self._go_on(fiber, work)

    def block(self, begin: Callable[[Answer], None]) -> Any:
        """Inside such work: begin something that will be answered, and let time go on until then."""
        fiber = getcurrent()
        if fiber not in self._busy:
            raise RuntimeError("Only a fiber can block.")
        begin(lambda result, error: self._go_on(fiber, (result, error)))
        assert fiber.parent is not None
        result, error = fiber.parent.switch()
        if error is not None:
            raise error
        return result

    def kill(self, owner: object) -> None:
        """Unwind all work of a node that is dead."""
        for fiber in [fiber for fiber, work in self._busy.items() if work.owner is owner]:
            self._unwind(fiber)

    def close(self) -> None:
        """Unwind everything."""
        for fiber in list(self._busy):
            self._unwind(fiber)

    def _unwind(self, fiber: greenlet) -> None:
        if fiber is not getcurrent():
            self._go_on(fiber, (None, _Killed()))

    def _go_on(self, fiber: greenlet, given: Any) -> None:
        """Let a fiber run until it blocks or ends."""
        fiber.parent = getcurrent()
        outcome = fiber.switch(given)
        if not fiber.dead:
            return
        work, (result, error) = self._busy.pop(fiber), outcome
        if not isinstance(error, _Killed):
            work.ended(result, error)


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:
        return None, error
