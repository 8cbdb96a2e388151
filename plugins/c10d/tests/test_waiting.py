"""Wakeup keys: one for all who wait in a process, created by writers, and not needed in the end."""

import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import follow, in_background, with_retries
from rdzv_conformance.processes import Processes
from rdzv_core.backend import ABSENT, ANY, Entry, PutOutcome, Snapshot
from rdzv_core.errors import RendezvousConnectionError

from rdzv_c10d import C10dRendezvousBackend, pool, watch
from rdzv_c10d.layout import Layout
from rdzv_c10d.locator import GivenLocator
from rdzv_c10d.logs import Logs
from rdzv_c10d.page_watch import PageWatch
from rdzv_c10d.pool import ConnectionPool
from rdzv_c10d.run import Run
from rdzv_c10d.store import Connection, NoAnswerError, Session, extend, stores
from rdzv_c10d.values import Frame, Names
from rdzv_c10d.wakeup import WakeupKey
from rdzv_c10d.watchers import Watchers

from .clients import CALL, Connect, ForkedStore, tcp_client


@pytest.fixture
def store() -> Any:
    """A store in this process's memory."""
    return stores().HashStore()


@pytest.fixture
def backend(store: Any) -> Any:
    backend = C10dRendezvousBackend(store, "run")
    yield backend
    backend.close()


def test_all_waits_of_a_process_share_a_thread(backend: C10dRendezvousBackend, store: Any) -> None:
    others = [C10dRendezvousBackend(store, "run") for _ in range(10)]
    since = backend.read_all("nodes", timeout=CALL)
    with ThreadPoolExecutor(10) as pool:
        waits = [pool.submit(other.wait, "nodes", since, timeout=60.0) for other in others]
        eventually(lambda: _wakeups(store) == 1, "the first wakeup key")
        time.sleep(0.1)
        assert sum(thread.name == "rdzv-c10d-wakeup" for thread in threading.enumerate()) == 1
        assert _wakeups(store) == 1
        backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        assert all(wait.result(CALL).entries.keys() == {"nodes/a"} for wait in waits)
    for other in others:
        other.close()


class Failing:
    """A store that fails once in the thread that listens, with an error that is not foreseen.

    Attributes:
        method: Which of its methods does.
    """

    def __init__(self, store: Any, method: str, error: type[BaseException] = TypeError) -> None:
        self._store = store
        self._error = error
        self.method = method

    def __getattr__(self, name: str) -> Any:
        if name == "clone":
            raise AttributeError(name)
        if name == self.method and threading.current_thread().name == "rdzv-c10d-wakeup":
            self.method = ""
            raise self._error("this was not foreseen")
        return getattr(self._store, name)


@pytest.mark.parametrize("error", [TypeError, SystemExit])
@pytest.mark.parametrize("method", ["compare_set", "wait", "delete_key"])
def test_a_thread_that_fails_is_replaced(
    store: Any, method: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    waiter, writer = C10dRendezvousBackend(Failing(store, method, error), "run"), C10dRendezvousBackend(store, "run")
    try:
        since = waiter.read_all("nodes", timeout=CALL)
        for number in range(3):
            value = b"%d" % number
            with in_background(lambda: follow(waiter, "nodes", since, "nodes/a", value, CALL)) as followed:  # noqa: B023
                writer.put("nodes/a", value, expect=ANY, timeout=CALL)
                since = followed.result(CALL)
        eventually(lambda: len([record for record in caplog.records if record.exc_info]) == 1, "the error in the log")
    finally:
        waiter.close()
        writer.close()


@pytest.mark.parametrize("error", [TypeError, SystemExit])
def test_a_thread_that_fails_says_so_at_once(store: Any, error: type[BaseException]) -> None:
    backend = C10dRendezvousBackend(Failing(store, "compare_set", error), "run")
    try:
        since = backend.read_all("nodes", timeout=CALL)
        with in_background(lambda: backend.wait("nodes", since, timeout=600.0)) as waiting:
            assert "this was not foreseen" in str(waiting.exception(CALL))
    finally:
        backend.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_call_that_any_error_ends_is_answered_at_once(store: Any) -> None:
    pool = ConnectionPool(GivenLocator(store), "rdzv/run/")

    def fail(error: BaseException) -> object:
        def work(connection: Connection) -> None:
            raise error

        return pool.call(work, time.monotonic() + CALL, lambda: None)

    try:
        # More often than there may be workers: none is lost.
        for _ in range(20):
            with pytest.raises(SystemExit):
                fail(SystemExit(1))
        pool.on_lost = sys.exit
        with pytest.raises(RendezvousConnectionError, match="The store failed: it is gone"):
            fail(RuntimeError("it is gone"))
        assert pool.call(lambda connection: 7, time.monotonic() + CALL, lambda: None) == 7
    finally:
        pool.close(lambda connection: None, at_once=True)


def test_a_connection_that_is_made_wakes_two_of_a_crowd(
    server: ForkedStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One takes it, and one makes the next. All others sleep on."""
    used = connect(server.endpoint)._uses.get().shared.pool
    used.call(lambda connection: None, time.monotonic() + CALL, lambda: None)
    # Who is not woken in time waits for longer than this test.
    monkeypatch.setattr(pool, "_POLL_INTERVAL", 10 * CALL)
    woken, may_end, wait = Counter[bool](), threading.Event(), used._changed.wait

    def counting(timeout: float) -> bool:
        woken[is_woken := wait(timeout)] += 1
        return is_woken

    monkeypatch.setattr(used._changed, "wait", counting)
    with ThreadPoolExecutor(callers := 40) as threads:
        calls = [
            threads.submit(used.call, lambda connection: may_end.wait(CALL), time.monotonic() + CALL, lambda: None)
            for _ in range(callers)
        ]
        eventually(lambda: len(used._busy) == pool._CONNECTIONS, "all connections to be made")
        made = dict(woken)
        may_end.set()
        assert all(call.result(CALL) for call in calls)
    assert made[True] <= 2 * pool._CONNECTIONS


def test_who_closes_waits_no_longer_than_for_the_last_thread(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    used, may_end = ConnectionPool(GivenLocator(store), "rdzv/run/"), threading.Event()
    monkeypatch.setattr(pool, "_SHUTDOWN_GRACE", 10 * CALL)

    def end(connection: Connection) -> None:
        may_end.wait(CALL)
        # Such work puts nothing back, which would wake as well.
        sys.exit()

    used.start(end, CALL, "rdzv-c10d-test")
    used.call(lambda connection: None, time.monotonic() + CALL, lambda: None)
    with in_background(lambda: used.close(lambda connection: None, at_once=True)) as closing:
        eventually(lambda: used._closed and len(used._workers) == 1, "the others to end")
        may_end.set()
        closing.result(CALL)


def test_each_thread_that_waits_for_the_listener_gets_an_error_of_its_own(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_connect = threading.Event()

    def connect(timeout: float) -> Any:
        may_connect.wait(timeout)
        raise RendezvousConnectionError("no process serves a store there")

    locator = GivenLocator(store)
    monkeypatch.setattr(locator, "connect", connect)
    pool = ConnectionPool(locator, "rdzv/run/")
    wakeup = WakeupKey(pool)
    with ThreadPoolExecutor(2) as threads:
        starts = [threads.submit(wakeup.start, time.monotonic() + CALL) for _ in range(2)]
        eventually(lambda: len(wakeup._changed._waiters) == 2, "both to wait")  # type: ignore[attr-defined]
        may_connect.set()
        first, second = [start.exception(CALL) for start in starts]
    pool.close(lambda connection: None, at_once=True)
    assert isinstance(first, RendezvousConnectionError)
    assert str(first) == str(second) == "no process serves a store there"
    assert first is not second, "an object that is raised twice has the traceback of both"


def test_who_waits_for_a_connection_ends_with_the_backend(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    may_connect = threading.Event()

    def connect(timeout: float) -> Any:
        may_connect.wait(timeout)
        return store

    locator = GivenLocator(store)
    monkeypatch.setattr(locator, "connect", connect)
    pool = ConnectionPool(locator, "rdzv/run/")
    wakeup = WakeupKey(pool)
    with in_background(lambda: wakeup.start(time.monotonic() + CALL)) as starting:
        eventually(lambda: len(wakeup._changed._waiters) == 1, "it to wait")  # type: ignore[attr-defined]
        wakeup.close()
        error = starting.exception(CALL / 2)
        may_connect.set()
    pool.close(lambda connection: None, at_once=True)
    assert isinstance(error, RendezvousConnectionError)
    assert "closed" in str(error)


def test_who_waits_after_the_end_does_not_ask_again_and_again(store: Any) -> None:
    backend = C10dRendezvousBackend(store, "run")
    backend.wait("nodes", backend.read_all("nodes", timeout=CALL), timeout=0.01)
    wakeup = backend._uses.get().shared.watches.wakeup
    backend.close()
    with pytest.raises(RendezvousConnectionError, match="closed") as raised:
        wakeup.start(time.monotonic() + CALL)
    assert not isinstance(raised.value, NoAnswerError), "a look goes on after that"


@pytest.mark.parametrize("looked", [True, False])
def test_a_ring_that_fell_on_a_key_which_is_removed_is_heard(store: Any, looked: bool) -> None:
    """Who waits is woken before the removal, and once more after it if it may have looked before."""
    pool = ConnectionPool(GivenLocator(store), "rdzv/run/")
    wakeup = WakeupKey(pool)
    rings: list[int] = []

    class Removing(Failing):
        def delete_key(self, key: str) -> Any:
            rings.append(wakeup.begin_look() if looked else wakeup.rings)
            return store.delete_key(key)

    removing = Connection(Removing(store, ""), Session("", ""))
    wakeup.begin_look()
    wakeup.ring(removing)
    wakeup._hear_next(removing)
    assert not store.check([wakeup.key])
    assert rings == [1]
    assert wakeup.rings == (2 if looked else 1)
    pool.close(lambda connection: None, at_once=True)


def test_where_no_call_waits_nothing_rings(backend: C10dRendezvousBackend, store: Any) -> None:
    backend.wait("nodes", backend.read_all("nodes", timeout=CALL), timeout=0.05)
    for path in ("heartbeats/a", "control/state", "store/1/a"):
        backend.put(path, b"x", expect=ANY, timeout=CALL)
    assert not [key for key in store.list_keys() if "wakeup" in key]


def test_only_who_waits_for_it_is_woken(backend: C10dRendezvousBackend) -> None:
    since = backend.read_all("store/1/mine", timeout=CALL)
    with in_background(lambda: backend.wait("store/1/mine", since, timeout=60)) as waiting:
        eventually(lambda: _is_watched(backend, "store/1/mine"), "the wait")
        wakeup = backend._uses.get().shared.watches.wakeup
        rings = wakeup.rings
        for number in range(10):
            backend.put(f"store/1/{number}", b"x", expect=ANY, timeout=CALL)
            backend.put("store/1/mine2", b"%d" % number, expect=ANY, timeout=CALL)
        assert wakeup.rings == rings
        backend.put("store/1/mine/too", b"x", expect=ANY, timeout=CALL)
        waiting.result(CALL)


def test_a_watch_that_ends_late_ends_no_other_of_its_prefix(
    backend: C10dRendezvousBackend, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(prefix: str) -> None:
        backend.wait(prefix, backend.read_all(prefix, timeout=CALL), timeout=0.01)

    wait("store/1")
    shared = backend._uses.get().shared
    with monkeypatch.context() as slow:
        slow.setattr(shared.watches, "forget_idle", lambda connection: None)
        for number in range(2, 8):
            wait(f"store/{number}")
    # The thread that forgets them has taken them, and gets no further for a while.
    retired = [shared.watches._idle.pop() for _ in range(len(shared.watches._idle))]
    assert "store/1" in {watch._watcher.prefix for watch in retired}
    since = backend.read_all("store/1", timeout=CALL)
    with in_background(lambda: backend.wait("store/1", since, timeout=60)) as waiting:
        eventually(lambda: _is_watched(backend, "store/1"), "the wait")
        for late in retired:
            shared.pool.call(late.forget, time.monotonic() + CALL, lambda: None)
        backend.put("store/1/a", b"x", expect=ANY, timeout=CALL)
        assert waiting.result(CALL).entries.keys() == {"store/1/a"}


@pytest.mark.parametrize("line", ["", "one", "two words", "four words are one"])
def test_what_is_no_watcher_is_not_rung(backend: C10dRendezvousBackend, store: Any, line: str) -> None:
    extend(store, "rdzv/run/watchers", Names.plus(line))
    since = backend.read_all("nodes", timeout=CALL)
    with in_background(lambda: backend.wait("nodes", since, timeout=60)) as waiting:
        eventually(lambda: _is_watched(backend, "nodes"), "the wait")
        put = backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        assert put.outcome is PutOutcome.APPLIED
        assert waiting.result(CALL).entries.keys() == {"nodes/a"}


def test_who_has_gone_is_rung_no_more(store: Any) -> None:
    backend = C10dRendezvousBackend(store, "run")
    for number in range(10):
        prefix = f"store/1/{number}"
        backend.wait(prefix, backend.read_all(prefix, timeout=CALL), timeout=0.01)
    assert 4 <= len(_watchers(store)) <= 6, "waits of long ago are still known"
    backend.close()
    assert _watchers(store) == ()
    assert _wakeups(store) == 0
    assert not [key for key in store.list_keys() if "wakeup" in key]


def test_a_writer_that_died_before_it_could_ring_is_noticed(
    backend: C10dRendezvousBackend, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOK", 0.3)
    backend.put("nodes/a", b"old", expect=ANY, timeout=CALL)
    since = backend.read_all("nodes", timeout=CALL)
    with in_background(lambda: backend.wait("nodes", since, timeout=60)) as waiting:
        eventually(lambda: _is_watched(backend, "nodes"), "the wait")
        there = Frame.parse(store.get("rdzv/run/value/nodes/a"))
        Logs(Layout("rdzv/run/")).append(Connection(store, Session("", "")), "nodes/a", there.then(b"new"))
        assert waiting.result(CALL).entries["nodes/a"].value == b"new"


def test_a_look_that_got_no_answer_has_heard_nothing(
    backend: C10dRendezvousBackend, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next wait looks at once, though nothing rings again."""
    other = C10dRendezvousBackend(Failing(store, ""), "run")
    since = backend.read_all("nodes", timeout=CALL)
    assert backend.wait("nodes", since, timeout=0.1) is since
    pool = backend._uses.get().shared.pool

    def fail(*arguments: Any) -> Any:
        raise pool.no_answer()

    with in_background(lambda: backend.wait("nodes", since, timeout=60)) as waiting, monkeypatch.context() as patch:
        patch.setattr(pool, "call", fail)
        other.put("nodes/a", b"x", expect=ABSENT, timeout=CALL)
        assert isinstance(waiting.exception(CALL), RendezvousConnectionError)
    assert backend.wait("nodes", since, timeout=CALL / 2).entries.keys() == {"nodes/a"}
    other.close()


def test_a_watch_whose_request_was_lost_is_asked_for_again(
    backend: C10dRendezvousBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is lost with the connection, which the answer to the look would have shown."""
    since = backend.read_all("nodes", timeout=CALL)

    def lose(*arguments: Any) -> Any:
        raise RendezvousConnectionError("The connection broke.")

    with monkeypatch.context() as broken:
        broken.setattr(Watchers, "add", lambda *arguments: None)
        broken.setattr(Run, "read_all", lose)
        with pytest.raises(RendezvousConnectionError):
            backend.wait("nodes", since, timeout=CALL)
    with in_background(lambda: backend.wait("nodes", since, timeout=60)) as waiting:
        eventually(lambda: _is_watched(backend, "nodes"), "the wait")
        backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        assert waiting.result(CALL).entries.keys() == {"nodes/a"}


def test_a_version_of_the_page_that_another_thread_has_met_wakes_who_waits(
    backend: C10dRendezvousBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that listens is between two waits, and then waits for the version after it."""
    wanted, may_go_on = PageWatch._is_wanted, threading.Event()

    def late(self: PageWatch) -> bool:
        is_wanted = wanted(self)
        may_go_on.wait(CALL)
        return is_wanted

    monkeypatch.setattr(PageWatch, "_is_wanted", late)
    since = backend.read_all("control", timeout=CALL)
    with in_background(lambda: backend.wait("control", since, timeout=60)) as waiting:
        watch = backend._uses.get().shared.watches._page
        eventually(lambda: vars(watch._changed)["_waiters"], "the wait")
        backend.put("control/a", b"x", expect=ANY, timeout=CALL)
        may_go_on.set()
        assert waiting.result(CALL).entries.keys() == {"control/a"}


def test_idle_waits_cost_nothing(shared_store: ForkedStore) -> None:
    with Processes() as processes:

        def wait(_: object) -> float:
            backend = tcp_client(shared_store.endpoint, "idle")
            since = backend.read_all("nodes", timeout=CALL)
            backend.wait("nodes", since, timeout=0.2)
            began = time.process_time()
            backend.wait("nodes", since, timeout=1)
            cost = time.process_time() - began
            backend.close()
            return cost

        assert processes.fork(wait).result() < 0.03


def _watchers(store: Any) -> tuple[str, ...]:
    return Names.parse(store.get("rdzv/run/watchers")).names


def _wakeups(store: Any) -> int:
    return len({name.split()[0] for name in _watchers(store)})


def _is_watched(backend: C10dRendezvousBackend, prefix: str) -> bool:
    """Whether a client waits there, and has looked."""
    watches = backend._uses.get().shared.watches._watches.all()
    return any(one._watcher.prefix == prefix and one._look_at for one in watches)


def test_what_is_known_of_a_prefix_may_be_older_than_what_a_waiter_knows(backend: C10dRendezvousBackend) -> None:
    backend.wait("nodes", backend.read_all("nodes", timeout=CALL), timeout=0.05)
    with in_background(lambda: backend.wait("nodes", Snapshot({}, 17), timeout=60)) as looking:
        backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        assert looking.result(CALL).entries.keys() == {"nodes/a"}
    for _ in range(20):
        # Nothing, then something, then nothing: a waiter that knows of it learns that it is gone.
        backend.delete("nodes", timeout=CALL)
        since = backend.read_all("nodes", timeout=CALL)
        with in_background(lambda: backend.wait("nodes", since, timeout=60)) as looking:  # noqa: B023
            backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
            looking.result(CALL)
            known = backend.read_all("nodes", timeout=CALL)
        with in_background(lambda: backend.wait("nodes", known, timeout=60)) as looking:  # noqa: B023
            backend.delete("nodes", timeout=CALL)
            assert looking.result(CALL).entries == {}


def test_a_reading_that_overlaps_the_last_look_misses_nothing(store: Any) -> None:
    looking, reading, writing = (C10dRendezvousBackend(store, "run") for _ in range(3))
    since = looking.read_all("nodes", timeout=CALL)
    with in_background(lambda: looking.wait("nodes", since, timeout=60)) as looked:
        eventually(lambda: _is_watched(looking, "nodes"), "the first look")
        # The store has answered, and the thread is not scheduled before the look that hears the ring is over.
        began, entries = time.monotonic(), reading.read_all("nodes", timeout=CALL).entries
        writing.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        looked.result(CALL)
    known = Snapshot(entries, watch.Moment(began, time.monotonic()))
    assert reading.wait("nodes", known, timeout=CALL).entries.keys() == {"nodes/a"}
    for backend in (looking, reading, writing):
        backend.close()


def test_what_comes_and_goes_between_two_looks_is_no_news_to_them_alone(
    backend: C10dRendezvousBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = backend.read_all("nodes", timeout=CALL)
    looks, may_look, looked = Run.read_all, threading.Event(), threading.Event()

    def late(*arguments: Any) -> Any:
        looked.set()
        may_look.wait(CALL)
        return looks(*arguments)

    with in_background(lambda: backend.wait("nodes", since, timeout=CALL)):
        eventually(lambda: _is_watched(backend, "nodes"), "the first look")
        shared = backend._uses.get().shared
        shared.watches.wakeup.wake()
        (watched,) = shared.watches._watches.all()
        eventually(lambda: not watched._is_behind, "a look that comes after what the waiter knows")
        with monkeypatch.context() as patch:
            # A key that a waiter has seen is gone before the next look, and the waiter comes while that goes on.
            known = Snapshot({"nodes/a": Entry(b"x", "token", 1)}, watch.Moment(time.monotonic(), time.monotonic()))
            patch.setattr(Run, "read_all", late)
            shared.watches.wakeup.wake()
            assert looked.wait(CALL)
            with in_background(lambda: backend.wait("nodes", known, timeout=CALL)) as waiting:
                eventually(lambda: watched._is_behind, "the waiter")
                may_look.set()
                assert waiting.result(CALL / 2).entries == {}
        backend.put("nodes/b", b"x", expect=ANY, timeout=CALL)


def test_a_wait_after_the_store_was_replaced_watches_the_new_one(server: ForkedStore) -> None:
    backend = tcp_client(server.endpoint, "replaced")
    since = backend.read_all("nodes", timeout=CALL)
    assert backend.wait("nodes", since, timeout=0.1) is since
    server.kill()
    server.restart()
    # A call reports the loss once, or a wait does.
    with suppress(RendezvousConnectionError):
        backend.read_all("nodes", timeout=CALL)
    since = with_retries(lambda: backend.read_all("nodes", timeout=CALL))
    with in_background(lambda: backend.wait("nodes", since, timeout=60)) as waiting:
        backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        assert waiting.result(CALL).entries.keys() == {"nodes/a"}
    backend.close()


def test_all_waiters_of_a_prefix_wake_for_a_change_and_one_alone_for_another(store: Any) -> None:
    """Of those that wait one looks at what is no news."""
    backends = [C10dRendezvousBackend(store, "run") for _ in range(10)]
    since = backends[0].read_all("nodes", timeout=CALL)
    watches = backends[0]._uses.get().shared.watches
    for value in (b"1", b"2"):
        with ThreadPoolExecutor(10) as pool:
            waits = [pool.submit(backend.wait, "nodes", since, timeout=60.0) for backend in backends]
            eventually(lambda: len(watches._watches.all()) == 1, "the watch")
            (watched,) = watches._watches.all()
            changed: Any = watched.turns._changed
            eventually(lambda: len(changed._waiters) == 9, "nine that wait for the one")  # noqa: B023
            # The first look that is later than what they have read wakes them.
            _ring(watched)
            eventually(lambda: len(changed._waiters) == 9 and not watched._is_behind, "them to see it")  # noqa: B023
            sleeping = set(changed._waiters)
            _ring(watched)
            assert set(changed._waiters) == sleeping
            backends[0].put("nodes/a", value, expect=ANY, timeout=CALL)
            news = [wait.result(CALL) for wait in waits]
        # What they know now is one and the same look.
        assert all(one is news[0] for one in news)
        since = news[0]
        assert since.entries["nodes/a"].value == value
    for backend in backends:
        backend.close()


def _ring(watched: Any) -> None:
    """Ring, and wait for the look."""
    rings = watched._wakeup.rings
    watched._wakeup.wake()
    eventually(lambda: watched._heard > rings, "the look")


@pytest.mark.parametrize("is_rung_first", [False, True])
def test_a_ring_comes_after_what_it_rings_for(store: Any, monkeypatch: pytest.MonkeyPatch, is_rung_first: bool) -> None:
    """Who hears a ring looks once, and sleeps until the next: what is written after it was rung is missed."""
    monkeypatch.setattr(watch, "_LOOK", 3600.0)
    waiting, writing = C10dRendezvousBackend(store, "run"), C10dRendezvousBackend(store, "run")
    since = waiting.read_all("nodes", timeout=CALL)
    with in_background(lambda: waiting.wait("nodes", since, timeout=60)) as waited:
        eventually(lambda: _is_watched(waiting, "nodes"), "the first look")
        (watched,) = waiting._uses.get().shared.watches._watches.all()
        ring = Watchers.ring

        def ring_and_see(*arguments: Any) -> None:
            rings = watched._wakeup.rings
            ring(*arguments)
            eventually(lambda: watched._heard > rings, "the look")

        def announce_too_early(run: Any, connection: Connection, path: str, frame: Frame) -> None:
            run._ring(connection, [path])
            run._logs.append(connection, path, frame)

        with monkeypatch.context() as patch:
            patch.setattr(Watchers, "ring", ring_and_see)
            if is_rung_first:
                patch.setattr(Run, "_announce", announce_too_early)
            writing.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        if is_rung_first:
            with pytest.raises(TimeoutError):
                waited.result(0.2)
            writing.put("nodes/b", b"x", expect=ANY, timeout=CALL)
        assert "nodes/a" in waited.result(CALL).entries
    for backend in (waiting, writing):
        backend.close()


def test_an_old_snapshot_may_come_from_anywhere(backend: C10dRendezvousBackend) -> None:
    backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
    for since in (Snapshot(), Snapshot({}, 17), Snapshot({}, "later")):
        assert backend.wait("nodes", since, timeout=CALL).entries.keys() == {"nodes/a"}


def test_a_look_that_ends_after_its_wait_brings_the_next_one_news(
    backend: C10dRendezvousBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = backend.read_all("nodes", timeout=CALL)
    assert backend.wait("nodes", since, timeout=0.1) is since
    begun, may_end, read_all = threading.Event(), threading.Event(), Run.read_all

    def read_late(run: Run, connection: Any, prefix: str) -> Any:
        begun.set()
        assert may_end.wait(CALL)
        return read_all(run, connection, prefix)

    with backend._uses.get().shared.watches._watches.using("nodes") as watched:
        monkeypatch.setattr(Run, "read_all", read_late)
        watched._took = CALL
        backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        assert backend.wait("nodes", since, timeout=0.1) is since
        assert begun.is_set()
        # No other one begins meanwhile, nor would it answer.
        assert backend.wait("nodes", since, timeout=0.1) is since
        may_end.set()
        assert backend.wait("nodes", since, timeout=CALL).entries.keys() == {"nodes/a"}


def test_a_late_look_that_has_failed_is_no_error_of_a_wait_that_can_look_itself(
    backend: C10dRendezvousBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    since, looks = backend.read_all("nodes", timeout=CALL), 0

    def fail(deadline: float, check_open: Any) -> None:
        nonlocal looks
        looks += 1
        raise RendezvousConnectionError("the connection was lost")

    with backend._uses.get().shared.watches._watches.using("nodes") as watched:
        watched._took = CALL
        with monkeypatch.context() as patch:
            patch.setattr(watched, "_look_again", fail)
            with pytest.raises(RendezvousConnectionError, match="was lost"):
                backend.wait("nodes", since, timeout=0.1)
            assert looks == 1
        watched._late = Future()
        watched._late.set_exception(RendezvousConnectionError("the connection was lost"))
        watched._took = 0.0
        backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        assert backend.wait("nodes", since, timeout=CALL).entries.keys() == {"nodes/a"}


def test_news_of_a_late_look_that_ends_as_the_next_wait_begins(
    backend: C10dRendezvousBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = backend.read_all("nodes", timeout=CALL)
    assert backend.wait("nodes", since, timeout=0.1) is since
    with backend._uses.get().shared.watches._watches.using("nodes") as watched:
        backend.put("nodes/a", b"x", expect=ANY, timeout=CALL)
        look_late = watched._look_late

        def end_first(deadline: float, check_open: Any) -> None:
            # Between the question for news, of which there were none, and the look for them.
            watched._look_again(time.monotonic() + CALL, check_open)
            look_late(deadline, check_open)

        watched._late = Future()
        watched._late.set_result(None)
        monkeypatch.setattr(watched, "_look_late", end_first)
        began = time.monotonic()
        assert backend.wait("nodes", since, timeout=60).entries.keys() == {"nodes/a"}
        assert time.monotonic() - began < CALL


def test_a_store_that_is_too_slow_for_each_look_is_an_error(
    backend: C10dRendezvousBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a short wait had little time for proves nothing. Where each is, no news would ever come, and nothing
    would tell."""
    since = backend.read_all("nodes", timeout=CALL)

    def get_no_answer(deadline: float, check_open: object) -> None:
        time.sleep(max(0.0, deadline - time.monotonic()))
        raise NoAnswerError("The store did not answer in time.")

    with backend._uses.get().shared.watches._watches.using("nodes") as watched:
        monkeypatch.setattr(watched, "_look_again", get_no_answer)
        monkeypatch.setattr(watch, "PATIENCE", 0.5)
        assert backend.wait("nodes", since, timeout=0.1) is since
        for _ in range(2):
            assert backend.wait("nodes", since, timeout=0.1) is since, "it is under way"
        with pytest.raises(RendezvousConnectionError, match="did not answer"):
            backend.wait("nodes", since, timeout=CALL)
