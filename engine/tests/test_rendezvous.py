"""Nodes gather, lose each other and re-form, over a service that lives in this process."""

import contextlib
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from rdzv_core import errors
from rdzv_core.backend import Capability, KeyValueBackend, Lease, RendezvousBackend, Token
from rdzv_core.envelope import Envelope, OtherVersionError
from rdzv_core.handler import RendezvousInfo, RendezvousStoreInfo

from rdzv import DynamicRendezvousHandler, NodeRecord
from rdzv.engine import aside, worlds
from rdzv.engine.register_adapter import RegisterAdapter
from rdzv.hooks import Event, EventKind, hookimpl, register_hooks, unregister_hooks
from rdzv.settings import RendezvousSettings, RendezvousTimeout

from .memory import Fault, MemoryBackend, MemoryService
from .waiting import wait_until

INTERVAL = 0.1
MISSED = 20
"""How many intervals without a keep-alive end a lease: a busy machine stops a process for longer than three of them."""
TTL = MISSED * INTERVAL
OBSERVED = 0.4
"""The interval where the nodes observe the heartbeats of each other. An observer that has not looked for two of them
takes that for an outage, and gives each lease its whole time again: a busy machine stops a thread for 0.1 s now and
then, and a register is polled every 0.1 to 0.3 s."""


def seconds(number: float) -> timedelta:
    """A time span."""
    return timedelta(seconds=number)


class LeaselessBackend(MemoryBackend):
    """The same service without leases: the engine adds heartbeat leases."""

    capabilities = frozenset({Capability.WATCH})

    def open_lease(self, ttl: float, *, timeout: float) -> Any:
        raise AssertionError("a backend without leases was asked for one")


class Register(RendezvousBackend):
    """A register backend as written for PyTorch: two methods and a name."""

    def __init__(self, shared: dict[str, Any]) -> None:
        self._shared = shared

    @property
    def name(self) -> str:
        return "register"

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._shared["lock"]:
            return self._shared.get("state")

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        with self._shared["lock"]:
            there = self._shared.get("state")
            if (there[1] if there else None) != token:
                return (*there, False) if there else None
            self._shared["state"] = (state, (token or 0) + 1)
            return (*self._shared["state"], True)


class Run:
    """The nodes of one test.

    Args:
        kind: What the service can do.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.service = MemoryService()
        self._register: dict[str, Any] = {"lock": threading.Lock()}
        self.handlers: list[DynamicRendezvousHandler] = []
        self.backends: list[Any] = []
        self.pool = ThreadPoolExecutor(32)

    def backend(self) -> RendezvousBackend:
        if self._kind == "register":
            return Register(self._register)
        return (LeaselessBackend if self._kind == "leaseless" else MemoryBackend)(self.service)

    def node(
        self,
        low: int = 2,
        high: int = 4,
        *,
        join: float = 10.0,
        last_call: float = 1.0,
        address: str | None = None,
        alone: float = 60.0,
        close: float = 5.0,
        refused: float = 600.0,
        ttl: float = TTL,
        **more: Any,
    ) -> Any:
        """A new handler."""
        interval = INTERVAL if self._kind == "memory" else OBSERVED
        settings = RendezvousSettings(
            "run",
            low,
            high,
            RendezvousTimeout(
                seconds(join), seconds(last_call), seconds(close), seconds(2), seconds(alone), seconds(refused)
            ),
            seconds(interval),
            round(ttl / interval),
            **more,
        )
        self.backends.append(self.backend())
        self.handlers.append(DynamicRendezvousHandler(settings, self.backends[-1], local_addr=address))
        return self.handlers[-1]

    def nodes(self, count: int, *args: Any, **more: Any) -> list[Any]:
        """Several new handlers."""
        return [self.node(*args, **more) for _ in range(count)]

    def join(self, *handlers: DynamicRendezvousHandler) -> list[Future[RendezvousInfo]]:
        """Let handlers ask for a world, each on a thread of its own."""
        return [self.pool.submit(handler.next_rendezvous) for handler in handlers]

    def gather(self, *handlers: DynamicRendezvousHandler) -> list[RendezvousInfo]:
        """The same, and wait for what they get: who gets no world says so himself when its time to join is over."""
        return [future.result(90) for future in self.join(*handlers)]

    def crash(self, handler: DynamicRendezvousHandler) -> None:
        """End a node without leaving, as kill -9 does."""
        handler._lifetime.end()
        handler._runner.stop(5.0)

    def end(self, *handlers: DynamicRendezvousHandler) -> None:
        """Shut down, one after the other. One whose last call failed would only take an interval, which is short."""
        for handler in handlers:
            wait_until(lambda: handler.view.connection_error is None)  # noqa: B023
            assert handler.shutdown()

    def all_keys(self) -> set[str]:
        """Every key that the service holds, whatever it means."""
        backend = self.backend()
        keys = backend if isinstance(backend, KeyValueBackend) else RegisterAdapter(backend)
        return {
            key
            for prefix in ("control", "nodes", "heartbeats", "rounds")
            for key in keys.read_all(prefix, timeout=1).entries
        }

    def close(self) -> None:
        for handler in self.handlers:
            handler.leave("the test is over")
        self.pool.shutdown()


@contextmanager
def plugged_in(plugin: Any) -> Iterator[None]:
    """Have the hooks of a plugin called meanwhile."""
    register_hooks(plugin)
    try:
        yield
    finally:
        aside.flush()
        unregister_hooks(plugin)


def settle() -> None:
    """Wait until the plugins have taken every event that was announced so far: they take them in order."""
    taken = threading.Event()
    aside.announce([taken.set])
    wait_until(taken.is_set)


@contextmanager
def listening(run_id: str = "run") -> Iterator[list[Event]]:
    """Collect what happens; what was announced before is not collected, all that was meanwhile is.

    A node knows news, and its caller may get a world, a little before the node announces them: wait for those that must
    come.
    """
    events: list[Event] = []

    class Listener:
        @hookimpl
        def rdzv_event(self, event: Event) -> None:
            events.append(event)

    settle()
    with plugged_in(Listener()):
        yield events
        settle()


def nodes_of(events: list[Event], kind: EventKind) -> list[str]:
    """The nodes that events of a kind are about, one for each that was announced."""
    return [event.node for event in events if event.kind is kind]


@pytest.fixture(params=["memory", "leaseless", "register", "pages"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run on each kind of backend, with leases, without, and with only a register; and one whose worlds are large."""
    if request.param == "pages":
        monkeypatch.setattr(worlds, "PAGE", 1)
    with contextlib.closing(Run("memory" if request.param == "pages" else request.param)) as run:
        yield run


@pytest.fixture
def simple() -> Iterator[Run]:
    """A run on a backend that can do everything."""
    with contextlib.closing(Run("memory")) as run:
        yield run


class TestGathering:
    def test_all_get_the_same_world(self, run: Run) -> None:
        infos = run.gather(*run.nodes(4))
        assert sorted(info.rank for info in infos) == [0, 1, 2, 3]
        assert len({(info.world_size, info.round, info.nodes, str(info.bootstrap_store_info)) for info in infos}) == 1

    def test_the_store_is_shared(self, run: Run) -> None:
        first, second = run.gather(*run.nodes(2, 2, 2))
        first.store.set("key", b"value")
        assert second.store.get("key") == b"value"

    def test_a_node_that_others_cannot_reach_is_not_rank_0_and_says_what_to_give(
        self, simple: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        here = simple.nodes(3, 4, node_name="a", address="localhost")
        elsewhere = simple.node(4, node_name="b", address="10.0.0.7", behind_nat=True)
        *others, first = simple.gather(*here, elsewhere)
        assert first.rank == 0
        places = [info.bootstrap_store_info for info in (first, *others)]
        assert {place and place.master_addr for place in places} == {"10.0.0.7"}
        aside.flush()
        assert caplog.text.count("it is at localhost, where each of them finds itself: it cannot be rank 0") == 3
        assert "10.0.0.7" not in caplog.text

    def test_the_last_call_lets_stragglers_in(self, run: Run) -> None:
        early = run.join(*run.nodes(2, last_call=1.0))
        wait_until(lambda: run.handlers[0].is_closed() is False and run.handlers[0]._node.registration.record)
        late = run.join(run.node(last_call=1.0))
        assert {future.result(10).world_size for future in early + late} == {3}

    def test_a_late_node_waits_and_is_announced(self, run: Run) -> None:
        nodes = run.nodes(2)
        run.gather(*nodes)
        late = run.join(run.node())[0]
        wait_until(lambda: all(node.num_nodes_waiting() == 1 for node in nodes))
        infos = run.gather(*nodes)
        assert late.result(10).nodes == infos[0].nodes
        assert [info.rank for info in infos] == [infos[0].nodes.index(node.view.node_id) for node in nodes]
        assert {info.round for info in infos} == {2}

    def test_a_member_that_dies_is_named_and_the_others_go_on(self, run: Run) -> None:
        nodes = run.nodes(3, 2, 3)
        run.gather(*nodes)
        with listening() as events:
            run.crash(nodes[0])
            wait_until(lambda: all(node.num_nodes_waiting() for node in nodes[1:]))
            infos = run.gather(*nodes[1:])
            wait_until(lambda: nodes_of(events, EventKind.NODE_LOST))
        assert [info.world_size for info in infos] == [2, 2]
        assert set(nodes_of(events, EventKind.NODE_LOST)) == {nodes[0].view.node_id}

    def test_a_member_that_leaves_is_seen_at_once_with_its_reason(self, run: Run) -> None:
        nodes = run.nodes(3, 2, 3)
        run.gather(*nodes)
        with listening() as events:
            nodes[0].leave("drained")
            wait_until(lambda: all(node.num_nodes_waiting() for node in nodes[1:]))
            wait_until(lambda: nodes_of(events, EventKind.NODE_LEFT))
        assert ("drained", nodes[0].view.node_id) in {
            (event.cause, event.node) for event in events if event.kind is EventKind.NODE_LEFT
        }
        assert not nodes[1].is_closed()

    @pytest.mark.parametrize("end", ["leaves", "dies", "stays"])
    def test_every_world_names_where_its_own_rank_0_is_now(self, run: Run, end: str) -> None:
        nodes = [run.node(3, 3, address=f"127.0.0.{number}", node_name=f"n{number}") for number in range(1, 4)]
        given: dict[str, tuple[str, int]] = {}

        class Reader:
            @hookimpl
            def rdzv_assign_ranks(self, arrived: Sequence[NodeRecord], previous: Sequence[str]) -> None:
                given.update({record.id: (record.address, record.port) for record in arrived})

        with plugged_in(Reader()):
            for number in range(3):
                infos = run.gather(*nodes)
                first = next(node for node in nodes if node.view.node_id == infos[0].nodes[0])
                where = {str(info.bootstrap_store_info) for info in infos}
                assert where == {str(RendezvousStoreInfo(*given[first.view.node_id]))}
                assert given[first.view.node_id] == (first._local_addr, first._node.registration.record.port)
                if end == "stays":
                    continue
                first.leave("it makes room") if end == "leaves" else run.crash(first)
                nodes.remove(first)
                # Its rank goes to a newcomer, whose name is first or last in the alphabet.
                address = f"127.0.1.{number}"
                nodes.append(run.node(3, 3, address=address, node_name=f"{'az'[number % 2]}{number}"))

    def test_spares_end_gracefully_when_the_job_is_done(self, run: Run) -> None:
        nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        spare = run.join(run.node(2, 2))[0]
        wait_until(lambda: run.handlers[-1]._node.registration.record is not None)
        assert nodes[0].num_nodes_waiting() == 0
        nodes[0].shutdown()
        with pytest.raises(errors.RendezvousGracefulExitError, match="the job is done"):
            spare.result(10)
        wait_until(nodes[1].is_closed)

    def test_the_first_reason_of_closing_stands(self, run: Run) -> None:
        first, second = run.nodes(2, 2, 2)
        run.gather(first, second)
        first.set_closed("enough")
        second.set_closed("me too")
        wait_until(second.is_closed)
        assert first.view.closed.reason == second.view.closed.reason == "enough"
        with pytest.raises(errors.RendezvousClosedError, match="enough"):
            run.node(2, 2).next_rendezvous()

    def test_a_higher_attempt_takes_over_a_closed_run(self, run: Run) -> None:
        run.gather(*(old := run.nodes(2, 2, 2)))
        for node in old:
            node.shutdown()
        infos = run.gather(*run.nodes(2, 2, 2, attempt=1))
        assert {info.round for info in infos} == {2}
        with pytest.raises(errors.RendezvousClosedError, match="attempt 1"):
            run.node(2, 2).next_rendezvous()

    def test_a_higher_attempt_makes_the_one_before_stop(self, run: Run) -> None:
        run.gather(*(old := run.nodes(2, 2, 2)))
        new = run.join(*run.nodes(2, 2, 2, attempt=1))
        wait_until(lambda: all(node.is_closed() for node in old))
        assert not any(future.done() for future in new)
        for node in old:
            node.leave("superseded")
        assert {future.result(10).world_size for future in new} == {2}

    def test_a_timeout_names_who_is_there_and_disturbs_no_node(self, run: Run) -> None:
        patient, hasty = run.node(3, 3, join=10), run.node(3, 3, join=0.4)
        waiting = run.join(patient)[0]
        missing = r"2 of at least 3 nodes are here.*1 is missing"
        with pytest.raises(errors.RendezvousTimeoutError, match=missing) as raised:
            hasty.next_rendezvous()
        assert patient.view.node_id in str(raised.value)
        assert not waiting.done()
        run.join(*run.nodes(2, 3, 3))
        assert waiting.result(10).world_size == 3

    def test_each_node_knows_who_is_expected_and_has_not_come(self, run: Run) -> None:
        nodes = run.node(4, 4, node_name="a"), run.node(4, 4, join=2.5, node_name="b")
        for node in nodes:
            node.expect(("a", "b", "c", "d"))
        waiting = run.join(*nodes)
        both = " 2 more needed; missing: c, d"
        wait_until(lambda: all(node.view.waits_for(1.0).endswith(both) for node in nodes))
        assert re.search(r"2 are missing\. Missing: c, d\.", str(waiting[1].exception(10)))
        wait_until(lambda: nodes[0].view.waits_for(1.0).endswith(" 3 more needed; missing: b, c, d"))

    def test_a_timeout_during_the_last_call_says_so(self, simple: Run) -> None:
        with pytest.raises(errors.RendezvousTimeoutError, match=r"1 of at least 1 node is here.*the last call of 5 s"):
            simple.node(1, 2, join=0.4, last_call=5).next_rendezvous()

    def test_a_timeout_after_a_death_names_the_dead(self, simple: Run) -> None:
        dead, left = nodes = simple.nodes(2, 2, 2, join=1.5)
        simple.gather(*nodes)
        simple.crash(dead)
        wait_until(lambda: left.view.status and left.view.status.departures)
        with pytest.raises(
            errors.RendezvousTimeoutError, match=rf"Of round 1, '{dead.view.node_id}' is gone: "
        ) as raised:
            left.next_rendezvous()
        assert f"1 of at least 2 nodes is here ({left.view.node_id}), 1 is missing." in str(raised.value)
        assert "running" not in str(raised.value)

    def test_nothing_is_left_behind_but_the_closed_state(self, run: Run) -> None:
        nodes = run.nodes(3, 3, 3)
        for info in run.gather(*nodes):
            info.store.add("counter", 1)
        run.end(*nodes)
        assert run.all_keys() == {"control/state"}

    def test_nothing_is_left_behind_of_those_who_died_or_left_either(self, run: Run) -> None:
        # All four are in the first world, also if a busy machine lets one come late.
        dies, leaves, *stay = nodes = run.nodes(4, 2, 4, last_call=2.0)
        run.gather(*nodes)
        run.crash(dies)
        leaves.leave("it is not needed")
        wait_until(lambda: all(node.view.status and len(node.view.status.departures) == 2 for node in stay))
        run.gather(*stay)
        run.end(*stay)
        assert run.all_keys() == {"control/state"}

    def test_nothing_is_left_behind_by_an_attempt_that_ends_before_the_one_that_it_supersedes(self, run: Run) -> None:
        run.gather(*(old := run.nodes(2, 2, 2)))
        later = run.node(2, 2, attempt=1)
        later.set_closed()
        later.leave()
        run.end(*old)
        assert run.all_keys() == {"control/state"}

    def test_an_attempt_that_died_leaves_nothing_to_the_next(self, run: Run) -> None:
        run.gather(*(old := run.nodes(2, 2, 2)))
        for node in old:
            run.crash(node)
        run.gather(*run.nodes(2, 2, 2, attempt=1))
        wait_until(lambda: not [key for key in run.all_keys() if key.startswith(("nodes/0/", "heartbeats/0/"))])


class TestFaults:
    def test_a_node_that_was_away_comes_back_without_a_restart(self, simple: Run) -> None:
        nodes = simple.nodes(2, 2, 2)
        simple.gather(*nodes)
        for lease in list(simple.service.leases):
            with simple.service.changed:
                simple.service.end(lease)
        wait_until(lambda: len(simple.service.under("run/nodes")) == 2)
        wait_until(lambda: all(node.num_nodes_waiting() == 0 for node in nodes))
        assert {node._node.run.state.round for node in nodes} == {1}

    def test_a_node_that_comes_back_to_a_closed_run_trusts_its_world_no_more(self, simple: Run) -> None:
        # The last node that ends removes the records, so the next attempt may not know that it is here.
        nodes = simple.nodes(2, 2, 2)
        simple.gather(*nodes)
        nodes[0].set_closed("enough")
        wait_until(lambda: all(node.is_closed() for node in nodes))
        with simple.service.changed:
            for lease in list(simple.service.leases):
                simple.service.end(lease)
        wait_until(lambda: len(simple.service.under("run/nodes")) == 2)
        wait_until(lambda: not any(node._node.registration.writing for node in nodes))
        assert not any(node._node.has_valid_lease() for node in nodes)

    def test_an_evicted_node_gets_an_error(self, simple: Run) -> None:
        nodes = simple.nodes(3, 2, 3)
        simple.gather(*nodes)
        with listening() as events:
            simple.backends[0].disconnect()
            wait_until(lambda: all(node.num_nodes_waiting() for node in nodes[1:]))
            simple.gather(*nodes[1:])
            simple.backends[0].reconnect()
            wait_until(nodes[0].num_nodes_waiting)
            wait_until(lambda: nodes_of(events, EventKind.EVICTED))
        assert (EventKind.EVICTED, nodes[0].view.node_id) in {(event.kind, event.node) for event in events}
        back = simple.join(nodes[0])[0]
        wait_until(lambda: all(node.num_nodes_waiting() for node in nodes[1:]))
        simple.gather(*nodes[1:])
        assert back.result(10).world_size == 3

    def test_a_node_is_not_told_of_its_own_loss(self, simple: Run) -> None:
        lost, *others = nodes = simple.nodes(3, 3, 3)
        simple.gather(*nodes)
        with listening() as events:
            # It cannot renew its lease, and hears all news.
            simple.backends[0].refuse(errors.RendezvousConnectionError("it is cut off"), "keep_alive", "open_lease")
            wait_until(lambda: all(node.view.status and node.view.status.departures for node in nodes))
            simple.backends[0].accept()
            wait_until(lambda: not any(node.view.status.departures for node in nodes))
            wait_until(lambda: len(nodes_of(events, EventKind.NODE_LOST)) >= len(others))
        assert nodes_of(events, EventKind.NODE_LOST) == len(others) * [lost.view.node_id]
        assert EventKind.EVICTED not in {event.kind for event in events}

    def test_an_outage_changes_no_world(self, simple: Run) -> None:
        nodes = simple.nodes(3, 2, 3)
        with listening() as events:
            simple.gather(*nodes)
            # The last that each tells of how the world came about.
            wait_until(lambda: len(nodes_of(events, EventKind.ROUND_PUBLISHED)) == len(nodes))
            events.clear()
            for backend in simple.backends:
                backend.disconnect()
            with simple.service.changed:
                for lease in simple.service.leases:
                    lease.ends += 1e6  # the service stands still, and its leases with it
            wait_until(lambda: nodes[0]._node.clock() > nodes[0]._node.registration.lease_until)
            for backend in simple.backends:
                backend.reconnect()
            wait_until(lambda: all(node._node.has_valid_lease() for node in nodes))
        assert not [event for event in events if event.kind is not EventKind.LEADER_CHANGED]
        assert [node.num_nodes_waiting() for node in nodes] == [0, 0, 0]

    def test_the_log_tells_of_an_outage_and_of_its_end(
        self, simple: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("rdzv.engine.connection._PATIENCE", 0.2)
        simple.join(simple.node(2, 2))
        wait_until(lambda: simple.handlers[0]._node.registration.record)
        simple.backends[0].disconnect("it is away")
        wait_until(lambda: "has answered no call" in caplog.text)
        simple.backends[0].reconnect()
        wait_until(lambda: "answered a call again" in caplog.text)
        told = [record.getMessage() for record in caplog.records if record.name == "rdzv.engine.connection"]
        assert len(told) == 2
        assert told[0].endswith("it is away")

    def test_lost_replies_cost_nothing(self, simple: Run) -> None:
        nodes = simple.nodes(4)
        for backend in simple.backends:
            backend.fail("put", Fault.REPLY_LOST, Fault.REPLY_LOST)
        assert sorted(info.rank for info in simple.gather(*nodes)) == [0, 1, 2, 3]

    def test_failing_calls_cost_no_restart(self, simple: Run) -> None:
        nodes = simple.nodes(4)
        for backend in simple.backends:
            for method in ("read", "read_all", "put", "open_lease", "keep_alive"):
                backend.fail(method, Fault.REQUEST_LOST, None, Fault.REPLY_LOST if method == "put" else None)
        assert {info.world_size for info in simple.gather(*nodes)} == {4}

    def test_a_service_that_appears_late_serves_those_who_wait(self, simple: Run) -> None:
        nodes = simple.nodes(2, 2, 2)
        for backend in simple.backends:
            backend.disconnect("not there yet")
        waiting = simple.join(*nodes)
        wait_until(lambda: all(backend.calls["read_all"] > 3 for backend in simple.backends))
        for backend in simple.backends:
            backend.reconnect()
        assert {future.result(10).world_size for future in waiting} == {2}

    def test_a_service_that_never_appears_is_an_error_in_time(self, simple: Run) -> None:
        node = simple.node(join=0.5)
        simple.backends[0].disconnect("not there")
        started = time.monotonic()
        with pytest.raises(errors.RendezvousConnectionError, match="could not be reached"):
            node.next_rendezvous()
        assert time.monotonic() - started < 3

    @pytest.mark.parametrize(("join", "refused"), [(60.0, 0.5), (3.0, 60.0)])
    def test_a_refused_password_is_an_error_in_time(
        self, simple: Run, monkeypatch: pytest.MonkeyPatch, join: float, refused: float
    ) -> None:
        node = simple.node(join=join, refused=refused)

        def refuse(*args: Any, **more: Any) -> Any:
            raise errors.RendezvousDeniedError("wrong password")

        monkeypatch.setattr(simple.backends[0], "read_all", refuse)
        with pytest.raises(errors.RendezvousDeniedError, match="wrong password"):
            node.next_rendezvous()

    def test_a_refusal_lasts_no_longer_where_a_time_to_live_is_long(self) -> None:
        backend = MemoryBackend()
        backend.refuse(errors.RendezvousDeniedError("wrong password"), "read_all")
        timeout = RendezvousTimeout(join=seconds(20), refused=seconds(0.5))
        node = DynamicRendezvousHandler.from_backend("run", None, backend, 1, 1, None, timeout, 1.0, 60)
        with pytest.raises(errors.RendezvousDeniedError, match=r"is asked for 0.5 s .*: wrong password"):
            node.next_rendezvous()
        node.leave()

    @pytest.mark.parametrize("key", ["state", "leader", "status"])
    @pytest.mark.parametrize("value", [b"", b"\x80\x04K\x01.", b'{"rdzv":1}\n', b"[[[" * 9999])
    def test_corrupt_bytes_are_one_clear_error(self, simple: Run, key: str, value: bytes) -> None:
        with simple.service.changed:
            simple.service.write(f"run/control/{key}", value, None)
        with pytest.raises(errors.RendezvousStateError, match=rf"^'control/{key}': .*`rdzv close --purge` removes it"):
            simple.node(join=5).next_rendezvous()

    @pytest.mark.parametrize("written", [b'{"rdzv":2}\n', Envelope(b'{"schema":4}', "new", "1").pack()])
    def test_a_state_of_another_version_is_refused_at_once_and_said_once(
        self, simple: Run, written: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        with simple.service.changed:
            simple.service.write("run/control/state", written, None)
        node = simple.node()
        with pytest.raises(OtherVersionError, match="`rdzv close --purge`"):
            node.next_rendezvous()
        assert node._node.failures.count("watch") == 1
        # What its loops have logged until now comes later than that.
        aside.flush()
        assert not caplog.records

    def test_a_state_of_another_version_that_heals_ends_no_node_that_has_read_the_run(self, simple: Run) -> None:
        node = simple.node(1, 1)
        number = node.next_rendezvous().round
        before = simple.service.under("run/control/state")["run/control/state"]
        with simple.service.changed:
            simple.service.write("run/control/state", b'{"rdzv":3}\n', None)
        wait_until(lambda: node._node.failures.count("watch") > 0)
        assert node.num_nodes_waiting() == 0
        assert not node.is_closed()
        with simple.service.changed:
            simple.service.write("run/control/state", before.value, None)
        wait_until(lambda: node._node.failures.count("watch") == 0)
        assert node.next_rendezvous().round == number + 1

    def test_a_corrupt_node_record_stops_no_node(self, simple: Run) -> None:
        with simple.service.changed:
            simple.service.write("run/nodes/evil", b"\x80\x04K\x01.", None)
        assert {info.world_size for info in simple.gather(*simple.nodes(2, 2, 2))} == {2}

    def test_a_removed_run_counts_as_closed(self, simple: Run) -> None:
        # Members that have lost their leases, too, put the state back.
        nodes = simple.nodes(2, 2, 2, ttl=60.0)
        simple.gather(*nodes)
        with simple.service.changed:
            simple.service.remove("run/control")
        wait_until(lambda: all(node.is_closed() for node in nodes))
        assert "removed" in nodes[0].view.closed.reason

    def test_a_service_that_lost_its_data_gets_the_state_again(self, simple: Run) -> None:
        nodes = simple.nodes(2, 2, 2)
        simple.gather(*nodes)
        with simple.service.changed:
            simple.service.leases.clear()
            simple.service.remove("run")
        wait_until(lambda: "run/control/state" in simple.service.entries)
        wait_until(lambda: len(simple.service.under("run/nodes")) == 2)
        assert not any(node.is_closed() for node in nodes)
        assert {node._node.run.state.round for node in nodes} == {1}

    @pytest.mark.parametrize("kind", ["memory", "leaseless"])
    def test_who_dies_with_a_service_that_forgot_is_missed(self, kind: str) -> None:
        with contextlib.closing(Run(kind)) as run:
            nodes = run.nodes(3, 2, 3)
            run.gather(*nodes)
            with run.service.changed:
                run.service.leases.clear()
                run.service.remove("run")
            run.crash(nodes[2])
            # Each may have led on a lease that the service did not know any more.
            wait_until(lambda: all(node.num_nodes_waiting() for node in nodes[:2]), limit=8 * TTL + 3)
            assert {info.world_size for info in run.gather(*nodes[:2])} == {2}

    def test_wall_clocks_do_not_matter(self, simple: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def forbidden(clock: Callable[[], Any]) -> Callable[[], Any]:
            def read() -> Any:
                # A record of the log, such as "keeping the lease alive took long", says when it was written.
                assert sys._getframe(1).f_code.co_filename == logging.__file__, "the wall clock was read"
                return clock()

            return read

        monkeypatch.setattr(time, "time", forbidden(time.time))
        monkeypatch.setattr(time, "time_ns", forbidden(time.time_ns))
        nodes = simple.nodes(2, 2, 3)
        simple.gather(*nodes)
        simple.join(simple.node(2, 3))
        wait_until(lambda: all(node.num_nodes_waiting() for node in nodes))
        assert {info.world_size for info in simple.gather(*nodes)} == {3}


class TestWhatANodeMayAsk:
    def test_other_limits_are_refused_naming_both(self, run: Run) -> None:
        run.gather(*run.nodes(2, 2, 2))
        with pytest.raises(errors.RendezvousParameterError, match=r"2 nodes.* asks for 3 to 5 nodes"):
            run.node(3, 5).next_rendezvous()

    def test_other_limits_are_refused_while_gathering(self, simple: Run) -> None:
        waiting = simple.join(simple.node(2, 2))[0]
        wait_until(lambda: "run/control/leader" in simple.service.entries)
        with pytest.raises(errors.RendezvousParameterError, match="asks for 1 to 9"):
            simple.node(1, 9).next_rendezvous()
        simple.join(simple.node(2, 2))
        assert waiting.result(10).world_size == 2

    def test_shutdown_of_a_node_that_only_waits_closes_nothing(self, run: Run) -> None:
        waiting = run.join(run.node(2, 2))[0]
        wait_until(lambda: run.handlers[0]._node.registration.record)
        run.handlers[0].shutdown()
        with pytest.raises(errors.RendezvousClosedError, match="left"):
            waiting.result(10)
        assert {info.world_size for info in run.gather(*run.nodes(2, 2, 2))} == {2}

    @pytest.mark.parametrize(("on_shutdown", "closes"), [("close", True), ("leave", False)])
    def test_on_shutdown_forces_either(self, simple: Run, on_shutdown: Any, closes: bool) -> None:
        first, second = simple.nodes(2, 2, 2, on_shutdown=on_shutdown)
        simple.gather(first, second)
        first.shutdown()
        if closes:
            wait_until(second.is_closed)
        else:
            wait_until(lambda: second.view.status is not None and second.view.status.departures)
            assert not second.is_closed()

    def test_a_handler_that_shut_down_says_so(self, simple: Run) -> None:
        node = simple.node()
        assert node.shutdown()
        assert node.shutdown()
        with pytest.raises(errors.RendezvousClosedError, match="has shut down"):
            node.next_rendezvous()

    def test_an_interrupted_wait_takes_the_record_back(self, simple: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        node = simple.node()
        pause = node._runner._pause

        def interrupt(until: float, *how: Any) -> None:
            if threading.current_thread() is threading.main_thread() and node._node.registration.record:
                raise KeyboardInterrupt
            pause(until, *how)

        monkeypatch.setattr(node._runner, "_pause", interrupt)
        with pytest.raises(KeyboardInterrupt):
            node.next_rendezvous()
        assert not simple.service.under("run/nodes")
        assert not simple.service.under("run/control/leader")

    def test_with_ends_the_job_unless_the_block_fails(self, simple: Run) -> None:
        first, second = simple.nodes(2, 2, 2)
        simple.gather(first, second)
        with pytest.raises(ZeroDivisionError), first:
            1 / 0  # noqa: B018
        wait_until(lambda: second.view.status is not None and second.view.status.departures)
        assert not second.is_closed()


class TestPlugins:
    def test_a_failing_health_check_takes_no_slot(self, simple: Run) -> None:
        class Ill:
            @hookimpl
            def rdzv_health_check(self, run_id: str) -> None:
                raise OSError("no GPU")

        with plugged_in(Ill()), pytest.raises(errors.RendezvousError, match="no GPU"):
            simple.node().next_rendezvous()
        assert not simple.service.entries

    def test_ranks_are_assigned_by_a_plugin(self, simple: Run) -> None:
        class Reversed:
            @hookimpl
            def rdzv_assign_ranks(self, arrived: list[NodeRecord]) -> list[str]:
                return [node.id for node in reversed(arrived)]

        with plugged_in(Reversed()):
            first = simple.node(2, 2)
            waiting = simple.join(first)
            wait_until(lambda: simple.service.under("run/nodes"))
            waiting += simple.join(simple.node(2, 2))
            assert [future.result(10).rank for future in waiting] == [1, 0]

    def test_events_tell_the_whole_run(self, simple: Run) -> None:
        with listening() as events:
            nodes = simple.nodes(2, 2, 2)
            infos = simple.gather(*nodes)
            nodes[0].set_closed("enough")
            wait_until(nodes[1].is_closed)
            expected = {
                EventKind.NODE_ARRIVED,
                EventKind.LEADER_CHANGED,
                EventKind.ROUND_PUBLISHED,
                EventKind.CLOSED,
            }
            wait_until(lambda: expected <= {event.kind for event in events})
        assert {event.kind for event in events} == expected
        published = next(event for event in events if event.kind is EventKind.ROUND_PUBLISHED)
        assert (published.run_id, published.round, published.node) == ("run", 1, infos[0].nodes[0])

    def test_a_plugin_that_raises_disturbs_no_node(self, simple: Run, caplog: pytest.LogCaptureFixture) -> None:
        class Broken:
            @hookimpl
            def rdzv_event(self, event: Event) -> None:
                raise RuntimeError("oops")

        with plugged_in(Broken()):
            assert len(simple.gather(*simple.nodes(2, 2, 2))) == 2
            wait_until(lambda: "oops" in caplog.text)


class TestCost:
    def test_joining_costs_at_most_six_calls_a_node(self, simple: Run) -> None:
        count = 16
        nodes = simple.nodes(count, count, count)
        simple.gather(*nodes)
        calls = sum(sum(backend.calls.values()) for backend in simple.backends)
        # The memory service answers every wait with one snapshot: a wait may be asked again for each
        # of the four changes of `control` (two leaders' writes, the state, a status).
        waits = sum(backend.calls["wait"] for backend in simple.backends)
        assert calls - waits <= 5 * count + 10, [dict(backend.calls) for backend in simple.backends]

    def test_an_idle_node_only_keeps_its_lease(self, simple: Run) -> None:
        nodes = simple.nodes(3, 3, 3)
        simple.gather(*nodes)
        before = [backend.calls.copy() for backend in simple.backends]
        wait_until(
            lambda: all(
                b.calls["keep_alive"] > c["keep_alive"] + 5 for b, c in zip(simple.backends, before, strict=True)
            )
        )
        for backend, calls in zip(simple.backends, before, strict=True):
            assert {name for name, _ in (backend.calls - calls).items()} <= {"keep_alive", "wait"}


def test_two_threads_do_not_wait_as_one_node(simple: Run) -> None:
    node = simple.node()
    simple.join(node)
    wait_until(lambda: node._node.registration.record)
    with pytest.raises(errors.RendezvousError, match="Another thread"):
        node.next_rendezvous()


def test_leaving_ends_a_wait_for_a_service_that_never_came(simple: Run) -> None:
    node = simple.node(join=600)
    simple.backends[0].disconnect("not there")
    waiting = simple.join(node)[0]
    wait_until(lambda: simple.backends[0].calls["read_all"])
    node.leave()
    with pytest.raises(errors.RendezvousClosedError, match="left"):
        waiting.result(5)


def test_torch_style_constructor() -> None:
    with ExitStack() as stack:
        service = MemoryService()
        nodes = [
            DynamicRendezvousHandler.from_backend("job", None, MemoryBackend(service), 2, 2, "host", None, 5, 3)
            for _ in range(2)
        ]
        with ThreadPoolExecutor(2) as pool:
            infos = list(pool.map(lambda node: node.next_rendezvous(), nodes))
        for node in nodes:
            stack.enter_context(node)
        assert {info.bootstrap_store_info.master_addr for info in infos if info.bootstrap_store_info} == {"host"}
        assert nodes[0].get_backend() == "memory"
        assert nodes[0].get_run_id() == "job"
        assert isinstance(nodes[0]._node.registration.lease, Lease)


def test_a_store_is_of_no_use_after_shutdown_and_says_so_at_once(simple: Run) -> None:
    nodes = simple.nodes(2, 2, 2)
    first, _ = simple.gather(*nodes)
    waiting = simple.pool.submit(first.store.get, "never")
    wait_until(lambda: simple.backends[0].calls["wait"] > 1)
    nodes[0].shutdown()
    with pytest.raises(errors.RendezvousConnectionError):
        waiting.result(5)
    with pytest.raises(errors.RendezvousConnectionError):
        first.store.set("key", "value")
