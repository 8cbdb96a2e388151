"""A system without room for another thread is an error of the family, which the callers of a backend try again."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from rdzv_core.backend import ABSENT, PutResult
from rdzv_core.envelope import Envelope
from rdzv_core.threads import in_thread

from rdzv import (
    DynamicRendezvousHandler,
    RendezvousConnectionError,
    RendezvousParameterError,
    RendezvousSettings,
    RendezvousTimeout,
)
from rdzv.engine.effects import AT_ONCE, Call, Coroutine, Put, Read, Together
from rdzv.engine.handler import look_beside
from rdzv.engine.node import Node
from rdzv.engine.runner import Runner

from .memory import MemoryBackend, MemoryService
from .waiting import wait_until


def test_what_the_work_returns_or_raises_is_the_callers() -> None:
    assert in_thread(lambda: 7, "works").result(30) == 7
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 // 0, "fails").result(30)


def test_without_room_for_a_thread_a_wait_looks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def fail() -> None:
        raise RendezvousConnectionError("No answer.")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        looks = [look_beside(threading.get_ident), look_beside(fail)]
        assert all(look.done() for look in looks)
    assert looks[0].result() == threading.get_ident()
    with pytest.raises(RendezvousConnectionError, match="No answer"):
        looks[1].result()
    assert look_beside(threading.get_ident).result(30.0) != threading.get_ident()


def test_a_system_without_room_for_a_thread_is_an_error_of_rdzv(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RendezvousSettings("run", 1, 1, RendezvousTimeout(), timedelta(seconds=0.1), 3)
    handler = DynamicRendezvousHandler(settings, MemoryBackend(MemoryService()))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        for start in (lambda: in_thread(int, "works"), handler.next_rendezvous):
            with pytest.raises(RendezvousConnectionError, match="can't start new thread"):
                start()
    handler.leave()


@pytest.mark.parametrize("name", ["rdzv-watch", "rdzv-address", "rdzv-lead"])
def test_a_node_that_has_no_room_for_a_thread_waits_for_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RendezvousSettings("run", 1, 1, RendezvousTimeout(), timedelta(seconds=0.1), 3)
    handler = DynamicRendezvousHandler(settings, MemoryBackend(MemoryService()))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    line = f"this machine lacks what the node needs: The thread '{name}"
    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            joined = pool.submit(handler.next_rendezvous)
            wait_until(lambda: handler.view.waits_for(1.0).startswith(line))
        assert joined.result(30).world_size == 1
    # A leader may be quicker to form the world than its elector is to hear of its loop.
    wait_until(lambda: "lacks" not in handler.view.waits_for(1.0))
    handler.leave()


@pytest.mark.parametrize("name", ["rdzv-watch", "rdzv-keep"])
def test_a_loop_that_had_no_room_begins_with_the_next_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RendezvousSettings("run", 1, 1, RendezvousTimeout(), timedelta(seconds=0.1), 3)
    handler = DynamicRendezvousHandler(settings, MemoryBackend(MemoryService()))
    start, loops = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    def count(thread: threading.Thread) -> None:
        loops.append(thread.name.rpartition("-")[0])
        start(thread)

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RendezvousConnectionError, match="can't start new thread"):
            handler.next_rendezvous()
    monkeypatch.setattr(threading.Thread, "start", count)
    assert handler.next_rendezvous().world_size == 1
    assert name in loops
    alive = [thread.name for thread in threading.enumerate() if handler.view.node_id in thread.name]
    assert sorted(one.removesuffix(f"-{handler.view.node_id}") for one in alive) == [
        "rdzv-keep",
        "rdzv-lead",
        "rdzv-watch",
    ]
    handler.leave()


def a_runner(backend: MemoryBackend) -> Runner:
    settings = RendezvousSettings("run", 1, 1, RendezvousTimeout(), timedelta(seconds=0.1), 3)
    return Runner(Node(settings, "memory", time.monotonic, id="a"), backend, lambda events: None)


def together(*calls: Call) -> Coroutine[Any]:
    return (yield Together(calls))


def puts(count: int) -> list[Put]:
    return [Put(f"key/{number}", b"", time.monotonic() + 30.0, previous=None) for number in range(count)]


class Meeting(MemoryBackend):
    """A service that answers a write only when so many are on their way."""

    def __init__(self, size: int) -> None:
        super().__init__(MemoryService())
        self.met = threading.Barrier(size, timeout=20.0)

    def put(self, *arguments: Any, **options: Any) -> PutResult:
        self.met.wait()
        return super().put(*arguments, **options)


class TestTogether:
    """Calls of one node that are made side by side."""

    def test_so_many_are_on_their_way_at_once(self) -> None:
        backend = Meeting(AT_ONCE)
        answers = a_runner(backend).run(together(*puts(2 * AT_ONCE)))
        assert [applied for applied, _ in answers] == [True] * (2 * AT_ONCE)

    def test_the_answers_are_in_the_order_of_the_calls(self) -> None:
        backend = MemoryBackend(MemoryService())
        backend.put("here", Envelope.wrap(b"it", writer="a").pack(), expect=ABSENT, timeout=1.0)
        deadline = time.monotonic() + 30.0
        there, gone = a_runner(backend).run(together(Read("here", deadline), Read("gone", deadline)))
        assert there.payload == b"it"
        assert gone is None

    def test_what_one_raises_is_raised_and_no_further_one_begins(self) -> None:
        backend = MemoryBackend(MemoryService())
        with pytest.raises(RendezvousParameterError):
            a_runner(backend).run(together(*(Put(f"key/{number}", b"x" * 10**7, 0.0, None) for number in range(99))))
        assert not backend.service.entries

    def test_without_room_for_a_thread_they_are_made_one_after_the_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        runner = a_runner(MemoryBackend(MemoryService()))
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            assert len(runner.run(together(*puts(20)))) == 20
