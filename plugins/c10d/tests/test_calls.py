"""What a node costs the store, in calls, counted where they leave Python."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import in_background
from rdzv_core.backend import ABSENT, PutOutcome, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousTimeoutError

from rdzv_c10d.backend import C10dRendezvousBackend
from rdzv_c10d.round_store import RoundStore
from rdzv_c10d.run import Run
from rdzv_c10d.store import peek, stores
from rdzv_c10d.watchers import Watchers

from .clients import CALL, Connect, ForkedStore, apart

_METHODS = (
    "set",
    "get",
    "add",
    "append",
    "compare_set",
    "check",
    "multi_get",
    "multi_set",
    "wait",
    "delete_key",
    "list_keys",
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each method of a store was called, by this thread."""
    return _count(monkeypatch, threading.current_thread())


@pytest.fixture
def all_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each method of a store was called."""
    return _count(monkeypatch, None)


def _count(monkeypatch: pytest.MonkeyPatch, counted: threading.Thread | None) -> Counter[str]:
    counts: Counter[str] = Counter()

    def count(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def counting(*arguments: Any) -> Any:
            counts[method.__name__] += counted is None or threading.current_thread() is counted
            return method(*arguments)

        return counting

    for name in _METHODS:
        if method := getattr(stores().Store, name, None):
            monkeypatch.setattr(stores().Store, name, count(method))
    return counts


def test_a_creation_is_four_and_a_heartbeat_one(server: ForkedStore, connect: Connect, calls: Counter[str]) -> None:
    backend = connect(server.endpoint)
    assert backend.read("nodes/0/none", timeout=CALL) is None

    def put(key: str, expect: Any, cost: dict[str, int]) -> Token:
        calls.clear()
        done = backend.put(key, b"x", expect=expect, timeout=CALL)
        assert done.outcome is PutOutcome.APPLIED
        assert done.entry is not None
        assert +calls == cost
        return done.entry.token

    # No client learns of it by a ring, and none asks for its order.
    token = put("heartbeats/0/a", ABSENT, {"append": 1, "compare_set": 1})
    put("heartbeats/0/a", token, {"compare_set": 1})
    # The last one asks for whom to ring.
    token = put("nodes/0/a", ABSENT, {"add": 1, "compare_set": 2, "append": 1})
    put("nodes/0/a", token, {"compare_set": 2, "append": 1})
    # Of the page nothing was known: it reads the copy, and looks for a later version. Then it is one, and its tail.
    token = put("control/leader", ABSENT, {"compare_set": 2, "check": 1, "multi_set": 1})
    put("control/leader", token, {"compare_set": 1, "multi_set": 1})


def test_a_list_is_one_call(server: ForkedStore, connect: Connect, calls: Counter[str]) -> None:
    backend, other = connect(server.endpoint), connect(server.endpoint)
    for number in range(20):
        other.put(f"nodes/0/{number}", b"x", expect=ABSENT, timeout=CALL)
    assert len(backend.read_all("nodes", timeout=CALL).entries) == 20
    other.put("nodes/0/late", b"x", expect=ABSENT, timeout=CALL)
    calls.clear()
    assert len(backend.read_all("nodes", timeout=CALL).entries) == 21
    assert +calls == {"compare_set": 1}


def test_a_list_of_long_values_is_two_calls(server: ForkedStore, connect: Connect, calls: Counter[str]) -> None:
    backend = connect(server.endpoint)
    values = {f"rounds/1/{number}": b"x" * 10_000 for number in range(5)}
    for key, value in values.items():
        backend.put(key, value, expect=ABSENT, timeout=CALL)
    calls.clear()
    found = backend.read_all("rounds/1", timeout=CALL).entries
    assert {key: entry.value for key, entry in found.items()} == values
    assert +calls == {"compare_set": 1, "multi_get": 1}


def test_a_round_store_costs_what_torchs_own_does(server: ForkedStore, connect: Connect, calls: Counter[str]) -> None:
    store = RoundStore(connect(server.endpoint))
    store.add("count", 1)
    calls.clear()
    store.set("value", b"x")
    assert +calls == {"multi_set": 1}
    assert store.get("value") == b"x"
    # torch's `get` waits for the key, and asks for it: two round trips as well.
    assert +calls == {"multi_set": 1, "check": 1, "compare_set": 1}
    assert store.add("count", 1) == 2
    assert +calls == {"multi_set": 1, "check": 1, "compare_set": 1, "add": 1}


def test_who_reads_the_page_wakes_none_who_waits_for_it(
    server: ForkedStore, connect: Connect, all_calls: Counter[str]
) -> None:
    backend, other = connect(server.endpoint), apart(connect, server)
    since = backend.read_all("control", timeout=CALL)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backend.wait, "control", since, timeout=60)
        eventually(lambda: all_calls["get"] == 1, "it waits")
        for _ in range(20):
            other.read_all("control", timeout=CALL)
        other.put("control/leader", b"x", expect=ABSENT, timeout=CALL)
        assert waiting.result().entries["control/leader"].value == b"x"
    # One for what was there then; and perhaps one more, before no thread waited any more.
    assert all_calls["get"] <= 2


def watched(backend: C10dRendezvousBackend) -> bytes:
    shared = backend._uses.get().shared
    return (
        shared.pool.call(
            lambda connection: peek(connection.store, "rdzv/run/watchers"), time.monotonic() + CALL, lambda: None
        )
        or b""
    )


def test_who_has_written_the_page_is_rung_before_it_is_known_to_watch(
    server: ForkedStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, node = connect(server.endpoint), apart(connect, server)
    # The list of those who watch is empty now, and it does not look at it again.
    node.read_all("control", timeout=CALL)
    monkeypatch.setattr(Watchers, "_read", lambda *_: ())
    since = leader.read_all("nodes", timeout=CALL)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(leader.wait, "nodes", since, timeout=60)
        watch = leader._uses.get().shared.watches
        eventually(lambda: watch.wakeup.key.encode() in watched(leader), "it waits")
        leader.put("control/leader", b"x", expect=ABSENT, timeout=CALL)
        node.read_all("control", timeout=CALL)
        node.put("nodes/0/a", b"x", expect=ABSENT, timeout=CALL)
        assert waiting.result(CALL).entries["nodes/0/a"].value == b"x"


def test_who_writes_the_page_before_its_listener_is_connected_is_rung(
    server: ForkedStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = connect(server.endpoint)
    since = leader.read_all("nodes", timeout=CALL)
    shared = leader._uses.get().shared
    with monkeypatch.context() as patch:
        patch.setattr(shared.watches.wakeup, "start", _refuse)
        with pytest.raises(RendezvousConnectionError, match="not yet"):
            leader.wait("nodes", since, timeout=CALL)
    leader.put("control/leader", b"x", expect=ABSENT, timeout=CALL)
    session = shared.pool.session
    page = shared.run.page.known(session.id) if session else None
    assert page is not None
    assert page.wakeup == shared.watches.wakeup.key


def _refuse(*_: object) -> None:
    raise RendezvousConnectionError("not yet")


def test_a_background_call_leaves_a_connection_to_others(server: ForkedStore, connect: Connect) -> None:
    backend = connect(server.endpoint)
    pool = backend._uses.get().shared.pool
    backend.read("nodes/0/a", timeout=CALL)
    with _held(backend.background()):
        assert (len(pool._idle), len(pool._busy)) == (1, 1), "it has taken the only one"
        backend.read("nodes/0/a", timeout=CALL)
    with _held(backend), in_background(lambda: backend.background().read("nodes/0/a", timeout=CALL)) as second:
        # While another call is under way it makes one more, which is there for it and for others.
        assert second.result(CALL) is None
    for _ in range(5):
        backend.background().read("nodes/0/a", timeout=CALL)
    assert len(pool._idle) == 3, "where there are enough it makes none"


def test_where_no_other_connection_is_to_be_had_a_background_call_takes_the_only_one(
    server: ForkedStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = connect(server.endpoint)
    backend.read("nodes/0/a", timeout=CALL)
    shared = backend._uses.get().shared
    began, may_end = threading.Event(), threading.Event()

    def refuse(seconds: float) -> None:
        raise RendezvousConnectionError("no room")

    def hang(seconds: float) -> None:
        began.set()
        may_end.wait(CALL)
        raise RendezvousConnectionError("no room")

    for connecting in (refuse, hang):
        monkeypatch.setattr(shared.pool, "connect", connecting)
        assert backend.background().read("nodes/0/a", timeout=0.5) is None
    assert began.is_set()
    may_end.set()
    assert len(shared.pool._idle) == 1


@contextmanager
def _held(backend: C10dRendezvousBackend) -> Iterator[None]:
    """Have a call under way."""
    began, may_end = threading.Event(), threading.Event()

    def hold(run: Run, connection: Any) -> None:
        began.set()
        assert may_end.wait(CALL)

    with in_background(lambda: backend._call(hold, CALL)) as call:
        assert began.wait(CALL)
        try:
            yield
        finally:
            may_end.set()
        call.result(CALL)


def test_a_round_store_rings_no_leader(server: ForkedStore, connect: Connect, all_calls: Counter[str]) -> None:
    leader, node = connect(server.endpoint), apart(connect, server)
    leader.wait("nodes", leader.read_all("nodes", timeout=CALL), timeout=0.05)
    leader.put("control/leader", b"x", expect=ABSENT, timeout=CALL)
    node.read_all("control", timeout=CALL)
    all_calls.clear()
    node.put("rounds/1/a", b"x", expect=ABSENT, timeout=CALL)
    assert not all_calls["multi_set"]
    node.put("nodes/0/a", b"x", expect=ABSENT, timeout=CALL)
    assert all_calls["multi_set"]


def test_who_gets_from_a_round_store_wakes_none_who_waits_for_that(
    server: ForkedStore, connect: Connect, all_calls: Counter[str]
) -> None:
    store, other = RoundStore(connect(server.endpoint)), RoundStore(apart(connect, server))
    other.set_timeout(timedelta(milliseconds=1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "value")
        eventually(lambda: all_calls["wait"] == 1, "it waits")
        for _ in range(20):
            with pytest.raises(RendezvousTimeoutError):
                other.get("value")
        other.set("value", b"x")
        assert waiting.result() == b"x"
    assert all_calls["wait"] == 1
