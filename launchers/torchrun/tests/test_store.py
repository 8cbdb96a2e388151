"""The store does in torch's hands what torch's own stores do."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import rdzv
import torch.distributed as dist
from rdzv_sqlite import SqliteBackend
from torch.distributed import DistNetworkError, DistStoreError, HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.utils import store as store_util

from rdzv_torchrun.store import TorchStore

STEPS: list[tuple[Any, ...]] = [
    ("set", "text", "a"),
    ("set", "bytes", b"\x00\xff"),
    ("get", "text"),
    ("get", "bytes"),
    ("add", "count", 5),
    ("add", "count", -7),
    ("get", "count"),
    ("check", ["text", "bytes"]),
    ("check", ["text", "missing"]),
    ("compare_set", "text", "a", "b"),
    ("compare_set", "text", "a", "c"),
    ("compare_set", "new", "", "d"),
    ("append", "text", "more"),
    ("append", "other", "start"),
    ("multi_set", ["x", "y"], ["1", b"2"]),
    ("multi_get", ["y", "x", "text", "other"]),
    ("wait", ["x", "y"]),
    ("wait", ["x", "y"], timedelta(seconds=1)),
    ("num_keys",),
    ("delete_key", "x"),
    ("delete_key", "x"),
    ("check", ["x"]),
    ("has_extended_api",),
]
QUEUE: list[tuple[Any, ...]] = [
    ("queue_len", "q"),
    ("queue_push", "q", "a"),
    ("queue_push", "q", b"\x00"),
    ("queue_len", "q"),
    ("queue_pop", "q"),
    ("queue_pop", "q", False),
    ("queue_len", "q"),
]
SHORT = timedelta(milliseconds=200)


def take(steps: list[tuple[Any, ...]], store: Any) -> list[Any]:
    """What a store answers to one call after the other."""
    return [getattr(store, method)(*arguments) for method, *arguments in steps]


@pytest.fixture
def theirs() -> Any:
    """A store of torch's own."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_it_answers_as_torchs_own(store: TorchStore, theirs: Any) -> None:
    assert isinstance(store, Store)
    assert take(STEPS, store) == take(STEPS, theirs)
    assert take(QUEUE, store) == take(QUEUE, theirs)
    assert sorted(store.list_keys()) == ["bytes", "count", "new", "other", "text", "y"]


def test_it_answers_the_same_in_a_prefix_store(store: TorchStore) -> None:
    inside = PrefixStore("part", store)
    assert take(STEPS, inside) == take(STEPS, PrefixStore("part", HashStore()))
    assert store.get("part/y") == b"2"


def test_torchs_own_check_of_a_store_in_python(store: TorchStore) -> None:
    dist._test_python_store(store)  # type: ignore[attr-defined]
    assert store.num_keys() > 0


@pytest.mark.parametrize("prefixed", [False, True])
def test_the_timeout_is_torchs(store: TorchStore, prefixed: bool) -> None:
    seen = PrefixStore("part", store) if prefixed else store
    assert store.timeout == timedelta(seconds=300)
    with store_util.store_timeout(seen, 0.2):
        assert store.timeout == SHORT
        started = time.monotonic()
        with pytest.raises(DistStoreError, match="missing"):
            seen.get("missing")
        assert 0.2 <= time.monotonic() - started < 2
    assert store.timeout == timedelta(seconds=300)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("get", ("missing",)),
        ("multi_get", (["missing", "other"],)),
        ("wait", (["missing"],)),
        ("wait", (["missing"], SHORT)),
        ("queue_pop", ("missing",)),
        ("barrier", ("missing", 2)),
        ("barrier", ("missing", 2, SHORT)),
    ],
)
def test_what_does_not_come_in_time_is_torchs_error(store: TorchStore, method: str, arguments: tuple[Any, ...]) -> None:
    store.set_timeout(SHORT)
    with pytest.raises(DistStoreError, match=r"timeout.*missing") as caught:
        getattr(store, method)(*arguments)
    assert isinstance(caught.value.__cause__, rdzv.RendezvousTimeoutError)


def test_an_empty_queue_is_torchs_error(store: TorchStore) -> None:
    with pytest.raises(dist.QueueEmptyError) as caught:
        store.queue_pop("q", False)
    assert "timeout" not in str(caught.value)


def test_a_service_out_of_reach_is_torchs_error(database: str) -> None:
    ours = rdzv.KeyValueStore(SqliteBackend(database, "job"))
    store = TorchStore(ours)
    ours.close()
    for step in (("set", "a", "b"), ("get", "a"), ("add", "n", 1), ("queue_pop", "q", False)):
        with pytest.raises(DistNetworkError):
            take([step], store)


def test_what_cannot_be_done_is_an_error_that_says_so(store: TorchStore) -> None:
    store.set("word", "x")
    with pytest.raises(ValueError, match="word"):
        store.add("word", 1)


def test_a_clone_lives_as_long_as_the_store(store: TorchStore) -> None:
    store.set_timeout(SHORT)
    clone = PrefixStore("part", store).clone()  # type: ignore[attr-defined]
    gc.collect()
    clone.set("a", "b")
    assert store.get("part/a") == b"b"
    clone.set_timeout(timedelta(seconds=5))
    assert store.timeout == SHORT


def test_torchs_helpers_for_agents(store: TorchStore, threads: ThreadPoolExecutor) -> None:
    stores = [store.clone() for _ in range(4)]

    def synchronize(rank: int) -> list[bytes]:
        return store_util.synchronize(stores[rank], f"rank {rank}".encode(), rank, 4, "all/", timeout=30)

    assert list(threads.map(synchronize, range(4))) == [[b"rank 0", b"rank 1", b"rank 2", b"rank 3"]] * 4
    done = threads.map(lambda one: store_util.barrier(one, 4, "barrier", barrier_timeout=30), stores)
    assert list(done) == [None] * 4
    done = threads.map(lambda one: one.barrier("another", 4), stores)
    assert list(done) == [None] * 4
    with pytest.raises(DistStoreError, match="missing_ranks"):
        store_util.barrier(store, 2, "alone", barrier_timeout=0.2, rank=0, trace_timeout=0.1)


def test_a_wait_that_is_given_up_ends(
    store: TorchStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    waiting = TorchStore(store._store, lambda: reasons[0] if reasons else None)
    soon = threads.submit(waiting.get, "missing")
    late = threads.submit(waiting.multi_get, ["there"])
    with pytest.raises(TimeoutError):
        # Longer than it takes to ask once.
        soon.result(timeout=1.2)
    store.set("there", "yes")
    assert late.result(timeout=10) == [b"yes"]
    reasons.append("A node died.")
    with pytest.raises(DistStoreError, match="A node died"):
        soon.result(timeout=10)
    # A key that exists needs no waiting.
    assert waiting.get("there") == b"yes"
    monkeypatch.setattr("rdzv_torchrun.store._LOOK", timedelta(seconds=60))
    started = time.monotonic()
    with pytest.raises(DistStoreError, match="A node died"):
        waiting.wait(["missing"])
    assert time.monotonic() - started < 30


def test_a_wait_that_is_not_given_up_ends_in_time(store: TorchStore) -> None:
    waiting = TorchStore(store._store, lambda: None)
    waiting.set_timeout(timedelta(seconds=1.5))
    started = time.monotonic()
    with pytest.raises(DistStoreError, match=r"timeout: 1\.5 s are over"):
        waiting.get("missing")
    assert 1.5 <= time.monotonic() - started < 5
