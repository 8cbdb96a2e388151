"""What a node's calls become on the way to a simulated service."""

import random
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from rdzv_core import ABSENT

from rdzv import RendezvousConnectionError, RendezvousSettings, RendezvousTimeout
from rdzv.engine.client import DecodedSnapshot

from .clock import NodeClock, Timeline
from .connection import LEVELS, connect
from .fiber import Fibers
from .network import NetworkConditions, NetworkLink
from .process import Process
from .service import SimulatedService

SECONDS = 1.0
SETTINGS = RendezvousSettings("run", 1, 1, RendezvousTimeout(), timedelta(seconds=5), 3)


@pytest.fixture
def fibers() -> Iterator[Fibers]:
    """What blocks, unwound in the end."""
    with closing(Fibers()) as fibers:
        yield fibers


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("drift", [-0.2, 0.0, 0.2])
def test_a_wait_keeps_its_time_by_the_clock_of_its_node(level: str, drift: float, fibers: Fibers) -> None:
    timeline = Timeline()
    line = NetworkLink(Process(), SimulatedService(timeline), timeline, NetworkConditions(), random.Random(0))
    clock = NodeClock(timeline, 1e6, drift, skew=0.0)
    connection = connect(level, line, fibers, clock, SETTINGS)
    answers: list[tuple[Any, BaseException | None]] = []

    def answer(result: Any, error: BaseException | None) -> None:
        answers.append((result, error))

    connection.call(
        lambda timeout: DecodedSnapshot(connection.backend.read_all("control", timeout=timeout)), SECONDS, answer
    )
    timeline.run(SECONDS)
    since = answers.pop()[0]
    for number in range(1, 31):
        connection.wait("control", since, SECONDS, answer)
        timeline.run(2 * SECONDS * (number + 1))
        assert [error for _, error in answers] == [None] * number


@pytest.mark.parametrize("level", ["leases", "heartbeats"])
def test_news_on_the_way_as_a_wait_ends_is_heard_by_the_next_one(level: str, fibers: Fibers) -> None:
    timeline, trip = Timeline(), 0.2
    service = SimulatedService(timeline)
    line = NetworkLink(Process(), service, timeline, NetworkConditions(watch_goes_on=True), random.Random(0))
    connection = connect(level, line, fibers, NodeClock(timeline, 0.0, 0.0, skew=0.0), SETTINGS)
    heard: list[tuple[float, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NetworkLink, "_takes", lambda link: trip / 2)
        connection.call(
            lambda timeout: DecodedSnapshot(connection.backend.read_all("nodes", timeout=timeout)),
            SECONDS,
            lambda since, error: heard.append((timeline.now, since)),
        )
        timeline.run(trip)
        since = heard.pop()[1]
        connection.wait("nodes", since, SECONDS, lambda result, error: heard.append((timeline.now, result)))
        news_at = timeline.now + SECONDS - trip / 4
        timeline.run(news_at)
        service.put("nodes/a", b"\nnews", expect=ABSENT, timeout=SECONDS)
        timeline.run(news_at + trip / 4)
        ended_at, _ = heard.pop()
        assert ended_at == pytest.approx(news_at + trip / 4)
        connection.wait("nodes", since, SECONDS, lambda result, error: heard.append((timeline.now, result)))
        timeline.run(ended_at + SECONDS)
    (heard_at, news), *more = heard
    assert not more
    assert heard_at == pytest.approx(news_at + trip / 2)
    assert news.entries.keys() == {"nodes/a"}


@pytest.mark.parametrize("waits", [1, 2])
def test_what_a_service_forgets_before_it_has_told_it_a_wait_does_not_hear(waits: int, fibers: Fibers) -> None:
    timeline, lag = Timeline(), 2.0
    service = SimulatedService(timeline)
    line = NetworkLink(Process(), service, timeline, NetworkConditions(watch_goes_on=True), random.Random(0))
    connection = connect("leases", line, fibers, NodeClock(timeline, 0.0, 0.0, skew=0.0), SETTINGS)
    heard: list[tuple[Any, BaseException | None]] = []

    def hear(news: Any, error: BaseException | None) -> None:
        heard.append((news, error))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NetworkLink, "_lags", lambda link: lag)
        connection.call(
            lambda timeout: DecodedSnapshot(connection.backend.read_all("nodes", timeout=timeout)), SECONDS, hear
        )
        timeline.run(SECONDS)
        since, _ = heard.pop()
        wait = 2 * lag / waits - 0.1
        connection.wait("nodes", since, wait, hear)
        service.put("nodes/a", b"news", expect=ABSENT, timeout=SECONDS)
        timeline.run(timeline.now + lag / 2)
        service.forget()
        timeline.run(SECONDS + wait + 0.01)
        if waits == 2:
            assert heard.pop() == (None, None)
            # There is nothing now, as at the beginning.
            connection.wait("nodes", since, wait, hear)
            timeline.run(timeline.now + 2 * lag)
    (news, error), *more = heard
    assert not more
    assert isinstance(error, RendezvousConnectionError) if waits == 1 else news is None


def test_time_goes_on_however_little_of_it_is_left() -> None:
    timeline, happened = Timeline(), list[float]()
    timeline.run(1e6)
    timeline.after(1e-15, lambda: happened.append(timeline.now))
    timeline.run(2e6)
    assert happened[0] > 1e6
