"""The store: PyTorch's answers (noted down from TCPStore 2.13), also with other writers and lost replies."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
from rdzv_core.backend import ANY, MAX_KEY, MAX_PAYLOAD, PutOutcome, PutResult
from rdzv_core.envelope import NONCE_HISTORY
from rdzv_core.store import Store

import rdzv.engine.client as client_module
import rdzv.store as store_module
from rdzv import RendezvousConnectionError, RendezvousParameterError, RendezvousStateError, RendezvousTimeoutError
from rdzv.engine.client import RetryingClient
from rdzv.store import KeyValueStore, PrefixStore

from .memory import Fault, MemoryBackend, SlowBackend

SHORT = timedelta(milliseconds=50)
LONG = timedelta(seconds=30)
BIG = bytes(MAX_PAYLOAD + 1)

Steps = list[tuple[Any, ...]]
"""Method, arguments, answer."""


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def store(backend: MemoryBackend) -> KeyValueStore:
    return KeyValueStore(backend, timeout=LONG)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other threads bring about."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def take(steps: Steps, store: Store) -> None:
    """Call one method after the other, and compare."""
    for number, (method, *arguments, answer) in enumerate(steps):
        assert getattr(store, method)(*arguments) == answer, f"step {number}: {method}{tuple(arguments)}"


def do(call: tuple[Any, ...], store: Store) -> Any:
    """Call a method; a dictionary at the end of the arguments has names."""
    method, *arguments = call
    names = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
    return getattr(store, method)(*arguments, **names)


def all_at_once(pool: ThreadPoolExecutor, count: int, work: Callable[[int], Any]) -> list[Any]:
    """Do the same on several threads, and gather what they return."""
    start = threading.Barrier(count)

    def run(number: int) -> Any:
        start.wait(30)
        return work(number)

    return list(pool.map(run, range(count)))


# What PyTorch's answer.

ANSWERS: dict[str, Steps] = {
    "set takes text and bytes": [
        ("set", "a", "é", None),
        ("get", "a", b"\xc3\xa9"),
        ("set", "a", b"\xff\x00", None),
        ("get", "a", b"\xff\x00"),
        ("set", "a", bytearray(b"1"), None),
        ("get", "a", b"1"),
    ],
    "an empty value exists": [
        ("set", "a", "", None),
        ("get", "a", b""),
        ("check", ["a"], True),
        ("wait", ["a"], None),
        ("num_keys", 1),
    ],
    "keys are any text": [
        ("set", "", "1", None),
        ("get", "", b"1"),
        ("list_keys", [""]),
        ("delete_key", "", True),
        ("set", "a//b/../\n é", "2", None),
        ("get", "a//b/../\n é", b"2"),
        ("list_keys", ["a//b/../\n é"]),
    ],
    "add counts in decimal text": [
        ("add", "a", 5, 5),
        ("get", "a", b"5"),
        ("add", "a", -7, -2),
        ("get", "a", b"-2"),
        ("add", "b", 0, 0),
        ("get", "b", b"0"),
        ("add", "c", True, 1),
    ],
    "add goes on from what was set": [
        ("set", "a", "12", None),
        ("add", "a", 1, 13),
        ("append", "a", "0", None),
        ("add", "a", 1, 131),
        ("set", "a", " +3 ", None),
        ("add", "a", 1, 4),
        ("get", "a", b"4"),
    ],
    "add reaches the limits of 64 bits": [
        ("add", "a", 2**63 - 1, 2**63 - 1),
        ("add", "b", -(2**63), -(2**63)),
    ],
    "compare_set on an absent key": [
        ("compare_set", "a", "x", "y", b"x"),
        ("check", ["a"], False),
        ("compare_set", "a", "", "y", b"y"),
        ("get", "a", b"y"),
        ("compare_set", "b", "", "", b""),
        ("check", ["b"], True),
    ],
    "compare_set on a key": [
        ("set", "a", "1", None),
        ("compare_set", "a", "0", "2", b"1"),
        ("compare_set", "a", "", "2", b"1"),
        ("get", "a", b"1"),
        ("compare_set", "a", "1", b"\xff", b"\xff"),
        ("get", "a", b"\xff"),
    ],
    "compare_set on an empty value": [
        ("set", "a", "", None),
        ("compare_set", "a", "x", "y", b""),
        ("get", "a", b""),
        ("compare_set", "a", "", "y", b"y"),
        ("get", "a", b"y"),
    ],
    "append": [
        ("append", "a", "x", None),
        ("append", "a", b"\xff", None),
        ("get", "a", b"x\xff"),
        ("append", "b", "", None),
        ("check", ["b"], True),
    ],
    "delete_key": [
        ("delete_key", "a", False),
        ("set", "a", "1", None),
        ("num_keys", 1),
        ("delete_key", "a", True),
        ("delete_key", "a", False),
        ("check", ["a"], False),
        ("num_keys", 0),
        ("list_keys", []),
    ],
    "a deleted key starts anew": [
        ("set", "a", "1", None),
        ("delete_key", "a", True),
        ("compare_set", "a", "1", "2", b"1"),
        ("compare_set", "a", "", "3", b"3"),
        ("delete_key", "a", True),
        ("add", "a", 1, 1),
        ("delete_key", "a", True),
        ("append", "a", "x", None),
        ("get", "a", b"x"),
    ],
    "several at once": [
        ("multi_set", ["a", "b"], ["1", b"\xff"], None),
        ("multi_get", ["b", "a", "b"], [b"\xff", b"1", b"\xff"]),
        ("multi_get", ["a", "a"], [b"1", b"1"]),
        ("multi_set", ["a", "a"], ["1", "2"], None),
        ("get", "a", b"2"),
    ],
    "none at once": [
        ("multi_set", [], [], None),
        ("multi_get", [], []),
        ("wait", [], None),
        ("wait", [], timedelta(0), None),
        ("check", [], True),
    ],
    "check wants all": [
        ("check", ["a"], False),
        ("set", "a", "1", None),
        ("check", ["a"], True),
        ("check", ["a", "b"], False),
        ("set", "b", "1", None),
        ("check", ["a", "b"], True),
    ],
    "a queue is a queue": [
        ("queue_len", "q", 0),
        ("queue_push", "q", "1", None),
        ("queue_push", "q", b"\xff", None),
        ("queue_push", "q", "", None),
        ("queue_len", "q", 3),
        ("queue_pop", "q", b"1"),
        ("queue_pop", "q", False, b"\xff"),
        ("queue_pop", "q", True, b""),
        ("queue_len", "q", 0),
    ],
    "a queue exists, but is no key": [
        ("queue_push", "q", "1", None),
        ("check", ["q"], True),
        ("wait", ["q"], None),
        ("num_keys", 0),
        ("list_keys", []),
        ("delete_key", "q", False),
        ("queue_pop", "q", b"1"),
        ("check", ["q"], False),
    ],
    "a queue and a value of one name": [
        ("queue_push", "q", "i", None),
        ("compare_set", "q", "", "v", b"v"),
        ("get", "q", b"v"),
        ("queue_len", "q", 1),
        ("delete_key", "q", True),
        ("check", ["q"], True),
        ("queue_pop", "q", b"i"),
        ("check", ["q"], False),
    ],
    "a barrier serves once": [
        ("barrier", "b", 1, None),
        ("barrier", "b", 1, None),
        ("barrier", "c", 0, timedelta(0), None),
    ],
    "timeout": [
        ("set_timeout", SHORT, None),
        ("has_extended_api", True),
    ],
}


@pytest.fixture(params=["plain", "clone", "scoped", "prefixed"])
def any_store(request: pytest.FixtureRequest, store: KeyValueStore) -> Store:
    stores: dict[str, Store] = {
        "plain": store,
        "clone": store.clone(),
        "scoped": store.scoped("7"),
        "prefixed": PrefixStore("p", store).clone(),
    }
    return stores[request.param]


@pytest.mark.parametrize("case", ANSWERS)
def test_it_answers_as_pytorch_does(case: str, any_store: Store) -> None:
    take(ANSWERS[case], any_store)


def test_every_store_is_one(any_store: Store) -> None:
    assert isinstance(any_store, Store)
    assert not isinstance({}, Store)


# Waiting.


@pytest.mark.parametrize("method", ["get", "multi_get", "wait", "wait for a queue", "queue_pop"])
def test_waits_until_it_is_there(
    method: str, backend: MemoryBackend, store: KeyValueStore, threads: ThreadPoolExecutor
) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: store.get("k"),
        "multi_get": lambda: store.multi_get(["there", "k"]),
        "wait": lambda: store.wait(["k"]),
        "wait for a queue": lambda: store.wait(["k", "there"]),
        "queue_pop": lambda: store.queue_pop("k"),
    }
    other = KeyValueStore(MemoryBackend(backend.service))
    other.set("there", "1")
    waiting = threads.submit(calls[method])
    until(lambda: backend.calls["wait"] == 1)
    other.set("unrelated", "1")
    (other.queue_push if "queue" in method else other.set)("k", "late")
    assert waiting.result(30) == {"get": b"late", "multi_get": [b"1", b"late"], "queue_pop": b"late"}.get(method)


def test_waiting_is_no_polling(backend: MemoryBackend, store: KeyValueStore, threads: ThreadPoolExecutor) -> None:
    waiting = threads.submit(store.get, "k")
    until(lambda: backend.calls["wait"] == 1)
    KeyValueStore(MemoryBackend(backend.service)).set("k", "late")
    assert waiting.result(30) == b"late"
    assert backend.calls == {"read_all": 1, "wait": 1}


def test_waits_through_an_outage(backend: MemoryBackend, store: KeyValueStore, threads: ThreadPoolExecutor) -> None:
    waiting = threads.submit(store.get, "k")
    until(lambda: backend.calls["wait"] == 1)
    backend.disconnect()
    KeyValueStore(MemoryBackend(backend.service)).set("k", "meanwhile")
    until(lambda: backend.calls["read_all"] >= 2)
    backend.reconnect()
    assert waiting.result(30) == b"meanwhile"


def test_barrier_opens_for_all_at_once(store: KeyValueStore, threads: ThreadPoolExecutor) -> None:
    early = [threads.submit(store.barrier, "b", 4) for _ in range(3)]
    until(lambda: store.check(["b/num_members"]) and store.get("b/num_members") == b"3")
    assert not any(caller.done() for caller in early)
    store.barrier("b", 4)
    for caller in early:
        caller.result(30)


def test_a_rival_does_not_starve_one_that_pops(backend: MemoryBackend) -> None:
    """A call between what an attempt has seen and its write would let it lose to a rival that pops all the time."""
    rival = KeyValueStore(MemoryBackend(backend.service))

    class Slow(MemoryBackend):
        def read(self, *args: Any, **kwargs: Any) -> Any:
            rival.queue_pop("q")
            return super().read(*args, **kwargs)

    for item in "0123":
        rival.queue_push("q", item)
    assert KeyValueStore(Slow(backend.service), timeout=LONG).queue_pop("q") == b"0"
    assert rival.queue_len("q") == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("get", "b"), r"0\.\d s .*: 'b'\."),
        (("multi_get", ["a", "b", "c"]), r"0\.\d s .*: 'b', 'c'\."),
        (("wait", ["c", "a"]), r"0\.\d s .*: 'c'\."),
        (("wait", ["c"], timedelta(0)), r"0\.0 s .*: 'c'\."),
        (("wait", ["c"], timedelta(seconds=-1)), r"0\.0 s .*: 'c'\."),
        (("wait", [f"k{number}" for number in range(30)]), r"'k19', and 10 more\."),
        (("queue_pop", "a"), r"0\.\d s the queue 'a'"),
        (("queue_pop", "a", {"block": False}), r"0\.0 s the queue 'a'"),
        (("barrier", "b", 2), r"Not all 2 .* 'b' .* within 0\.\d s; this was number 1"),
        (("barrier", {"key": "b", "world_size": 2, "timeout": timedelta(0)}), r"within 0\.0 s"),
    ],
    ids=str,
)
def test_time_runs_out(store: KeyValueStore, call: tuple[Any, ...], message: str) -> None:
    store.set("a", "1")
    store.set_timeout(timedelta(milliseconds=100))
    with pytest.raises(RendezvousTimeoutError, match=message):
        do(call, store)


def test_what_came_in_the_meantime_is_not_called_missing(backend: MemoryBackend, store: KeyValueStore) -> None:
    late = MemoryBackend(backend.service)

    class Late(MemoryBackend):
        def wait(self, *args: Any, **kwargs: Any) -> Any:
            KeyValueStore(late).set("b", "1")
            return super().wait(*args, **kwargs)

    with pytest.raises(RendezvousTimeoutError, match=r"lacks: 'a'\.$"):
        KeyValueStore(Late(backend.service)).wait(["a", "b"], SHORT)


def test_an_own_timeout_wins(store: KeyValueStore) -> None:
    with pytest.raises(RendezvousTimeoutError):
        store.wait(["a"], SHORT)
    store.set("a", "1")
    store.set_timeout(timedelta(0))
    assert store.get("a") == b"1"


def test_a_clone_has_its_own_timeout(store: KeyValueStore) -> None:
    clone = store.clone()
    clone.set_timeout(SHORT)
    assert (store.timeout, clone.timeout) == (LONG, SHORT)


def test_a_service_that_is_away_is_no_timeout(backend: MemoryBackend, store: KeyValueStore) -> None:
    backend.disconnect()
    store.set_timeout(timedelta(0))
    with pytest.raises(RendezvousConnectionError, match="the service is away"):
        store.get("a")


def test_the_shortest_timeout_leaves_the_service_time_to_answer(backend: MemoryBackend, store: KeyValueStore) -> None:
    store.set_timeout(timedelta(0))
    backend.fail("put", Fault.REQUEST_LOST)
    store.set("a", "1")
    backend.fail("read_all", Fault.REQUEST_LOST)
    assert store.get("a") == b"1"


# What it costs.


@pytest.mark.parametrize(
    ("call", "calls"),
    [
        (("set", "absent", "1"), {"put": 1}),
        (("set", "a", "1"), {"put": 2}),
        (("get", "a"), {"read_all": 1}),
        (("multi_get", ["a", "b", "c"]), {"read_all": 1}),
        (("check", ["a", "b", "absent"]), {"read_all": 1}),
        (("wait", ["a", "b"]), {"read_all": 1}),
        (("list_keys",), {"read_all": 1}),
        (("add", "absent", 1), {"put": 1}),
        (("add", "a", 1), {"put": 2}),
        (("compare_set", "absent", "", "1"), {"put": 1}),
        (("compare_set", "a", "", "1"), {"put": 1}),
        (("compare_set", "a", "0", "1"), {"read": 1}),
        (("compare_set", "a", "1", "2"), {"read": 1, "put": 1}),
        (("delete_key", "a"), {"delete_version": 1}),
        (("delete_key", "absent"), {"read": 1}),
        (("queue_push", "q", "1"), {"put": 2}),
        (("queue_pop", "full"), {"read_all": 1, "read": 1, "put": 1, "delete": 1}),
        (("barrier", "b", 1), {"put": 2}),
    ],
    ids=str,
)
def test_calls(backend: MemoryBackend, store: KeyValueStore, call: tuple[Any, ...], calls: dict[str, int]) -> None:
    store.multi_set(["a", "b", "c"], ["1", "2", "3"])
    store.queue_push("full", "1")
    backend.calls.clear()
    do(call, store)
    assert backend.calls == calls


@pytest.mark.parametrize(
    "call",
    [
        ("set", "a", "1"),
        ("multi_set", ["a", "b", "new"], ["1", "2", "3"]),
        ("add", "a", 1),
        ("compare_set", "a", "1", "2"),
        ("append", "a", "1"),
        ("delete_key", "a"),
        ("multi_get", ["a", "b"]),
        ("queue_push", "q", "1"),
        ("queue_pop", "q"),
        ("barrier", "b", 1),
    ],
    ids=str,
)
def test_all_calls_of_a_method_have_one_deadline(
    call: tuple[Any, ...], store: KeyValueStore, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.multi_set(["a", "b", "c"], ["1", "2", "3"])
    store.queue_push("q", "1")
    slow = SlowBackend(backend.service)
    for module in (store_module, client_module):
        monkeypatch.setattr(module, "time", slow)
    began = slow.now
    do(call, KeyValueStore(slow, timeout=timedelta(seconds=8)))
    assert slow.now > began
    assert slow.latest <= began + 8.0


# Many at once.


def test_add_loses_nothing(store: KeyValueStore, threads: ThreadPoolExecutor) -> None:
    sums = all_at_once(threads, 8, lambda _: [store.add("n", 1) for _ in range(10)])
    assert sorted(chain(*sums)) == list(range(1, 81))
    assert store.get("n") == b"80"


def test_append_loses_nothing(store: KeyValueStore, threads: ThreadPoolExecutor) -> None:
    def work(number: int) -> None:
        for _ in range(5):
            store.append("a", str(number))

    all_at_once(threads, 8, work)
    assert Counter(store.get("a").decode()) == dict.fromkeys("01234567", 5)


def test_compare_set_has_one_winner(store: KeyValueStore, threads: ThreadPoolExecutor) -> None:
    answers = all_at_once(threads, 8, lambda number: store.compare_set("k", "", str(number)))
    assert set(answers) == {store.get("k")}


def test_delete_key_has_one_winner(store: KeyValueStore, threads: ThreadPoolExecutor) -> None:
    store.set("k", "1")
    assert all_at_once(threads, 8, lambda _: store.delete_key("k")).count(True) == 1


def test_queue_gives_every_item_to_one_and_in_order(store: KeyValueStore, threads: ThreadPoolExecutor) -> None:
    def work(number: int) -> list[str]:
        if number >= 3:
            return [store.queue_pop("q").decode() for _ in range(10)]
        for letter in "abcdefghij":
            store.queue_push("q", f"{number}{letter}")
        return []

    taken = all_at_once(threads, 6, work)[3:]
    assert sorted(chain(*taken)) == sorted(f"{number}{letter}" for number in range(3) for letter in "abcdefghij")
    for items in taken:
        for number in "012":
            assert [item for item in items if item[0] == number] == sorted(item for item in items if item[0] == number)
    assert store.queue_len("q") == 0


class Preceded(MemoryBackend):
    """Others do something just before every put."""

    def before(self) -> None:
        """What they do."""

    def put(self, *args: Any, **kwargs: Any) -> PutResult:
        self.before()
        return super().put(*args, **kwargs)


@pytest.fixture
def preceded(backend: MemoryBackend) -> Preceded:
    return Preceded(backend.service)


def test_the_last_item_is_not_taken_twice(
    preceded: Preceded, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue_push("q", "1")
    monkeypatch.setattr(preceded, "before", lambda: store.queue_pop("q"))
    with pytest.raises(RendezvousTimeoutError):
        KeyValueStore(preceded).queue_pop("q", block=False)


def test_gives_up_when_others_never_let_it_write(
    preceded: Preceded, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preceded, "before", lambda: store.set("n", "1"))
    with pytest.raises(RendezvousTimeoutError, match="rounds/n"):
        KeyValueStore(preceded, timeout=SHORT).add("n", 1)


class Contended(Preceded, SlowBackend):
    """Others write the same keys just before every put, for a while. A call takes 3 ms.

    Attributes:
        lasts: For how many seconds.
    """

    takes = 0.003
    lasts = 1.9

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend.service)
        self.began = self.now
        self._others = KeyValueStore(backend)

    def before(self) -> None:
        if self.now < self.began + self.lasts:
            self._others.multi_set(["n", "q"], ["1", "1"])
            self._others.queue_push("q", "1")


@pytest.fixture
def contended(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> Contended:
    contended = Contended(backend)
    contended.before()
    for module in (store_module, client_module):
        monkeypatch.setattr(module, "time", contended)
    return contended


CONTENDED: list[tuple[Any, ...]] = [
    ("set", "n", "1"),
    ("multi_set", ["m", "n"], ["1", "1"]),
    ("add", "n", 1),
    ("compare_set", "n", "1", "2"),
    ("append", "n", "1"),
    ("delete_key", "n"),
    ("queue_push", "q", "1"),
    ("queue_pop", "q"),
]


@pytest.mark.parametrize("call", CONTENDED, ids=str)
def test_writes_as_long_as_there_is_time(call: tuple[Any, ...], contended: Contended) -> None:
    do(call, KeyValueStore(contended, timeout=timedelta(seconds=2)))
    assert contended.began + contended.lasts < contended.now <= contended.began + 2


@pytest.mark.parametrize("call", CONTENDED, ids=str)
def test_what_gives_up_has_used_its_time_and_no_more(call: tuple[Any, ...], contended: Contended) -> None:
    contended.lasts = 60
    with pytest.raises(RendezvousTimeoutError, match=r"Others changed .* for 2\.0 s\. Allow a longer timeout"):
        do(call, KeyValueStore(contended, timeout=timedelta(seconds=2)))
    assert contended.began + 1.95 < contended.now <= contended.began + 2
    # It waits between its attempts, up to the end.
    assert contended.calls["put"] < 150


# What gets lost.

ONCE: dict[str, Steps] = {
    "set": [("set", "new", "1", None), ("get", "new", b"1")],
    "add": [("add", "n", 1, 6), ("get", "n", b"6")],
    "add anew": [("add", "new", 1, 1), ("get", "new", b"1")],
    "append": [("append", "n", "x", None), ("get", "n", b"5x")],
    "compare_set": [("compare_set", "n", "5", "6", b"6"), ("compare_set", "n", "5", "7", b"6")],
    "compare_set anew": [("compare_set", "new", "", "1", b"1"), ("compare_set", "new", "", "2", b"1")],
    "delete_key": [("delete_key", "n", True), ("delete_key", "n", False)],
    "queue_push": [("queue_push", "new", "1", None), ("queue_len", "new", 1), ("queue_pop", "new", b"1")],
    "queue_pop": [("queue_pop", "q", b"1"), ("queue_len", "q", 1), ("queue_pop", "q", b"2")],
}


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("case", ONCE)
def test_takes_effect_once_whatever_is_lost(
    case: str, position: int, fault: Fault, backend: MemoryBackend, store: KeyValueStore
) -> None:
    store.set("n", "5")
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    backend.fail("put", *[None] * position, fault)
    take(ONCE[case], store)


class Overtaken(MemoryBackend):
    """Whenever a reply to a put is lost, others do something before it is sent again."""

    def meanwhile(self) -> None:
        """What they do."""

    def put(self, *args: Any, **kwargs: Any) -> PutResult:
        put = super().put(*args, **kwargs)
        if put.outcome is PutOutcome.UNKNOWN:
            self.meanwhile()
        return put


@pytest.fixture
def overtaken(backend: MemoryBackend) -> Overtaken:
    return Overtaken(backend.service)


def test_add_counts_once_though_many_overtook_it(
    overtaken: Overtaken, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overtaken, "meanwhile", lambda: [store.add("n", 1) for _ in range(40)])
    overtaken.fail("put", Fault.REPLY_LOST)
    assert KeyValueStore(overtaken).add("n", 1) == 1
    assert store.get("n") == b"41"


def test_who_made_a_key_learns_so_however_many_overtook_it(
    overtaken: Overtaken, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overtaken, "meanwhile", lambda: [store.add("n", 1) for _ in range(2 * NONCE_HISTORY)])
    overtaken.fail("put", Fault.REPLY_LOST)
    assert KeyValueStore(overtaken).add("n", 1) == 1
    assert store.get("n") == str(2 * NONCE_HISTORY + 1).encode()


@pytest.mark.parametrize("call", [("set", "n", "0"), ("add", "n", 1), ("append", "n", "0")], ids=str)
def test_a_reply_may_be_lost_though_a_key_was_written_often(
    call: tuple[Any, ...], backend: MemoryBackend, store: KeyValueStore
) -> None:
    for _ in range(2 * NONCE_HISTORY):
        store.add("n", 1)
    # The first attempt reads the value.
    backend.fail("put", Fault.REPLY_LOST)
    do(call, store)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize(
    "call", [("set", "n", "0"), ("multi_set", ["n"], ["0"]), ("append", "n", "0"), ("add", "n", 0)], ids=str
)
def test_a_request_that_is_applied_late_undoes_nothing(
    call: tuple[Any, ...], position: int, is_new: bool, backend: MemoryBackend, store: KeyValueStore
) -> None:
    if not is_new:
        store.set("n", "7")
    backend.fail("put", *[None] * position, Fault.DELAYED)
    do(call, store)
    other = KeyValueStore(MemoryBackend(backend.service))
    other.add("n", 1)
    before = other.add("n", 1)
    backend.deliver()
    assert store.add("n", 0) == before


def test_an_item_is_pushed_once_though_it_was_taken_at_once(
    overtaken: Overtaken, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bytes] = []
    monkeypatch.setattr(overtaken, "meanwhile", lambda: taken.append(store.queue_pop("q")))
    overtaken.fail("put", None, Fault.REPLY_LOST)
    KeyValueStore(overtaken).queue_push("q", "1")
    assert taken == [b"1"]
    assert store.queue_len("q") == 0


def test_items_are_taken_once_though_another_took_the_next(
    overtaken: Overtaken, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for item in "12":
        store.queue_push("q", item)
    taken: list[bytes] = []
    monkeypatch.setattr(overtaken, "meanwhile", lambda: taken.append(store.queue_pop("q")))
    overtaken.fail("put", Fault.REPLY_LOST)
    assert KeyValueStore(overtaken).queue_pop("q") == b"1"
    assert taken == [b"2"]


def test_an_item_is_handed_over_though_the_service_dies_then(backend: MemoryBackend, store: KeyValueStore) -> None:
    store.queue_push("q", "1")
    backend.fail("delete", *[Fault.REQUEST_LOST] * 100)
    assert store.queue_pop("q") == b"1"
    assert store.queue_len("q") == 0


# What is refused.


@pytest.mark.parametrize(
    "call",
    [
        ("set", "k", BIG),
        ("set", "k", BIG.decode()),
        ("multi_set", ["j", "k"], ["1", BIG]),
        ("compare_set", "k", "", BIG),
        ("append", "k", BIG),
        ("queue_push", "k", BIG),
    ],
)
def test_too_large_a_value_is_never_sent(backend: MemoryBackend, store: KeyValueStore, call: tuple[Any, ...]) -> None:
    with pytest.raises(RendezvousParameterError, match="'k' has 262145 bytes; at most 262144"):
        do(call, store)
    assert not backend.calls


def test_the_largest_value_fits(store: KeyValueStore) -> None:
    store.set("k", bytes(MAX_PAYLOAD))
    assert store.get("k") == bytes(MAX_PAYLOAD)
    with pytest.raises(RendezvousParameterError, match="'k' has 262145 bytes"):
        store.append("k", "1")


def test_a_full_queue_takes_no_more(backend: MemoryBackend, store: KeyValueStore) -> None:
    full = bytes(MAX_PAYLOAD)
    RetryingClient(backend, "test").put("rounds/q/=queue", full, time.monotonic() + 10, previous=None)
    with pytest.raises(RendezvousParameterError, match="queue 'q' is full: it has 32768 items"):
        store.queue_push("q", "1")
    assert list(backend.read_all("rounds", timeout=10).entries) == ["rounds/q/=queue"]


LONGEST = "/" * ((MAX_KEY - len("rounds//=queue")) // 3)
"""The longest key of this character: three stand for each."""


@pytest.mark.parametrize(
    "method", ["set", "get", "add", "append", "delete_key", "check", "wait", "queue_push", "barrier"]
)
def test_too_long_a_key_is_never_sent(backend: MemoryBackend, store: KeyValueStore, method: str) -> None:
    more: dict[str, list[Any]] = {"set": ["x"], "add": [1], "append": ["x"], "queue_push": ["x"], "barrier": [1]}
    key = [f"{LONGEST}/"] if method in ("check", "wait") else f"{LONGEST}/"
    with pytest.raises(RendezvousParameterError, match=f"'//.*' is stored under 10.. characters; at most {MAX_KEY}"):
        do((method, key, *more.get(method, ())), store)
    assert not backend.calls


def test_the_longest_key_is_one(store: KeyValueStore) -> None:
    store.set(LONGEST, "x")
    store.queue_push(LONGEST, "y")
    assert (store.get(LONGEST), store.queue_pop(LONGEST)) == (b"x", b"y")


@pytest.mark.parametrize("value", ["x", "", "12x", "1.5", "0x10", "1_0", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 5000])
def test_nothing_is_added_to_what_is_no_number(store: KeyValueStore, value: str) -> None:
    store.set("k", value)
    with pytest.raises(RendezvousParameterError, match="'k' holds b'"):
        store.add("k", 1)
    assert store.get("k") == value.encode()


@pytest.mark.parametrize(("start", "amount"), [(2**63 - 1, 1), (-(2**63), -1), (0, 2**63)])
def test_a_sum_has_64_bits(store: KeyValueStore, start: int, amount: int) -> None:
    store.add("k", start)
    with pytest.raises(RendezvousParameterError, match=str(start + amount)):
        store.add("k", amount)
    assert store.get("k") == str(start).encode()


def test_every_key_has_one_value(backend: MemoryBackend, store: KeyValueStore) -> None:
    with pytest.raises(RendezvousParameterError, match="2 keys but 1 values"):
        store.multi_set(["a", "b"], ["1"])
    assert not backend.calls


@pytest.mark.parametrize(
    "call",
    [
        ("set", "k", 3),
        ("set", "k", None),
        ("compare_set", "k", 1, "2"),
        ("add", "k", "1"),
        ("add", "k", 1.5),
        ("wait", "ab"),
        ("check", "ab"),
        ("multi_get", "ab"),
        ("wait", ["k"], 1),
        ("set_timeout", 1),
        ("set", 5, "1"),
        ("get", 5),
        ("get", b"k"),
        ("get", ["k"]),
        ("add", 5, 1),
        ("append", None, "1"),
        ("compare_set", 5, "", "1"),
        ("delete_key", 5),
        ("check", [5]),
        ("check", 5),
        ("wait", ["k", 5]),
        ("wait", [["k"]]),
        ("multi_get", [5]),
        ("multi_set", [5], ["1"]),
        ("queue_push", 5, "1"),
        ("queue_pop", 5),
        ("queue_len", 5),
    ],
    ids=str,
)
def test_wrong_types_are_refused(backend: MemoryBackend, any_store: Store, call: tuple[Any, ...]) -> None:
    # Python's own words for it end without a full stop.
    with pytest.raises(TypeError, match=r"\.$"):
        do(call, any_store)
    assert not backend.calls


def test_a_queue_is_no_value(store: KeyValueStore) -> None:
    store.queue_push("q", "1")
    store.set_timeout(SHORT)
    with pytest.raises(RendezvousTimeoutError):
        store.get("q")


def test_what_is_not_ours_is_an_error_or_left_out(backend: MemoryBackend, store: KeyValueStore) -> None:
    store.set("ours", "1")
    backend.put("rounds/foreign", b"\x80\x04K\x01.", expect=ANY, timeout=10)
    calls: list[Callable[[str], Any]] = [
        store.get,
        lambda key: store.set(key, "1"),
        lambda key: store.add(key, 1),
        store.delete_key,
        lambda key: store.check([key, "ours"]),
    ]
    for call in calls:
        with pytest.raises(RendezvousStateError):
            call("foreign")
    assert store.list_keys() == ["ours"]


# Where things are.


def test_scopes_do_not_see_each_other(store: KeyValueStore) -> None:
    first, second = store.scoped("1"), store.scoped("2/é")
    for number, each in enumerate([store, first, second]):
        each.set("1", str(number))
        each.queue_push("1", str(number))
        each.set("", "empty")
    for number, each in enumerate([store, first, second]):
        assert each.get("1") == each.queue_pop("1") == str(number).encode()
        assert sorted(each.list_keys()) == ["", "1"]


def test_all_of_a_scope_lies_under_its_prefix(backend: MemoryBackend, store: KeyValueStore) -> None:
    store.set("k", "1")
    scope = store.scoped("3")
    for case in ANSWERS:
        take(ANSWERS[case], scope.scoped(case))
    backend.delete("rounds/3", timeout=10)
    assert list(backend.read_all("rounds", timeout=10).entries) == ["rounds/k"]


def test_items_that_were_taken_leave_nothing(backend: MemoryBackend, store: KeyValueStore) -> None:
    for number in range(5):
        store.queue_push("q", str(number))
    for _ in range(5):
        store.queue_pop("q")
    assert list(backend.read_all("rounds", timeout=10).entries) == ["rounds/q/=queue"]


def test_it_writes_with_the_given_deadline(backend: MemoryBackend) -> None:
    KeyValueStore(backend, writer="node-1").scoped("1").clone().set("k", "1")
    held = RetryingClient(backend, "test").read("rounds/1/k", time.monotonic() + 10)
    assert held is not None
    assert held.envelope.writer == "node-1"


def test_prefix_store_prefixes(store: KeyValueStore) -> None:
    prefixed = PrefixStore("p", store)
    store.set("other", "1")
    prefixed.set("k", "1")
    assert prefixed.underlying_store is store
    assert sorted(store.list_keys()) == ["other", "p/k"]
    assert prefixed.list_keys() == ["k"]
    assert prefixed.num_keys() == 2, "so PyTorch's counts"
    prefixed.set_timeout(SHORT)
    assert store.timeout == prefixed.timeout == SHORT
    with pytest.raises(RendezvousTimeoutError, match="'p/absent'"):
        prefixed.wait(["absent"], timedelta(0))


def test_prefix_store_hands_no_none_to_pytorch(backend: MemoryBackend) -> None:
    class LikePyTorchs(KeyValueStore):
        def wait(self, *args: Any) -> None:
            assert None not in args
            super().wait(*args)

    prefixed = PrefixStore("p", LikePyTorchs(backend))
    prefixed.set("k", "1")
    prefixed.wait(["k"])
    prefixed.wait(["k"], LONG)
