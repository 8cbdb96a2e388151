"""Registers: classes written for PyTorch's contract, with its errors and its ambiguities, under the handler."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import rdzv_core.backend as backend_module
from rdzv_core.backend import ABSENT, ANY, PutOutcome, RendezvousBackend, Snapshot, Token
from rdzv_core.envelope import Envelope
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError, RendezvousStateError

from rdzv import DynamicRendezvousHandler
from rdzv.engine.failures import KEEP, LEAD, WATCH
from rdzv.engine.register_adapter import RegisterAdapter
from rdzv.settings import RendezvousSettings, RendezvousTimeout

from .memory import Fault, MemoryService, SlowBackend

INTERVAL = 0.1
CALL = 5.0


class Value:
    """What a register's service holds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state: bytes | None = None
        self.token = 0
        self.breaks: Callable[[], None] = lambda: None


class Silent:
    """As PyTorch's own tests have it: no class of rdzv, and `set_state` returns None whatever it has done."""

    name = "silent"

    def __init__(self, value: Value) -> None:
        self._value = value

    def get_state(self) -> tuple[bytes, Token] | None:
        self._value.breaks()
        with self._value.lock:
            return None if self._value.state is None else (self._value.state, self._value.token)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        self._value.breaks()
        with self._value.lock:
            if token == (None if self._value.state is None else self._value.token):
                self._value.state, self._value.token = state, self._value.token + 1
        return None


class Exact(Silent):
    """One that tells what it has done."""

    name = "exact"

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        super().set_state(state, token)
        there = self.get_state()
        return None if there is None else (*there, there[0] == state)


class Deaf(Silent):
    """One that takes every state and keeps none."""

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        return None


class _TorchError(Exception):
    """PyTorch's family has the names of rdzv's, and nothing else in common."""


StrangeConnectionError = type("RendezvousConnectionError", (_TorchError,), {})
StrangeStateError = type("RendezvousStateError", (_TorchError,), {})


def node(register: Any, low: int = 1, high: int = 4, join: float = 20.0) -> DynamicRendezvousHandler:
    """A handler on a register."""
    settings = RendezvousSettings(
        "run",
        low,
        high,
        RendezvousTimeout(*(timedelta(seconds=seconds) for seconds in (join, 0.2, 5, 2))),
        timedelta(seconds=INTERVAL),
        5,
    )
    return DynamicRendezvousHandler(settings, register)


def until(condition: Callable[[], Any], limit: float = 30.0) -> None:
    """Wait for something that other threads bring about."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


@pytest.fixture
def ended() -> Iterator[ExitStack]:
    """What is to be ended after the test."""
    with ExitStack() as stack:
        yield stack


def keys_of(register: Any) -> RegisterAdapter:
    """The keys in a register of any class."""
    return RegisterAdapter(register)


@pytest.mark.parametrize("kind", [Silent, Exact])
def test_nodes_gather_whatever_set_state_returns(kind: type[Silent], ended: ExitStack) -> None:
    value = Value()
    pool = ended.enter_context(ThreadPoolExecutor(3))
    nodes = [node(kind(value), low=3) for _ in range(3)]
    for each in nodes:
        ended.callback(each.leave)
    worlds = [one.result(CALL * 6) for one in [pool.submit(each.next_rendezvous) for each in nodes]]
    assert [world.world_size for world in worlds] == [3, 3, 3]
    assert sorted(world.rank for world in worlds) == [0, 1, 2]


def test_a_register_that_keeps_nothing_is_an_error_in_time(ended: ExitStack) -> None:
    handler = node(Deaf(Value()), join=1.0)
    ended.callback(handler.leave)
    began = time.monotonic()
    with pytest.raises(RendezvousError):
        handler.next_rendezvous()
    # Generous for a busy machine; it was for ever.
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    "error",
    [
        lambda: StrangeConnectionError("the store has failed"),
        lambda: OSError("no route"),
        lambda: RuntimeError("torch"),
    ],
    ids=["PyTorch's", "Python's", "torch's old ones"],
)
def test_an_outage_that_a_strange_error_tells_of_costs_nothing(
    error: Callable[[], Exception], ended: ExitStack
) -> None:
    value = Value()
    old, late = node(Exact(value)), node(Exact(value))
    for each in (old, late):
        ended.callback(each.leave)
    assert old.next_rendezvous().world_size == 1

    met: set[str] = set()

    def fail() -> None:
        met.add(threading.current_thread().name)
        raise error()

    value.breaks = fail
    until(lambda: met >= {f"rdzv-{loop}-{old.view.node_id}" for loop in (WATCH, KEEP, LEAD)})
    until(lambda: old.view.connection_error is not None)
    value.breaks = lambda: None
    pool = ended.enter_context(ThreadPoolExecutor(2))
    joined = pool.submit(late.next_rendezvous)
    until(lambda: old.num_nodes_waiting() == 1)
    assert pool.submit(old.next_rendezvous).result(CALL * 4).world_size == 2
    assert joined.result(CALL * 4).world_size == 2


def test_an_error_of_a_strange_class_is_in_our_words() -> None:
    value = Value()
    keys = keys_of(Exact(value))
    cases: list[tuple[Exception, type[Exception], bool]] = [
        (StrangeConnectionError("away"), RendezvousConnectionError, True),
        (StrangeStateError("pickled"), RendezvousStateError, False),
        (ConnectionResetError("reset"), RendezvousConnectionError, True),
        (RuntimeError("of a library"), RendezvousConnectionError, True),
        (type("RedisError", (Exception,), {})("of a client"), RendezvousConnectionError, True),
        (TypeError("a mistake"), RendezvousError, False),
        (RendezvousDeniedError("ours"), RendezvousDeniedError, True),
    ]
    for error, expected, is_connection in cases:

        def fail(error: Exception = error) -> None:
            raise error

        value.breaks = fail
        for call in (
            lambda: keys.read("a", timeout=CALL),
            lambda: keys.delete("a", timeout=CALL),
            lambda: keys.wait("a", Snapshot(), timeout=CALL),
        ):
            with pytest.raises(expected) as caught:
                call()
            assert isinstance(caught.value, RendezvousConnectionError) is is_connection
            assert caught.value is error or caught.value.__cause__ is error
            assert str(error) in str(caught.value)


def test_a_write_whose_reply_was_lost_is_unknown() -> None:
    value = Value()

    class LosesReplies(Exact):
        def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
            super().set_state(state, token)
            raise StrangeConnectionError("no reply")

    losing, keys = keys_of(LosesReplies(value)), keys_of(Exact(value))
    assert losing.put("a", b"x", expect=ABSENT, timeout=CALL).outcome is PutOutcome.UNKNOWN
    entry = keys.read("a", timeout=CALL)
    assert entry is not None
    assert losing.delete_version("a", entry.token, timeout=CALL) is PutOutcome.UNKNOWN
    assert keys.read("a", timeout=CALL) is None


def test_a_key_is_removed_if_it_has_the_version() -> None:
    keys = keys_of(Exact(Value()))
    old = keys.put("a", b"x", expect=ANY, timeout=CALL).entry
    below = keys.put("a/b", b"x", expect=ANY, timeout=CALL).entry
    new = keys.put("a", b"x", expect=ANY, timeout=CALL).entry
    assert old is not None
    assert new is not None
    assert keys.delete_version("a", old.token, timeout=CALL) is PutOutcome.CONFLICT
    assert keys.read("a", timeout=CALL) == new
    assert keys.delete_version("a", new.token, timeout=CALL) is PutOutcome.APPLIED
    assert keys.delete_version("a", new.token, timeout=CALL) is PutOutcome.CONFLICT
    assert keys.read_all("a", timeout=CALL).entries == {"a/b": below}
    again = keys.put("a", b"x", expect=ABSENT, timeout=CALL).entry
    assert again is not None
    assert again.token not in (old.token, new.token)


@pytest.mark.parametrize("others", [0, 1, 40])
def test_a_write_of_which_nothing_is_said_is_found_among_later_ones(others: int) -> None:
    value = Value()
    other = keys_of(Exact(value))

    class Overtaken(Silent):
        def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
            super().set_state(state, token)
            for number in range(others):
                other.put("other", b"%d" % number, expect=ANY, timeout=CALL)
            return None

    keys = keys_of(Overtaken(value))
    won = keys.put("a", b"x", expect=ABSENT, timeout=CALL)
    assert won.outcome is PutOutcome.APPLIED
    assert won.entry == keys.read("a", timeout=CALL)
    assert keys.put("a", b"x", expect=ABSENT, timeout=CALL).outcome is PutOutcome.CONFLICT


class Slow(RendezvousBackend):
    """A register whose calls take time, on the test's clock."""

    def __init__(self, takes: float) -> None:
        self.now = 100.0
        self.began: list[float] = []
        self._register = Exact(Value())
        self._takes = takes

    @property
    def name(self) -> str:
        return "slow"

    def _pass(self) -> None:
        self.began.append(self.now)
        self.now += self._takes

    def get_state(self) -> tuple[bytes, Token] | None:
        self._pass()
        return self._register.get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        self._pass()
        there = self._register.get_state()
        return (*there, False) if there else None

    def wait_state(self, token: Token | None, timeout: float) -> None:
        self._pass()


def calls_of(keys: RegisterAdapter) -> list[Callable[[], Any]]:
    """Every call that takes a timeout."""
    return [
        lambda: keys.read("a", timeout=1.0),
        lambda: keys.read_all("a", timeout=1.0),
        lambda: keys.put("a", b"x", expect=ABSENT, timeout=1.0),
        lambda: keys.delete("a", timeout=1.0),
        lambda: keys.delete_version("a", 1, timeout=1.0),
        lambda: keys.wait("a", Snapshot(), timeout=1.0),
    ]


@pytest.mark.parametrize("takes", [0.1, 0.4, 0.6, 0.9, 1.5])
def test_no_call_of_a_register_begins_after_the_deadline(takes: float) -> None:
    slow = Slow(takes)
    keys = RegisterAdapter(slow, clock=lambda: slow.now, sleep=lambda seconds: setattr(slow, "now", slow.now + seconds))
    for call in calls_of(keys):
        slow.began.clear()
        start = slow.now
        with suppress(RendezvousConnectionError):
            call()
        assert slow.began
        assert max(slow.began) < start + 1.0


def test_after_close_every_call_is_an_error() -> None:
    keys = keys_of(Exact(Value()))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(keys.wait, "a", Snapshot(), timeout=60.0)
        keys.close()
        with pytest.raises(RendezvousConnectionError, match="is closed"):
            waiting.result(CALL)
    for call in calls_of(keys):
        with pytest.raises(RendezvousConnectionError, match="is closed"):
            call()


def test_the_register_of_a_backend_with_keys_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowBackend(MemoryService())
    monkeypatch.setattr(backend_module, "time", slow)
    slow.fail("put", Fault.REPLY_LOST)
    began = slow.now
    written = slow.set_state(b"1")
    assert written is not None
    assert written[2], "it finds out that it was itself who wrote"
    assert began < slow.latest <= began + slow.register_timeout


@pytest.mark.parametrize("entry", ["not ours", None, {}, ["?", 1, 1], ["", "x", 1], ["", 1e999, 1], ["", 1, None], 7])
def test_a_key_that_cannot_be_read_costs_only_who_reads_it(entry: Any) -> None:
    value = Value()
    keys = keys_of(Exact(value))
    keys.put("nodes/a", b"of a", expect=ABSENT, timeout=CALL)
    keys.put("nodes/b", b"of b", expect=ABSENT, timeout=CALL)
    assert value.state is not None
    envelope = Envelope.unpack(value.state)
    content = json.loads(envelope.payload)
    content["keys"]["nodes/a"] = entry
    value.state, value.token = replace(envelope, payload=json.dumps(content).encode()).pack(), value.token + 1
    found = keys.read_all("nodes", timeout=CALL).entries
    assert found["nodes/b"].value == b"of b"
    with pytest.raises(RendezvousStateError):
        Envelope.unpack(found["nodes/a"].value)
    # A write beside it goes on, and one over it mends it.
    assert keys.put("nodes/c", b"of c", expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED
    there = keys.read("nodes/a", timeout=CALL)
    assert there is not None
    assert keys.put("nodes/a", b"again", expect=there.token, timeout=CALL).outcome is PutOutcome.APPLIED
    assert {key: entry.value for key, entry in keys.read_all("nodes", timeout=CALL).entries.items()} == {
        "nodes/a": b"again",
        "nodes/b": b"of b",
        "nodes/c": b"of c",
    }
