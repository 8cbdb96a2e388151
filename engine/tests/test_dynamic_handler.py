"""What a caller gets from the handler of one node, over a service that lives in this process."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rdzv_core.backend import STATE_KEY
from rdzv_core.envelope import Envelope
from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousParameterError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from rdzv import DynamicRendezvousHandler
from rdzv.engine import worlds
from rdzv.engine.codec import decode
from rdzv.engine.failures import WATCH
from rdzv.engine.handler import look_beside, with_leases
from rdzv.engine.heartbeats import HeartbeatLeases
from rdzv.engine.lifetime import Lifetime
from rdzv.engine.records import STATUS_KEY, Closed, State
from rdzv.settings import RendezvousSettings, RendezvousTimeout
from rdzv.store import KeyValueStore, PrefixStore

from .forks import said_in_fork
from .memory import Fault, MemoryBackend
from .test_rendezvous import Run, seconds
from .waiting import wait_until


@pytest.fixture
def run() -> Iterator[Run]:
    """A run on a backend that can do everything."""
    with contextlib.closing(Run("memory")) as run:
        yield run


def closed(run: Run) -> Closed | None:
    """How the run was closed, as the service holds it."""
    entry = run.service.entries.get(f"run/{STATE_KEY}")
    return None if entry is None else decode(State, Envelope.unpack(entry.value).payload).closed


class TestMaking:
    def test_the_timeouts_are_the_given_ones_or_the_defaults(self) -> None:
        given = RendezvousTimeout(seconds(7))
        made = [
            DynamicRendezvousHandler.from_backend("run", None, MemoryBackend(), 1, 1, timeout=timeout)
            for timeout in (given, None)
        ]
        assert [handler.settings.timeout for handler in made] == [given, RendezvousTimeout()]
        for handler in made:
            handler.leave()

    def test_an_address_that_is_none_is_refused(self, run: Run) -> None:
        with pytest.raises(RendezvousParameterError):
            run.node(1, 1, address="256.1.1.1")

    def test_an_address_of_another_machine_is_taken_where_that_is_meant(self, run: Run) -> None:
        with pytest.raises(RendezvousParameterError, match=r"'203\.0\.113\.5' is no address of this machine"):
            run.node(1, 1, address="203.0.113.5")
        node = run.node(1, 1, address="203.0.113.5", behind_nat=True)
        assert node.next_rendezvous().bootstrap_store_info.master_addr == "203.0.113.5"

    @pytest.mark.parametrize("kind", ["memory", "leaseless", "register"])
    def test_a_backend_gets_what_it_lacks(self, kind: str) -> None:
        with contextlib.closing(Run(kind)) as run:
            node = run.node(1, 1)
            info = node.next_rendezvous()
            info.store.set("key", "value")
            node.shutdown()
            assert run.all_keys() == {"control/state"}


class TestJoining:
    def test_a_world_of_one(self, run: Run) -> None:
        node = run.node(1, 1, address="127.0.0.7")
        info = node.next_rendezvous()
        assert (info.rank, info.world_size, info.round, info.run_id) == (0, 1, 1, "run")
        assert info.nodes == (node.view.node_id,)
        assert info.bootstrap_store_info.master_addr == "127.0.0.7"

    def test_the_nodes_of_a_small_world_are_known_also_after_the_end(self, run: Run) -> None:
        (node,) = run.nodes(1, 1, 1)
        info = node.next_rendezvous()
        node.leave()
        assert info.nodes == (node.view.node_id,)

    def test_the_nodes_of_a_large_world_are_read_when_they_are_asked_for(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rdzv.engine.worlds.PAGE", 1)
        deadlines = []

        def read_world(state: State, deadline: float) -> Any:
            deadlines.append(deadline - time.monotonic())
            return worlds.read_world(state, deadline)

        monkeypatch.setattr("rdzv.engine.rounds.read_world", read_world)
        nodes = run.nodes(2, 2, 2)
        info, again = (joined.result(5) for joined in run.join(*nodes))
        assert deadlines == []
        assert set(info.nodes) == {node.view.node_id for node in nodes}
        assert 0.0 < deadlines.pop() <= 5.0
        with run.service.changed:
            run.service.remove("run/rounds")
        with pytest.raises(RendezvousStateError, match="gone from the service"):
            assert again.nodes
        for node in nodes:
            node.leave()
        with pytest.raises(RendezvousClosedError, match="ask for them before"):
            assert again.nodes

    def test_without_an_address_it_is_the_one_towards_the_service(self, run: Run) -> None:
        node = run.node(1, 1)
        assert node.next_rendezvous().bootstrap_store_info.master_addr == run.backends[0].local_address

    def test_an_address_that_is_not_told_is_not_waited_for(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        told = threading.Event()

        def look_up(backend: MemoryBackend) -> str:
            told.wait(60)
            return "127.0.0.1"

        monkeypatch.setattr(MemoryBackend, "local_address", property(look_up))
        node = run.node(1, 1, join=0.3)
        try:
            with pytest.raises(RendezvousTimeoutError, match=r"'memory' was not found in time.*local_addr"):
                node.next_rendezvous()
            assert not told.is_set()
        finally:
            told.set()

    def test_an_address_that_takes_a_moment_is_waited_for(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def look_up(backend: MemoryBackend) -> str:
            time.sleep(0.05)
            return "127.0.0.7"

        monkeypatch.setattr(MemoryBackend, "local_address", property(look_up))
        assert run.node(1, 1).next_rendezvous().bootstrap_store_info.master_addr == "127.0.0.7"

    def test_two_threads_do_not_wait_at_once_but_one_after_the_other(self, run: Run) -> None:
        node = run.node(2, 2)
        waiting = run.join(node)[0]
        wait_until(lambda: node._node.registration.record)
        with pytest.raises(RendezvousError, match="Another thread"):
            node.next_rendezvous()
        run.gather(run.node(2, 2))
        assert waiting.result(10).round == 1
        assert sorted(info.round for info in run.gather(*run.handlers)) == [2, 2]

    def test_it_has_two_loops_however_often_it_is_asked(self, run: Run) -> None:
        node = run.node(2, 2)
        for _ in range(3):
            assert not node.is_closed()
        loops = [thread.name for thread in threading.enumerate() if thread.name.endswith(node.view.node_id)]
        assert sorted(loops) == [f"rdzv-{name}-{node.view.node_id}" for name in ("keep", "watch")]

    def test_a_store_of_the_callers_own_is_used_and_left_alone(self, run: Run) -> None:
        class Own:
            """Has no `close`."""

            def __init__(self) -> None:
                self.values: dict[str, bytes] = {}

            def set(self, key: str, value: bytes) -> None:
                self.values[key] = value

        own: Any = Own()
        node = DynamicRendezvousHandler(run.node(1, 1).settings, run.backend(), own)
        store = node.next_rendezvous().store
        assert isinstance(store, PrefixStore)
        store.set("key", b"value")
        assert own.values == {"rdzv.run.1/key": b"value"}
        assert node.shutdown()


def test_a_life_begins_once_and_is_begun_again_if_that_has_failed() -> None:
    life = Lifetime("run")
    begun: list[bool] = []

    def fail() -> None:
        raise OSError("no thread")

    with pytest.raises(OSError, match="no thread"):
        life.begin(fail)
    for _ in range(2):
        life.begin(lambda: begun.append(True))
    assert begun == [True]


class TestEnding:
    @pytest.mark.parametrize(
        ("on_shutdown", "member", "closes"),
        [
            ("auto", True, True),
            ("auto", False, False),
            ("close", True, True),
            ("close", False, True),
            ("leave", True, False),
            ("leave", False, False),
        ],
    )
    def test_shutdown_closes_the_run_or_not(self, run: Run, on_shutdown: Any, member: bool, closes: bool) -> None:
        node = run.node(1, 1, on_shutdown=on_shutdown)
        node.next_rendezvous() if member else node.is_closed()
        assert node.shutdown() is True
        assert closed(run) == (Closed(node.view.node_id, "the job is done", done=True) if closes else None)

    def test_leaving_closes_nothing(self, run: Run) -> None:
        node = run.node(1, 1)
        node.next_rendezvous()
        assert node.leave() is True
        assert node.leave() is True
        assert closed(run) is None

    def test_closing_is_not_the_end_of_the_job(self, run: Run) -> None:
        node = run.node(1, 1)
        node.next_rendezvous()
        assert not node.is_closed()
        # A request that is lost is sent again.
        run.backends[0].fail("read", Fault.REQUEST_LOST)
        node.set_closed("enough")
        assert node.is_closed()
        assert closed(run) == Closed(node.view.node_id, "enough", done=False)

    def test_afterwards_it_answers_what_it_knew_and_does_nothing_else(self, run: Run) -> None:
        node = run.node(1, 1)
        node.next_rendezvous()
        calls = run.backends[0].calls
        node.shutdown()
        before = calls.copy()
        assert node.is_closed()
        assert node.num_nodes_waiting() == 0
        assert node.shutdown() is True
        assert calls == before
        with pytest.raises(RendezvousClosedError, match="has shut down; create a new one"):
            node.next_rendezvous()

    def test_its_store_is_of_no_use_afterwards(self, run: Run) -> None:
        node = run.node(1, 1)
        store = node.next_rendezvous().store
        assert isinstance(store, KeyValueStore)
        node.shutdown()
        with pytest.raises(RendezvousConnectionError, match="closed"):
            store.get("never")

    def test_a_service_that_is_away_is_not_told_for_long(self, run: Run) -> None:
        node = run.node(1, 1)
        node.next_rendezvous()
        run.backends[0].disconnect()
        wait_until(lambda: node.view.connection_error is not None)
        began = time.monotonic()
        assert node.shutdown() is False
        # For a keep-alive interval, not for the five seconds of the close timeout.
        assert time.monotonic() - began < 3.0

    def test_a_service_that_misses_some_calls_is_reached_all_the_same(self, run: Run) -> None:
        node = run.node(1, 1)
        node.next_rendezvous()
        # Trying again so often takes several keep-alive intervals.
        run.backends[0].fail("put", *[Fault.REQUEST_LOST] * 5)
        assert node.leave("drained") is True
        # What is left goes with the lease.
        wait_until(lambda: run.all_keys() == {STATE_KEY, STATUS_KEY})

    def test_a_lease_that_could_not_be_revoked_is_no_confirmed_end(self, run: Run) -> None:
        node = run.node(1, 1, close=0.5)
        node.next_rendezvous()
        run.backends[0].fail("revoke", *[Fault.REQUEST_LOST] * 50)
        assert node.shutdown() is False

    def test_a_fork_ends_and_asks_nothing(self, run: Run) -> None:
        node = run.node(1, 1)
        node.next_rendezvous()
        mine = f"belongs to process {os.getpid()}"
        assert mine in said_in_fork(node.next_rendezvous)
        assert mine in said_in_fork(node.is_closed)
        assert said_in_fork(node.shutdown) == "returned False"
        assert closed(run) is None
        node.shutdown()
        assert mine in said_in_fork(node.is_closed)


class TestRemoval:
    """A run whose state another client has removed from the service, while its nodes are there."""

    REMOVED = r"The rendezvous 'run' was removed from the service while this node took part in it"

    @pytest.fixture
    def nodes(self, run: Run) -> list[DynamicRendezvousHandler]:
        """A member that knows that the run was removed, and a spare that waits meanwhile."""
        member, spare = run.nodes(2, 1, 1)
        member.next_rendezvous()
        waits = run.join(spare)[0]
        wait_until(lambda: len(run.service.under("run/nodes")) == 2)
        with run.service.changed:
            run.service.remove("run/control")
        with pytest.raises(RendezvousClosedError, match=self.REMOVED):
            waits.result(5)
        wait_until(member.is_closed)
        return [member, spare]

    def test_it_is_raised_in_the_next_wait(self, run: Run, nodes: list[DynamicRendezvousHandler]) -> None:
        for node in nodes:
            with pytest.raises(RendezvousClosedError, match=self.REMOVED):
                node.next_rendezvous()
        assert f"run/{STATE_KEY}" not in run.service.entries

    def test_the_run_id_can_be_used_again(self, run: Run, nodes: list[DynamicRendezvousHandler]) -> None:
        for node in nodes:
            node.leave()
        assert run.node(1, 1).next_rendezvous().world_size == 1


class TestAsking:
    def test_the_first_question_waits_for_the_service(self, run: Run) -> None:
        node = run.node(1, 1)
        # It answers no call as long as this is held.
        with run.service.changed:
            asked = run.pool.submit(node.is_closed)
            with pytest.raises(TimeoutError):
                asked.result(0.3)
        assert asked.result(5) is False

    def test_a_member_knows_until_when_it_is_certainly_one(self, run: Run) -> None:
        node = run.node(1, 1)
        assert (node.view.record, node.view.member_until) == (None, None)
        info = node.next_rendezvous()
        until = node.view.member_until
        assert until is not None
        assert time.monotonic() < until
        record, where = node.view.record, info.bootstrap_store_info
        assert record is not None
        assert where is not None
        assert (record.id, record.address, record.port) == (node.view.node_id, where.master_addr, where.master_port)
        wait_until(lambda: (node.view.member_until or 0.0) > until)
        node.leave()
        assert node.view.member_until is None

    def test_an_error_that_lasts_is_raised_until_the_run_is_closed(self, run: Run) -> None:
        node = run.node(1, 1)
        node.next_rendezvous()
        with node._runner._lock:
            node._node.failures.add("a loop", RendezvousStateError("corrupt"), lasts=True)
        for ask in (node.is_closed, node.num_nodes_waiting):
            with pytest.raises(RendezvousStateError, match="corrupt"):
                ask()
        node.set_closed()
        assert node.is_closed()
        assert node._node.failures.count(WATCH) == 0

    def test_a_refused_node_says_how_long_it_goes_on_while_it_is_refused(self, run: Run) -> None:
        node = run.node(1, 1)
        told = []
        for error in (None, RendezvousConnectionError("away"), RendezvousDeniedError("no")):
            node._node.connection.error = error
            told.append(node.view.refused_timeout)
        assert told == [None, None, node._node.failures.patience()]

    def test_a_refused_node_says_for_how_long_it_has_been_refused(self, run: Run) -> None:
        node = run.node(1, 1)
        assert node.view.refused is None
        failures, now = node._node.failures, node._node.clock()
        for loop, began in (("a", now - 20), ("b", now - 30), ("c", now - 10)):
            failures.add_passing(loop, RendezvousDeniedError("no"), began)
        failures.add_passing("d", RendezvousConnectionError("away"), now - 40)
        assert node.view.refused == pytest.approx(30, abs=5)
        for loop in "abc":
            failures.clear(loop)
        assert node.view.refused is None
        # A call that is tried again has been refused before its loop learns of it.
        node._node.connection.on_error(RendezvousDeniedError("no"), lasted=20.0)
        assert node.view.refused == pytest.approx(20, abs=5)
        node._node.connection.on_contact()
        assert node.view.refused is None


class TestNotices:
    """What a node says of itself beside its record, and what it knows of others."""

    @pytest.mark.parametrize("seconds", [-0.1, 1e9 + 1, float("nan"), float("inf")])
    def test_seconds_that_no_clock_counts_are_refused(self, run: Run, seconds: float) -> None:
        with pytest.raises(RendezvousParameterError, match="for a number of seconds from 0 to 1000000000, not"):
            run.node(1, 1).drain(seconds, "spot")

    @pytest.mark.parametrize("seconds", [0.0, 1e9])
    def test_the_least_and_the_most_seconds_are_taken(self, run: Run, seconds: float) -> None:
        node = run.node(1, 1)
        run.gather(node)
        node.drain(seconds, "spot")
        assert node.view.is_drained is (seconds == 0)
        assert [(drain.node, drain.reason) for drain in node.view.drains] == [(node.view.node_id, "spot")]

    def test_drains_are_in_the_order_in_which_nodes_go(self, run: Run) -> None:
        first, second = nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        first.drain(100.0, "later")
        second.drain(50.0, "sooner")
        wait_until(lambda: all(len(node.view.drains) == 2 for node in nodes))
        for node in nodes:
            assert [drain.reason for drain in node.view.drains] == ["sooner", "later"]
            assert [40 < drain.seconds - more <= 50 for drain, more in zip(node.view.drains, (0, 50), strict=True)] == [
                True
            ] * 2

    def test_a_drain_that_is_over_has_no_seconds_left(self, run: Run) -> None:
        node = run.node(1, 1)
        run.gather(node)
        node.drain(0.0, "now")
        assert [drain.seconds for drain in node.view.drains] == [0.0]
        assert node.num_nodes_waiting() == 1
        assert node.view.drain_reason == "drained: now"

    def test_a_node_goes_as_soon_as_all_are_ready(self, run: Run) -> None:
        nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        nodes[0].drain(600.0, "spot")
        wait_until(lambda: all(node.view.drains for node in nodes))
        for node in nodes:
            node.ready_to_drain()
        wait_until(lambda: nodes[0].view.is_drained)
        assert not nodes[1].view.is_drained

    def test_a_node_is_ready_for_the_drains_that_it_names(self, run: Run) -> None:
        nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        for node in nodes:
            node.drain(600.0, "spot")
        wait_until(lambda: all(len(node.view.drains) == 2 for node in nodes))
        for node in nodes:
            node.ready_to_drain([nodes[0].view.node_id])
        wait_until(lambda: nodes[0].view.is_drained)
        assert not nodes[1].view.is_drained

    def test_members_see_no_drain_of_a_node_outside_their_world(self, run: Run) -> None:
        members, spare = run.nodes(2, 2, 2), run.node(2, 2)
        run.gather(*members)
        spare.drain(300.0, "rack")
        members[0].drain(600.0, "spot")
        wait_until(lambda: all(len(node._node.countdown.drains) == 2 for node in members))
        assert [[drain.reason for drain in node.view.drains] for node in members] == [["spot"]] * 2
        # A node in no world sees them all.
        assert {drain.reason for drain in spare.view.drains} >= {"rack"}

    def test_the_first_failure_of_a_round_is_known_to_all(self, run: Run) -> None:
        first, second = nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        assert second.report_failure("exit code 1")
        assert not first.report_failure("exit code 2", progressed=True)
        wait_until(lambda: first.view.failures == second.view.failures and 1 in first.view.failures)
        failure = first.view.failures[1]
        assert (failure.node, failure.reason, failure.progressed) == (second.view.node_id, "exit code 1", False)
        assert [number for number, _ in first.view.rounds_without_progress] == [1]

    def test_a_run_may_be_given_up(self, run: Run) -> None:
        first, second = nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        first.set_closed("3 rounds without progress", gave_up=True)
        wait_until(second.is_closed)
        assert second.view.closed == Closed(first.view.node_id, "3 rounds without progress", done=False, gave_up=True)

    def test_a_run_that_is_closed_is_not_given_up(self, run: Run) -> None:
        node = run.node(1, 1)
        run.gather(node)
        node.set_closed()
        assert node.view.closed is not None
        assert not node.view.closed.gave_up

    @pytest.mark.parametrize("seconds", [0.0, 60.0])
    def test_a_drain_is_announced_although_a_request_is_lost(self, run: Run, seconds: float) -> None:
        first, second = nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        run.backends[0].fail("put", Fault.REQUEST_LOST)
        first.drain(seconds, "spot")
        wait_until(lambda: len(second.view.drains) == 1)

    def test_a_failure_is_reported_although_a_request_is_lost(self, run: Run) -> None:
        first, second = nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        run.backends[0].fail("put", Fault.REQUEST_LOST)
        assert first.report_failure("exit code 1")
        wait_until(lambda: 1 in second.view.failures)


def test_heartbeats_are_looked_at_beside_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    monkeypatch.setattr(backend, "capabilities", frozenset(), raising=False)
    leases = with_leases(backend, RendezvousSettings("run", 1, 1, RendezvousTimeout(), seconds(5.0), 3))
    assert isinstance(leases, HeartbeatLeases)
    assert leases._beside is look_beside
