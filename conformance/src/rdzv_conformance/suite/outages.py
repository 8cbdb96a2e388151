"""The service goes away and comes back, and replies are lost: nothing is invented, nothing hangs, all goes on."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest
from rdzv.store import KeyValueStore
from rdzv_core import ABSENT, ANY, MAX_PAYLOAD, Capability, Entry, KeyValueBackend, PutOutcome, PutResult, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_core.threads import in_thread

from ..deadlines import eventually
from ..linearizability import Answer, assert_linearizable
from ..meanwhile import holds, value_of, wait_briefly, wait_for, with_retries
from ..processes import Link, Processes
from ..proxy import FaultProxy
from .base import CALL, KEY, ROOT, entry_of, lacks, refusal, requires
from .calls import calls_of, end_of, ends_of, is_unknown, need_own, result_of
from .histories import KeyValue, operations, record
from .nodes import FORM, Nodes, assert_calm, gather
from .server import ServerConformance, ServerHarness

_TIMEOUT: Final = 1.0
"""What calls are given while the service is away, in seconds."""
_LATE: Final = 1.5
"""So many seconds later a call on a busy machine may end."""
_SLOW: Final = 4.0
_ANSWER: Final = 3.0
"""A timeout, and what of it one slow answer takes: two answers are later than the busiest machine explains."""
_PROCESSES: Final = 3
_ASKED: Final = 1.0
_BREAKS: Final = 5
_NEWS: Final = 5.0
"""Seconds within which waiters believe a service that has begun anew."""

_restarts = pytest.mark.parametrize("how", ["stopped", "killed"])
_outages = pytest.mark.parametrize("how", ["killed", "frozen"])


class RepliesConformance(ServerConformance):
    """What clients make of replies that are lost after the write."""

    @pytest.mark.parametrize("breaks", [True, False], ids=["connection breaks", "silence"])
    def test_put_whose_reply_is_lost_is_unknown(self, harness: ServerHarness, breaks: bool) -> None:
        """It was applied, and no reply says so: the outcome is `UNKNOWN`, no error, and it is never sent again."""
        proxy = harness.proxy()
        client, other = harness.client(proxy.endpoint), harness.client()
        there = client.put(KEY, b"1", expect=ABSENT, timeout=CALL).entry
        assert there is not None
        with _lost_reply(proxy, applied=lambda: other.read(KEY, timeout=CALL) != there, breaks=breaks):
            timeout = CALL if breaks else _TIMEOUT
            put, _ = end_of(lambda: client.put(KEY, b"2", expect=there.token, timeout=timeout))
        assert put == PutResult(PutOutcome.UNKNOWN), f"a put whose reply was lost answered {put!r}"
        assert with_retries(lambda: client.read(KEY, timeout=CALL)) == other.read(KEY, timeout=CALL)
        _assert_works(client, other.read_all(ROOT, timeout=CALL))

    @pytest.mark.parametrize("breaks", [True, False], ids=["connection breaks", "silence"])
    def test_delete_without_an_answer_is_unknown(
        self, request: pytest.FixtureRequest, harness: ServerHarness, breaks: bool
    ) -> None:
        """A conditional delete was done, and no reply says so: `UNKNOWN`; asked again, there is no such version."""
        proxy = harness.proxy()
        client, other = harness.client(proxy.endpoint), harness.client()
        need_own(request.node, client, "delete_version")
        there = client.put(KEY, b"1", expect=ABSENT, timeout=CALL).entry
        assert there is not None

        def delete(timeout: float) -> PutOutcome:
            return client.delete_version(KEY, there.token, timeout=timeout)

        with _lost_reply(proxy, applied=lambda: other.read(KEY, timeout=CALL) is None, breaks=breaks):
            end, _ = end_of(lambda: delete(CALL if breaks else _TIMEOUT))
        assert end is PutOutcome.UNKNOWN, f"a conditional delete whose reply was lost answered {end!r}"
        assert with_retries(lambda: delete(CALL)) is PutOutcome.CONFLICT, "a removed version was removed again"
        _assert_works(client, other.read_all(ROOT, timeout=CALL))

    @pytest.mark.parametrize("breaks", [True, False], ids=["connection breaks", "silence"])
    def test_creation_of_many_without_an_answer_is_unknown(
        self, request: pytest.FixtureRequest, harness: ServerHarness, breaks: bool
    ) -> None:
        """All keys were made, and no reply says so: `UNKNOWN`; asked again, they are there."""
        proxy = harness.proxy()
        client, other = harness.client(proxy.endpoint), harness.client()
        need_own(request.node, client, "create_all")
        client.put(KEY, b"1", expect=ABSENT, timeout=CALL)
        values = {f"suite/pages/{number}": b"x" for number in range(client.creates_at_once)}

        def there() -> dict[str, bytes]:
            return {key: entry.value for key, entry in other.read_all("suite/pages", timeout=CALL).entries.items()}

        with _lost_reply(proxy, applied=lambda: bool(there()), breaks=breaks):
            end, _ = end_of(lambda: client.create_all(values, timeout=CALL if breaks else _TIMEOUT))
        assert end is PutOutcome.UNKNOWN, f"a creation of many whose reply was lost answered {end!r}"
        assert there() == values, "of keys that are made at once some are there"
        again = with_retries(lambda: client.create_all(values, timeout=CALL))
        assert again is PutOutcome.CONFLICT, f"keys that are there were made again: {again.value}"
        _assert_works(client, other.read_all(ROOT, timeout=CALL))

    @requires(Capability.MULTI_ENDPOINT)
    @pytest.mark.parametrize("warm", [True, False], ids=["connected", "new"])
    def test_put_of_unknown_outcome_goes_to_no_other_endpoint(self, harness: ServerHarness, warm: bool) -> None:
        """Its reply is lost with the connection, and another endpoint would take it gladly: it is not sent there,
        too."""
        proxies = harness.proxy(), harness.proxy()
        client, other = harness.client(",".join(proxy.endpoint for proxy in proxies)), harness.client()
        if warm:
            client.put("suite/before", b"x", expect=ANY, timeout=CALL)
        seen: list[Entry] = []

        def applied() -> bool:
            seen.extend(filter(None, [other.read(KEY, timeout=CALL)]))
            return bool(seen)

        def put() -> PutResult:
            with _lost_reply(*proxies, applied=applied, breaks=True):
                return client.put(KEY, b"x", expect=ANY, timeout=_SLOW)

        end, _ = end_of(put)
        # Some connect by a question and an answer: that was lost, and nothing was written.
        if not (not warm and isinstance(end, RendezvousConnectionError)):
            assert end == PutResult(PutOutcome.UNKNOWN), f"a put whose reply was lost answered {end!r}"
        with_retries(lambda: client.read(KEY, timeout=CALL))
        assert other.read(KEY, timeout=CALL) == (seen[0] if seen else None), "a put of unknown outcome was sent again"

    def test_register_knows_its_own_write_when_the_reply_was_lost(self, harness: ServerHarness) -> None:
        """`set_state` finds out that it was itself who wrote."""
        proxy = harness.proxy()
        client, other = harness.client(proxy.endpoint), harness.client()
        first = client.set_state(b"1")
        assert first is not None
        _lose_reply_to_next_put(client, proxy, other)
        result = with_retries(lambda: client.set_state(b"2", first[1]))
        assert result is not None, "a write whose reply was lost is said to be lost itself"
        assert (result[0], result[2]) == (b"2", True), f"a write whose reply was lost answered {result}"

    def test_store_counts_once_when_replies_are_lost(self, harness: ServerHarness) -> None:
        """An `add` whose reply was lost is counted once: not twice, and not never."""
        proxy = harness.proxy()
        client, other = harness.client(proxy.endpoint), harness.client()
        store = KeyValueStore(client, timeout=timedelta(seconds=3 * CALL))
        store.add("n", 1)
        for number in range(3):
            _lose_reply_to_next_put(client, proxy, other)
            assert store.add(f"n{number}", 1) == 1, "a count whose reply was lost counts twice, or not at all"
            assert store.add(f"n{number}", 1) == 2, "a count whose reply was lost counts twice, or not at all"


class OutagesConformance(RepliesConformance):
    """What clients, and the nodes of a run, see of a service that is away for a while, and of a bad connection to
    it."""

    @pytest.fixture
    def harness_nodes(self, harness: ServerHarness, run_id: str, processes: Processes) -> Nodes:
        """Makes nodes of the server."""
        return Nodes(processes, harness.connect, run_id)

    @_restarts
    @requires(Capability.DURABLE)
    def test_what_was_written_outlives_a_restart(self, harness: ServerHarness, how: str) -> None:
        """Values, tokens and creation order are what they were; tokens open the door, and new keys come last."""
        client = harness.client()
        for name, value in (("b", b"1"), ("a", b"2"), ("gone", b"3"), ("large", bytes(MAX_PAYLOAD)), ("b", b"4")):
            client.put(f"suite/{name}", value, expect=ANY, timeout=CALL)
        client.delete("suite/gone", timeout=CALL)
        before = client.read_all(ROOT, timeout=CALL)
        with harness.away(how):
            pass
        for one in (client, harness.client()):
            intact = with_retries(lambda one=one: one.read_all(ROOT, timeout=CALL)).entries == before.entries  # type: ignore[misc]
            assert intact, "a restart changed what was written, its tokens or its order"
        _assert_works(client, before)

    @_restarts
    @lacks(Capability.DURABLE)
    def test_service_that_forgets_begins_anew(self, harness: ServerHarness, how: str) -> None:
        """After a restart nothing is there, old tokens match nothing, and waiters see the loss."""
        client = harness.client()
        client.put(KEY, b"old", expect=ANY, timeout=CALL)
        before = client.read_all(ROOT, timeout=CALL)
        old = entry_of(before, KEY)
        with harness.away(how):
            pass
        assert with_retries(lambda: client.read_all(ROOT, timeout=CALL)).entries == {}, "not durable, but remembered"
        _follow(client, before, lambda now: not now.entries)
        assert _put(client, KEY, b"x", old.token) is None, "a token outlived its value"
        new = _put(client, KEY, b"new", ABSENT)
        assert _put(client, KEY, b"x", old.token) == new, "a token from before the restart was accepted"
        _assert_works(client, client.read_all(ROOT, timeout=CALL))

    @_outages
    def test_calls_end_in_time_and_the_client_goes_on(self, harness: ServerHarness, how: str) -> None:
        """Every call keeps its timeout and raises `RendezvousConnectionError`; later the same client works again."""
        client = harness.client()
        since = client.read_all(ROOT, timeout=CALL)
        calls = calls_of(client, since, _TIMEOUT)
        with harness.away(how):
            ends = ends_of(calls)
        for name, (end, seconds) in ends.items():
            assert seconds < _TIMEOUT + _LATE, f"{name} with a timeout of {_TIMEOUT} s took {seconds:.1f} s"
            told_nothing = is_unknown(end) or (isinstance(end, Snapshot) and name == "wait")
            assert told_nothing or isinstance(end, RendezvousConnectionError), f"{name} of an absent service: {end!r}"
            if isinstance(end, Snapshot):
                assert end.entries == since.entries, "a wait invented a change"
        _put(client, "suite/after", b"x", ANY)
        if isinstance(ends["put"][0], RendezvousConnectionError):
            assert harness.client().read("suite/put", timeout=CALL) is None, "a put that raised was applied"

    def test_calls_end_in_time_however_slow_the_answers_are(self, harness: ServerHarness) -> None:
        """All questions of one call have one timeout: each further one gets what the answers before it have left."""
        proxy = harness.proxy()
        client, other = harness.client(proxy.endpoint), harness.client()
        old = other.put(KEY, b"old", expect=ANY, timeout=CALL).entry
        there = other.put(KEY, b"new", expect=ANY, timeout=CALL).entry
        assert old is not None
        calls = calls_of(client, client.read_all(ROOT, timeout=CALL), _SLOW) | {
            "put that loses": lambda: client.put(KEY, b"x", expect=old.token, timeout=_SLOW),
            "put if absent that loses": lambda: client.put(KEY, b"x", expect=ABSENT, timeout=_SLOW),
        }
        proxy.slow(_ANSWER)
        ends = ends_of(calls)
        for name, (end, seconds) in ends.items():
            late = (
                f"{name} with a timeout of {_SLOW} s took {seconds:.1f} s while each answer took {_ANSWER} s: {end!r}"
            )
            assert seconds < _SLOW + _LATE, late
        assert other.read(KEY, timeout=CALL) == there, "a put that had to lose was applied"

    @_outages
    def test_wait_goes_on_after_an_outage(self, harness: ServerHarness, how: str) -> None:
        """A waiter that goes on from its snapshot, as rdzv does, learns what was written after the outage."""
        waiter, rested, writer = harness.client(), harness.client(), harness.client()
        kept = {"suite/kept"} if Capability.DURABLE in writer.capabilities or how == "frozen" else set()
        for name in (KEY, "suite/kept", "suite/gone"):
            writer.put(name, b"before", expect=ANY, timeout=CALL)
        since = waiter.read_all(ROOT, timeout=CALL)
        rested.wait(ROOT, since, timeout=0.2)  # it waits before and after the outage, and not meanwhile

        def there_is_what_was_written(now: Snapshot) -> bool:
            return value_of(now.entries.get(KEY)) == b"after" and now.entries.keys() == {KEY} | kept

        followed = in_thread(partial(_follow, waiter, since, there_is_what_was_written), "wait")
        time.sleep(0.2)  # either it waits by now, or it is about to
        with harness.away(how):
            time.sleep(0.3)  # it probably notices by now; if not, it must be right as well
        with_retries(lambda: writer.delete("suite/gone", timeout=CALL))
        _put(writer, KEY, b"after", ANY)
        result_of(followed, "wait", 3 * CALL)
        _follow(rested, since, there_is_what_was_written)

    def test_wait_goes_on_when_its_line_breaks(self, harness: ServerHarness) -> None:
        """Again and again a waiter's connection breaks while something is written: it misses nothing."""
        proxy = harness.proxy()
        waiter, writer = harness.client(proxy.endpoint), harness.client()
        since = waiter.read_all(ROOT, timeout=CALL)
        for number in range(_BREAKS):
            value = b"%d" % number
            followed = in_thread(partial(_follow, waiter, since, holds(KEY, value)), "wait")
            proxy.heal()
            writer.put(KEY, value, expect=ANY, timeout=CALL)
            since = result_of(followed, "wait", 3 * CALL)

    @requires(Capability.DURABLE)
    def test_service_that_lost_its_data_is_believed(self, harness: ServerHarness) -> None:
        """It is empty and counts from the beginning again: no waiter waits for the old numbers to come back."""
        client = harness.client()
        lease = client.open_lease(30, timeout=CALL) if Capability.LEASE in client.capabilities else None
        for number in range(50):
            client.put(KEY, b"%d" % number, expect=ANY, lease=lease, timeout=CALL)
        since = wait_briefly(client, ROOT, client.read_all(ROOT, timeout=CALL))
        with harness.away("emptied"):
            pass
        other = harness.client()
        new = _put(other, KEY, b"new", ABSENT)
        began = time.monotonic()
        # An old client, and a new one that is given an old snapshot.
        for one in (client, other):
            _follow(one, since, lambda now: now.entries == {KEY: new})
        took = time.monotonic() - began
        assert took < _NEWS, f"it took waiters {took:.1f} s to believe that the service has lost its data"
        alive = lease is not None and with_retries(lambda: lease.keep_alive(CALL))
        assert not alive, "a lease outlived the data of its service"

    @requires(Capability.LEASE)
    @pytest.mark.parametrize("longer", [False, True], ids=["short outage", "longer than the lease"])
    def test_lease_is_true_to_its_word_after_a_restart(self, harness: ServerHarness, longer: bool) -> None:
        """A lease whose `keep_alive` is answered by yes still has its keys; one that has ended has none.

        Which of the two it is after an outage is the service's affair.
        """
        client = harness.client()
        lease = client.open_lease(_ASKED if longer else 30, timeout=CALL)
        client.put(KEY, b"x", expect=ANY, lease=lease, timeout=CALL)
        with harness.away("killed"):
            time.sleep(1.2 * lease.ttl if longer else 0)
        if with_retries(lambda: lease.keep_alive(CALL)):
            assert client.read(KEY, timeout=CALL) is not None, "a lease lives on without its keys"
            lease.revoke(CALL)
        eventually(lambda: client.read(KEY, timeout=CALL) is None, "the keys of an ended lease to go")
        lost = client.put(KEY, b"x", expect=ANY, lease=lease, timeout=CALL)
        assert lost.outcome is PutOutcome.CONFLICT, "an ended lease came back"

    @requires(Capability.LEASE)
    def test_owner_that_is_cut_off_loses_its_lease(self, harness: ServerHarness) -> None:
        """Its keys go within the time to live; without an answer it learns nothing, and afterwards the truth."""
        proxy = harness.proxy()
        owner, other = harness.client(proxy.endpoint), harness.client()
        lease = owner.open_lease(_ASKED, timeout=CALL)
        owner.put(KEY, b"x", expect=ANY, lease=lease, timeout=CALL)
        proxy.partition()
        refusal(lambda: lease.keep_alive(0.2), RendezvousConnectionError)
        eventually(lambda: other.read(KEY, timeout=CALL) is None, "the keys of the lost to go", 2 * lease.ttl + 3)
        proxy.heal()
        assert not with_retries(lambda: lease.keep_alive(CALL)), "a lease that has ended was kept alive"
        assert other.read(KEY, timeout=CALL) is None, "an ended lease came back"

    @requires(Capability.MULTI_ENDPOINT)
    @pytest.mark.parametrize("bad", [0, 1], ids=["first", "second"])
    @pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "is silent"])
    def test_client_goes_on_at_another_endpoint(self, harness: ServerHarness, bad: int, refuses: bool) -> None:
        """Of two endpoints one is out of reach, all of a sudden or from the beginning: the other will do."""
        proxies = harness.proxy(), harness.proxy()
        endpoints = ",".join(proxy.endpoint for proxy in proxies)
        client = harness.client(endpoints)
        since = client.read_all(ROOT, timeout=CALL)
        if refuses:
            proxies[bad].close()
        else:
            proxies[bad].partition()
        for one in (client, harness.client(endpoints)):
            entry = _put(one, KEY, b"x", ANY)
            since = _follow(one, since, lambda now, entry=entry: now.entries.get(KEY) == entry)  # type: ignore[misc]

    @lacks(Capability.MULTI_ENDPOINT)
    def test_list_of_endpoints_is_refused(self, harness: ServerHarness) -> None:
        """A second endpoint is not ignored: where the client is made, or at its first call, two are refused."""
        two = f"{harness.endpoint},{harness.endpoint}"
        where = f" for the endpoint '{two}', without MULTI_ENDPOINT"
        refusal(lambda: harness.client(two).read(KEY, timeout=CALL), RendezvousError, where)

    @requires(Capability.DURABLE)
    def test_keys_stay_linearizable_through_outages(self, harness: ServerHarness, processes: Processes) -> None:
        """Processes that use a key while the service is killed and frozen get no answers that no order explains."""

        def use(link: Link) -> list[Any]:
            client = harness.connect()
            client.read(KEY, timeout=CALL)
            link.send()
            process = link.receive()
            value = KeyValue(client, KEY, _TIMEOUT / 4)
            return record(value, process, lambda turn: not _is_over(link), healthy=False)

        workers = [processes.fork(use) for _ in range(_PROCESSES)]
        for worker in workers:
            worker.receive()
        for number, worker in enumerate(workers):
            worker.send(number)
        for how in ("killed", "frozen"):
            time.sleep(0.1)  # so long they use it without a fault
            with harness.away(how):
                time.sleep(_TIMEOUT / 2)
        with_retries(lambda: harness.client().read(KEY, timeout=CALL))
        time.sleep(0.1)
        for worker in workers:
            worker.send()
        history = operations([worker.result() for worker in workers])
        assert {one.process for one in history if one.answer is Answer.DONE} == set(range(_PROCESSES))
        assert_linearizable(history)

    @_outages
    def test_gathering_outlives_an_outage(self, harness: ServerHarness, harness_nodes: Nodes, how: str) -> None:
        """Invariants 4 and 10: nodes that were waiting, and one that comes meanwhile, get their world afterwards."""
        three = harness_nodes(3, 3, 3)
        for node in three[:2]:
            node.tell("join")
        watcher = harness.client()
        eventually(lambda: len(watcher.read_all("nodes", timeout=CALL).entries) == 2, "two nodes to wait", FORM)
        with harness.away(how):
            three[2].tell("join")
            time.sleep(_TIMEOUT / 2)
        worlds = [node.world() for node in three]
        assert [world["size"] for world in worlds] == [3, 3, 3], f"an outage while gathering: {worlds}"
        assert len({str(world["shared"]) for world in worlds}) == 1, f"the nodes disagree: {worlds}"

    def test_running_world_outlives_an_outage(self, harness: ServerHarness, harness_nodes: Nodes) -> None:
        """Invariant 10: however long it takes, no member is lost; afterwards the world can grow as before."""
        old, (late,) = harness_nodes(2, 2, 3), harness_nodes(1, 2, 3)
        first = gather(old)
        with harness.away("killed"):
            time.sleep(1.2 * harness_nodes.ttl)
        eventually(lambda: not any(node.ask("trouble") for node in old), "the members to be in touch again", FORM)
        assert_calm(old, harness_nodes.ttl, "an outage cost a member its place")
        late.tell("join")
        eventually(lambda: all(node.ask("waiting") == 1 for node in old), "the late node to be announced", FORM)
        worlds = [*gather(old), late.world()]
        assert [world["size"] for world in worlds] == [3, 3, 3]
        assert [world["rank"] for world in worlds[:2]] == [world["rank"] for world in first], "ranks changed hands"


@contextmanager
def _lost_reply(*proxies: FaultProxy, applied: Callable[[], bool], breaks: bool) -> Iterator[None]:
    """Within, replies are lost: with the connection as soon as the write was seen to be applied, or in silence."""
    for proxy in proxies:
        proxy.partition("replies")
    refused = threading.Event()

    def lose() -> None:
        said = "the write to be applied: is it sent to the endpoint that `connect` was given?"
        eventually(lambda: refused.is_set() or applied(), said)
        if breaks:
            healing.close()

    with ExitStack() as healing:
        for proxy in proxies:
            healing.callback(proxy.heal)
        lost = in_thread(lose, "loses a reply")
        try:
            yield
        except RendezvousConnectionError:
            # Some need an answer before they can write: nothing was written, and nothing is lost.
            refused.set()
            raise
        finally:
            wait([lost])
        lost.result()


def _lose_reply_to_next_put(client: KeyValueBackend, proxy: FaultProxy, other: KeyValueBackend) -> None:
    """Have the next put of a client lose its reply, whichever thread calls it."""
    put = client.put

    def losing(key: str, value: bytes, **kwargs: Any) -> PutResult:
        client.put = put  # type: ignore[method-assign]
        before = other.read(key, timeout=CALL)
        with _lost_reply(proxy, applied=lambda: other.read(key, timeout=CALL) != before, breaks=True):
            return put(key, value, **{**kwargs, "timeout": _TIMEOUT})

    client.put = losing  # type: ignore[method-assign]


def _follow(client: KeyValueBackend, since: Snapshot, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """Wait until a condition holds, through errors."""
    what = "what happened in an outage or after it"
    return wait_for(client, ROOT, since, condition, what, 2 * CALL, through_failures=True)


def _assert_works(client: KeyValueBackend, since: Snapshot) -> None:
    """Whether a client does its work: conditions, order, waiting."""
    new = _put(client, "suite/new", b"1", ABSENT)
    assert new is not None
    assert all(new.order > entry.order for entry in since.entries.values()), "a new key is not the last in order"
    for name, entry in {**since.entries, "suite/new": new}.items():
        assert value_of(_put(client, name, b"2", entry.token)) == b"2", "a token was forgotten"
    now = client.read_all(ROOT, timeout=CALL)
    _follow(client, since, lambda there: there.entries == now.entries)


def _put(client: KeyValueBackend, key: str, value: bytes, expect: Any) -> Entry | None:
    """The entry after a put; one whose reply was lost, with a connection that had broken unnoticed, is repeated."""
    while True:
        put = with_retries(lambda: client.put(key, value, expect=expect, timeout=CALL))
        if put.outcome is not PutOutcome.UNKNOWN:
            return put.entry


def _is_over(link: Link) -> bool:
    """Whether the test has sent something."""
    try:
        link.receive(0)
    except TimeoutError:
        return False
    return True
