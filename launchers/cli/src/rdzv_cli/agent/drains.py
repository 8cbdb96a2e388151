"""The drains of the run, on their way to the workers, and the workers' answer."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from rdzv import Drain

from .channels import Channels
from .workers import Worker

_SAME: Final = 0.5
"""Seconds by which the moment of a drain may differ from one look to the next without being another one."""


@dataclass
class DrainNotices:
    """What the workers of one round know of the drains of members of their world.

    Attributes:
        channels: The way to the workers.
        signal: The signal that they are sent when there is another drain; 0: none.
        asked: The number of the drains for which they were last asked to get ready; 0: none.
        answered: The number of those for which the run knows that they are.
    """

    channels: Channels
    signal: int = 0
    asked: int = 0
    answered: int = 0
    _known: dict[str, tuple[float, str]] = field(default_factory=dict, init=False)
    _to_signal: set[int] = field(default_factory=set, init=False)

    def show(self, drains: Sequence[Drain]) -> bool:
        """Show the workers the drains, if they are others than before.

        Args:
            drains: All drains that concern them.

        Returns:
            Whether there is another drain, or one of those has another moment or reason.
        """
        found = {drain.node: (self._moment(drain), drain.reason) for drain in drains}
        is_new = any(node not in self._known or _differ(self._known[node], drain) for node, drain in found.items())
        if is_new or found.keys() != self._known.keys():
            number = self.channels.show((node, *drain) for node, drain in found.items())
            # A drain that is over asks nothing more of a worker that was ready for it.
            self.asked = number if is_new else self.asked if found else 0
            self._known = found
        return is_new

    @property
    def nodes(self) -> Collection[str]:
        """The ids of the nodes of whose drains the workers know."""
        return tuple(self._known)

    def _moment(self, drain: Drain) -> float:
        """The moment at which a node goes. Of one whose time is over, the seconds do not say how long ago that was."""
        is_over = drain.seconds == 0 and drain.node in self._known
        return self._known[drain.node][0] if is_over else time.monotonic() + drain.seconds

    def send(self, workers: Sequence[Worker], is_new: bool) -> None:
        """Send the signal to the workers that have not had it, each as soon as its program has a handler for it.

        Args:
            workers: The workers, by local rank.
            is_new: Whether there is another drain since the last call.
        """
        if self.signal and is_new:
            self._to_signal = set(range(len(workers)))
        self._to_signal = {rank for rank in self._to_signal if not workers[rank].send_if_handled(self.signal)}

    def are_answered(self, workers: Sequence[Worker]) -> bool:
        """Whether every worker has checkpointed for all drains, or has ended; true until that has been said.

        Args:
            workers: The workers, by local rank.
        """
        reports = self.channels.reports()
        if not reports or self.asked == self.answered:
            return False
        for worker, report in zip(workers, reports, strict=True):
            if worker.code is None and report.ready < self.asked:
                return False
        return self.asked > 0


def _differ(one: tuple[float, str], other: tuple[float, str]) -> bool:
    return abs(one[0] - other[0]) > _SAME or one[1] != other[1]
