"""Looking at a run from outside, on a service that lives in this process and fails for a while."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from rdzv_core.backend import ABSENT, BackendPlugin, Expect, Lease, PutOutcome, PutResult, Token
from rdzv_core.envelope import Envelope, OtherVersionError
from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousParameterError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rdzv_core.handler import Drain
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.plugins import registered_backends

from rdzv import DynamicRendezvousHandler, inspector
from rdzv.engine.client import RetryingClient
from rdzv.engine.handler import create_handler, with_keys, with_leases
from rdzv.engine.notices import Failure, Verdict, drain_key, failure_key
from rdzv.engine.records import NO_STATE, Closed, NodeRecord, Phase, RunStatus
from rdzv.inspector import RunInspector
from rdzv.settings import RendezvousSettings

from .memory import Fault, MemoryBackend, MemoryService
from .test_rendezvous import LeaselessBackend
from .waiting import wait_until

OPTIONS = {
    "keep_alive_interval": 0.1,
    "keep_alive_max_attempt": 20,
    "join_timeout": 10.0,
    "last_call_timeout": 0.2,
    "close_timeout": 5.0,
}
"""A lease ends after two seconds: a busy machine stops a process for longer than the usual three intervals."""
WHERE = ("--backend", "shared", "--run-id", "run")
UNREADABLE = [Envelope(b'{"schema":4}', "new", "1").pack(), b'{"rdzv":2}\n', b"not ours"]
"""A state of another version, one in an envelope of another version, and no state."""
OUTAGE = [Fault.REQUEST_LOST] * 3


class Shared:
    """One service and all its clients, as the backend ``shared``; `before` is called ahead of every change.

    Attributes:
        clients: Every backend that was made, in order.
        nodes: Every handler. After the test it ends, if it has not.
        before: Gets the method and the key of each put and delete, before it is applied.
        deadlines: Until when each of them may take.
        kind: Their class.
    """

    def __init__(self, kind: type[MemoryBackend]) -> None:
        self.service = MemoryService()
        self.clients: list[MemoryBackend] = []
        self.nodes: list[DynamicRendezvousHandler] = []
        self.before: Callable[[MemoryBackend, str, str], None] = lambda client, method, key: None
        self.deadlines: list[float] = []
        shared = self

        class Watched(kind):  # type: ignore[valid-type, misc]
            def put(
                self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
            ) -> PutResult:
                shared.deadlines.append(time.monotonic() + timeout)
                shared.before(self, "put", key)
                put: PutResult = super().put(key, value, expect=expect, lease=lease, timeout=timeout)
                return put

            def delete(self, prefix: str, *, timeout: float) -> None:
                shared.deadlines.append(time.monotonic() + timeout)
                shared.before(self, "delete", prefix)
                super().delete(prefix, timeout=timeout)

        self.kind = Watched

    def create(self, params: RendezvousParameters) -> tuple[MemoryBackend, None]:
        """What `create_backend` of its plugin does."""
        self.clients.append(self.kind(self.service, params.run_id))
        return self.clients[-1], None

    def params(self, **options: Any) -> RendezvousParameters:
        """What asks for it; `nodes` of them make a world, or `min_nodes` after the last call."""
        most = options.pop("nodes", 1)
        least = options.pop("min_nodes", most)
        return RendezvousParameters("shared", "", "run", least, most, **OPTIONS | options)

    def node(self, **options: Any) -> DynamicRendezvousHandler:
        """A handler on a client of its own."""
        params = self.params(**options)
        backend, _ = self.create(params)
        self.nodes.append(create_handler(None, backend, params))
        return self.nodes[-1]


@pytest.fixture(params=[MemoryBackend, LeaselessBackend], ids=["leases", "heartbeats"])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    """A service that the command finds, too."""
    shared = Shared(request.param)
    plugin = BackendPlugin("For tests.", (), shared.create, MemoryBackend, "")
    monkeypatch.setitem(registered_backends, "shared", plugin)
    yield shared
    shared.before = lambda client, method, key: None
    for node in shared.nodes:
        node.leave("the test is over")


def crash(node: DynamicRendezvousHandler) -> None:
    """End a node as kill -9 does."""
    node._lifetime.end()
    node._runner.stop(5.0)


class TestOutages:
    def test_purging_waits_for_nodes_while_the_service_is_away(self, shared: Shared) -> None:
        node = shared.node()
        node.next_rendezvous()
        with ThreadPoolExecutor(1) as pool, RunInspector(shared.params()) as observer:
            purged = pool.submit(observer.purge, 20.0)
            client = shared.clients[-1]
            wait_until(lambda: client.calls["wait"])
            reads = client.calls["read_all"]
            client.disconnect()
            wait_until(lambda: client.calls["read_all"] > reads + 1)
            client.reconnect()
            node.shutdown()
            assert purged.result(30) == ()
        assert not shared.service.entries

    def test_a_service_that_answers_reads_only_is_not_polled_without_a_pause(
        self, shared: Shared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: Any, **options: Any) -> Any:
            raise RendezvousConnectionError("no watch here")

        with RunInspector(shared.params()) as observer:
            observer.status(5.0)
            client = shared.clients[-1]
            monkeypatch.setattr(client, "wait", refuse)
            before, began = client.calls["read_all"], time.monotonic()
            observer.wait(1.0)
            assert time.monotonic() - began >= 1.0
            assert client.calls["read_all"] - before <= 10

    def test_a_service_that_stays_away_is_an_error_of_the_next_read(self, shared: Shared) -> None:
        with RunInspector(shared.params()) as observer:
            observer.status(5.0)
            shared.clients[-1].disconnect("it is away")
            observer.wait(0.3)
            with pytest.raises(RendezvousConnectionError, match="it is away"):
                observer.status(0.3)


def test_a_world_that_is_formed_between_two_readings_is_not_abandoned(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, node = RunInspector._nodes, shared.node()
    joined = threading.Event()

    def come(self: RunInspector, deadline: float) -> list[NodeRecord]:
        nodes = read(self, deadline)
        if not joined.is_set():
            joined.set()
            node.next_rendezvous()
        return nodes

    monkeypatch.setattr(RunInspector, "_nodes", come)
    with RunInspector(shared.params()) as observer:
        assert observer.status(10.0).phase == "running"


@pytest.mark.parametrize("comes", [False, True], ids=["no node comes", "a world is formed meanwhile"])
def test_a_second_reading_that_fails_takes_nothing_from_the_first(
    comes: bool, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = shared.node(), shared.node()
    first.next_rendezvous()
    first.leave()
    read = RunInspector._nodes
    readings: list[list[NodeRecord]] = []

    def interrupted(self: RunInspector, deadline: float) -> list[NodeRecord]:
        if readings:
            shared.clients[-1].disconnect()
        readings.append(read(self, deadline))
        if comes:
            second.next_rendezvous()
        return readings[-1]

    monkeypatch.setattr(RunInspector, "_nodes", interrupted)
    with RunInspector(shared.params()) as observer:
        if comes:
            # What was read of the nodes is older than the world: no answer is better than a wrong one.
            with pytest.raises(RendezvousConnectionError, match="away"):
                observer.status(0.5)
        else:
            assert observer.status(0.5).phase == "abandoned"
    assert len(readings) == 1


def test_whether_an_attempt_is_over_is_asked_without_joining(shared: Shared) -> None:
    with RunInspector(shared.params()) as first, RunInspector(shared.params(attempt=1)) as second:
        assert (first.closed(5.0), second.closed(5.0)) == (None, None)
        shared.node().next_rendezvous()
        assert first.closed(5.0) is None
        first.close("me", "enough", 5.0)
        assert first.closed(5.0) == Closed("me", "enough", done=False)
        assert second.closed(5.0) is None
        shared.node(attempt=1).set_closed("too")
        superseded = first.closed(5.0)
        assert superseded is not None
        assert superseded.reason == "superseded by attempt 1"
        assert second.closed(5.0) is not None


class TestPurging:
    def test_everything_goes(self, shared: Shared) -> None:
        for attempt in range(2):
            node = shared.node(attempt=attempt)
            node.next_rendezvous().store.set("key", "value")
            crash(node)
        with RunInspector(shared.params()) as observer:
            assert observer.purge(10.0) == ()
        assert not shared.service.entries

    def test_an_open_run_with_nodes_is_neither_closed_nor_purged(self, shared: Shared) -> None:
        node = shared.node()
        node.next_rendezvous()
        with RunInspector(shared.params()) as observer:
            assert observer.purge(0.3) == (node.view.node_id,)
        assert not node.is_closed()
        node.shutdown()

    def during_purge(self, shared: Shared, at: tuple[str, str], come: Callable[[], None]) -> Any:
        """Purge what a node has left, and let something happen just before one of its changes."""
        first = shared.node()
        first.next_rendezvous().store.set("key", "value")
        first.shutdown()
        with RunInspector(shared.params()) as observer:
            purger, came = shared.clients[-1], threading.Event()

            def before(client: MemoryBackend, method: str, key: str) -> None:
                if client is purger and (method, key) == at and not came.is_set():
                    came.set()
                    come()

            shared.before = before
            try:
                return observer.purge(5.0)
            finally:
                assert came.is_set()

    @pytest.mark.parametrize("at", [("delete", "control/status"), ("put", "control/state")])
    def test_a_node_that_comes_meanwhile_learns_that_the_run_is_closed(
        self, shared: Shared, at: tuple[str, str]
    ) -> None:
        def come() -> None:
            with pytest.raises(RendezvousClosedError, match="the job is done"):
                shared.node().next_rendezvous()

        assert self.during_purge(shared, at, come) == ()

    @pytest.mark.parametrize("at", [("delete", "control/status"), ("put", "control/state")])
    def test_a_world_of_the_next_attempt_stays(self, shared: Shared, at: tuple[str, str]) -> None:
        nodes: list[DynamicRendezvousHandler] = []

        def come() -> None:
            nodes.append(shared.node(attempt=1))
            nodes[0].next_rendezvous().store.set("key", "value")

        with pytest.raises(RendezvousParameterError, match="goes on with attempt 1"):
            self.during_purge(shared, at, come)
        assert shared.service.under(f"run/nodes/1/{nodes[0].view.node_id}")
        assert shared.service.under("run/rounds/2/store/key")
        assert not nodes[0].is_closed()
        nodes[0].shutdown()

    def test_a_node_of_the_next_attempt_that_waits_stays_and_gets_its_world(self, shared: Shared) -> None:
        waiting: list[Any] = []
        with ThreadPoolExecutor(2) as pool:

            def come() -> None:
                node = shared.node(attempt=1, nodes=2)
                waiting.append(pool.submit(node.next_rendezvous))
                wait_until(lambda: shared.service.under(f"run/nodes/1/{node.view.node_id}"))

            assert self.during_purge(shared, ("delete", "control/status"), come) == ()
            waiting.append(pool.submit(shared.node(attempt=1, nodes=2).next_rendezvous))
            assert {future.result(15).world_size for future in waiting} == {2}

    def overwrite(self, shared: Shared, value: bytes) -> None:
        """Write something else in place of the state."""
        line = b"\n" if issubclass(shared.kind, LeaselessBackend) else b""
        with shared.service.changed:
            shared.service.write("run/control/state", line + value, None)

    @pytest.mark.parametrize("key", ["rounds", "control/pending"])
    @pytest.mark.parametrize("value", UNREADABLE)
    def test_a_run_whose_state_cannot_be_read_goes_too(self, shared: Shared, value: bytes, key: str) -> None:
        for attempt in range(2):
            node = shared.node(attempt=attempt)
            node.next_rendezvous().store.set("key", "value")
            crash(node)
        with shared.service.changed:
            shared.service.write(f"run/{key}/17", b"left behind", None)
        self.overwrite(shared, value)
        with RunInspector(shared.params()) as observer:
            with pytest.raises(RendezvousStateError):
                observer.close("the test", "enough", 5.0)
            assert observer.purge(10.0) == ()
        assert not shared.service.entries
        assert shared.node().next_rendezvous().round == 1

    def test_what_rdzv_has_not_written_is_named_with_the_way_out(self, shared: Shared) -> None:
        node = shared.node()
        node.next_rendezvous()
        name = node.view.node_id
        with RunInspector(shared.params()) as observer:
            asks: list[tuple[str, Callable[[], object]]] = [
                (drain_key(name), lambda: observer.drain(name, 1.0, "spot", 5.0)),
                ("control/leader", lambda: observer.status(5.0)),
                ("control/state", lambda: observer.status(5.0)),
                ("control/state", lambda: observer.closed(5.0)),
                ("control/state", lambda: observer.close("me", "", 5.0)),
                ("control/state", lambda: observer.pardon("a", "me", 5.0)),
            ]
            for key, ask in asks:
                with shared.service.changed:
                    shared.service.write(f"run/{key}", b"\nrubbish", None)
                says = rf"^'{key}': .*rubbish.*`rdzv close --purge` removes it"
                with pytest.raises(RendezvousStateError, match=says):
                    ask()
            crash(node)
            assert observer.purge(10.0) == ()
        assert not shared.service.entries

    @pytest.mark.parametrize("record", [b'{"rdzv":2}\n{}', Envelope(b'{"schema":4}', "new", "1").pack()])
    def test_a_node_of_another_version_keeps_what_it_has(self, shared: Shared, record: bytes) -> None:
        self.overwrite(shared, UNREADABLE[1])
        settings = RendezvousSettings.from_parameters(shared.params())
        backend = with_leases(with_keys(shared.kind(shared.service)), settings)
        # Whether it lives another version knows; here it does as long as its lease does.
        lease = backend.open_lease(60.0, timeout=5)
        assert backend.put("nodes/1/new", record, expect=ABSENT, lease=lease, timeout=5).outcome is PutOutcome.APPLIED
        with RunInspector(shared.params()) as observer:
            assert observer.purge(0.3) == ("new",)
            assert len(shared.service.under("run/control/state")) == 1
            lease.revoke(5)
            assert observer.purge(10.0) == ()
        assert not shared.service.entries

    def test_a_state_that_is_put_back_before_it_is_written_over_is_closed(self, shared: Shared) -> None:
        node = shared.node()
        number = node.next_rendezvous().round
        crash(node)
        before = shared.service.under("run/control/state")
        with RunInspector(shared.params()) as observer:
            observer._purge(time.monotonic() + 5.0)._close_unread()
            assert shared.service.under("run/control/state") == before
            assert (observer.status(5.0).phase, observer.status(5.0).round) == ("running", number)

    def test_a_state_that_is_put_back_while_it_is_purged_is_closed_first(self, shared: Shared) -> None:
        node = shared.node()
        node.next_rendezvous()
        crash(node)
        before = shared.service.under("run/control/state")
        self.overwrite(shared, UNREADABLE[0])
        with RunInspector(shared.params()) as observer:
            purger, put = shared.clients[-1], []

            def restore(client: MemoryBackend, method: str, key: str) -> None:
                if client is purger and (method, key) == ("put", "control/state"):
                    put.append(shared.service.under("run/control/state"))
                    if len(put) == 1:
                        with shared.service.changed:
                            shared.service.write("run/control/state", before["run/control/state"].value, None)

            shared.before = restore
            assert observer.purge(10.0) == ()
        # Written over without success, closed, taken away.
        assert len(put) == 3
        assert not shared.service.entries

    def test_what_a_purge_that_broke_off_has_left_is_removed_by_the_next(self, shared: Shared) -> None:
        def die() -> None:
            raise RendezvousTimeoutError("the purge is killed")

        with pytest.raises(RendezvousTimeoutError):
            self.during_purge(shared, ("delete", "control/state"), die)
        with pytest.raises(RendezvousGracefulExitError, match="is done"):
            shared.node().next_rendezvous()
        with RunInspector(shared.params()) as observer:
            assert observer.purge(5.0) == ()
        assert not shared.service.entries


def test_who_waits_is_counted_and_who_is_lost_is_not(shared: Shared) -> None:
    limits = {"min_nodes": 1, "nodes": 2, "last_call_timeout": 60.0}
    stays, dies = nodes = [shared.node(**limits) for _ in range(2)]
    with ThreadPoolExecutor(3) as pool, RunInspector(shared.params()) as observer:
        for future in [pool.submit(node.next_rendezvous) for node in nodes]:
            future.result(15)
        assert observer.status(5.0).waiting == 0
        spare = shared.node(**limits)
        waits = pool.submit(spare.next_rendezvous)
        status = wait_until(lambda: len((now := observer.status(5.0)).nodes) == 3 and now)
        assert (status.phase, status.waiting) == ("running", 1)
        spare.leave()
        assert isinstance(waits.exception(15), RendezvousClosedError)
        wait_until(lambda: len(observer.status(5.0).nodes) == 2)
        crash(dies)
        wait_until(lambda: stays.num_nodes_waiting() == 1)
        assert observer.status(5.0).waiting == 0


def test_a_run_whose_nodes_have_died_is_abandoned(shared: Shared) -> None:
    nodes = [shared.node(nodes=2) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(node.next_rendezvous) for node in nodes]:
            future.result(15)
    for node in nodes:
        crash(node)
    with RunInspector(shared.params()) as observer:
        status = wait_until(lambda: (now := observer.status(5.0)).phase == "abandoned" and now)
    assert sorted(node.id for node in status.missing) == sorted(node.view.node_id for node in nodes)
    assert all(node.left is None and node.doing.startswith("missing: its ") for node in status.missing)


def test_the_last_one_out_says_why_it_left_also_beside_one_that_died(shared: Shared) -> None:
    dies, leaves = nodes = [shared.node(nodes=2) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(node.next_rendezvous) for node in nodes]:
            future.result(15)
    crash(dies)
    wait_until(lambda: leaves.view.status and leaves.view.status.departures)
    leaves.leave("drained")
    with RunInspector(shared.params()) as observer:
        status = wait_until(lambda: not (now := observer.status(5.0)).nodes and now)
    assert status.phase == "abandoned"
    assert {node.id: node.left for node in status.missing} == {dies.view.node_id: None, leaves.view.node_id: "drained"}


def test_the_last_one_out_says_nothing_over_the_news_of_a_leader_that_came_meanwhile(shared: Shared) -> None:
    nodes = [shared.node(nodes=2) for _ in range(2)]
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(node.next_rendezvous) for node in nodes]:
            future.result(15)
        nodes[0].leave("drained")
        last, came = shared.clients[1], shared.node(nodes=2)
        joining: list[Any] = []

        def before(client: MemoryBackend, method: str, key: str) -> None:
            # Not the leader's own news, and only once.
            publishes = client is last and (method, key) == ("put", "control/status")
            if publishes and nodes[1]._lifetime.has_ended and not joining:
                joining.append(pool.submit(came.next_rendezvous))
                wait_until(
                    lambda: (
                        came.view.status
                        and came.view.status.phase == "re-forming"
                        and len(came.view.status.departures) == 2
                    )
                )

        shared.before = before
        assert nodes[1].leave("drained, too")
        assert joining
        with RunInspector(shared.params()) as observer:
            status = observer.status(5.0)
        assert status.phase == "re-forming"
        assert status.leader == came.view.node_id
        wait_until(
            lambda: came.view.status and came.view.status.present == 1
        )  # heartbeat leases: seen one heartbeat later
        came.leave("the test is over")
        with pytest.raises(RendezvousClosedError, match="has left"):
            joining[0].result(15)


class TestUnreadableRecord:
    """One record under ``nodes/`` that cannot be read takes nothing from the others."""

    KEY = "nodes/0/evil"

    @pytest.fixture(autouse=True, params=["no envelope", "no record"])
    def corrupt(self, request: pytest.FixtureRequest, shared: Shared) -> None:
        """Write it: bytes that are not ours, or an envelope around something else."""
        if request.param == "no envelope":
            with shared.service.changed:
                shared.service.write(f"run/{self.KEY}", b"\x80\x04K\x01.", None)
            return
        settings = RendezvousSettings.from_parameters(shared.params())
        corrupter = RetryingClient(with_leases(with_keys(shared.kind(shared.service)), settings), "corrupter")
        assert corrupter.put(self.KEY, b'{"schema": 3}', time.monotonic() + 5, previous=None)[0]

    def test_a_timeout_still_names_who_is_here(self, shared: Shared) -> None:
        node = shared.node(nodes=2, join_timeout=0.5)
        with pytest.raises(RendezvousTimeoutError) as raised:
            node.next_rendezvous()
        assert f"1 of at least 2 nodes is here ({node.view.node_id}), 1 is missing." in str(raised.value)
        assert "last error" not in str(raised.value)
        assert node.leave()

    def test_a_purge_removes_it(self, shared: Shared) -> None:
        node = shared.node()
        node.next_rendezvous()
        assert node.shutdown()
        with RunInspector(shared.params()) as observer:
            assert observer.purge(5.0) == ()
        assert not shared.service.entries

    def test_a_run_whose_nodes_have_all_left_before_a_world_is_unknown(self, shared: Shared) -> None:
        settings = RendezvousSettings.from_parameters(shared.params())
        backend = with_leases(with_keys(shared.kind(shared.service)), settings)
        lease = backend.open_lease(60.0, timeout=5)
        record = NodeRecord("a.1", 0, 0, 2, 4, "a.host", 1, left="drained")
        value = Envelope.wrap(record.encode(), writer="a.1").pack()
        assert backend.put(record.key, value, expect=ABSENT, lease=lease, timeout=5).outcome is PutOutcome.APPLIED
        with RunInspector(shared.params()) as observer:
            status = observer.status(5.0)
        assert (status.phase, [node.left for node in status.nodes]) == ("unknown", ["drained"])

    def test_the_last_one_out_still_cleans_up(self, shared: Shared) -> None:
        node = shared.node()
        node.next_rendezvous().store.set("key", "value")
        assert node.leave("drained")
        assert not shared.service.under("run/rounds")
        with RunInspector(shared.params()) as observer:
            status = observer.status(5.0)
        # Its record says so until its lease runs out.
        assert (status.phase, [node.left for node in status.nodes]) == ("abandoned", ["drained"])


@pytest.mark.parametrize(("rule", "says"), [({}, "2 or 4 nodes"), ({"wanted": 4}, "2 or 4 nodes, 4 wanted")])
def test_status_says_how_many_are_wanted(shared: Shared, rule: dict[str, int], says: str) -> None:
    node = shared.node(min_nodes=2, nodes=4, node_unit=2, **rule)
    with ThreadPoolExecutor(1) as pool, RunInspector(shared.params()) as observer:
        waits = pool.submit(node.next_rendezvous)
        wait_until(lambda: observer.status(5.0).takes == f"a world takes {says}")
        node.shutdown()
        assert isinstance(waits.exception(10), RendezvousError)


def test_status_names_who_is_expected_as_long_as_that_is_news(shared: Shared) -> None:
    nodes = [shared.node(nodes=2, node_name=name) for name in "ab"]
    for node in nodes:
        node.expect(("a", "b", "c"))
    with ThreadPoolExecutor(2) as pool, RunInspector(shared.params()) as observer:
        assert observer.status(5.0).absent is None
        waits = [pool.submit(nodes[0].next_rendezvous)]
        wait_until(lambda: observer.status(5.0).absent == "b, c")
        waits.append(pool.submit(nodes[1].next_rendezvous))
        assert [one.result(10).world_size for one in waits] == [2, 2]
        wait_until(lambda: observer.status(5.0).phase == "running")
        assert observer.status(5.0).absent is None


def test_what_a_leader_has_said_of_another_round_or_before_it_died_is_no_news() -> None:
    status = RunStatus(1, Phase.GATHERING, 1, 0, missing=("b",), more_missing=9)
    assert inspector._absent(NO_STATE, status) is None
    assert inspector._absent(NO_STATE, None) is None
    assert inspector._absent(replace(NO_STATE, round=1), status) == "b, and 9 more"


class TestFitness:
    """An operator sees and decides who drains, and who is quarantined."""

    def test_a_node_is_drained_by_its_name_or_its_id(self, shared: Shared) -> None:
        node = shared.node(node_name="rack 1/a")
        node.next_rendezvous()
        with RunInspector(shared.params()) as observer:
            # A second one can only shorten it.
            for name, asked, stands in (
                ("rack 1/a", 600.0, 600.0),
                (node.view.node_id, 700.0, 600.0),
                (node.view.node_id, 600.0, 600.0),
                (node.view.node_id, 0.0, 0.0),
            ):
                reason = f"in {stands:g} s"
                told = observer.drain(name, asked, f"in {asked:g} s", 5.0)
                assert told == (Drain(node.view.node_id, stands, reason),)
                assert [one.drains for one in observer.status(5.0).nodes] == [
                    f"drains within {stands:g} s of the announcement: {reason}"
                ]
        wait_until(lambda: node.view.is_drained)
        assert node.view.drain_reason == "drained: in 0 s"
        with pytest.raises(RendezvousGracefulExitError, match="drained: in 0 s"):
            node.next_rendezvous()

    def test_one_that_is_not_here_is_an_error_that_names_who_is(self, shared: Shared) -> None:
        node = shared.node()
        node.next_rendezvous()
        with RunInspector(shared.params()) as observer:
            with pytest.raises(
                RendezvousParameterError, match=f"No node 'x' is in the run 'run'; here are: {node.view.node_id}"
            ):
                observer.drain("x", 1.0, "", 5.0)
            assert node.leave()
            with pytest.raises(RendezvousParameterError, match=r"; none is here, or its id is another\."):
                observer.drain(node.view.node_id, 1.0, "", 5.0)

    def test_one_of_another_version_is_not_called_absent(self, shared: Shared) -> None:
        settings = RendezvousSettings.from_parameters(shared.params())
        backend = with_leases(with_keys(shared.kind(shared.service)), settings)
        lease = backend.open_lease(60.0, timeout=5)
        record = Envelope(b'{"schema":4}', "new", "1").pack()
        assert backend.put("nodes/0/a.1", record, expect=ABSENT, lease=lease, timeout=5).outcome is PutOutcome.APPLIED
        with RunInspector(shared.params()) as observer:
            for name in ("a", "a.1"):
                with pytest.raises(OtherVersionError, match=r"another version of rdzv \(schema 4, this one reads 3\)"):
                    observer.drain(name, 1.0, "spot", 5.0)
            with pytest.raises(RendezvousParameterError, match=r"No node 'b' is in the run 'run'; here are: a\.1\."):
                observer.drain("b", 1.0, "spot", 5.0)
            assert not shared.service.under("run/control/drains")
            # There is no state yet, and no leader.
            status = observer.status(5.0)
            assert status.phase == "unknown"
            (unread,) = status.unreadable
            assert "another version of rdzv (schema 4, this one reads 3)" in unread
            assert unread.startswith("a.1: ")
            node = shared.node(node_name="b")
            node.next_rendezvous()
            status = observer.status(5.0)
            assert (status.phase, [one.id for one in status.nodes]) == ("running", [node.view.node_id])
            assert status.unreadable == (unread,)
            node.leave()
            lease.revoke(5)
            assert observer.status(5.0).unreadable == ()

    def test_a_notice_that_cannot_be_read_is_said_once(self, shared: Shared, caplog: pytest.LogCaptureFixture) -> None:
        with RunInspector(shared.params()) as observer:
            put = with_keys(shared.kind(shared.service)).put("control/failures/1", b"x", expect=ABSENT, timeout=5)
            assert put.outcome is PutOutcome.APPLIED
            for _ in range(2):
                observer.status(5.0)
        assert [message.partition(": ")[0] for message in caplog.messages] == ["ignoring 'control/failures/1'"]

    def test_an_empty_text_names_no_node(self, shared: Shared) -> None:
        shared.node(node_name="a", quarantine_after=1).next_rendezvous()
        with RunInspector(shared.params()) as observer:
            with pytest.raises(RendezvousParameterError, match="An empty text names no node"):
                observer.drain("", 1.0, "spot", 5.0)
            with pytest.raises(RendezvousParameterError, match="An empty text names no node"):
                observer.pardon("", "me", 5.0)

    def test_a_quarantine_is_shown_and_lifted(self, shared: Shared) -> None:
        node = shared.node(node_name="bad", quarantine_after=1)
        node.next_rendezvous()
        assert node.report_failure("exit code 7")
        # Alone it is taken although it is quarantined.
        node.next_rendezvous()
        with RunInspector(shared.params()) as observer:
            quarantine = "bad: quarantine 1, 60 s from when it learns of that: it failed first in a round: exit code 7"
            wait_until(lambda: observer.status(5.0).quarantines)
            status = observer.status(5.0)
            assert (status.quarantines, status.failed_first) == (
                (quarantine,),
                (f"round 1: {node.view.node_id} failed first: exit code 7",),
            )
            with pytest.raises(
                RendezvousParameterError,
                match=r"^No node 'good' is quarantined in the run 'run'; quarantined are: bad\.$",
            ):
                observer.pardon("good", "a test", 5.0)
            observer.pardon(node.view.node_id, "a test", 5.0)
            assert observer.status(5.0).quarantines == ()
            # It was quarantined before: a pardon may be said twice.
            observer.pardon("bad", "a test", 5.0)
            with pytest.raises(RendezvousParameterError, match=r"quarantined are: none\.$"):
                observer.pardon("good", "a test", 5.0)

    def test_a_node_that_was_behind_is_not_said_to_have_failed_first(self, shared: Shared) -> None:
        failures = {1: Failure("a.1", "hangs", False), 2: Failure("b.1", "hangs", False, verdict=Verdict.BEHIND)}
        settings = RendezvousSettings.from_parameters(shared.params())
        writer = RetryingClient(with_leases(with_keys(shared.kind(shared.service)), settings), "test")
        for number, failure in failures.items():
            assert writer.put(failure_key(number), failure.encode(), time.monotonic() + 5, previous=None)[0]
        with RunInspector(shared.params()) as observer:
            assert observer.status(5.0).failed_first == (
                "round 1: a.1 failed first: hangs",
                "round 2: b.1 was behind: hangs",
            )

    def test_a_purge_removes_all_of_it(self, shared: Shared) -> None:
        node = shared.node(node_name="bad", quarantine_after=1)
        node.next_rendezvous()
        node.report_failure("exit code 7")
        node.next_rendezvous()
        with RunInspector(shared.params()) as observer:
            wait_until(lambda: observer.status(5.0).quarantines)
            assert node.shutdown()
            # It stays for the next attempt.
            assert len(observer.status(5.0).quarantines) == 1
            assert observer.status(5.0).failed_first == ()
            assert observer.purge(5.0) == ()
        assert not shared.service.entries
