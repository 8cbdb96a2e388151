"""Blocking code in virtual time.

The core's adapters (register, beats) make several calls to a service one after the other and block for
each. Here such code runs on threads of which only one runs at any moment, and the timeline
waits meanwhile: as coroutines would, and as deterministic.
"""

import threading
from collections.abc import Callable
from typing import Any

from .network import Answer

__all__ = ["Strands"]


class _Doomed(BaseException):
    """Unwinds a strand whose node was killed."""


class _Strand(threading.Thread):
    """A thread that runs one piece of work after the other, and only while it has the baton."""

    def __init__(self) -> None:
        super().__init__(name="rdzv-simulated", daemon=True)
        self.work: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.doomed = False
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
        """Timeline's side: let the strand run until it blocks or ends."""
        self._mine.release()
        self._theirs.acquire()

    def hand_back(self) -> None:
        """Strand's side: let the timeline go on."""
        self._theirs.release()
        self._mine.acquire()


class Strands:
    """The strands of one simulation."""

    def __init__(self) -> None:
        """Begin without any."""
        self._idle: list[_Strand] = []
        self._busy: dict[_Strand, tuple[object, Answer]] = {}
        self._running: _Strand | None = None

    def run(self, owner: object, work: Callable[[], Any], ended: Answer) -> None:
        """Do blocking work for `owner`; `ended` gets its result or its error."""
        strand = self._idle.pop() if self._idle else self._new()
        strand.work = work
        self._busy[strand] = (owner, ended)
        self._go_on(strand)

    def block(self, begin: Callable[[Answer], None]) -> Any:
        """Inside such work: begin something that will be answered, and let time go on until then."""
        strand = self._running
        if strand is None:
            raise RuntimeError("Only a strand can block.")
        given: list[tuple[Any, BaseException | None]] = []

        def answer(result: Any, error: BaseException | None) -> None:
            given.append((result, error))
            self._go_on(strand)

        begin(answer)
        strand.hand_back()
        if strand.doomed:
            raise _Doomed
        result, error = given[0]
        if error is not None:
            raise error
        return result

    def doom(self, owner: object) -> None:
        """Unwind all work of a node that is dead."""
        for strand in [strand for strand, (whose, _) in self._busy.items() if whose is owner]:
            self._unwind(strand)

    def close(self) -> None:
        """Unwind everything and end every thread."""
        for strand in list(self._busy):
            self._unwind(strand)
        for strand in self._idle:
            strand.hand_over()
            strand.join()
        self._idle.clear()

    def _new(self) -> _Strand:
        strand = _Strand()
        strand.start()
        return strand

    def _unwind(self, strand: _Strand) -> None:
        if strand is not self._running:
            strand.doomed = True
            self._go_on(strand)

    def _go_on(self, strand: _Strand) -> None:
        before, self._running = self._running, strand
        strand.hand_over()
        self._running = before
        if strand.work is not None:
            return
        _, ended = self._busy.pop(strand)
        self._idle.append(strand)
        doomed, strand.doomed = strand.doomed, False
        if not doomed:
            ended(strand.result, strand.error)
