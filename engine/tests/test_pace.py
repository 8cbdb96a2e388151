"""When a status may follow the one before."""

from dataclasses import replace

import pytest

from rdzv.engine.pace import INTERVAL, SETTLED, SETTLED_BY, SETTLED_LEAST, SETTLED_TRIPS, Pace, status_interval
from rdzv.engine.records import Departure, Phase, RunStatus

MANY = 1_000
RUNNING = RunStatus(1, Phase.RUNNING, MANY, 0)
WAITING = replace(RUNNING, waiting=1)
GONE = replace(RUNNING, departures=(Departure("a", 0, False, "it died"),))


@pytest.mark.parametrize("news", [GONE, replace(RUNNING, drained=("a",)), replace(GONE, waiting=1)])
def test_a_member_that_goes_is_urgent_news(news: RunStatus) -> None:
    assert Pace(0.0).pause(RUNNING, news, 0.0) == 0.0


def test_what_no_node_has_to_act_upon_is_not_urgent() -> None:
    assert Pace(0.0).pause(RUNNING, replace(RUNNING, present=MANY + 1), 0.5) == status_interval(MANY + 1) - 0.5


@pytest.mark.parametrize(("nodes", "trip", "seconds"), [(2, 0.0, SETTLED_LEAST), (2, 0.1, SETTLED_TRIPS * 0.1)])
def test_of_few_they_are_news_when_those_that_heard_the_same_would_be_here(
    nodes: int, trip: float, seconds: float
) -> None:
    running = replace(RUNNING, present=nodes)
    assert Pace(0.0).pause(running, replace(running, waiting=1), 5.0, trip) == pytest.approx(seconds)


def test_of_many_they_are_news_when_no_more_come() -> None:
    pace = Pace(0.0)
    assert pace.pause(RUNNING, WAITING, 5.0) == pytest.approx(SETTLED * MANY)
    assert pace.pause(RUNNING, WAITING, 5.06) == pytest.approx(SETTLED * MANY - 0.06)
    assert pace.pause(RUNNING, replace(WAITING, waiting=2), 5.06) == pytest.approx(SETTLED * MANY)
    assert pace.pause(RUNNING, replace(WAITING, waiting=2), 5.06 + SETTLED * MANY) == pytest.approx(0.0)


@pytest.mark.parametrize(("nodes", "seconds"), [(500, 500 * SETTLED * SETTLED_BY), (50_000, INTERVAL)])
def test_although_more_come_they_are_news_after_a_time(nodes: int, seconds: float) -> None:
    pace, running = Pace(0.0), replace(RUNNING, present=nodes)
    moments = [
        pace.pause(running, replace(running, waiting=number), 5.0 + number * seconds / 1_000)
        for number in range(1, 1_002)
    ]
    assert moments[0] > 0.0
    assert moments[-1] == pytest.approx(0.0)


@pytest.mark.parametrize("written", [True, False])
def test_the_next_ones_are_other_news(written: bool) -> None:
    pace = Pace(0.0)
    pace.pause(RUNNING, WAITING, 5.0)
    if written:
        pace.on_written(6.0)
    else:
        pace.on_nothing_new()
    assert pace.pause(RUNNING, WAITING, 60.0) == pytest.approx(SETTLED * MANY)


def test_that_none_waits_any_more_settles_as_well() -> None:
    assert Pace(0.0).pause(WAITING, RUNNING, 5.0) > 0.0
