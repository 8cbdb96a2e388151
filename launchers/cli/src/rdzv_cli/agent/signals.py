"""What signals ask of an agent."""

import argparse
import contextlib
import math
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from types import FrameType
from typing import Final

from ..values import signal_name, signal_number

_OF_FAULTS: Final = frozenset({"ABRT", "BUS", "FPE", "ILL", "PIPE", "SEGV", "SYS", "TRAP", "XFSZ"})
"""What a process gets for something that it has done itself."""

_OF_OTHER_MEANING: Final = frozenset({"CHLD", "CONT", "INFO", "KILL", "STOP", "TSTP", "TTIN", "TTOU", "URG", "WINCH"})
"""What ends no process by default, or cannot be handled."""

ASKING: Final = frozenset(
    number
    for number in signal.valid_signals()
    if number not in {getattr(signal, f"SIG{name}", 0) for name in _OF_FAULTS | _OF_OTHER_MEANING}
)
"""Every signal that asks a process to end: it would end one that has no handler for it."""

DRAIN_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""What schedulers send a while before they end a job."""

_REPEATED: Final = 0.2
"""Seconds in which one that comes again is the same: GNU ``timeout`` sends each to its child, then to the group."""

_TOGETHER: Final = 1.0
"""Seconds between two processes that a scheduler signals at once: a busy machine does not wake both at once."""


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
        numbers: Those that are handled.
        in_world: Whether there is one.
        asked: What they ask for.
        drain_since: When a drain began, on the monotonic clock.
        number: The last signal that asked to end; 0: none did.
        drain_at: When it drains unasked, on the monotonic clock: its job is about to end.
        is_unasked: Whether a drain began so.
    """

    drains: bool
    numbers: Collection[int] = ASKING
    in_world: bool = False
    asked: Asked = Asked.NOTHING
    drain_since: float = math.inf
    number: int = 0
    drain_at: float = math.inf
    is_unasked: bool = False
    _last: tuple[int, float] = (0, -math.inf)
    _times: dict[int, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Take the signals of this process; call it on the main thread."""
        # A shell and nohup have some ignored for what shall outlive a terminal; the command inherits that.
        kept = {number for number in self.numbers if signal.getsignal(number) in (signal.SIG_IGN, None)}
        kept -= {*DRAIN_SIGNALS} if self.drains else {signal.SIGTERM}
        self._times = dict.fromkeys(set(self.numbers) - kept, -math.inf)
        previous = {number: signal.signal(number, self._take) for number in self._times}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @property
    def is_draining(self) -> bool:
        """Whether the node drains, and was not asked for more."""
        return self.asked is Asked.DRAIN or (self.asked is Asked.NOTHING and self.is_unasked)

    def look(self) -> None:
        """Have the node drain if its time has come."""
        now = time.monotonic()
        if self.drains and self.in_world and self.asked is Asked.NOTHING and now >= self.drain_at:
            # A signal that comes amid this is taken all the same.
            self.drain_since, self.is_unasked = min(now, self.drain_since), True

    def may_explain(self, number: int, ended: float) -> bool:
        """Whether a process that a signal has ended got it together with this agent, or the agent may get its own yet.

        Args:
            number: The signal.
            ended: When the process had ended, on the monotonic clock.
        """
        if number not in self._times:
            return False
        return abs(self._times[number] - ended) <= _TOGETHER or time.monotonic() - ended < _TOGETHER

    def _take(self, number: int, frame: FrameType | None) -> None:
        now, (last, taken) = time.monotonic(), self._last
        self._times[number] = now
        # Who presses Ctrl-C twice wants to wait for nothing.
        if number == last != signal.SIGINT and now - taken < _REPEATED:
            return
        self._last = number, now
        may_drain = self.drains and self.in_world and number in DRAIN_SIGNALS
        if may_drain and self.asked is Asked.NOTHING:
            self.asked, self.drain_since = Asked.DRAIN, min(now, self.drain_since)
            return
        self.number = number
        self.asked = Asked.END if self.asked < Asked.END else Asked.END_AT_ONCE


def ignore_from_now_on() -> None:
    """Have a scheduler's signal change nothing any more: this process ends, and with which exit code is decided.

    The hook of a pod waits until the node has left: the signal after it comes just then.
    """
    for number in DRAIN_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def signals_to_handle(text: str) -> frozenset[int]:
    """Signals that ask an agent to end, for argparse."""
    numbers = [signal_number(part.strip()) for part in text.split(",")]
    if others := [signal_name(number) for number in numbers if number not in ASKING]:
        raise argparse.ArgumentTypeError(f"{others[0]} does not ask a process to end, as SIGTERM does")
    return frozenset(numbers)
