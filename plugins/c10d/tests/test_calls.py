"""What a node costs the store, in calls, counted where they leave Python."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from rdzv_core.backend import ABSENT, PutOutcome, Token

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
    token = put("control/leader", ABSENT, {"compare_set": 3, "multi_set": 1})
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
    assert +calls == {"multi_set": 1, "compare_set": 1}
    assert store.add("count", 1) == 2
    assert +calls == {"multi_set": 1, "compare_set": 1, "add": 1}
