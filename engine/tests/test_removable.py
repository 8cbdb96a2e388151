"""Deleted keys: what is removed for good, what leaves a tombstone, and that no request brings a key back."""

import itertools
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from rdzv_core.backend import KeyValueBackend, PutOutcome, PutResult
from rdzv_core.envelope import NONCE_HISTORY

import rdzv.engine.removable as removable_module
import rdzv.store as store_module
from rdzv import RendezvousConnectionError
from rdzv.engine.client import Pauses, RetryingClient
from rdzv.engine.removable import RemovableKeys
from rdzv.store import KeyValueStore

from .memory import Fault, MemoryBackend, MemoryService

LONG = timedelta(seconds=30)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def store(backend: MemoryBackend) -> KeyValueStore:
    return KeyValueStore(backend, timeout=LONG)


@pytest.fixture
def other(backend: MemoryBackend) -> KeyValueStore:
    """Of another process."""
    return KeyValueStore(MemoryBackend(backend.service), timeout=LONG)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pauses, "within", lambda self, left, error: 0.0 if left > 0 else None)
    monkeypatch.setattr(store_module, "backoff", lambda random: itertools.repeat(0.0))


def rows(backend: MemoryBackend) -> list[str]:
    """Every key that the service holds, tombstones too."""
    return [key.removeprefix("run/rounds/") for key in backend.service.entries]


# What stays.


def test_a_job_of_many_steps_leaves_nothing(backend: MemoryBackend) -> None:
    """Each rank writes a key of its own, reads all, and deletes its own of the step before (examples/allreduce.py)."""
    ranks = [KeyValueStore(MemoryBackend(backend.service)).scoped("1") for _ in range(3)]
    for step in range(400):
        for rank, store in enumerate(ranks):
            store.set(f"{step}/{rank}", str(rank))
        for rank, store in enumerate(ranks):
            assert store.multi_get([f"{step}/{one}" for one in range(3)]) == [b"0", b"1", b"2"]
            assert store.delete_key(f"{step - 1}/{rank}") == (step > 0)
    assert len(rows(backend)) == 3


CHANGES: dict[str, tuple[Any, ...]] = {
    "set": ("set", "k", "1"),
    "add": ("add", "k", 1),
    "append": ("append", "k", "1"),
    "compare_set": ("compare_set", "k", "", "1"),
}


def do(store: KeyValueStore, call: tuple[Any, ...]) -> Any:
    method, *arguments = call
    return getattr(store, method)(*arguments)


@pytest.mark.parametrize("call", CHANGES.values(), ids=CHANGES)
def test_the_only_writer_removes_its_key(
    call: tuple[Any, ...], backend: MemoryBackend, store: KeyValueStore, other: KeyValueStore
) -> None:
    for _ in range(3):
        do(store, call)
        store.clone().add("k", 1)
        other.get("k")
        assert store.clone().delete_key("k")
        assert rows(backend) == []
        assert not store.delete_key("k")
    assert not other.check(["k"])


@pytest.mark.parametrize("call", CHANGES.values(), ids=CHANGES)
def test_a_key_of_two_writers_leaves_a_tombstone(
    call: tuple[Any, ...], backend: MemoryBackend, store: KeyValueStore, other: KeyValueStore
) -> None:
    store.set("k", "")
    do(other, call) if call[0] != "add" else other.set("k", "2")
    for one in (store, other):
        one.set("k", "3")
        assert one.delete_key("k")
        assert rows(backend) == ["k"]
        assert not one.check(["k"])


def test_a_key_that_another_deletes_leaves_a_tombstone(backend: MemoryBackend, store: KeyValueStore) -> None:
    store.set("k", "1")
    others = MemoryBackend(backend.service)
    assert KeyValueStore(others).delete_key("k")
    assert others.calls == {"read": 1, "put": 1}
    assert not store.delete_key("k")
    store.set("k", "2")
    assert store.delete_key("k")
    assert rows(backend) == ["k"]


@pytest.mark.parametrize("fault", Fault)
def test_a_key_whose_write_was_not_answered_leaves_a_tombstone(
    fault: Fault, backend: MemoryBackend, store: KeyValueStore
) -> None:
    backend.fail("put", fault)
    store.set("k", "1")
    assert backend.calls == {"put": 2}
    assert store.delete_key("k")
    assert backend.calls == {"put": 3, "read": 1}
    assert rows(backend) == ["k"]
    store.set("k", "2")
    assert store.delete_key("k")
    backend.deliver()
    assert rows(backend) == ["k"]
    assert not store.check(["k"])


def test_a_key_whose_second_write_was_not_answered_leaves_a_tombstone(
    backend: MemoryBackend, store: KeyValueStore
) -> None:
    store.set("k", "1")
    backend.fail("put", None, Fault.DELAYED)
    store.set("k", "2")
    assert store.delete_key("k")
    assert rows(backend) == ["k"]
    assert "delete_version" not in backend.calls


def test_a_tombstone_is_not_removed(backend: MemoryBackend) -> None:
    """Whether it was there is what counts."""
    client, deadline = RetryingClient(backend, "test"), time.monotonic() + 30
    keys = RemovableKeys(client)
    _, version = keys.put("k", b"1", deadline, previous=None)
    keys.put("k", b"", deadline, previous=version, deleted=True)
    assert not keys.remove("k", deadline)


def test_a_key_whose_write_has_failed_leaves_a_tombstone(
    backend: MemoryBackend, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been on its way, and arrive when the key was written anew and deleted."""
    backend.fail("put", Fault.DELAYED)
    with monkeypatch.context() as patch:
        patch.setattr(Pauses, "within", lambda self, left, error: None)
        with pytest.raises(RendezvousConnectionError):
            store.set("k", "1")
    store.set("k", "2")
    assert store.delete_key("k")
    backend.deliver()
    assert not store.check(["k"])


def test_after_too_many_failed_writes_each_key_leaves_a_tombstone(
    backend: MemoryBackend, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are too many to be known."""
    monkeypatch.setattr(removable_module, "KNOWN", 3)
    with monkeypatch.context() as patch:
        patch.setattr(Pauses, "within", lambda self, left, error: None)
        for number in range(4):
            backend.fail("put", Fault.DELAYED)
            with pytest.raises(RendezvousConnectionError):
                store.set(str(number), "1")
    store.set("3", "2")
    assert store.delete_key("3")
    backend.deliver()
    assert not store.check(["3"])
    assert len(store._removable._doubtful) == 3


def test_a_key_may_stand_above_a_queue_of_its_name(backend: MemoryBackend, store: KeyValueStore) -> None:
    store.queue_push("k", "1")
    store.set("k", "2")
    assert store.delete_key("k")
    assert "k" not in rows(backend)
    assert store.queue_pop("k") == b"1"


def test_a_backend_that_cannot_keeps_a_tombstone(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a plugin does that was written before: whatever it declares."""
    monkeypatch.setattr(MemoryBackend, "delete_version", KeyValueBackend.delete_version)
    store = KeyValueStore(backend)
    store.set("k", "1")
    assert store.delete_key("k")
    assert not store.delete_key("k")
    assert rows(backend) == ["k"]


def test_the_latest_keys_are_known(
    backend: MemoryBackend, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removable_module, "KNOWN", 10)
    for number in range(15):
        store.set(str(number), "1")
    for number in range(15):
        assert store.delete_key(str(number))
    assert rows(backend) == ["0", "1", "2", "3", "4"]


def test_a_child_leaves_to_its_parent_what_that_has_made(
    backend: MemoryBackend, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set("k", "1")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert store.delete_key("k")
    assert rows(backend) == ["k"]
    store.set("new", "1")
    assert store.delete_key("new")
    assert rows(backend) == ["k"]


# What gets lost.


@pytest.mark.parametrize("fault", Fault)
def test_a_removal_that_is_not_answered_is_one(fault: Fault, backend: MemoryBackend, store: KeyValueStore) -> None:
    store.set("k", "1")
    backend.fail("delete_version", fault)
    assert store.delete_key("k")
    assert rows(backend) == []
    store.set("k", "2")
    backend.deliver()
    assert store.get("k") == b"2"


class Meanwhile(MemoryBackend):
    """Others do something after each removal whose reply is lost."""

    def __init__(self, service: MemoryService, then: Callable[[], object]) -> None:
        super().__init__(service)
        self._then = then

    def delete_version(self, *args: Any, **kwargs: Any) -> PutOutcome:
        outcome = super().delete_version(*args, **kwargs)
        if outcome is PutOutcome.UNKNOWN:
            self._then()
        return outcome


@pytest.mark.parametrize(
    ("fault", "change", "rows_after"),
    [
        (Fault.REPLY_LOST, ("set", "k", "2"), ["k"]),
        (Fault.REPLY_LOST, ("check", ["k"]), []),
        (Fault.DELAYED, ("set", "k", "2"), ["k"]),
        (Fault.DELAYED, ("delete_key", "k"), ["k"]),
    ],
    ids=["made anew", "gone", "overtaken", "deleted by another"],
)
def test_a_removal_whose_reply_is_lost_finds_out(
    fault: Fault, change: tuple[Any, ...], rows_after: list[str], backend: MemoryBackend, other: KeyValueStore
) -> None:
    mine = Meanwhile(backend.service, lambda: do(other, change))
    store = KeyValueStore(mine, timeout=LONG)
    store.set("k", "1")
    mine.fail("delete_version", fault)
    assert store.delete_key("k") == (change[0] != "delete_key")
    assert rows(backend) == rows_after
    # A removal of what was written first, or a deletion of what another wrote then.
    assert store.check(["k"]) == (fault is Fault.REPLY_LOST and change[0] == "set")


def test_a_removal_that_many_overtake_finds_out(backend: MemoryBackend, other: KeyValueStore) -> None:
    def overtake() -> None:
        for number in range(NONCE_HISTORY + 2):
            other.set("k", str(number))

    mine = Meanwhile(backend.service, overtake)
    store = KeyValueStore(mine, timeout=LONG)
    store.set("k", "first")
    store.set("k", "second")
    mine.fail("delete_version", Fault.DELAYED)
    assert store.delete_key("k")
    assert not other.check(["k"])


def test_a_lost_write_that_others_overtake_for_ever_is_an_error(
    backend: MemoryBackend, other: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Overtaken(MemoryBackend):
        def put(self, *args: Any, **kwargs: Any) -> PutResult:
            other.set("k", "1")
            return super().put(*args, **kwargs)

    mine = Overtaken(backend.service)
    mine.fail("put", Fault.DELAYED)
    with pytest.raises(RendezvousConnectionError, match="Whether 'rounds/k' was written is not known yet"):
        KeyValueStore(mine, timeout=timedelta(seconds=0.1)).compare_set("k", "", "2")


def test_an_attempt_that_finds_no_key_where_one_was_is_made_again(backend: MemoryBackend, other: KeyValueStore) -> None:
    """A service may refute a condition, and look only then what is there: the attempt before hangs still."""

    class Twofold(MemoryBackend):
        def put(self, *args: Any, **kwargs: Any) -> PutResult:
            if self.calls["put"] != 1:
                return super().put(*args, **kwargs)
            other.set("k", "7")
            outcome = super().put(*args, **kwargs).outcome
            other.delete_key("k")
            return PutResult(outcome)

    mine = Twofold(backend.service)
    store = KeyValueStore(mine, timeout=LONG)
    mine.fail("put", Fault.DELAYED)
    store.set("k", "1")
    assert store.delete_key("k")
    mine.deliver()
    assert not store.check(["k"])


# Any faults, in any order.


@dataclass
class Done:
    """A call of the store: when it began and ended, and its answer.

    Attributes:
        call: The method and its arguments.
        began: A number that grows with every begin and end.
        ended: Such a number; infinite: the call has failed, so it may take effect at any later time, or never.
        answer: What it returned.
    """

    call: tuple[Any, ...]
    began: int
    ended: float
    answer: Any = None


def answer_of(call: tuple[Any, ...], value: bytes | None) -> tuple[Any, bytes | None]:
    """What a call answers, and what the key holds then."""
    match call:
        case ("set", _, new):
            return None, new.encode()
        case ("add", _, amount):
            total = int(value or 0) + amount
            return total, b"%d" % total
        case ("append", _, end):
            return None, (value or b"") + end.encode()
        case ("compare_set", _, old, new):
            matches = (value or b"") == old.encode()
            return (new.encode() if matches else old.encode() if value is None else value), (
                new.encode() if matches else value
            )
        case ("delete_key", _):
            return value is not None, None
        case _:
            return value is not None, value


def is_possible(done: list[Done], value: bytes | None, last: bytes | None) -> bool:
    """Whether the calls can have taken effect one after the other, each once, between its begin and its end."""
    first_end = min((one.ended for one in done), default=math.inf)
    if first_end == math.inf and value == last:
        return True
    for one in done:
        if one.began <= first_end:
            answer, after = answer_of(one.call, value)
            fits = one.ended == math.inf or answer == one.answer
            if fits and is_possible([other for other in done if other is not one], after, last):
                return True
    return False


class Trace:
    """Three processes use one key: one's calls meet the faults and the others' calls in between."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = 0
        self.done: list[Done] = []
        service = MemoryService()
        self.others = [MemoryBackend(service), MemoryBackend(service)]
        self.mine = Interrupted(service, self)
        self.backends = [self.mine, *self.others]
        self.stores = [KeyValueStore(backend, timeout=LONG) for backend in self.backends]

    def play(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.mine.fail("put", *self.random.choices([None, *Fault], [4, 1, 2, 4], k=3))
            self.mine.fail("delete_version", *self.random.choices([None, *Fault], [4, 1, 1, 1]))
            self.call(0)
        self.others_act()
        for backend in self.backends:
            backend.deliver()

    def call(self, process: int) -> None:
        self.clock += 1
        began, number = self.clock, str(self.clock + 100)
        calls: list[tuple[Any, ...]] = [
            ("delete_key", "k"),
            ("set", "k", number),
            ("compare_set", "k", "", number),
            ("add", "k", 1),
            ("append", "k", "1"),
            ("check", ["k"]),
        ]
        (call,) = self.random.choices(calls, [6, 2, 4, 1, 1, 1])
        try:
            answer = do(self.stores[process], call)
        except RendezvousConnectionError:
            self.done.append(Done(call, began, math.inf))
        else:
            self.clock += 1
            self.done.append(Done(call, began, self.clock, answer))

    def others_act(self) -> None:
        # A key that has seen more than one writer is never removed: most of the time only one acts.
        while self.random.random() < 0.5:
            (process,) = self.random.choices([1, 2], [9, 1])
            if self.random.random() < 0.1:
                self.backends[process].fail("put", self.random.choice(list(Fault)))
            self.call(process)
        if self.random.random() < 0.05:
            self.random.choice(self.backends).deliver()


class Interrupted(MemoryBackend):
    """Others act before each of its calls, but for those that come late."""

    def __init__(self, service: MemoryService, trace: Trace) -> None:
        super().__init__(service)
        self._trace = trace

    def put(self, *args: Any, **kwargs: Any) -> PutResult:
        self._trace.others_act()
        return super().put(*args, **kwargs)

    def delete_version(self, *args: Any, **kwargs: Any) -> PutOutcome:
        self._trace.others_act()
        return super().delete_version(*args, **kwargs)


_LONG = [pytest.param(seeds, marks=pytest.mark.soak) for seeds in (range(600, 3_000), range(3_000, 30_000))]


@pytest.mark.parametrize("seeds", [range(600), *_LONG], ids=str)
def test_each_call_takes_effect_once_whatever_is_lost_or_late(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = 0
    for seed in seeds:
        trace = Trace(seed)
        # Now and then a call gives up.
        monkeypatch.setattr(Pauses, "within", lambda *_, trace=trace: 0.0 if trace.random.random() < 0.9 else None)
        trace.play()
        last = trace.stores[1]
        value = last.get("k") if last.check(["k"]) else None
        assert is_possible(trace.done, None, value), f"seed {seed}: {trace.done}, and then {value!r}"
        removed += sum(backend.calls["delete_version"] for backend in trace.backends)
    assert removed > len(seeds) / 10
