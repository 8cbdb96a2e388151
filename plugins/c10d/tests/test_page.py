"""The page: its versions, the copy of one, and who waits for the next."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import in_background
from rdzv_core.backend import ABSENT, ANY, PutOutcome, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

from rdzv_c10d import C10dRendezvousBackend, page_watch
from rdzv_c10d.page import _KEPT, PageVersion, SharedPage
from rdzv_c10d.page_watch import PageWatch
from rdzv_c10d.store import Connection, Session, stores
from rdzv_c10d.values import Page

from .clients import CALL, Connect, ForkedStore, apart

STATE = "control/state"


class Counted:
    """A store in this process's memory that counts its calls by the names of their threads.

    Attributes:
        calls: How often each method was called, by thread.
        fail: Called with the name of each method before it; what it raises is raised.
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self.calls: Counter[tuple[str, str]] = Counter()
        self.fail: Callable[[str], None] = lambda method: None

    def __getattr__(self, name: str) -> Any:
        if name == "clone":
            raise AttributeError(name)
        method = getattr(self.store, name)

        def call(*arguments: Any) -> Any:
            self.fail(name)
            self.calls[threading.current_thread().name, name] += 1
            return method(*arguments)

        return call if callable(method) else method


@pytest.fixture
def store() -> Counted:
    return Counted(stores().HashStore())


def client(store: Any, session: str = "session") -> tuple[SharedPage, Connection]:
    """A process: what it knows of the page, and its connection."""
    return SharedPage("page"), Connection(store, Session(session, ""))


def put(page: SharedPage, connection: Connection, value: bytes, expect: Any = ANY) -> PutOutcome:
    return page.put(connection, STATE, value, expect, lambda: None).outcome


def value(page: SharedPage, connection: Connection) -> bytes | None:
    entry = page.read(connection).entries.get(STATE)
    return None if entry is None else entry.value


def test_a_copy_that_lags_or_is_missing_is_where_a_reader_begins(store: Counted) -> None:
    writer, connection = client(store)
    copies = []
    for number in range(5 * _KEPT):
        put(writer, connection, b"%d" % number)
        copies.append(store.store.get("page"))
    for copy in (copies[0], copies[1], copies[_KEPT + 3], copies[-2], copies[-1]):
        # A writer that was late has made it.
        store.store.set("page", copy)
        reader, _ = client(store)
        store.calls.clear()
        assert value(reader, connection) == b"%d" % (len(copies) - 1)
        assert sum(store.calls.values()) <= 2 * (1 + 5 + _KEPT), "it goes on from one version to the next"
    store.store.delete_key("page")
    assert value(client(store)[0], connection) == b"%d" % (len(copies) - 1)


def test_a_writer_that_dies_before_the_copy_has_written(store: Counted) -> None:
    writer, connection = client(store)
    put(writer, connection, b"old")
    known, _ = client(store)
    assert value(known, connection) == b"old"

    def die(method: str) -> None:
        if method == "multi_set":
            raise RuntimeError("it dies")

    store.fail = die
    with pytest.raises(RuntimeError):
        put(writer, connection, b"new")
    store.fail = lambda method: None
    for reader in (known, writer, client(store)[0]):
        assert value(reader, connection) == b"new"
    assert put(known, connection, b"next") is PutOutcome.APPLIED
    assert value(client(store)[0], connection) == b"next"


def test_of_two_writers_of_one_version_one_goes_on_to_the_next(store: Counted) -> None:
    one, connection = client(store)
    other, _ = client(store)
    assert put(one, connection, b"1") is PutOutcome.APPLIED
    entry = other.read(connection).entries[STATE]
    assert put(one, connection, b"2") is PutOutcome.APPLIED
    store.calls.clear()
    assert other.put(connection, "control/status", b"x", ABSENT, lambda: None).outcome is PutOutcome.APPLIED
    assert sum(store.calls.values()) == 3, "one that is lost, one that is won, and its tail"
    # What has come instead may have been overwritten as well: a conflict is with the last version.
    assert put(one, connection, b"3") is PutOutcome.APPLIED
    lost = other.put(connection, STATE, b"late", entry.token, lambda: None)
    assert lost.outcome is PutOutcome.CONFLICT
    assert lost.entry is not None
    assert lost.entry.value == b"3"
    assert {path: entry.value for path, entry in one.read(connection).entries.items()} == {
        STATE: b"3",
        "control/status": b"x",
    }


def test_many_writers_lose_nothing(store: Counted) -> None:
    def write(number: int) -> None:
        page, connection = client(store)
        for turn in range(20):
            done = page.put(connection, f"control/{number}-{turn}", b"x", ABSENT, lambda: None)
            assert done.outcome is PutOutcome.APPLIED

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    page, connection = client(store)
    entries = page.read(connection).entries
    assert len(entries) == 160
    assert sorted(entry.order for entry in entries.values()) == list(range(1, 161))


def test_an_old_version_is_written_over_and_never_missing(store: Counted) -> None:
    late, connection = client(store)
    put(late, connection, b"0")
    writer, _ = client(store)
    for number in range(1, 3 * _KEPT):
        put(writer, connection, b"%d" % number)
    last = 3 * _KEPT
    whole = [number for number in range(1, last + 1) if not store.store.get(f"page/{number}").isdigit()]
    assert whole == list(range(last - _KEPT + 1, last + 1))
    # Who knows the first one still has it as good as ever, and writes no version that was there.
    assert put(late, connection, b"late", ABSENT) is PutOutcome.CONFLICT
    assert put(late, connection, b"late") is PutOutcome.APPLIED
    assert value(writer, connection) == b"late"


def test_a_run_that_was_removed_goes_on_from_its_number(store: Counted) -> None:
    old, connection = client(store)
    for number in range(7):
        put(old, connection, b"%d" % number)
    remover, _ = client(store)
    remover.delete(connection, STATE)
    whole = [key for key in store.store.list_keys() if key.startswith("page/") and not store.store.get(key).isdigit()]
    assert whole == ["page/8"], "what was there is of no use any more"
    assert remover.read(connection) == Page({}, 1, 8)
    remover.delete(connection, STATE)
    assert store.store.num_keys() == 9, "there was nothing to remove"
    new, _ = client(store)
    assert put(new, connection, b"new", ABSENT) is PutOutcome.APPLIED
    # Who knows the removed one does not believe it.
    assert put(old, connection, b"late", ABSENT) is PutOutcome.CONFLICT
    assert value(old, connection) == b"new"


def test_what_is_known_of_one_session_counts_in_no_other(store: Counted) -> None:
    page, connection = client(store)
    for number in range(3):
        put(page, connection, b"%d" % number)
    empty = Connection(stores().HashStore(), Session("other", ""))
    assert value(page, empty) is None
    assert put(page, empty, b"x", ABSENT) is PutOutcome.APPLIED
    assert empty.store.get("page/1") == empty.store.get("page")
    # A call to the one before that ends late takes nothing from it.
    put(page, connection, b"3")
    assert page.read(empty).version == 1
    assert page.read(connection).version == 4


@pytest.mark.parametrize("raw", [b"1", b"0", b"9" * 30, b"x", Page({}, 1, 7).pack()])
def test_a_version_that_is_not_ours(store: Counted, raw: bytes) -> None:
    page, connection = client(store)
    assert value(page, connection) is None
    store.store.set("page/1", raw)
    with pytest.raises(RendezvousStateError, match="rdzv-c10d"):
        put(page, connection, b"x")
    with pytest.raises(RendezvousStateError, match="rdzv-c10d"):
        page.read(connection)


# Waiting.


@pytest.fixture(params=["tcp", "memory", "file"])
def backends(request: pytest.FixtureRequest, server: ForkedStore, connect: Connect, tmp_path: Any) -> Iterator[Any]:
    """A waiter and a writer, on each kind of store."""
    if request.param == "tcp":
        yield connect(server.endpoint), apart(connect, server)
        return
    memory = stores().HashStore()

    def bring() -> Any:
        return memory if request.param == "memory" else stores().FileStore(str(tmp_path / "store"), -1)

    both = C10dRendezvousBackend(bring(), "run"), C10dRendezvousBackend(Counted(bring()), "run")
    yield both
    for backend in both:
        backend.close()


def watch_of(backend: C10dRendezvousBackend) -> PageWatch:
    return backend._uses.get().shared.watches._page


@contextmanager
def waiting_while_a_stranger_writes(server: ForkedStore, connect: Connect, raw: bytes) -> Iterator[Any]:
    """A wait that has begun before a client that is not ours writes the first version."""
    waiter = connect(server.endpoint)
    host, _, port = server.endpoint.partition(":")
    stranger = stores().TCPStore(host, int(port), is_master=False)
    since = waiter.read_all("control", timeout=CALL)
    with in_background(lambda: waiter.wait("control", since, timeout=60.0)) as waiting:
        eventually(lambda: watch_of(waiter)._waiting is not None, "the wait for the next version")
        stranger.set("rdzv/run/page/1", raw)
        yield waiting


def test_who_waits_is_woken_by_the_write(backends: Any) -> None:
    waiter, writer = backends
    since = waiter.read_all("control", timeout=CALL)
    for number in range(3):
        with in_background(lambda: waiter.wait("control", since, timeout=60)) as waiting:  # noqa: B023
            eventually(lambda: watch_of(waiter)._session is not None, "the listener")
            writer.put(STATE, b"%d" % number, expect=ANY, timeout=CALL)
            since = waiting.result(CALL)
            assert since.entries[STATE].value == b"%d" % number
    # What is of no concern to it does not end the wait.
    status = waiter.read_all("control/status", timeout=CALL)
    with in_background(lambda: waiter.wait("control/status", status, timeout=60)) as waiting:
        writer.put(STATE, b"x", expect=ANY, timeout=CALL)
        writer.put("control/status", b"y", expect=ANY, timeout=CALL)
        assert waiting.result(CALL).entries.keys() == {"control/status"}
    both = waiter.read_all("control", timeout=CALL)
    with in_background(lambda: waiter.wait("control", both, timeout=60)) as waiting:
        writer.delete(STATE, timeout=CALL)
        assert waiting.result(CALL).entries.keys() == {"control/status"}


@pytest.mark.parametrize("raw", [b"x", Page({}, 1, 7).pack()])
def test_who_waits_learns_of_a_version_that_is_not_ours(server: ForkedStore, connect: Connect, raw: bytes) -> None:
    with waiting_while_a_stranger_writes(server, connect, raw) as waiting:
        assert isinstance(waiting.exception(CALL), RendezvousStateError)


def test_an_empty_version_is_none(server: ForkedStore, connect: Connect) -> None:
    with waiting_while_a_stranger_writes(server, connect, b"") as waiting:
        apart(connect, server).put(STATE, b"x", expect=ANY, timeout=CALL)
        assert waiting.result(CALL).entries[STATE].value == b"x"


def test_a_close_ends_the_thread_at_once(backends: Any, capfd: pytest.CaptureFixture[str]) -> None:
    waiter, _ = backends
    since = waiter.read_all("control", timeout=CALL)
    with in_background(lambda: waiter.wait("control", since, timeout=60)) as waiting:
        watch = watch_of(waiter)
        eventually(lambda: watch._session is not None, "the listener")
        began = time.monotonic()
        waiter.close()
        assert isinstance(waiting.exception(CALL), RendezvousConnectionError)
        assert watch._listening is not None
        eventually(watch._listening.done, "the end of the thread")
        assert time.monotonic() - began < 1
    assert "frame #" not in capfd.readouterr().err, "a connection was cut, and torch has complained"


def test_a_wait_whose_connection_breaks_says_so(server: ForkedStore, connect: Connect) -> None:
    waiter = connect(server.endpoint)
    since = waiter.read_all("control", timeout=CALL)
    with in_background(lambda: waiter.wait("control", since, timeout=60)) as waiting:
        eventually(lambda: watch_of(waiter)._waiting is not None, "the wait")
        watch_of(waiter)._waiting.cut()  # type: ignore[union-attr]
        assert isinstance(waiting.exception(CALL), RendezvousConnectionError)
    with in_background(lambda: waiter.wait("control", since, timeout=60)) as waiting:
        apart(connect, server).put(STATE, b"x", expect=ANY, timeout=CALL)
        assert waiting.result(CALL).entries.keys() == {STATE}


def test_a_change_costs_the_writer_two_calls_and_a_process_that_waits_one(
    server: ForkedStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[tuple[str, str]] = Counter()

    def counted(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            calls[threading.current_thread().name, name] += 1
            return method(*arguments)

        return counting

    waiter, writer = connect(server.endpoint), apart(connect, server)
    since = waiter.read_all("control", timeout=CALL)
    writer.put(STATE, b"1", expect=ANY, timeout=CALL)
    for name in ("set", "get", "add", "append", "compare_set", "check", "multi_get", "multi_set", "wait", "delete_key"):
        monkeypatch.setattr(stores().Store, name, counted(getattr(stores().Store, name), name))
    me = threading.current_thread().name
    since = waiter.wait("control", since, timeout=CALL)
    assert since.entries[STATE].value == b"1"
    with ThreadPoolExecutor(5) as pool:
        waits = [pool.submit(waiter.wait, "control", since, timeout=60.0) for _ in range(5)]
        thread = PageWatch.thread
        eventually(lambda: calls[thread, "get"] == 2, "the wait for the next version")
        calls.clear()
        writer.put(STATE, b"2", expect=ANY, timeout=CALL)
        assert all(wait.result(CALL).entries[STATE].value == b"2" for wait in waits)
        eventually(lambda: not watch_of(waiter)._listeners, "all to have returned")
    # The call that brings it was begun before; another one begins only if a thread still waited.
    calls.pop((thread, "get"), None)
    assert calls == {(me, "compare_set"): 1, (me, "multi_set"): 1}


def test_a_host_that_is_silent_is_noticed_when_it_is_time_to_look(
    server: ForkedStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_watch, "_LOOK", 0.1)
    waiter = connect(server.endpoint)
    since = waiter.read_all("control", timeout=CALL)
    assert waiter.wait("control", since, timeout=0.3) is since
    server.pause()
    try:
        with pytest.raises(RendezvousConnectionError, match="did not answer in time"):
            waiter.wait("control", since, timeout=1.5)
    finally:
        server.resume()


def test_a_snapshot_may_come_from_anywhere(store: Counted) -> None:
    backend, other = C10dRendezvousBackend(store, "run"), C10dRendezvousBackend(Counted(store.store), "run")
    backend.put(STATE, b"1", expect=ANY, timeout=CALL)
    for revision in (None, 17, "later", PageVersion("another session", 9)):
        assert backend.wait("control", Snapshot({}, revision), timeout=CALL).entries.keys() == {STATE}
    # Another client of this process knows a version that this one has not seen.
    other.put(STATE, b"2", expect=ANY, timeout=CALL)
    since = other.read_all("control", timeout=CALL)
    with in_background(lambda: backend.wait("control", since, timeout=60)) as waiting:
        other.put(STATE, b"3", expect=ANY, timeout=CALL)
        assert waiting.result(CALL).entries[STATE].value == b"3"
    backend.close()
    other.close()
