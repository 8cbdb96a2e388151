"""What signals ask of an agent."""

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from types import FrameType
from typing import Final

_DRAIN_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""What schedulers send a while before they end a job."""

_REPEATED: Final = 0.2
"""Seconds in which one that comes again is the same: GNU ``timeout`` sends each to its child, then to the group."""


class Asked(IntEnum):
    """What the signals so far ask for; each is more than the one before."""

    NOTHING = 0
    DRAIN = 1
    """To leave the world after a while."""
    END = 2
    """To end, with the time that the command gets to do so."""
    END_AT_ONCE = 3


@dataclass
class Signals:
    """The signals of one agent.

    Attributes:
        drains: Whether the first signal of a scheduler asks for a drain, while there is a world to drain from.
        in_world: Whether there is one.
        asked: What they ask for.
        drain_since: When they asked for a drain, on the monotonic clock.
        number: The last signal that asked to end; 0: none did.
    """

    drains: bool
    in_world: bool = False
    asked: Asked = Asked.NOTHING
    drain_since: float = math.inf
    number: int = 0
    _last: tuple[int, float] = (0, -math.inf)

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Take the signals of this process; call it on the main thread."""
        taken = [*_DRAIN_SIGNALS] if self.drains else [signal.SIGTERM]
        # A shell and nohup have these ignored for what shall outlive a terminal; the command inherits that.
        taken += [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
        previous = {number: signal.signal(number, self._take) for number in taken}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        now, (last, taken) = time.monotonic(), self._last
        if number == last and number in _DRAIN_SIGNALS and now - taken < _REPEATED:
            return
        self._last = number, now
        may_drain = self.drains and self.in_world and number in _DRAIN_SIGNALS
        if may_drain and self.asked is Asked.NOTHING:
            self.asked, self.drain_since = Asked.DRAIN, now
            return
        self.number = number
        self.asked = Asked.END if self.asked < Asked.END else Asked.END_AT_ONCE
