"""When a worker that reports progress hangs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rdzv.channel import Report

_LONGEST: Final = 1.0
"""Seconds that one look counts at most: while the agent itself is stopped, no worker hangs."""


@dataclass
class HangDetection:
    """The workers of one round, by local rank; what is counted is the time in which the agent looks at them.

    Attributes:
        timeout: Seconds without progress after which a worker hangs; None: none ever does.
    """

    timeout: float | None
    _looked: float | None = field(default=None, init=False)
    _calls: dict[int, int] = field(default_factory=dict, init=False)
    _silent: dict[int, float] = field(default_factory=dict, init=False)

    def look(self, reports: Sequence[Report], running: Sequence[bool], now: float) -> int | None:
        """The worker that hangs, of several the one that is behind; None: none does.

        Args:
            reports: What each worker has said so far.
            running: Which of them run: one that has ended does not hang.
            now: A moment on the monotonic clock.
        """
        passed = 0.0 if self._looked is None else min(now - self._looked, _LONGEST)
        self._looked = now
        for rank, report in enumerate(reports):
            # Until its first call, a program may be one that never makes any.
            is_silent = report.calls == self._calls.get(rank, 0) > 0
            self._silent[rank] = self._silent[rank] + passed if is_silent else 0.0
            self._calls[rank] = report.calls
        limit = math.inf if self.timeout is None else self.timeout
        hanging = [rank for rank in range(len(reports)) if running[rank] and self._silent[rank] >= limit]
        return min(hanging, key=lambda rank: reports[rank].step, default=None)

    def behind(self, reports: Sequence[Report]) -> tuple[int | None, float]:
        """The step of the worker that is behind, and for how many seconds it has reported nothing; None: none does."""
        steps = [
            (max(0, report.step), -self._silent.get(rank, 0.0)) for rank, report in enumerate(reports) if report.calls
        ]
        step, silence = min(steps, default=(None, 0.0))
        return step, -silence
