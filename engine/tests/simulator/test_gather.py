"""What gathering costs, counted where it can be counted exactly."""

from functools import cache

import pytest

from . import Violation, gather
from .gather import Cost

gathered = cache(gather.gather)


def test_many_nodes_gather_within_the_budget() -> None:
    cost = gathered(500)
    first, again, without = cost.calls
    assert first <= 8
    # Two of them report the failure: all programs fail at once.
    assert again <= 6.5
    assert without <= 7
    assert max(cost.took[:2]) < 1.5
    assert cost.idle.keys() == {"keep_alive", "wait"}
    assert cost.idle["keep_alive"] == pytest.approx(1.0, abs=0.05)
    assert cost.idle["wait"] < 0.5


def test_calls_do_not_grow_with_the_nodes() -> None:
    few, many = map(gathered, (100, 500))
    assert many.calls[0] <= few.calls[0] + 1
    assert many.calls[1] <= few.calls[1] + 1


@pytest.mark.parametrize("nodes", [100, 500])
def test_the_turns_of_the_leader_are_bounded(nodes: int) -> None:
    """It lets news gather, the longer the more nodes there are: of those that come within a second, or at once."""
    first, again, _ = gathered(nodes).turns
    assert first <= 100
    assert again <= 20


@pytest.mark.parametrize("level", ["heartbeats", "register"])
def test_lesser_services_gather_too(level: str) -> None:
    cost = gather.gather(8, level)
    assert max(cost.took) < 5


@pytest.mark.parametrize(
    ("calls", "idle"), [((8.1, 3.0, 4.0), {"keep_alive": 1.0}), ((6.0, 3.0, 4.0), {"keep_alive": 1.0, "put": 0.1})]
)
def test_too_many_calls_are_a_violation(calls: tuple[float, float, float], idle: dict[str, float]) -> None:
    cost = Cost(1000, "leases", calls, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0, 0, 0), idle, 0.0)
    with pytest.raises(Violation, match="invariant 11"):
        gather._check(cost)
