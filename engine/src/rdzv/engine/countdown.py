"""What a node counts by its own clock: the drains of the run, its own quarantine, and how long it waits alone.

No I/O, no threads.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from .notices import DrainNotice, Notices, Quarantine
from .quarantine import quarantine_of


class DrainEnd(NamedTuple):
    """When a node that drains goes, by the clock of the node that counts, and why, in words."""

    moment: float
    reason: str


@dataclass
class Countdown:
    """The moments of one node.

    Attributes:
        node: The node's id.
        drains: The ends of the drains, by the id of the node that goes; the node itself, too.
        quarantine: The quarantine that it waits out, or has waited out last.
        cooled_at: When that is over.
        served: The round of the last quarantine that it has waited out; 0: none.
        alone_since: Since when it waits and all others of its world have left; None: they have not.
        last_call: The seconds until the end of the last call, as the leader has said last; None: it has not.
        forms_at: When they are over.
    """

    node: str
    drains: dict[str, DrainEnd] = field(default_factory=dict)
    quarantine: Quarantine | None = None
    cooled_at: float = math.inf
    served: int = 0
    alone_since: float | None = None
    last_call: float | None = None
    forms_at: float = math.inf

    def announce(self, notice: DrainNotice, now: float) -> None:
        """Drain, from this moment on."""
        self._note(self.node, notice, now)

    def _note(self, node: str, notice: DrainNotice, now: float) -> None:
        """Of several announcements of one node the earliest end counts; one that is seen again changes nothing."""
        end, known = DrainEnd(now + notice.seconds, notice.reason), self.drains.get(node)
        if known is None or end.moment < known.moment:
            self.drains[node] = end

    def goes_at(self) -> float:
        """When this node goes; infinite: it does not drain."""
        end = self.drains.get(self.node)
        return math.inf if end is None else end.moment

    def drain_reason(self) -> str:
        """Why this node drains, in words."""
        end = self.drains.get(self.node)
        return f"drained: {'no reason given' if end is None else end.reason}"

    def observe(self, notices: Notices, now: float) -> None:
        """Begin to count what is new in the run's notices, and forget what they no longer hold."""
        for node in self.drains.keys() - notices.drains.keys() - {self.node}:
            del self.drains[node]
        for node, notice in notices.drains.items():
            self._note(node, notice, now)
        quarantine = quarantine_of(self.node, self.served, notices)
        if quarantine is None:
            self.quarantine, self.cooled_at = None, math.inf
        elif quarantine != self.quarantine:
            self.quarantine, self.cooled_at = quarantine, now + quarantine.cooldown

    def serve(self, now: float) -> bool:
        """Whether a quarantine is over now; it is counted once."""
        if self.quarantine is None or now < self.cooled_at:
            return False
        self.served, self.cooled_at = self.quarantine.round, math.inf
        return True

    def quarantined(self, now: float) -> str | None:
        """For how many more seconds this node is quarantined, and why, in words; None: it is not."""
        if self.quarantine is None or self.cooled_at == math.inf:
            return None
        return f"quarantined for another {max(0.0, self.cooled_at - now):.0f} s: {self.quarantine.reason}"

    def observe_last_call(self, ends_in: float | None, now: float) -> None:
        """Begin to count what is left of the last call, as the leader says it; what is seen again changes nothing."""
        if ends_in != self.last_call:
            self.last_call, self.forms_at = ends_in, math.inf if ends_in is None else now + ends_in

    def observe_alone(self, alone: bool, now: float) -> None:
        """Begin to count for how long it waits alone, or cease to."""
        if not alone:
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = now

    def alone_until(self, patience: float) -> float:
        """Until when it waits alone, if it does so for that many seconds; infinite: it is not alone."""
        return math.inf if self.alone_since is None else self.alone_since + patience

    def alone_for(self, now: float) -> float | None:
        """For how many seconds it has waited alone; None: it is not."""
        return None if self.alone_since is None else now - self.alone_since
