"""The line that counts round trips: what counts as one, also while other processes compute."""

import socket
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from .test_bench import ROOT

PATIENCE = 10.0


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A line to a service that no process asks."""
    monkeypatch.syspath_prepend(ROOT / "dev")
    with socket.socket() as service, import_module("bench.lines").CountedLine(_listening(service)) as line:
        yield line


class Answered:
    """A node's end of a connection, and how many trips have passed when each answer comes."""

    def __init__(self, trips: Callable[[], int]) -> None:
        self.came: list[int] = []
        self._trips = trips

    def sendall(self, data: bytes) -> None:
        self.came.append(self._trips())


def test_a_trip_has_passed_when_its_first_answer_comes(line: Any) -> None:
    """Who gets it may be done then, and the trips be asked for."""
    node = Answered(line.trips)
    for number in (1, 2):
        line._hold(node, b"answer")
        _until(lambda: len(node.came) == number)  # noqa: B023
    assert node.came == [1, 2]


def test_each_calls_when_nothing_passes_any_more_and_all_within_one_trip(line: Any) -> None:
    node, passes = Answered(line.trips), list[int]()

    def order() -> None:
        passes.append(line._still)
        assert not node.came, "it was answered before all had called"
        line._hold(node, b"answer")

    line.call([order] * 3)
    _until(lambda: len(node.came) == 3)
    assert node.came == [1, 1, 1]
    assert min(passes[1:]) > 10, "it was still for fewer looks than a trip takes"


def test_an_order_that_fails_holds_nothing_up(line: Any) -> None:
    def fail() -> None:
        raise OSError("its process has ended")

    node = Answered(line.trips)
    with pytest.raises(OSError, match="its process has ended"):
        line.call([fail])
    line._hold(node, b"answer")
    _until(lambda: node.came == [1])


def _listening(service: socket.socket) -> int:
    service.bind(("127.0.0.1", 0))
    service.listen()
    return int(service.getsockname()[1])


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
