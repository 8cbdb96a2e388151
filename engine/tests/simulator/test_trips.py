"""How many round trips lie between the last call and the moment at which all nodes are in their world."""

import pytest

from rdzv.engine import worlds

from .trips import WAYS, trips

BOUNDS = {
    ("leases", 4): {
        "the last arrives: first call": 3.0,
        "the last arrives: known": 3.0,
        "all at once": 5.0,
        "all come back": 2.5,
        "all come back after failures": 3.5,
        "a spare takes its place": 4.5,
    },
    ("heartbeats", 4): {
        "the last arrives: first call": 4.0,
        "the last arrives: known": 2.0,
        "all at once": 6.0,
        "all come back": 2.5,
        "all come back after failures": 3.5,
        "a spare takes its place": 10.5,
    },
    # The pages are one trip more, and that a node reads its own is another.
    ("leases", 65): {
        "the last arrives: first call": 5.0,
        "the last arrives: known": 5.0,
        "all at once": 7.0,
        "all come back": 3.5,
        "all come back after failures": 4.5,
        "a spare takes its place": 6.5,
    },
    ("heartbeats", 65): {
        "the last arrives: first call": 6.0,
        "the last arrives: known": 4.0,
        "all at once": 8.0,
        "all come back": 3.5,
        "all come back after failures": 4.5,
        "a spare takes its place": 6.5,
    },
}
"""Round trips by the service, the nodes and the way. More of them are a step back; fewer of them belong here."""


def test_hundreds_of_pages_cost_no_trip_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as 12,000 nodes have: two requests, beside each other."""
    monkeypatch.setattr(worlds, "PAGE", 1)
    counted = trips(190, "leases", "the last arrives: known")
    assert counted.trips == pytest.approx(BOUNDS["leases", 65]["the last arrives: known"], abs=0.1)
    assert counted.pauses < 0.05


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("level", "nodes"), BOUNDS)
def test_nodes_come_together_in_so_many_trips(level: str, nodes: int, way: str) -> None:
    counted = trips(nodes, level, way)
    assert counted.trips == pytest.approx(BOUNDS[level, nodes][way], abs=0.1)
    assert counted.pauses < 0.05
