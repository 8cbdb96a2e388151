"""When a running world is asked to grow: never more often than a delay allows, and later for a node that flaps."""

import math
from collections import Counter
from collections.abc import Collection, Set
from typing import Final

from .notices import name_of
from .records import NodeRecord, State

_MOST: Final = 4
"""A node that flaps waits twice as long each time, so often at most."""


class Growth:
    """The memory of a leader, as far as the growth of the running world is concerned.

    Args:
        delay: Seconds after the beginning of a round, and after a node's arrival if its name was here before, until
            the node counts; 0: each counts at once.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._round: int | None = None
        self._began = -math.inf
        self._arrived: dict[str, float] = {}
        self._departures = Counter[str]()

    def observe(self, state: State | None, records: Collection[NodeRecord], now: float) -> None:
        """Note who is there.

        Args:
            state: The published state.
            records: Every node record in the service.
            now: The moment.
        """
        if not self._delay:
            return
        number = 0 if state is None else state.round
        if number != self._round:
            # A leader that is new does not know since when the round runs.
            self._round, self._began = number, now
        here = {node.id for node in records if node.left is None}
        self._departures.update(name_of(node) for node in self._arrived if node not in here)
        self._arrived = {node: self._arrived.get(node, now) for node in here}

    def due(self, now: float) -> Set[str] | None:
        """The ids of the nodes for which a running world may be asked to grow now; None: for all."""
        if not self._delay:
            return None
        return {node for node in self._arrived if now >= self._counts_from(node)}

    def recheck_after(self, now: float) -> float | None:
        """Seconds until another node counts; None: all do."""
        later = [moment - now for moment in map(self._counts_from, self._arrived) if moment > now]
        return min(later, default=None)

    def _counts_from(self, node: str) -> float:
        times = min(self._departures[name_of(node)], _MOST)
        flapping = self._arrived[node] + self._delay * 2 ** (times - 1) if times else -math.inf
        return max(self._began + self._delay, flapping)
