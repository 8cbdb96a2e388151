"""How the last round has ended on a node, and what that costs the node. No I/O, no threads."""

import math
from dataclasses import dataclass
from typing import Final

from ..outcome import Outcome
from .notices import Failure

PATIENCE: Final = 2.0
"""Seconds beyond a time to live after which the loss of a member would be known."""


@dataclass
class Reckoning:
    """What a node knows of its last round.

    Attributes:
        outcome: How the round has ended; None: it has not, as far as the node knows.
        pays: Whether the node has to count a failure of its own in the round before the one that it is in.
        ended_by: The first failure of that round, with its verdict; None: there was none, or none is known.
        out_since: Since when it waits to hear whether it may take part again, in touch with the service, and while a
            node leads; None: it does not.
    """

    outcome: Outcome | None = None
    pays: bool = False
    ended_by: Failure | None = None
    out_since: float | None = None

    def observe(self, is_out: bool, now: float) -> None:
        """Begin to count for how long it waits to hear that it may take part again, or cease to."""
        if not is_out:
            self.out_since = None
        elif self.out_since is None:
            self.out_since = now

    def out_until(self, ttl: float) -> float:
        """Until when it waits to hear that; infinite: it may take part."""
        return math.inf if self.out_since is None else self.out_since + ttl + PATIENCE
