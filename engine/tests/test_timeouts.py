"""Every error of a time that is over names the backend, and for how long was waited."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from rdzv_core.errors import RendezvousConnectionError, RendezvousError, RendezvousTimeoutError

from rdzv import DynamicRendezvousHandler
from rdzv.engine.records import ROUNDS
from rdzv.settings import RendezvousSettings, RendezvousTimeout
from rdzv.store import KeyValueStore

from .memory import MemoryBackend, MemoryService

SECONDS = 0.6
BUSY = 3.0
"""Seconds that a busy machine may add."""
LONG = 60.0

Node = Callable[..., tuple[DynamicRendezvousHandler, MemoryBackend]]


@pytest.fixture
def node() -> Iterator[Node]:
    """Makes nodes with short timeouts and a long last call, and their backends; they leave in the end.

    What a test needs before its time begins gets longer, `LONG`: to start threads takes a busy machine a while.
    """
    with ExitStack() as stack:
        service = MemoryService()

        def node(
            low: int, high: int, *, join: float = SECONDS, heartbeat: float = SECONDS
        ) -> tuple[DynamicRendezvousHandler, MemoryBackend]:
            times = [timedelta(seconds=seconds) for seconds in (join, LONG, SECONDS, heartbeat)]
            settings = RendezvousSettings("run", low, high, RendezvousTimeout(*times), timedelta(seconds=0.1), 3)
            backend = MemoryBackend(service)
            handler = DynamicRendezvousHandler(settings, backend)
            stack.callback(handler.leave)
            return handler, backend

        yield node


@contextmanager
def late(kind: type[RendezvousError]) -> Iterator[None]:
    """The block raises such an error; it tells the truth about who did not answer, and for how long."""
    began = time.monotonic()
    with pytest.raises(kind) as raised:
        yield
    took = time.monotonic() - began
    said = str(raised.value)
    assert "backend 'memory'" in said
    told = [float(number) for number in re.findall(r"(\d+\.\d) s\b", said)]
    assert told, said
    # What the message says is rounded, and counted from a moment that may be some instructions after that of the
    # deadline.
    assert SECONDS - 0.11 < told[0] <= took + 0.05, said
    assert took < SECONDS + BUSY


class TestRendezvous:
    def test_too_few_come(self, node: Node) -> None:
        handler, _ = node(2, 2, heartbeat=LONG)
        assert not handler.is_closed()
        with late(RendezvousTimeoutError):
            handler.next_rendezvous()

    def test_the_last_call_is_too_long(self, node: Node) -> None:
        handler, _ = node(1, 2, heartbeat=LONG)
        assert not handler.is_closed()
        with late(RendezvousTimeoutError):
            handler.next_rendezvous()

    @pytest.mark.parametrize("call", ["next_rendezvous", "is_closed", "num_nodes_waiting"])
    def test_the_service_was_never_there(self, node: Node, call: str) -> None:
        handler, backend = node(1, 1)
        backend.disconnect("it is not there")
        with late(RendezvousConnectionError):
            getattr(handler, call)()

    def test_the_service_is_away_when_the_run_is_closed(self, node: Node) -> None:
        handler, backend = node(1, 1, join=LONG)
        handler.next_rendezvous()
        backend.disconnect("it is away")
        with late(RendezvousConnectionError):
            handler.set_closed()


@pytest.fixture
def store(node: Node) -> tuple[Any, MemoryBackend]:
    """The store of a round whose timeout is the same, and its backend."""
    handler, backend = node(1, 1, join=LONG)
    store = handler.next_rendezvous().store
    store.set_timeout(timedelta(seconds=SECONDS))
    return store, backend


Use = Callable[[KeyValueStore], object]


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.get("key"),
        lambda store: store.wait(["key", "other"]),
        lambda store: store.multi_get(["key", "other"]),
        lambda store: store.queue_pop("queue"),
        lambda store: store.barrier("here", 2),
    ],
    ids=["get", "wait", "multi_get", "queue_pop", "barrier"],
)
def test_what_is_waited_for_in_the_store_does_not_come(store: tuple[Any, MemoryBackend], use: Use) -> None:
    with late(RendezvousTimeoutError):
        use(store[0])


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.set("key", "value"),
        lambda store: store.add("counter", 1),
        lambda store: store.compare_set("key", "", "value"),
        lambda store: store.check(["key"]),
        lambda store: store.delete_key("key"),
        lambda store: store.queue_len("queue"),
    ],
    ids=["set", "add", "compare_set", "check", "delete_key", "queue_len"],
)
def test_the_service_is_away_when_the_store_is_used(store: tuple[Any, MemoryBackend], use: Use) -> None:
    store[1].disconnect("it is away")
    with late(RendezvousConnectionError):
        use(store[0])


def test_others_are_always_faster(store: tuple[Any, MemoryBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    one, backend = store
    other = KeyValueStore(MemoryBackend(backend.service), ROUNDS).scoped("1").scoped("store")
    put = backend.put

    def overtaken(key: str, value: bytes, **how: Any) -> Any:
        if key.endswith("counter"):
            other.add("counter", 1)
        return put(key, value, **how)

    monkeypatch.setattr(backend, "put", overtaken)
    with late(RendezvousTimeoutError):
        one.add("counter", 1)
