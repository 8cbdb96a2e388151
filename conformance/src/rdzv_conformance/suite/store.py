"""The store that the members of a round share: torch's ``Store``, on this backend."""

import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Final

import pytest
from rdzv.store import KeyValueStore
from rdzv_core.backend import KeyValueBackend, PutOutcome, PutResult
from rdzv_core.errors import RendezvousTimeoutError
from rdzv_core.threads import in_thread

from ..meanwhile import with_retries
from ..processes import Link, Processes
from .base import CALL, Clients, Conformance, Verdict, leave_out, refusal
from .calls import result_of

_SHORT: Final = timedelta(seconds=0.2)
_LONG: Final = timedelta(seconds=CALL)
_PROCESSES: Final = 4
_ODD_KEYS: Final = ("", "a", "a/b", "a/", "/a", "a//b", ".", "..", " ", "A", "%41", "=41", "\n", "\0", "ü日本", "*")

Stores = Callable[[], KeyValueStore]


class StoreConformance(Conformance):
    """The methods of torch's ``Store``, with its meanings."""

    @pytest.fixture
    def stores(self, clients: Clients) -> Stores:
        """Makes stores, each of a client of its own, that share their keys."""
        return lambda: KeyValueStore(clients(), timeout=_LONG)

    @pytest.fixture
    def store(self, stores: Stores) -> KeyValueStore:
        """One store."""
        return stores()

    def test_store_set_is_seen_by_get(self, stores: Stores) -> None:
        """Values are text or bytes, and come back as bytes; the last one counts, for all."""
        one, other = stores(), stores()
        for value, expected in (("text ü", "text ü".encode()), (b"\0\xff", b"\0\xff"), (b"", b"")):
            one.set("key", value)
            assert other.get("key") == expected

    def test_store_keys_are_any_text(self, store: KeyValueStore) -> None:
        """Every text is a key of its own, the empty one too, as in torch's stores."""
        for key in _ODD_KEYS:
            store.set(key, f"value of {key}")
        for key in _ODD_KEYS:
            assert store.get(key) == f"value of {key}".encode(), f"the key {key!r} is confused with another"
        assert sorted(store.list_keys()) == sorted(_ODD_KEYS)
        assert store.num_keys() == len(_ODD_KEYS)
        assert store.delete_key("a")
        assert sorted(store.list_keys()) == sorted(set(_ODD_KEYS) - {"a"}), "deleting a key deleted others"

    def test_store_get_waits_for_the_key(self, stores: Stores) -> None:
        """`get` blocks until a client sets the key."""
        one, other = stores(), stores()
        got = in_thread(partial(one.get, "key"), "get")
        time.sleep(0.05)  # it probably waits by now; if not, it must be right as well
        assert not got.done()
        other.set("key", b"x")
        assert result_of(got, "get of the store") == b"x"

    def test_store_get_gives_up_in_time(self, store: KeyValueStore) -> None:
        """After the store's timeout, `get` and `multi_get` raise `RendezvousTimeoutError`, which names the key."""
        store.set_timeout(_SHORT)
        assert store.timeout == _SHORT
        store.set("there", b"x")
        for call in (lambda: store.get("missing"), lambda: store.multi_get(["there", "missing"])):
            began = time.monotonic()
            _assert_times_out(call, "missing")
            assert 0.2 <= time.monotonic() - began < 2, "the timeout was not kept"

    def test_store_wait_needs_all_keys(self, stores: Stores) -> None:
        """`wait` blocks until every key is there, and its own timeout comes before the store's."""
        one, other = stores(), stores()
        one.wait([])
        one.set("a", b"")
        one.wait(["a"], _SHORT)
        _assert_times_out(lambda: one.wait(["a", "b"], _SHORT), "b")
        waited = in_thread(partial(one.wait, ["a", "b", "c"]), "wait")
        other.set("c", b"")
        other.set("b", b"")
        result_of(waited, "wait of the store")

    def test_store_check_tells_whether_all_are_there(self, store: KeyValueStore) -> None:
        """`check` does not wait."""
        store.multi_set(["a", "b"], [b"", b"x"])
        assert store.check(["a", "b"])
        assert store.check([])
        assert not store.check(["a", "c"])

    def test_store_multi_set_and_multi_get(self, store: KeyValueStore) -> None:
        """Several keys at once, in the order that was asked for."""
        store.multi_set(["a", "b", "c"], ["1", b"2", "3"])
        assert store.multi_get(["c", "a", "b"]) == [b"3", b"1", b"2"]
        assert store.multi_get([]) == []

    def test_store_delete_key_tells_whether_it_was_there(self, store: KeyValueStore) -> None:
        """A deleted key is gone, and can be set again."""
        store.set("key", b"x")
        assert store.delete_key("key")
        assert not store.check(["key"])
        assert not store.delete_key("key")
        assert store.num_keys() == 0
        store.set("key", b"y")
        assert store.get("key") == b"y"

    @pytest.mark.parametrize("hangs", [1, 2], ids=["first request", "second request"])
    def test_store_request_that_comes_late_brings_nothing_back(
        self, clients: Clients, monkeypatch: pytest.MonkeyPatch, hangs: int
    ) -> None:
        """A write whose request hung is sent again, and its key deleted: that the first one is done in the end does
        not bring the key back, also if another process deletes it."""
        client = clients()
        store, other = KeyValueStore(client, timeout=_LONG), KeyValueStore(clients(), timeout=_LONG)
        for name, deleter in ("mine", store), ("another's", other):
            with monkeypatch.context() as patch:
                held = _hold_back_put(client, hangs, patch)
                store.set(name, "0")
                store.append(name, "1")
            assert deleter.delete_key(name)
            for request in held:
                with_retries(request)
            assert not store.check([name]), f"a write that came late brought back a key that was deleted ({name})"

    def test_store_attempt_that_comes_late_makes_no_key(
        self, request: pytest.FixtureRequest, clients: Clients, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While an attempt to make a key hangs, another makes it, so that this one does not; then that one deletes it.
        The attempt that arrives in the end makes no key."""
        client = clients()
        store, other = KeyValueStore(client, timeout=_LONG), KeyValueStore(clients(), timeout=_LONG)
        with monkeypatch.context() as patch:
            held = _hold_back_put(client, 1, patch, lambda: other.set("key", "7"))
            answer = store.compare_set("key", "", "0")
        if not held:
            leave_out(request.node, Verdict.NOT_NEEDED, "its store makes no attempts: the service has calls for it")
        assert answer == b"7"
        assert other.delete_key("key")
        for late in held:
            with_retries(late)
        assert not store.check(["key"]), "a `compare_set` that had found another value wrote its own much later"

    def test_store_add_counts(self, store: KeyValueStore) -> None:
        """`add` begins at zero, takes negative numbers, and its numbers are decimal text."""
        assert store.add("n", 5) == 5
        assert store.add("n", -7) == -2
        assert store.get("n") == b"-2"
        store.set("n", "10")
        assert store.add("n", 1) == 11
        assert store.add("n", 0) == 11

    def test_store_add_loses_no_count(self, stores: Stores, processes: Processes) -> None:
        """Processes that add at once are all counted, and no two get the same number."""

        def add(store: KeyValueStore, process: int) -> list[int]:
            return [store.add("n", 1) for _ in range(20)]

        numbers = sorted(chain.from_iterable(processes.together(stores, add, _PROCESSES)))
        assert numbers == list(range(1, 20 * _PROCESSES + 1)), "an `add` was lost, or counted twice"

    def test_store_compare_set(self, store: KeyValueStore) -> None:
        """It writes if the value is the expected one, or none is there and none expected; it tells the value."""
        assert store.compare_set("key", "other", "x") == b"other"
        assert not store.check(["key"]), "`compare_set` created a key although a value was expected"
        assert store.compare_set("key", "", "first") == b"first"
        assert store.compare_set("key", "", "second") == b"first"
        assert store.compare_set("key", b"first", b"second") == b"second"
        assert store.compare_set("key", "first", "third") == b"second"
        assert store.get("key") == b"second"

    def test_store_append(self, store: KeyValueStore) -> None:
        """`append` creates the key, or lengthens its value."""
        store.append("key", "a")
        store.append("key", b"\0b")
        assert store.get("key") == b"a\0b"

    @pytest.mark.parametrize("hangs", [1, 2], ids=["first request", "second request"])
    @pytest.mark.parametrize("is_new", [True, False], ids=["new key", "old key"])
    def test_store_request_that_comes_late_undoes_nothing(
        self, clients: Clients, monkeypatch: pytest.MonkeyPatch, is_new: bool, hangs: int
    ) -> None:
        """A write whose request hung somewhere is sent again; that the first one is done in the end does no harm."""
        client = clients()
        store, other = KeyValueStore(client, timeout=_LONG), KeyValueStore(clients(), timeout=_LONG)
        writes: dict[str, Callable[[str], object]] = {
            "set": lambda key: store.set(key, "0"),
            "add": lambda key: store.add(key, 0),
            "append": lambda key: store.append(key, "0"),
            "compare_set": lambda key: store.compare_set(key, "" if is_new else "7", "0"),
        }
        for name, write in writes.items():
            if not is_new:
                other.set(name, "7")
            with monkeypatch.context() as patch:
                held = _hold_back_put(client, hangs, patch)
                write(name)
            numbers = [other.add(name, 1), other.add(name, 1)]
            for request in held:
                with_retries(request)
            assert int(other.get(name)) == numbers[-1], f"a `{name}` that came late undid what others have added since"

    def test_store_queue_is_first_in_first_out(self, stores: Stores) -> None:
        """What is pushed first is popped first, by any client; a queue is not listed among the keys."""
        one, other = stores(), stores()
        assert one.queue_len("queue") == 0
        for item in ("1", b"2", b"", "4"):
            one.queue_push("queue", item)
        assert other.queue_len("queue") == 4
        assert [other.queue_pop("queue"), one.queue_pop("queue"), other.queue_pop("queue", block=False)] == [
            b"1",
            b"2",
            b"",
        ]
        assert one.queue_len("queue") == 1
        assert one.list_keys() == []

    def test_store_queue_pop_waits(self, stores: Stores) -> None:
        """`queue_pop` blocks until something is pushed, or until the store's timeout; if asked to, not at all."""
        one, other = stores(), stores()
        popped = in_thread(partial(one.queue_pop, "queue"), "queue_pop")
        other.queue_push("queue", b"x")
        assert result_of(popped, "queue_pop of the store") == b"x"
        _assert_times_out(lambda: one.queue_pop("queue", block=False), "queue")
        one.set_timeout(_SHORT)
        _assert_times_out(lambda: one.queue_pop("queue"), "queue")

    def test_store_queue_gives_each_item_once(self, stores: Stores, processes: Processes) -> None:
        """Processes that pop at once share the items: none is lost, none is given twice."""
        items = [f"{number}" for number in range(10 * _PROCESSES)]

        def pop(store: KeyValueStore, process: int) -> list[str]:
            return [store.queue_pop("queue").decode() for _ in range(10)]

        def push(link: Link) -> None:
            store = stores()
            for item in items:
                store.queue_push("queue", item)

        processes.fork(push)
        popped = processes.together(stores, pop, _PROCESSES)
        assert sorted(chain.from_iterable(popped)) == sorted(items), "an item was lost, or given twice"

    def test_store_barrier_opens_for_the_last(self, stores: Stores, processes: Processes) -> None:
        """No member passes a barrier before all have come."""

        def come(store: KeyValueStore, process: int) -> int:
            store.add("came", 1)
            store.barrier("barrier", _PROCESSES)
            return int(store.get("came"))

        assert processes.together(stores, come, _PROCESSES) == [_PROCESSES] * _PROCESSES, "a barrier opened too early"
        _assert_times_out(lambda: stores().barrier("alone", 2, _SHORT), "alone")

    def test_store_clone_shares_the_keys(self, store: KeyValueStore) -> None:
        """A clone sees the same keys, with a timeout of its own."""
        clone = store.clone()
        store.set("key", b"x")
        assert clone.get("key") == b"x"
        assert clone.timeout == store.timeout
        clone.set_timeout(_SHORT)
        assert store.timeout == _LONG


def _hold_back_put(
    client: KeyValueBackend, number: int, patch: pytest.MonkeyPatch, meanwhile: Callable[[], None] = lambda: None
) -> list[Callable[[], PutResult]]:
    """Have one of a client's next puts hang on its way, whichever call makes it; returns what lets it arrive.

    `meanwhile` happens before its caller learns that there is no answer.
    """
    put, calls = client.put, itertools.count(1)
    held: list[Callable[[], PutResult]] = []

    def hanging(key: str, value: bytes, **kwargs: Any) -> PutResult:
        if next(calls) != number:
            return put(key, value, **kwargs)
        held.append(lambda: put(key, value, **kwargs))
        meanwhile()
        return PutResult(PutOutcome.UNKNOWN)

    patch.setattr(client, "put", hanging)
    return held


def _assert_times_out(call: Callable[[], object], name: str) -> None:
    error = refusal(call, RendezvousTimeoutError)
    assert name in str(error), f"the error does not name '{name}': {error}"
