"""What a node's calls become on the way to a simulated service."""

import random
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from rdzv import RendezvousSettings, RendezvousTimeout
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
