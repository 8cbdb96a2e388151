import inspect
import itertools
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from rdzv_core import turns
from rdzv_core.turns import Turns


def _soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def _nothing() -> str | None:
    return None


def test_one_of_the_threads_that_wait_fetches_for_all() -> None:
    turns, asked, fetching, known = Turns(), threading.Semaphore(0), list[int](), list[str]()

    def news() -> str | None:
        asked.release()
        return known[-1] if known else None

    def fetch() -> None:
        fetching.append(len(fetching))
        assert turns.is_taken()
        # The other three have asked, so they wait.
        assert all(asked.acquire(timeout=5) for _ in range(4))
        known.append("news")

    with ThreadPoolExecutor(4) as threads:
        waits = [threads.submit(turns.wait, news, fetch, float("inf")) for _ in range(4)]
        assert [wait.result(5) for wait in waits] == ["news"] * 4
    assert fetching == [0]
    assert not turns.is_taken()


def test_steps_follow_each_other_until_there_is_news_or_the_deadline_has_come() -> None:
    turns, steps = Turns(), list[int]()

    def fetch() -> None:
        steps.append(len(steps))

    assert turns.wait(lambda: "three" if len(steps) == 3 else None, fetch, _soon()) == "three"
    assert turns.wait(_nothing, lambda: time.sleep(0.001), _soon(0.01)) is None
    # What is known is returned even when no time is left, and nothing is fetched then.
    assert turns.wait(lambda: "known", fetch, _soon(-1)) == "known"
    assert turns.wait(_nothing, fetch, _soon(-1)) is None
    assert steps == [0, 1, 2]


def test_a_thread_that_sleeps_leaves_at_its_own_deadline() -> None:
    turns, fetching, leave = Turns(), threading.Event(), threading.Event()

    def fetch() -> None:
        fetching.set()
        leave.wait(5)

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(turns.wait, lambda: "left" if leave.is_set() else None, fetch, _soon())
        assert fetching.wait(5)
        assert turns.wait(_nothing, pytest.fail, _soon(0.01)) is None
        assert turns.is_taken()
        leave.set()
        assert first.result(5) == "left"


def test_a_turn_that_fails_goes_to_a_thread_that_waits() -> None:
    turns, fetching, fail, known = Turns(), threading.Event(), threading.Event(), list[str]()

    def break_down() -> None:
        fetching.set()
        fail.wait(5)
        raise KeyError

    def news() -> str | None:
        fail.set()
        return known[-1] if known else None

    with ThreadPoolExecutor(2) as threads:
        failing = threads.submit(turns.wait, _nothing, break_down, _soon())
        assert fetching.wait(5)
        # It asks, then waits; only then the first fails.
        waiting = threads.submit(turns.wait, news, lambda: known.append("news"), _soon())
        with pytest.raises(KeyError):
            failing.result(5)
        assert waiting.result(5) == "news"
    assert not turns.is_taken()


def test_what_asking_for_news_raises_ends_the_wait_of_that_thread_alone() -> None:
    turns, fetching, closed = Turns(), threading.Event(), threading.Event()

    def check() -> str | None:
        if closed.is_set():
            raise ConnectionError
        return None

    def fetch() -> None:
        fetching.set()
        closed.wait(5)

    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(turns.wait, check, fetch, _soon()) for _ in range(2)]
        assert fetching.wait(5)
        closed.set()
        turns.wake()
        for wait in waits:
            with pytest.raises(ConnectionError):
                wait.result(5)
    assert turns.wait(lambda: "open", fetch, _soon()) == "open"


def test_an_interrupt_anywhere_leaves_no_turn_that_no_thread_has() -> None:
    for position in itertools.count():
        turns, known = Turns(), list[str]()

        def wait(turns: Turns = turns, known: list[str] = known) -> str | None:
            return turns.wait(lambda: known[-1] if known else None, lambda: known.append("news"), _soon())

        if not _is_interrupted(position, wait):
            break
        assert not turns.is_taken()
        assert wait() == "news"
    assert position > 10


def _is_interrupted(position: int, call: Callable[[], object]) -> bool:
    """Interrupt a call at so many of the lines of `turns` that call something, where Python handles signals."""
    lines, left = inspect.getsource(turns).splitlines(), position

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != turns.__file__:
            return None
        left -= event == "line" and "(" in lines[frame.f_lineno - 1]
        if left < 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
