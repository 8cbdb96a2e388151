"""The logs: a write is done when it stands there, by which client and in which order it came there."""

import socket
import time
from contextlib import closing, suppress
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import in_background
from rdzv_core.backend import ABSENT, ANY, Entry, KeyValueBackend, PutOutcome

from rdzv_c10d import C10dRendezvousBackend, logs, run
from rdzv_c10d.layout import Layout
from rdzv_c10d.logs import Logs, Reading
from rdzv_c10d.store import Connection, NoAnswerError, Session, stores
from rdzv_c10d.values import Frame, nonce

from .clients import CALL, Connect, ForkedStore

LONG = b"x" * 2000


@pytest.fixture
def store() -> Any:
    """A store in this process's memory."""
    return stores().HashStore()


@pytest.fixture
def backend(store: Any) -> Any:
    backend = C10dRendezvousBackend(store, "run")
    yield backend
    backend.close()


def die_between(store: Any, path: str, value: bytes | None) -> Frame:
    """Write a value as a writer that dies before the log tells of it."""
    key = f"rdzv/run/value/{path}"
    frame = Frame.parse(store.get(key)).then(value) if store.check([key]) else Frame(nonce(), 1000, 1, value)
    store.set(key, frame.raw)
    return frame


class Died(Exception):
    """The process of the client ends here."""


class Mortal:
    """A store whose client dies instead of a call."""

    def __init__(self, store: Any, calls: int) -> None:
        self._store = store
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name == "has_extended_api":
            return found

        def call(*arguments: Any) -> Any:
            if not self._calls:
                raise Died
            self._calls -= 1
            return found(*arguments)

        return call


def append(store: Any, path: str, frame: Frame) -> None:
    """Append to the log what comes late."""
    Logs(Layout("rdzv/run/")).append(Connection(store, Session("", "")), path, frame)


def listed(backend: KeyValueBackend) -> dict[str, bytes]:
    """The values below `nodes`."""
    return {path: entry.value for path, entry in backend.read_all("nodes", timeout=CALL).entries.items()}


def log_of(store: Any) -> bytes:
    """The log of `nodes`."""
    found: bytes = store.get("rdzv/run/log/nodes")
    return found


@pytest.mark.parametrize("value", [b"x", LONG])
def test_what_a_read_has_shown_is_listed(backend: KeyValueBackend, store: Any, value: bytes) -> None:
    since = backend.read_all("nodes", timeout=CALL)
    with in_background(lambda: backend.wait("nodes", since, timeout=60)) as waiting:
        eventually(lambda: store.check(["rdzv/run/watchers"]), "the wait")
        die_between(store, "nodes/a", value)
        assert listed(backend) == {}
        found = backend.read("nodes/a", timeout=CALL)
        assert found is not None
        assert found.value == value
        assert listed(backend) == {"nodes/a": value}
        assert waiting.result(CALL).entries == {"nodes/a": found}


def test_what_a_put_has_met_is_listed(backend: KeyValueBackend, store: Any) -> None:
    frame = die_between(store, "nodes/a", b"there")
    put = backend.put("nodes/a", b"x", expect=ABSENT, timeout=CALL)
    assert (put.outcome, put.entry) == (PutOutcome.CONFLICT, frame.entry)
    assert listed(backend) == {"nodes/a": b"there"}


def test_a_removal_that_a_read_has_shown_is_listed(backend: KeyValueBackend, store: Any) -> None:
    backend.put("nodes/a", b"x", expect=ABSENT, timeout=CALL)
    die_between(store, "nodes/a", None)
    assert listed(backend) == {"nodes/a": b"x"}
    assert backend.read("nodes/a", timeout=CALL) is None
    assert listed(backend) == {}


def test_a_long_value_that_a_list_meets_is_listed(backend: KeyValueBackend, store: Any) -> None:
    backend.put("nodes/a", LONG, expect=ABSENT, timeout=CALL)
    since = backend.read_all("nodes", timeout=CALL)
    with in_background(lambda: backend.wait("nodes", since, timeout=60)) as waiting:
        eventually(lambda: store.check(["rdzv/run/watchers"]), "the wait")
        die_between(store, "nodes/a", LONG + b"new")
        assert listed(backend) == {"nodes/a": LONG + b"new"}
        assert waiting.result(CALL).entries["nodes/a"].value == LONG + b"new"
    assert len(log_of(store)) < len(LONG)


@pytest.mark.parametrize("value", [b"x", LONG])
def test_a_removal_that_was_cut_off_is_finished_by_the_next(backend: KeyValueBackend, store: Any, value: bytes) -> None:
    backend.put("nodes/a", value, expect=ABSENT, timeout=CALL)
    die_between(store, "nodes/a", None)
    backend.delete("nodes/a", timeout=CALL)
    assert b"=nodes/a" in log_of(store).splitlines()[-2]
    assert listed(backend) == {}


def test_what_comes_late_in_the_log_of_a_run_that_was_removed_can_be_removed(
    backend: KeyValueBackend, store: Any
) -> None:
    append(store, "nodes/a", Frame(nonce(), 1, 1, b"x"))
    assert listed(backend) == {"nodes/a": b"x"}
    backend.delete("nodes", timeout=CALL)
    assert listed(backend) == {}


def test_a_long_value_that_is_gone_is_not_listed(backend: KeyValueBackend, store: Any) -> None:
    backend.put("nodes/a", LONG, expect=ABSENT, timeout=CALL)
    store.delete_key("rdzv/run/value/nodes/a")
    assert listed(backend) == {}


def test_a_log_that_only_writers_use_stays_short(server: ForkedStore, connect: Connect) -> None:
    backend = connect(server.endpoint)
    token: Any = ABSENT
    for _ in range(300):
        entry = backend.put("nodes/a", b"x" * 900, expect=token, timeout=CALL).entry
        assert entry is not None
        token = entry.token
    host, _, port = server.endpoint.partition(":")
    store = stores().TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    assert len(store.get("rdzv/run/log/nodes")) < 2 * logs._UNREAD


def test_a_write_that_comes_late_in_the_log_changes_nothing(backend: KeyValueBackend, store: Any) -> None:
    first = backend.put("nodes/a", b"first", expect=ABSENT, timeout=CALL).entry
    assert first is not None
    append(store, "nodes/a", first.token.frame)
    backend.put("nodes/a", b"second", expect=first.token, timeout=CALL)
    append(store, "nodes/a", first.token.frame)
    assert listed(backend) == {"nodes/a": b"second"}
    backend.delete("nodes/a", timeout=CALL)
    append(store, "nodes/a", first.token.frame)
    assert listed(backend) == {}
    again = backend.put("nodes/a", b"again", expect=ABSENT, timeout=CALL).entry
    append(store, "nodes/a", first.token.frame)
    assert backend.read_all("nodes", timeout=CALL).entries == {"nodes/a": again}


@pytest.mark.parametrize("value", [b"x", LONG])
def test_a_log_does_not_grow_with_what_is_overwritten(backend: KeyValueBackend, store: Any, value: bytes) -> None:
    entry: Entry | None = None
    for _ in range(100):
        entry = backend.put("nodes/a", value, expect=entry.token if entry else ABSENT, timeout=CALL).entry
        assert listed(backend) == {"nodes/a": value}
    assert log_of(store).count(b"nodes/a") <= 2 * logs._GARBAGE
    anew = logs.Reading().then(log_of(store)).records["nodes/a"]
    assert entry is not None
    assert anew.frame.nonce == entry.token.nonce


@pytest.mark.parametrize("others", [False, True])
def test_a_log_to_which_no_other_client_appends_rests(backend: KeyValueBackend, store: Any, others: bool) -> None:
    longest = 0
    for number in range(200):
        backend.put(f"nodes/{number % 40}", b"x", expect=ANY, timeout=CALL)
        if others:
            append(store, "nodes/another", Frame(nonce(), number + 1, 1, b"x"))
        longest = max(longest, logs.Reading().then(log_of(store)).total)
        backend.read_all("nodes", timeout=CALL)
    # Written anew with so many times as many records as are of use, and 32 more; it grows by one or two at a time.
    assert 0 <= longest - 32 - (2.5 * 41 if others else 1.5 * 40) <= 2


@pytest.mark.parametrize(
    ("times", "rests", "is_large", "is_worth_it"),
    [(2, True, False, True), (2, False, False, False), (2, False, True, True), (3, False, False, True)],
)
def test_a_log_to_which_others_append_is_written_anew_later_unless_it_is_large(
    monkeypatch: pytest.MonkeyPatch, times: int, rests: bool, is_large: bool, is_worth_it: bool
) -> None:
    raw = b""
    frames: dict[str, Frame] = {}
    for number in range(times * 100):
        path = f"nodes/{number % 100}"
        frames[path] = frames[path].then(b"x") if path in frames else Frame(nonce(), 0, 1, b"x")
        raw += logs._record(path, frames[path], True)
    if is_large:
        monkeypatch.setattr(logs, "_LARGEST", len(raw))
    shorter = logs.Reading().then(raw).shorter(rests=rests)
    assert (shorter is not None) == is_worth_it
    assert shorter is None or logs.Reading().then(shorter).records.keys() == frames.keys()


def test_a_log_forgets_what_was_removed_long_ago(
    backend: KeyValueBackend, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(count: int) -> None:
        for number in range(count):
            backend.put(f"nodes/{number}", b"x", expect=ANY, timeout=CALL)
            backend.delete(f"nodes/{number}", timeout=CALL)

    remove(60)
    assert listed(backend) == {}
    assert all(b"nodes/%d " % number in log_of(store) for number in range(60)), "a late write would be there again"
    monkeypatch.setattr(logs, "_REMOVED", 0.0)
    assert listed(backend) == {}
    assert log_of(store) == b""


def test_removing_everything_takes_what_no_log_tells_of(
    backend: KeyValueBackend, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_BETWEEN", 0.1)
    backend.put("nodes/a", b"x", expect=ABSENT, timeout=CALL)
    die_between(store, "nodes/b", b"x")
    backend.delete("nodes", timeout=CALL)
    assert log_of(store) == b""
    assert not [key for key in store.list_keys() if "value" in key]


def test_heartbeats_are_listed_as_they_are_now(backend: KeyValueBackend, store: Any) -> None:
    entry = backend.put("heartbeats/a", b"1", expect=ABSENT, timeout=CALL).entry
    for number in range(5):
        assert entry is not None
        entry = backend.put("heartbeats/a", b"%d" % number, expect=entry.token, timeout=CALL).entry
        assert backend.read_all("heartbeats", timeout=CALL).entries == {"heartbeats/a": entry}
    assert store.get("rdzv/run/log/heartbeats").count(b"heartbeats/a") == 1
    backend.delete("heartbeats/a", timeout=CALL)
    assert backend.read_all("heartbeats", timeout=CALL).entries == {}
    backend.put("heartbeats/a", b"again", expect=ABSENT, timeout=CALL)
    assert len(backend.read_all("heartbeats", timeout=CALL).entries) == 1


@pytest.mark.parametrize("work", ["create", "overwrite", "delete", "delete all"])
@pytest.mark.parametrize("top", ["nodes", "heartbeats"])
def test_nothing_stays_behind_of_a_client_that_dies_between_two_calls(
    backend: KeyValueBackend, store: Any, top: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call is its last: all clients see the same afterwards, and a removal takes all."""
    monkeypatch.setattr(run, "_BETWEEN", 0.0)
    path, is_done, calls = f"{top}/a", False, 0
    while not is_done:
        there = None
        if work != "create":
            there = backend.put(path, b"x", expect=ABSENT, timeout=CALL).entry
        mortal, connection = run.Run("rdzv/run/"), Connection(Mortal(store, calls), Session("", ""))
        with suppress(Died):
            if work.startswith("delete"):
                mortal.delete(connection, top if work == "delete all" else path)
            else:
                mortal.put(connection, path, b"y", ABSENT if there is None else there.token, run.Attempt())
            is_done = True
        found = backend.read_all(top, timeout=CALL)
        with closing(C10dRendezvousBackend(store, "run")) as other:
            assert other.read_all(top, timeout=CALL).entries == found.entries
        backend.delete(top, timeout=CALL)
        assert backend.read(path, timeout=CALL) is None
        assert backend.read_all(top, timeout=CALL).entries == {}
        assert [key for key in store.list_keys() if "/value/" in key] == []
        assert not store.check([f"rdzv/run/log/{top}"]) or store.get(f"rdzv/run/log/{top}") == b""
        calls += 1
    assert calls > 1


@pytest.mark.parametrize("top", ["nodes", "heartbeats"])
def test_what_comes_late_in_the_log_without_its_value_is_removed_with_everything(
    backend: KeyValueBackend, store: Any, top: str
) -> None:
    append(store, f"{top}/a", Frame(nonce(), 0, 1, LONG))
    assert backend.read_all(top, timeout=CALL).entries == {}
    backend.delete(top, timeout=CALL)
    assert store.get(f"rdzv/run/log/{top}") == b""


def test_a_log_is_not_cleared_of_what_is_written_meanwhile(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread writes, and reads the log, after the reading by which it is judged."""
    logs, connection = Logs(Layout("rdzv/run/")), Connection(store, Session("", ""))
    read = logs._read

    def read_early(connection: Connection, path: str) -> Reading:
        found = read(connection, path)
        logs.append(connection, "nodes/b", Frame(nonce(), 1, 1, b"x"))
        read(connection, path)
        return found

    monkeypatch.setattr(logs, "_read", read_early)
    logs.clear(connection, "nodes")
    assert b"nodes/b" in log_of(store)


def test_a_heartbeat_that_no_log_tells_of_is_listed_once_it_is_met(backend: KeyValueBackend, store: Any) -> None:
    die_between(store, "heartbeats/a", b"1")
    assert backend.read_all("heartbeats", timeout=CALL).entries == {}
    put = backend.put("heartbeats/a", b"expired", expect=ABSENT, timeout=CALL)
    assert put.outcome is PutOutcome.CONFLICT
    assert backend.read_all("heartbeats", timeout=CALL).entries == {"heartbeats/a": put.entry}


def test_the_calls_of_one_work_end_with_its_deadline() -> None:
    here, there = socket.socketpair()
    with here, there:
        connection = Connection("client", Session("", ""), here.fileno())
        connection.limit_waits(60)
        assert connection.store == "client"
        connection.limit_waits(0.01)
        eventually(lambda: time.monotonic() > connection._until, "the deadline")
        with pytest.raises(NoAnswerError):
            _ = connection.store
