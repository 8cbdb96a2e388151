"""Virtual time: events in order, nothing ever waits; and what the clocks of the machines show."""

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

__all__ = ["NodeClock", "Timeline"]


class Timeline:
    """A queue of things to happen, each at its moment; ties in the order they were asked for.

    Attributes:
        now: Seconds since the run began.
    """

    def __init__(self) -> None:
        """Begin at moment 0."""
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def at(self, moment: float, happen: Callable[..., None], *arguments: Any) -> None:
        """Let something happen at a moment, or now if that is past."""
        heapq.heappush(self._queue, (max(moment, self.now), next(self._numbers), happen, arguments))

    def after(self, seconds: float, happen: Callable[..., None], *arguments: Any) -> None:
        """Let something happen in a while: later than now, even where so few seconds are lost in rounding. Who waits
        again and again for what is left would never end."""
        moment = self.now + seconds
        if seconds > 0:
            moment = max(moment, math.nextafter(self.now, math.inf))
        self.at(moment, happen, *arguments)

    def run(self, until: float) -> None:
        """Let everything happen until a moment."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, happen, arguments = heapq.heappop(self._queue)
            happen(*arguments)
        self.now = max(self.now, until)


class NodeClock:
    """The two clocks of one machine: a monotonic one, and one on the wall.

    The first is what nodes use. It began at some moment that means nothing to others, and is a
    little too fast or too slow. The second is wrong, jumps, and must not be read.
    """

    def __init__(self, timeline: Timeline, offset: float, drift: float, skew: float) -> None:
        """Set the clocks.

        Args:
            timeline: The true time.
            offset: What the monotonic clock showed at the beginning.
            drift: Seconds that it gains per second.
            skew: Seconds that the clock on the wall is ahead.
        """
        self._timeline = timeline
        self._offset = offset
        self._rate = 1.0 + drift
        self._skew = skew

    def __call__(self) -> float:
        """What the monotonic clock shows."""
        return self._offset + self._timeline.now * self._rate

    def seconds_until(self, moment: float) -> float:
        """True seconds until the monotonic clock shows `moment`; 0 if it is past."""
        return max(0.0, (moment - self()) / self._rate)

    def wall(self) -> float:
        """What the clock on the wall shows."""
        return self._timeline.now + self._skew

    def jump(self, seconds: float) -> None:
        """Set the clock on the wall forward, or back."""
        self._skew += seconds
