"""Blocking code in virtual time.

The core's adapters (register, heartbeats) make several calls to a service one after the other and block for
each. Here such code runs on threads of which only one runs at any moment, and the timeline
waits meanwhile: as coroutines would, and as deterministic.
"""

import threading
from collections.abc import Callable
from typing import Any

from .network import Answer

__all__ = ["Fibers"]


class _Killed(BaseException):
    """Unwinds a fiber whose node was killed."""


class _Fiber(threading.Thread):
    """A thread that runs one piece of work after the other, and only while it has the baton."""

    def __init__(self) -> None:
        super().__init__(name="rdzv-simulated", daemon=True)
        self.work: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.killed = False
        self._mine = threading.Semaphore(0)
        self._theirs = threading.Semaphore(0)

    def run(self) -> None:
        self._mine.acquire()
        while self.work is not None:
            self.result, self.error = None, None
            try:
                self.result = self.work()
            except BaseException as error:
                self.error = error
            self.work = None
            self.hand_back()
        self._theirs.release()

    def hand_over(self) -> None:
        """Timeline's side: let the fiber run until it blocks or ends."""
        self._mine.release()
        self._theirs.acquire()

    def hand_back(self) -> None:
        """Fiber's side: let the timeline go on."""
        self._theirs.release()
        self._mine.acquire()


class Fibers:
    """The fibers of one simulation."""

    def __init__(self) -> None:
        """Begin without any."""
        self._idle: list[_Fiber] = []
        self._busy: dict[_Fiber, tuple[object, Answer]] = {}
        self._running: _Fiber | None = None

    def run(self, owner: object, work: Callable[[], Any], ended: Answer) -> None:
        """Do blocking work for `owner`; `ended` gets its result or its error."""
        fiber = self._idle.pop() if self._idle else self._new()
        fiber.work = work
        self._busy[fiber] = (owner, ended)
        self._go_on(fiber)

    def block(self, begin: Callable[[Answer], None]) -> Any:
        """Inside such work: begin something that will be answered, and let time go on until then."""
        fiber = self._running
        if fiber is None:
            raise RuntimeError("Only a fiber can block.")
        given: list[tuple[Any, BaseException | None]] = []

        def answer(result: Any, error: BaseException | None) -> None:
            given.append((result, error))
            self._go_on(fiber)

        begin(answer)
        fiber.hand_back()
        if fiber.killed:
            raise _Killed
        result, error = given[0]
        if error is not None:
            raise error
        return result

    def kill(self, owner: object) -> None:
        """Unwind all work of a node that is dead."""
        for fiber in [fiber for fiber, (whose, _) in self._busy.items() if whose is owner]:
            self._unwind(fiber)

    def close(self) -> None:
        """Unwind everything and end every thread."""
        for fiber in list(self._busy):
            self._unwind(fiber)
        for fiber in self._idle:
            fiber.hand_over()
            fiber.join()
        self._idle.clear()

    def _new(self) -> _Fiber:
        fiber = _Fiber()
        fiber.start()
        return fiber

    def _unwind(self, fiber: _Fiber) -> None:
        if fiber is not self._running:
            fiber.killed = True
            self._go_on(fiber)

    def _go_on(self, fiber: _Fiber) -> None:
        before, self._running = self._running, fiber
        fiber.hand_over()
        self._running = before
        if fiber.work is not None:
            return
        _, ended = self._busy.pop(fiber)
        self._idle.append(fiber)
        killed, fiber.killed = fiber.killed, False
        if not killed:
            ended(fiber.result, fiber.error)
