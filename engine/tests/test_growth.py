"""When a running world is asked to grow."""

import pytest

from rdzv.engine.growth import Growth
from rdzv.engine.records import NodeRecord, State


def nodes(*ids: str, left: str | None = None) -> list[NodeRecord]:
    """The records of nodes."""
    return [NodeRecord(node, 0, 0, 2, 9, "host", 1, left=left) for node in ids]


def running(number: int) -> State:
    """The state of a round."""
    return State(0, number, ("a.1", "b.1"), "host", 1, 2, 9)


class TestGrowth:
    def test_without_a_delay_all_count_at_once(self) -> None:
        growth = Growth(0.0)
        growth.observe(running(1), nodes("a.1", "b.1", "c.1"), 100.0)
        assert growth.due(100.0) is None
        assert growth.recheck_after(99.0) is None

    def test_all_count_a_delay_after_the_round_began(self) -> None:
        growth = Growth(60.0)
        growth.observe(running(1), nodes("a.1", "b.1"), 100.0)
        growth.observe(running(1), nodes("a.1", "b.1", "c.1"), 110.0)
        growth.observe(running(1), nodes("a.1", "b.1", "c.1", "d.1"), 150.0)
        assert growth.due(159.0) == set()
        assert growth.recheck_after(150.0) == 10.0
        assert growth.due(160.0) == {"a.1", "b.1", "c.1", "d.1"}
        assert growth.recheck_after(160.0) is None

    def test_first_node_that_counts_is_looked_for(self) -> None:
        growth = Growth(60.0)
        for there in (["a.1", "c.1"], ["a.1"], ["a.1", "c.2"], ["a.1"], ["a.1", "c.3"]):
            growth.observe(running(1), nodes(*there), 100.0)
        assert growth.recheck_after(110.0) == 50.0
        assert growth.due(160.0) == {"a.1"}
        assert growth.recheck_after(160.0) == 60.0

    def test_each_round_begins_anew(self) -> None:
        growth = Growth(60.0)
        growth.observe(running(1), nodes("a.1"), 100.0)
        growth.observe(running(2), nodes("a.1"), 150.0)
        assert growth.recheck_after(150.0) == 60.0

    def test_before_the_first_round_nothing_runs_that_could_grow(self) -> None:
        growth = Growth(60.0)
        growth.observe(None, nodes("a.1"), 100.0)
        growth.observe(None, nodes("a.1"), 110.0)
        growth.observe(State(0, 0, (), "", 0, 2, 9), nodes("a.1"), 120.0)
        assert growth.recheck_after(120.0) == 40.0

    @pytest.mark.parametrize(
        ("flaps", "waits"), [(1, 60.0), (2, 120.0), (3, 240.0), (4, 480.0), (5, 480.0), (9, 480.0)]
    )
    def test_node_that_flaps_waits_longer_each_time(self, flaps: int, waits: float) -> None:
        growth, now = Growth(60.0), 1000.0
        for flap in range(flaps):
            growth.observe(running(1), nodes("a.1", f"c.{flap}"), now)
            growth.observe(running(1), nodes("a.1"), now)
        growth.observe(running(1), nodes("a.1", "c.x", "d.1"), now + 100.0)
        assert growth.due(now + 100.0) == {"a.1", "d.1"}
        assert growth.recheck_after(now + 100.0) == waits
        assert growth.due(now + 100.0 + waits) == {"a.1", "c.x", "d.1"}

    def test_node_that_leaves_has_departed(self) -> None:
        growth = Growth(60.0)
        growth.observe(running(1), nodes("a.1", "c.1"), 0.0)
        growth.observe(running(1), [*nodes("a.1"), *nodes("c.1", left="drained")], 0.0)
        assert growth.due(60.0) == {"a.1"}
        growth.observe(running(1), nodes("a.1", "c.2"), 100.0)
        assert growth.due(100.0) == {"a.1"}

    def test_id_without_a_random_part_is_a_name(self) -> None:
        growth = Growth(60.0)
        for there in (["a"], [], ["b", "a"]):
            growth.observe(running(1), nodes(*there), 0.0)
        assert growth.due(60.0) == {"a", "b"}
        growth.observe(running(1), nodes("b"), 60.0)
        growth.observe(running(1), nodes("b", "a"), 60.0)
        assert growth.due(100.0) == {"b"}
