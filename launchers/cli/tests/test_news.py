"""How the events of a run are said."""

import logging
import re

import pytest
from engine.tests.memory import MemoryBackend
from engine.tests.waiting import wait_until
from rdzv import DynamicRendezvousHandler, Event, EventKind
from rdzv.hooks import emit

from rdzv_cli import log, news
from rdzv_cli.news import News, in_words
from rdzv_cli.run import _Progress


def event(kind: EventKind, node: int, number: int = 1, cause: str = "in 20 s: asked to end") -> Event:
    return Event(kind, "job", number, f"n{node}", cause)


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (1, "node drains: n0 (round 1): in 20 s: asked to end"),
        (3, "node drains: 3 nodes: n0, n1, n2 (round 1): in 20 s: asked to end"),
        (12, "node drains: 12 nodes: n0, n1, n2, and 9 more (round 1): in 20 s: asked to end"),
        (1000, "node drains: 1000 nodes: n0, n1, n2, and 997 more (round 1): in 20 s: asked to end"),
    ],
)
def test_of_many_nodes_a_line_names_some(count: int, line: str) -> None:
    assert in_words([event(EventKind.NODE_DRAINS, node) for node in range(count)]) == line


def test_before_the_first_world_there_is_no_round() -> None:
    assert in_words([event(EventKind.NODE_DRAINS, 0, number=0)]) == "node drains: n0: in 20 s: asked to end"


def test_of_several_causes_a_line_has_the_first() -> None:
    lost = [event(EventKind.NODE_LOST, node, cause=f"its lease, number {node}") for node in (0, 1, 1)]
    assert in_words(lost) == "node lost: 2 nodes: n0, n1 (round 1): its lease, number 0 (the first of 2 causes)"
    assert in_words(lost[1:]) == "node lost: n1 (round 1): its lease, number 1"


def test_what_happens_together_is_one_line_for_each_kind_and_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "_GATHER", 600.0)
    said: list[tuple[EventKind, str]] = []
    heard = News(lambda kind, line: said.append((kind, line)))
    for node in range(1000):
        heard.add(event(EventKind.NODE_DRAINS, node))
        heard.add(event(EventKind.NODE_LEFT, node, number=1 + node % 2))
    assert said == []
    heard.tell()
    heard.tell()
    assert [kind for kind, _ in said] == [EventKind.NODE_DRAINS, EventKind.NODE_LEFT, EventKind.NODE_LEFT]
    assert [re.findall(r"(\d+) nodes: .*\(round (.)\)", line) for _, line in said] == [
        [("1000", "1")],
        [("500", "1")],
        [("500", "2")],
    ]


def test_an_event_is_said_though_nothing_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "_GATHER", 0.05)
    said: list[str] = []
    heard = News(lambda kind, line: said.append(line))
    heard.add(event(EventKind.NODE_LOST, 0))
    wait_until(lambda: len(said) == 1)
    heard.add(event(EventKind.NODE_LOST, 1))
    wait_until(lambda: len(said) == 2)


def test_an_event_is_said_where_there_is_no_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    said: list[str] = []
    News(lambda kind, line: said.append(line)).add(event(EventKind.NODE_LOST, 0))
    assert said == ["node lost: n0 (round 1): in 20 s: asked to end"]


def test_what_an_agent_says_after_an_event_stands_after_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "_GATHER", 600.0)
    progress = _Progress(DynamicRendezvousHandler.from_backend("run", None, MemoryBackend(), 1, 1))
    handler = log._Handler()
    logging.getLogger("rdzv").addHandler(handler)
    try:
        progress.begin()
        for node in range(4):
            emit(event(EventKind.NODE_DRAINS, node))
        log.say("round 2")
        emit(event(EventKind.NODE_LOST, 5))
        emit(event(EventKind.NODE_ARRIVED, 6))
        logging.getLogger("rdzv").warning("that costs no restart")
        emit(event(EventKind.NODE_LEFT, 7))
        progress.end()
        emit(event(EventKind.NODE_LEFT, 8))
        log.say("done")
    finally:
        logging.getLogger("rdzv").removeHandler(handler)
    log.flush()
    assert [line.partition(" (round")[0] for line in capsys.readouterr().err.splitlines()] == [
        "rdzv: node drains: 4 nodes: n0, n1, n2, and 1 more",
        "rdzv: round 2",
        "rdzv: node lost: n5",
        "rdzv: that costs no restart",
        "rdzv: node left: n7",
        "rdzv: done",
    ]
