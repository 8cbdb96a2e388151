"""The store of a round on a TCPStore: torch's own calls, with what rdzv promises besides."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from rdzv import RendezvousParameters, RendezvousTimeoutError, get_rendezvous_handler
from rdzv_conformance import Connect
from rdzv_conformance.meanwhile import in_background
from rdzv_conformance.suite.store import StoreConformance
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError

from rdzv_c10d.backend import C10dRendezvousBackend
from rdzv_c10d.round_store import RoundStore
from rdzv_c10d.store import stores

from .clients import CALL, ForkedStore, tcp_client
from .clients import Connect as ConnectTcp

_LONG = timedelta(seconds=CALL)


class TestRoundStore(StoreConformance):
    """It does what every store of rdzv does."""

    @pytest.fixture
    def connect(self, shared_store: ForkedStore) -> Connect:
        return lambda run_id: tcp_client(shared_store.endpoint, run_id)

    @pytest.fixture(autouse=True)
    def is_a_round_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the suite makes on a client is one."""
        monkeypatch.setattr("rdzv_conformance.suite.store.KeyValueStore", RoundStore)


@pytest.fixture
def store(server: ForkedStore, connect: ConnectTcp) -> RoundStore:
    return RoundStore(connect(server.endpoint), timeout=_LONG)


def test_a_counter_holds_a_number(store: RoundStore) -> None:
    for value in ("7x", "abc", b"\xff"):
        store.set("value", value)
        with pytest.raises(RendezvousParameterError, match="whole number"):
            store.add("value", 1)
    store.add("count", 2**63 - 2)
    with pytest.raises(RendezvousParameterError, match="64 bits"):
        store.add("count", 2)
    assert store.add("count", 1) == 2**63 - 1


def test_a_counter_that_was_replaced_is_looked_at_again(store: RoundStore) -> None:
    assert store.add("count", 1) == 1
    for replace in (
        lambda: store.set("count", "7x"),
        lambda: store.append("count", "x"),
        lambda: store.compare_set("count", "7xx", "8x"),
    ):
        replace()
        with pytest.raises(RendezvousParameterError, match="whole number"):
            store.add("count", 1)


@pytest.mark.parametrize(("value", "amount"), [("-1", -(2**63)), ("9999999999999999999", 1), ("1", 2**63 - 1)])
def test_a_sum_beyond_64_bits_changes_nothing(store: RoundStore, value: str, amount: int) -> None:
    store.set("count", value)
    with pytest.raises(RendezvousParameterError, match="64 bits"):
        store.add("count", amount)
    assert store.get("count") == value.encode()


def test_a_value_that_torch_does_not_take_is_refused(store: RoundStore) -> None:
    store.set("key", bytes(8 << 20))
    with pytest.raises(RendezvousParameterError, match="8388608"):
        store.set("key", bytes((8 << 20) + 1))
    assert len(store.get("key")) == 8 << 20


def test_what_is_no_text_is_refused(store: RoundStore) -> None:
    wrong: Any = 7
    for call in (
        lambda: store.set(wrong, b""),
        lambda: store.set("key", wrong),
        lambda: store.wait(wrong),
        lambda: store.wait("text"),
        lambda: store.check([wrong]),
        lambda: store.add("key", wrong.__str__()),
        lambda: store.barrier(wrong, 1),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(RendezvousParameterError):
        store.multi_set(["a"], [])


def test_stores_within_it_have_their_own_keys(store: RoundStore) -> None:
    store.scoped("a").set("b", b"1")
    store.scoped("a").scoped("b").set("c", b"2")
    store.set("a/b", b"3")
    store.set("a//b", b"4")
    assert sorted(store.list_keys()) == ["a//b", "a/b"]
    assert store.scoped("a").list_keys() == ["b"]
    assert store.scoped("a").get("b") == b"1"


def test_a_round_is_removed_with_its_store(server: ForkedStore, connect: ConnectTcp) -> None:
    backend = connect(server.endpoint)
    rounds = [RoundStore(backend).scoped(f"{number}").scoped("store") for number in (1, 11)]
    for store in rounds:
        store.set("key", b"x")
        store.add("count", 1)
        store.queue_push("queue", b"item")
    backend.delete("rounds/1", timeout=CALL)
    assert rounds[0].list_keys() == []
    assert rounds[0].queue_len("queue") == 0
    assert sorted(rounds[1].list_keys()) == ["count", "key"]
    assert rounds[1].queue_len("queue") == 1
    host, _, port = server.endpoint.partition(":")
    client = stores().TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    assert not [key for key in client.list_keys() if "rounds/1/" in key]


@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_who_waits_is_woken_at_once(store: RoundStore, delay: float) -> None:
    """Also who has waited so long that a thread does."""
    with in_background(lambda: store.get("late")) as waiting:
        time.sleep(delay)
        store.set("late", b"x")
        began = time.monotonic()
        assert waiting.result(CALL) == b"x"
        assert time.monotonic() - began < 1


def test_a_queue_is_no_value(store: RoundStore) -> None:
    store.queue_push("name", b"x")
    store.wait(["name"])
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(RendezvousTimeoutError, match="name"):
        store.get("name")


def test_a_wait_for_what_is_of_the_other_kind_asks_seldom(store: RoundStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    ask = C10dRendezvousBackend.call_in_order

    def counted(backend: C10dRendezvousBackend, work: Callable[[Any], Any], seconds: float) -> Any:
        asked.append(seconds)
        return ask(backend, work, seconds)

    monkeypatch.setattr(C10dRendezvousBackend, "call_in_order", counted)
    store.queue_push("queue", b"x")
    store.set("value", b"x")
    store.set_timeout(timedelta(seconds=1))
    waits: list[Callable[[], bytes]] = [lambda: store.get("queue"), lambda: store.queue_pop("value")]
    for wait in waits:
        asked.clear()
        with pytest.raises(RendezvousTimeoutError):
            wait()
        # Some eight until the pauses are 50 ms, then twenty a second, of two calls each.
        assert len(asked) <= 60


def test_close_ends_every_wait(server: ForkedStore) -> None:
    backend = tcp_client(server.endpoint, "run")
    store = RoundStore(backend)
    with ThreadPoolExecutor(3) as pool:
        pending: list[Future[Any]] = [
            pool.submit(store.get, "missing"),
            pool.submit(store.wait, ["missing"]),
            pool.submit(store.queue_pop, "missing"),
        ]
        time.sleep(0.3)
        began = time.monotonic()
        store.close()
        for one in pending:
            assert isinstance(one.exception(CALL), RendezvousConnectionError)
        assert time.monotonic() - began < 2
    with pytest.raises(RendezvousConnectionError):
        store.set("key", b"x")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rdzv-c10d-store")]


def each_fails_soon(server: ForkedStore, *calls: Callable[[], object]) -> None:
    """Make calls while the host is silent."""
    server.pause()
    try:
        for call in calls:
            began = time.monotonic()
            with pytest.raises(RendezvousConnectionError):
                call()
            assert time.monotonic() - began < 2.5
    finally:
        server.resume()


def test_a_silent_host_is_waited_for_as_long_as_asked(server: ForkedStore, store: RoundStore) -> None:
    store.set("key", b"x")
    store.add("count", 1)
    store.set_timeout(timedelta(seconds=0.5))
    each_fails_soon(server, lambda: store.get("key"), lambda: store.add("count", 1), lambda: store.check(["key"]))
    assert store.get("key") == b"x"


def test_a_silent_host_is_waited_for_as_long_as_the_call_asks(server: ForkedStore, store: RoundStore) -> None:
    """Whatever the timeout of the store is, which is long."""
    store.set("key", b"x")
    store.queue_push("queue", b"x")
    soon = timedelta(seconds=0.5)
    each_fails_soon(
        server,
        lambda: store.wait(["key"], soon),
        lambda: store.barrier("barrier", 2, soon),
        lambda: store.queue_pop("queue", block=False),
    )


def test_a_silent_host_holds_one_thread(server: ForkedStore, store: RoundStore) -> None:
    store.set("key", b"x")
    store.set_timeout(timedelta(seconds=0.1))
    server.pause()
    try:
        for _ in range(3):
            with pytest.raises(RendezvousConnectionError):
                store.get("key")
        assert [thread.name for thread in threading.enumerate()].count("rdzv-c10d-connect") == 1
    finally:
        server.resume()
    assert store.get("key") == b"x"


def test_a_host_that_is_silent_for_a_moment_is_waited_for(server: ForkedStore, store: RoundStore) -> None:
    store.set("key", b"x")
    server.pause()
    with in_background(lambda: store.get("key")) as waiting:
        time.sleep(0.5)
        server.resume()
        assert waiting.result(CALL) == b"x"


def test_after_a_restart_it_goes_on(server: ForkedStore, store: RoundStore) -> None:
    store.set("key", b"x")
    server.kill()
    server.restart()
    assert store.check(["key"]) is False
    store.set("key", b"y")
    assert store.get("key") == b"y"


def test_nodes_and_workers_share_it(server: ForkedStore) -> None:
    params = RendezvousParameters("c10d", server.endpoint, "job", 2, 2, is_host=False, keep_alive_interval=0.5)
    handlers = [get_rendezvous_handler(params) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        infos = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
        assert all(isinstance(info.store, RoundStore) for info in infos)
        infos[0].store.set("greeting", b"hello")
        assert infos[1].store.get("greeting") == b"hello"
        assert infos[1].store.num_keys() == 1
        list(pool.map(lambda handler: handler.shutdown(), handlers))
