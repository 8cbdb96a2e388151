"""When a status may follow the one before. Each one wakes every node, so what many nodes hear is said less often."""

from typing import Final

from .records import RunStatus

INTERVAL: Final = 1.0
"""Seconds between two updates that are not urgent."""

INTERVAL_MOST: Final = 5.0
"""The same where many nodes are here."""

WAKES: Final = 500
"""Nodes that a status may wake in a second, as far as that interval allows, but for the first of a loss."""

SETTLED: Final = 100e-6
"""Seconds for each node that is here, for which no other may come before the nodes that wait are news: of those that
come back together, after which they are in a world, no member has to hear."""

SETTLED_LEAST: Final = 0.02
"""The least seconds of that: programs do not end at the same moment."""

SETTLED_TRIPS: Final = 1.5
"""The least round trips of that: what a node writes that has heard the same news is a trip later here."""

SETTLED_BY: Final = 10
"""So many times that long they are no news while still more come; `INTERVAL` at most."""

INSTANT: Final = 1e-6
"""Seconds that are none: who waited for them would look again at the same moment, as clocks are rounded."""


def status_interval(nodes: int) -> float:
    """Seconds between two updates of the status that are not urgent, while so many nodes are here."""
    return min(max(INTERVAL, nodes / WAKES), INTERVAL_MOST)


class Pace:
    """The memory of a leader, as far as the pace of its statuses is concerned.

    Attributes:
        written_at: When it wrote a status last, or began to lead.
    """

    def __init__(self, now: float) -> None:
        self.written_at = now
        self._news: RunStatus | None = None
        self._since = self._changed_at = now

    def pause(self, before: RunStatus, status: RunStatus, now: float, trip: float = 0.0) -> float:
        """Seconds until a status may be written; 0: it may be now.

        Args:
            before: What the nodes know.
            status: What they should know.
            now: The moment.
            trip: Seconds of a round trip to the service.
        """
        if self._news is None:
            self._since = now
        if status != self._news:
            self._news, self._changed_at = status, now
        left = self._moment(before, status, now, trip) - now
        return left if left > INSTANT else 0.0

    def on_written(self, now: float) -> None:
        """Note that a status was written."""
        self.written_at = now
        self.on_nothing_new()

    def on_nothing_new(self) -> None:
        """Note that the nodes know what they should."""
        self._news = None

    def _moment(self, before: RunStatus, status: RunStatus, now: float, trip: float) -> float:
        present = status.present
        if bool(status.departures) != bool(before.departures) or status.drained != before.drained:
            # It is time for the members to act.
            return now
        if (status.waiting > 0) != (before.waiting > 0):
            settled = max(SETTLED_LEAST, SETTLED * present, SETTLED_TRIPS * trip)
            return min(self._changed_at + settled, self._since + min(SETTLED_BY * settled, INTERVAL))
        if status.departures != before.departures:
            # They know already that one is gone: of many that go one after the other they learn so often as all can
            # bear.
            return self.written_at + min(present / WAKES, INTERVAL_MOST)
        return self.written_at + status_interval(present)
