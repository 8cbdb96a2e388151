"""A system without room for another thread is an error of the family, which the callers of a backend try again."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from rdzv_core.threads import in_thread

from rdzv import DynamicRendezvousHandler, RendezvousConnectionError, RendezvousSettings, RendezvousTimeout

from .memory import MemoryBackend, MemoryService
from .waiting import wait_until


def test_what_the_work_returns_or_raises_is_the_callers() -> None:
    assert in_thread(lambda: 7, "works").result(30) == 7
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 // 0, "fails").result(30)


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
