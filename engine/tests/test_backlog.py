"""Work that is not waited for."""

import threading
from collections.abc import Callable, Iterator

import pytest

from rdzv.backlog import _MOST, Backlog

from .forks import said_in_fork
from .waiting import wait_until


class Hang:
    """Work that hangs until it may go on."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.goes_on.wait(60)


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.goes_on.set()


@pytest.fixture
def done() -> list[object]:
    return []


@pytest.fixture
def backlog(done: list[object]) -> Backlog:
    return Backlog("works", lambda count: done.append(f"{count} dropped"))


def noting(done: list[object], what: object) -> Callable[[], None]:
    return lambda: done.append(what)


def test_it_is_done_in_order_on_one_thread(backlog: Backlog, done: list[object]) -> None:
    for number in range(100):
        backlog.add(noting(done, number))
    backlog.add(lambda: done.append(threading.current_thread().name))
    backlog.flush(30)
    assert done == [*range(100), "works"]
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "works"])


def test_what_hangs_holds_up_no_caller_and_what_is_too_much_is_counted_in_its_place(
    backlog: Backlog, done: list[object], hang: Hang
) -> None:
    backlog.add(hang)
    assert hang.begun.wait(30)
    for number in range(_MOST + 3):
        backlog.add(noting(done, number))
    backlog.flush(0.01)
    assert done == []
    hang.goes_on.set()
    backlog.flush(30)
    assert done == [*range(_MOST), "3 dropped"]
    backlog.add(noting(done, "more"))
    backlog.flush(30)
    assert done[-1] == "more"


def test_an_error_ends_only_the_work_that_raises_it(
    backlog: Backlog, done: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    backlog.add(lambda: done.append(1 // 0))
    backlog.add(noting(done, "next"))
    backlog.flush(30)
    assert done == ["next"]
    assert [args.exc_type for args in shown] == [ZeroDivisionError]


def test_without_room_for_a_thread_it_waits_for_the_next_time(
    backlog: Backlog, done: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        backlog.add(noting(done, 1))
        assert done == []
    backlog.add(noting(done, 2))
    backlog.flush(30)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        backlog.add(noting(done, 3))
        backlog.flush(30)
    assert done == [1, 2, 3]


def test_it_may_flush_itself(backlog: Backlog, done: list[object]) -> None:
    backlog.add(lambda: backlog.flush(60))
    backlog.add(noting(done, 1))
    backlog.flush(30)
    assert done == [1]


def test_the_copy_of_a_fork_begins_empty(backlog: Backlog, done: list[object], hang: Hang) -> None:
    backlog.add(hang)
    assert hang.begun.wait(30)
    backlog.add(noting(done, "the parent's"))

    def child() -> str:
        backlog.add(noting(done, "the child's"))
        backlog.flush(30)
        return str(done)

    assert said_in_fork(child) == 'returned ["the child\'s"]'
