"""The line of a wait: where it is redrawn in place, and that nothing else is written behind it."""

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from engine.tests.waiting import wait_until

from rdzv_cli import drain, log, wait_line
from rdzv_cli.wait_line import WaitLine, can_redraw

TERMINAL = {"TERM": "xterm"}


class Terminal(io.StringIO):
    """A standard error that a person looks at."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Begin to write to one. (No fixture: pytest sets the stream anew before a test.)"""
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("CI", raising=False)
    return seen


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait has a line at once."""
    monkeypatch.setattr(wait_line, "FIRST", 0.0)
    monkeypatch.setattr(wait_line, "EVERY", 0.0)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The log, as the command writes it."""
    logger = logging.getLogger()
    logger.addHandler(handler := log._Handler())
    yield logger
    logger.removeHandler(handler)


def written(terminal: Terminal) -> str:
    log.flush()
    return terminal.getvalue()


def test_it_is_redrawn_on_a_terminal_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    assert can_redraw(TERMINAL)
    for plain in ({"TERM": "dumb"}, {"TERM": ""}, {}, {**TERMINAL, "CI": "true"}):
        assert not can_redraw(plain)
    monkeypatch.setattr(log, "_place", {"run": "job"})
    assert not can_redraw(TERMINAL)
    monkeypatch.setattr(log, "_place", None)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not can_redraw(TERMINAL)
    monkeypatch.setattr(sys, "stderr", None)
    assert not can_redraw(TERMINAL)


def test_each_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    line = WaitLine()
    for tick in range(100, 160):
        line.waits(tick / 50, lambda seconds: f"{seconds:.2f} s {'x' * 80}")
    first, *others = written(terminal).split("\r\x1b[K")
    assert not first
    assert [other.split()[1] for other in others] == ["2.00", "2.50", "3.00"]
    # One that wraps could not be taken away.
    assert all(len(other) < 60 for other in others)


def test_what_is_said_or_logged_takes_its_place(root: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    log.show("rdzv: waiting")
    log.say("one")
    log.say("two")
    log.show("rdzv: waiting")
    root.warning("three")
    log.show("rdzv: waiting")
    log.clear()
    log.clear()
    log.say("four")
    waiting = "\r\x1b[Krdzv: waiting\r\x1b[K"
    assert written(terminal) == f"{waiting}rdzv: one\nrdzv: two\n{waiting}rdzv: three\n{waiting}rdzv: four\n"


def test_threads_that_speak_meanwhile_write_behind_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    go = threading.Event()

    def speak(say: Callable[[str], None], text: str) -> None:
        go.wait()
        for _ in range(100):
            say(text)

    threads = [
        threading.Thread(target=speak, args=args)
        for args in [(log.show, "rdzv: waiting"), (log.say, "one"), (log.say, "two")]
    ]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    log.clear()
    on_lines = written(terminal).replace("\r\x1b[Krdzv: waiting", "").replace("\r\x1b[K", "")
    assert sorted(on_lines.splitlines()) == ["rdzv: one"] * 100 + ["rdzv: two"] * 100
    assert "waiting rdzv" not in written(terminal)
    assert "waitingrdzv" not in written(terminal)


class Leaving:
    """Stands for an inspector of a run: of three nodes one leaves, and the others as soon as they may."""

    def __init__(self, lines: Callable[[], str]) -> None:
        self.lines = lines

    def await_departure(
        self, nodes: Sequence[str], timeout: float, tell: Callable[[Sequence[str]], None]
    ) -> Sequence[str]:
        tell(nodes)
        wait_until(lambda: "waiting for a, b, c to leave" in self.lines())
        tell(nodes[1:])
        wait_until(lambda: "waiting for b, c to leave, " in self.lines())
        return ()


@pytest.mark.usefixtures("soon")
def test_a_drain_that_waits_names_who_is_still_here(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", seen)
    inspector: Any = Leaving(seen.getvalue)
    assert drain._await_departure(inspector, ["a", "b", "c"], 600.0) == ()


@pytest.mark.usefixtures("soon")
def test_on_a_terminal_nothing_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    inspector: Any = Leaving(terminal.getvalue)
    assert drain._await_departure(inspector, ["a", "b", "c"], 600.0) == ()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\n" not in terminal.getvalue()
