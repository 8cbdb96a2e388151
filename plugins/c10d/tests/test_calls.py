"""What a node costs the store, in calls, counted where they leave Python."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from rdzv_core.backend import ABSENT, PutOutcome, Token

from rdzv_c10d.reading import Reading
from rdzv_c10d.round_store import RoundStore
from rdzv_c10d.store import stores

from .clients import CALL, Connect, ForkedStore

_METHODS = ("set", "add", "append", "compare_set", "check", "multi_get", "multi_set", "wait", "delete_key", "list_keys")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each method of a store was called, by this thread."""
    counts: Counter[str] = Counter()
    counted = threading.current_thread()

    def count(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def counting(*arguments: Any) -> Any:
            counts[method.__name__] += threading.current_thread() is counted
            return method(*arguments)

        return counting

    for name in _METHODS:
        if method := getattr(stores().Store, name, None):
            monkeypatch.setattr(stores().Store, name, count(method))
    return counts


def test_a_creation_is_three_and_a_heartbeat_one(server: ForkedStore, connect: Connect, calls: Counter[str]) -> None:
    backend = connect(server.endpoint)
    assert backend.read("nodes/0/none", timeout=CALL) is None

    def put(key: str, expect: Any, cost: dict[str, int]) -> Token:
        calls.clear()
        done = backend.put(key, b"x", expect=expect, timeout=CALL)
        assert done.outcome is PutOutcome.APPLIED
        assert done.entry is not None
        assert +calls == cost
        return done.entry.token

    creation = {"append": 1, "add": 1, "compare_set": 1}
    # No client learns of it by a ring, and none asks for its order.
    token = put("heartbeats/0/a", ABSENT, {"append": 1, "compare_set": 1})
    put("heartbeats/0/a", token, {"compare_set": 1})
    token = put("nodes/0/a", ABSENT, creation)
    # It asks whether to ring, and for whom.
    put("nodes/0/a", token, {"compare_set": 1, "add": 1})
    put("control/leader", ABSENT, {"compare_set": 1, "add": 1})


def test_a_list_whose_keys_are_known_is_one_call(server: ForkedStore, connect: Connect, calls: Counter[str]) -> None:
    backend, other = connect(server.endpoint), connect(server.endpoint)
    for number in range(20):
        other.put(f"nodes/0/{number}", b"x", expect=ABSENT, timeout=CALL)
    assert len(backend.read_all("nodes", timeout=CALL).entries) == 20
    for _ in range(2):
        calls.clear()
        assert len(backend.read_all("nodes", timeout=CALL).entries) == 20
        assert +calls == {"multi_get": 1}
    other.put("nodes/0/late", b"x", expect=ABSENT, timeout=CALL)
    calls.clear()
    assert len(backend.read_all("nodes", timeout=CALL).entries) == 21
    assert +calls == {"multi_get": 2, "check": 1}


def test_a_list_is_not_read_again_and_again_while_keys_are_made(
    server: ForkedStore, connect: Connect, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, other = connect(server.endpoint), connect(server.endpoint)
    other.put("nodes/0/first", b"x", expect=ABSENT, timeout=CALL)
    made = 0

    def make() -> None:
        """Make a key, as other nodes do, up to ten."""
        nonlocal made
        if made < 10:
            made += 1
            other.put(f"nodes/0/{made}", b"x", expect=ABSENT, timeout=CALL)

    def read_together(*arguments: Any) -> Any:
        make()
        return before(*arguments)

    before = Reading.read_together
    monkeypatch.setattr(Reading, "read_together", read_together)
    monkeypatch.setattr(time, "sleep", lambda seconds: make())
    assert len(backend.read_all("nodes", timeout=CALL).entries) == 11
    assert calls["multi_get"] <= 3, "each key that was made cost a reading of all"


def test_a_round_store_costs_what_torchs_own_does(server: ForkedStore, connect: Connect, calls: Counter[str]) -> None:
    store = RoundStore(connect(server.endpoint))
    store.add("count", 1)
    calls.clear()
    store.set("value", b"x")
    assert +calls == {"multi_set": 1}
    assert store.get("value") == b"x"
    assert +calls == {"multi_set": 1, "compare_set": 1}
    assert store.add("count", 1) == 2
    assert +calls == {"multi_set": 1, "compare_set": 1, "add": 1}
