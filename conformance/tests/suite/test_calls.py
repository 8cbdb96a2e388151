"""A call that never ends is named, and keeps no test from its end."""

import threading
from collections.abc import Iterator

import pytest
from rdzv_core.threads import in_thread

from rdzv_conformance.suite import calls
from rdzv_conformance.suite.calls import at_once, result_of


@pytest.fixture
def over() -> Iterator[threading.Event]:
    over = threading.Event()
    yield over
    over.set()


def test_call_that_never_ends_is_named(over: threading.Event) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"not ended within 0\.05 s, whatever its timeout: the wait"):
        result_of(in_thread(over.wait, "wait"), "the wait", 0.05)


def test_call_that_ends_gives_what_it_gave(over: threading.Event) -> None:
    assert result_of(in_thread(lambda: 7, "seven"), "seven") == 7
    with pytest.raises(ZeroDivisionError):
        result_of(in_thread(lambda: 1 / 0, "none"), "none")


def test_each_of_many_is_done_once() -> None:
    done: list[int] = []
    at_once("append", done.append, range(100), threads=4)
    assert sorted(done) == list(range(100))
    with pytest.raises(ZeroDivisionError):
        at_once("none", lambda number: 1 / number, range(3), threads=2)


def test_of_many_calls_one_that_never_ends_is_named(over: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_PATIENCE", 0.05)
    with pytest.raises(pytest.fail.Exception, match="whatever its timeout: the read"):
        at_once("the read", lambda number: number < 2 or over.wait(), range(3), threads=2)
