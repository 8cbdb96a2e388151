"""Virtual time: events in order, nothing ever waits."""

import heapq
import itertools
from collections.abc import Callable

__all__ = ["Timeline"]


class Timeline:
    """A queue of things to happen, each at its moment; ties in the order they were asked for."""

    def __init__(self) -> None:
        """Begin at moment 0."""
        self.now = 0.0
        self.happened = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, moment: float, happen: Callable[[], None]) -> None:
        """Let something happen at a moment, or now if that is past."""
        heapq.heappush(self._queue, (max(moment, self.now), next(self._numbers), happen))

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Let something happen in a while."""
        self.at(self.now + seconds, happen)

    def step(self) -> bool:
        """Let the next thing happen; False if there is none."""
        if not self._queue:
            return False
        self.now, _, happen = heapq.heappop(self._queue)
        self.happened += 1
        happen()
        return True

    def run(self, until: float) -> None:
        """Let everything happen until a moment."""
        while self._queue and self._queue[0][0] <= until:
            self.step()
        self.now = max(self.now, until)
