"""No loop of a node ends unseen, no error is kept for ever, and `next_rendezvous` ends at its deadline."""

import contextlib
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from rdzv_core.backend import Expect, Lease, PutResult, Snapshot, Token
from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
    again,
)

from rdzv import DynamicRendezvousHandler
from rdzv.engine import aside
from rdzv.engine.effects import Coroutine, Emit, SpawnLeader, WaitForChange
from rdzv.engine.node import Node
from rdzv.engine.runner import Runner
from rdzv.hooks import EventKind
from rdzv.settings import RendezvousSettings, RendezvousTimeout

from .forks import said_in_fork
from .memory import MemoryBackend, MemoryService
from .test_rendezvous import INTERVAL, TTL, Register, Run
from .waiting import wait_until

STATE = "run/control/state"
SLACK = 3.0
"""Seconds that a busy machine may add to what a test measures; what it measures took far longer once."""


@pytest.fixture
def run() -> Iterator[Run]:
    """A run on a service in memory; every thread of it has ended after the test."""
    run = Run("memory")
    threads = set(threading.enumerate())
    yield run
    run.close()
    try:
        wait_until(lambda: set(threading.enumerate()) <= threads)
    except AssertionError:
        frames = sys._current_frames()
        for thread in set(threading.enumerate()) - threads:
            traceback.print_stack(frames.get(thread.ident or 0))
        raise


def record_of(node: DynamicRendezvousHandler) -> str:
    """Where the record of a node stands."""
    return f"run/nodes/0/{node.view.node_id}"


def lose_lease(run: Run, node: DynamicRendezvousHandler) -> None:
    """Let the service end the lease of a node; the caller holds its lock."""
    run.service.end(run.service.hanging[record_of(node)])


def keeps_alive(backend: MemoryBackend) -> None:
    """Wait until a node has renewed its lease a few times more."""
    before = backend.calls["keep_alive"]
    wait_until(lambda: backend.calls["keep_alive"] >= before + 5)


class TestKeepAlive:
    def test_corrupt_state_while_a_node_registers_again_ends_no_loop(self, run: Run) -> None:
        first, second = nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        backend = run.backends[0]
        with run.service.changed:
            state = run.service.entries[STATE].value
            run.service.write(STATE, b"not ours", None)
            lose_lease(run, first)
        # Its record is there again, and it cannot find out whether its world is still its own.
        wait_until(lambda: record_of(first) in run.service.entries)
        wait_until(lambda: first._node.failures.count("keep"))
        keeps_alive(backend)
        with run.service.changed:
            run.service.write(STATE, state, None)
        wait_until(lambda: first._node.has_valid_lease() and not any(node._node.failures.lasting for node in nodes))
        keeps_alive(backend)
        assert record_of(first) in run.service.entries
        assert (first.num_nodes_waiting(), first.is_closed()) == (0, False)
        # The state has another token now, and the leader knows it.
        assert {info.round for info in run.gather(first, second)} == {2}

    @pytest.mark.parametrize("error", [OSError("a reset"), ValueError("a bug"), RendezvousStateError("what is this?")])
    def test_error_of_any_class_is_survived_and_forgotten(self, run: Run, error: Exception) -> None:
        nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        backend = run.backends[0]
        backend.refuse(error, "keep_alive")
        before = backend.calls["keep_alive"]
        wait_until(lambda: backend.calls["keep_alive"] >= before + 2)
        backend.accept()
        keeps_alive(backend)
        wait_until(lambda: record_of(nodes[0]) in run.service.entries)
        wait_until(lambda: nodes[0]._node.failures.count("keep") == 0)
        assert nodes[0].num_nodes_waiting() in {0, 1}  # 1: it was away for longer than its lease

    def test_lease_is_lost_and_the_service_takes_no_new_one_for_long(self, run: Run) -> None:
        first, _ = nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        run.backends[0].refuse(OSError("no memory"), "open_lease")
        with run.service.changed:
            lose_lease(run, first)
        wait_until(lambda: first._node.failures.count("keep") > 1)
        run.backends[0].accept()
        wait_until(lambda: record_of(first) in run.service.entries)
        keeps_alive(run.backends[0])

    def test_error_that_lasts_reaches_the_caller_as_a_new_object_each_time(self, run: Run) -> None:
        first, _ = nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        run.backends[0].refuse(ValueError("a bug"), "keep_alive")

        def told() -> RendezvousError | None:
            try:
                first.num_nodes_waiting()
            except RendezvousError as error:
                return error
            return None

        errors = [wait_until(told)] + [wait_until(told) for _ in range(5)]
        assert "Unexpected ValueError: a bug" in str(errors[0])
        assert len({id(error) for error in errors}) == len(errors)
        assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors}) == 1
        with pytest.raises(RendezvousError, match="a bug"):
            first.is_closed()
        with pytest.raises(RendezvousError, match="a bug"):
            first.next_rendezvous()
        run.backends[0].accept()
        wait_until(lambda: told() is None)

    def test_an_error_of_all_loops_is_said_once(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("DEBUG")
        only = run.node(1, 1)
        run.gather(only)
        gone = RendezvousStateError("the log of the file is gone")
        run.backends[0].refuse(gone, "read", "read_all", "wait", "put", "delete", "open_lease", "keep_alive", "revoke")
        with run.service.changed:
            # What waits already hears of it.
            for key in ("control/other", "nodes/0/other"):
                run.service.write(f"run/{key}", run.service.entries[STATE].value, None)
        wait_until(lambda: not only._node.leading and only._node.failures.lasting)
        assert not only.leave()
        aside.flush()
        said = [(one.levelname, one.getMessage()) for one in caplog.records if one.levelname in ("DEBUG", "WARNING")]
        (once,) = [line for level, line in said if level == "WARNING" and "is gone" in line]
        assert "has failed, and starts again" in once
        ends = [line for level, line in said if level == "WARNING" and line != once]
        assert {line.partition("' ")[2].partition(" '")[0] for line in ends} >= {"could not leave in order"}
        # The others are in the log all the same.
        failed = {line.split("'")[1] for _, line in said if "has failed, and starts again" in line}
        assert failed == {"watch", "keep", "lead"}

    def test_refusal_reaches_the_caller_after_its_timeout_and_only_for_as_long_as_it_lasts(self, run: Run) -> None:
        first, second = nodes = run.nodes(2, 1, 2, refused=TTL)
        run.gather(*nodes)
        run.backends[0].refuse(RendezvousDeniedError("the token has expired"), "keep_alive")
        wait_until(lambda: first.view.connection_error)
        assert first.num_nodes_waiting() == 0
        # As in any outage it knows that it may be lost, and the other learns of it.
        wait_until(lambda: first.view.member_until is None or first.view.member_until < time.monotonic())
        wait_until(second.num_nodes_waiting)
        wait_until(lambda: first._node.failures.lasting)
        # The watch goes well all the while, and does not forget what is not its own.
        with run.service.changed:
            run.service.write("run/control/other", run.service.entries[STATE].value, None)
        with pytest.raises(RendezvousDeniedError, match="has expired"):
            first.num_nodes_waiting()
        run.backends[0].accept()
        wait_until(lambda: first._node.failures.lasting is None)


class LeaderHits(MemoryBackend):
    """A backend that has a bug which only leaders meet: they alone watch the nodes."""

    def __init__(self, service: MemoryService) -> None:
        super().__init__(service)
        self.errors: list[Exception] = []
        self.always: Exception | None = None
        self.refused: Exception | None = None

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        if self.refused is not None and key == "control/state":
            raise self.refused
        return super().put(key, value, expect=expect, lease=lease, timeout=timeout)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        self._hit(prefix)
        return super().read_all(prefix, timeout=timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        self._hit(prefix)
        return super().wait(prefix, since, timeout=timeout)

    def _hit(self, prefix: str) -> None:
        if prefix == "nodes" and self.always is not None:
            raise self.always
        if prefix == "nodes" and self.errors:
            raise self.errors.pop()


class TestLeading:
    @pytest.fixture
    def run(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
        monkeypatch.setattr(run, "backend", lambda: LeaderHits(run.service))
        return run

    @pytest.mark.parametrize("times", [1, 2, 5])
    def test_leader_that_meets_an_unexpected_error_leads_on_or_again(self, run: Run, times: int) -> None:
        first = run.node(1, 2)
        run.gather(first)
        run.backends[0].errors = [OSError("a bug")] * times
        joining = run.join(run.node(1, 2))
        wait_until(first.num_nodes_waiting)
        joining += run.join(first)
        assert {future.result(15).world_size for future in joining} == {2}
        wait_until(lambda: first._node.failures.latest is None)

    def test_leader_that_cannot_lead_makes_room_for_another(self, run: Run) -> None:
        first, second = run.nodes(2, 1, 3, last_call=5.0)
        waiting = run.join(first)
        wait_until(lambda: first._node.leading)
        waiting += run.join(second)
        run.backends[0].always = OSError("a bug")
        wait_until(lambda: second._node.leading)
        third = run.node(1, 3, last_call=5.0)
        waiting += run.join(third)
        assert {future.result(15).world_size for future in waiting} == {3}
        # It is no leader, and nothing keeps it from being a member.
        wait_until(lambda: first._node.failures.latest is None)
        assert [node.num_nodes_waiting() for node in (first, second, third)] == [0, 0, 0]

    def test_caller_of_the_only_node_learns_why_no_node_leads(self, run: Run) -> None:
        only = run.node(1, 1, join=60)
        run.backends[0].always = OSError("a bug")
        started = time.monotonic()
        with pytest.raises(RendezvousError, match="Unexpected OSError: a bug"):
            only.next_rendezvous()
        assert time.monotonic() - started < 20
        # It has withdrawn, and with that the error is history.
        run.backends[0].always = None
        assert run.gather(only)[0].world_size == 1

    def test_leader_whose_writes_fail_while_the_service_answers_makes_room_for_another(self, run: Run) -> None:
        first, second = run.nodes(2, 2, 2, join=60.0)
        backend = run.backends[0]
        assert isinstance(backend, LeaderHits)
        backend.refused = RendezvousConnectionError("503 from the proxy")
        joining = run.join(first)[0]
        wait_until(lambda: first._node.leading)
        assert {one.result(30).rank for one in (joining, *run.join(second))} == {0, 1}

    def test_error_of_a_leader_ends_with_the_run(self, run: Run) -> None:
        node, other = run.node(1, 1), run.node(1, 1)
        run.gather(node)
        backend = run.backends[0]
        assert isinstance(backend, LeaderHits)
        backend.always = OSError("a bug")
        wait_until(lambda: node._node.failures.lasting)
        other.set_closed("enough")
        wait_until(lambda: node.view.closed)
        assert node.is_closed()
        with pytest.raises(RendezvousClosedError, match="enough"):
            node.next_rendezvous()

    def test_rounds_that_jump_make_no_leader_remove_them_one_by_one(self, run: Run) -> None:
        node = run.node(1, 1)
        # It remembers its round, and the service has forgotten everything.
        node._node.round = 3000
        run.gather(node)
        assert node._node.run.state is not None
        assert node._node.run.state.round == 3001
        keeps_alive(run.backends[0])
        assert run.backends[0].calls["delete"] < 20

    def test_thread_that_cannot_start_costs_no_lead(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        only = run.node(1, 1)
        start = only._runner.start
        refused: list[str] = []

        def refuse_once(name: str, coroutine: Any) -> None:
            if name == "lead" and not refused:
                refused.append(name)
                raise RuntimeError("can't start new thread")
            start(name, coroutine)

        monkeypatch.setattr(only._runner, "start", refuse_once)
        assert run.gather(only)[0].world_size == 1
        assert refused


def test_coroutine_that_ends_late_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    timeout, interval = RendezvousTimeout(), timedelta(seconds=INTERVAL)
    node = Node(RendezvousSettings("run", 1, 1, timeout, interval, 3), "memory", time.monotonic)
    over = threading.Event()

    def hook() -> None:
        over.wait(10)

    driver = Runner(node, MemoryBackend(), lambda events: aside.announce(hook for _ in events))
    heard: list[Exception] = []

    def leads(node: Node, term: int) -> Coroutine[None]:
        yield Emit((node.event(EventKind.LEADER_CHANGED, node.id, "a hook takes its time"),))

    def watches() -> Coroutine[None]:
        # A write that has won the election is answered while the node ends.
        while not node.stopped:
            yield WaitForChange(math.inf)
        try:
            yield SpawnLeader(1)
        except RendezvousClosedError as error:
            heard.append(error)

    monkeypatch.setattr("rdzv.engine.runner.lead", leads)
    driver.start("watch", watches())
    try:
        driver.stop(5.0)
        assert [thread.name for thread in threading.enumerate() if node.id in thread.name] == []
        assert heard
    finally:
        over.set()


class ForeignRegister(Register):
    """A register as it is written for PyTorch: it raises what it likes."""

    @property
    def name(self) -> str:
        return "foreign"

    def get_state(self) -> tuple[bytes, Token] | None:
        self._check()
        return super().get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        self._check()
        return super().set_state(state, token)

    def _check(self) -> None:
        with self._shared["lock"]:
            if self._shared["away"]:
                self._shared["failed"] += 1
                raise NotOursError("The connection to the C10d store has failed.")


class NotOursError(Exception):
    """As torch's RendezvousConnectionError: no class of rdzv, nor of Python's."""


class TestForeignErrors:
    @pytest.fixture
    def shared(self) -> dict[str, Any]:
        return {"lock": threading.Lock(), "away": False, "failed": 0}

    @pytest.fixture
    def run(self, run: Run, shared: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Run:
        monkeypatch.setattr(run, "backend", lambda: ForeignRegister(shared))
        return run

    def test_half_a_second_of_them_harms_no_world(self, run: Run, shared: dict[str, Any]) -> None:
        # A node whose lease ends on a busy machine comes back within the last call, before a world of two starts.
        nodes = run.nodes(2, 2, 3, last_call=2.0)
        run.gather(*nodes)
        shared["away"] = True
        ends = time.monotonic() + 0.5
        while time.monotonic() < ends:
            # What passes is not reported.
            assert [node.is_closed() for node in nodes] == [False, False]
            time.sleep(0.01)
        assert shared["failed"], "no call was made meanwhile"
        shared["away"] = False
        # All leases are renewed or made anew, and a node leads.
        waiting = run.join(run.node(2, 3, last_call=2.0))
        for node in nodes:
            wait_until(node.num_nodes_waiting)
        waiting += run.join(*nodes)
        assert {future.result(15).world_size for future in waiting} == {3}

    def test_node_that_ends_meanwhile_ends(self, run: Run, shared: dict[str, Any]) -> None:
        nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        shared["away"] = True
        assert not nodes[0].shutdown()
        assert not nodes[1].leave()

    def test_half_a_second_of_them_delays_who_joins(self, run: Run, shared: dict[str, Any]) -> None:
        first = run.node(2, 2)
        waiting = run.join(first)
        wait_until(lambda: first.view.status)
        shared["away"] = True
        waiting += run.join(run.node(2, 2))
        time.sleep(0.5)
        assert shared["failed"], "no call was made meanwhile"
        shared["away"] = False
        assert {future.result(15).world_size for future in waiting} == {2}


def refusing_node(run: Run, join: float, heartbeat: float = 60.0) -> DynamicRendezvousHandler:
    """A node that gives a call that is not waited for a whole minute."""
    limits = RendezvousTimeout(*(timedelta(seconds=span) for span in (join, 0.2, 5, heartbeat)))
    settings = RendezvousSettings("run", 1, 2, limits, timedelta(seconds=INTERVAL), 3)
    run.backends.append(run.backend())
    run.handlers.append(DynamicRendezvousHandler(settings, run.backends[-1]))
    return run.handlers[-1]


@contextlib.contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """The block takes about so long, and by far not as long as a call may take."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds + INTERVAL + SLACK


NO_SPACE = RendezvousConnectionError("it takes no writes: its disk is full")


@pytest.mark.parametrize("key", ["nodes/0/", "control/leader"])
def test_interrupt_in_any_call_of_joining_ends_it(run: Run, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = run.node(2, 2)
    backend = run.backends[0]
    put = backend.put

    def put_and_be_interrupted(where: str, *given: Any, **more: Any) -> PutResult:
        mine = threading.current_thread() is threading.main_thread()
        if where == "control/leader" and not mine:
            raise RendezvousConnectionError("the watch is not elected")
        done: PutResult = put(where, *given, **more)
        if where.startswith(key) and mine:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(backend, "put", put_and_be_interrupted)
    monkeypatch.setattr("rdzv.engine.candidacy.NO_LEADER_TIMEOUT", 0.01)
    with ends_within(SLACK), pytest.raises(KeyboardInterrupt):
        node.next_rendezvous()


class TestJoinTimeout:
    @pytest.mark.parametrize("method", ["open_lease", "put"])
    def test_service_that_refuses_writes(self, run: Run, method: str) -> None:
        node = refusing_node(run, join=0.5)
        # It is in touch: what is left of half a second on a busy machine may be too little for that.
        assert not node.is_closed()
        run.backends[0].refuse(NO_SPACE, method)
        with ends_within(0.5), pytest.raises(RendezvousTimeoutError) as late:
            node.next_rendezvous()
        said = str(late.value)
        for part in ("'run'", "'memory'", node.view.node_id, "its disk is full"):
            assert part in said
        assert re.search(r"within \d+\.\d s", said)
        assert "could not be reached" not in said
        assert not run.service.under("run/nodes")

    @pytest.mark.parametrize("prefix", ["nodes/", "control/leader"])
    def test_service_that_hangs(self, run: Run, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        class Hanging(MemoryBackend):
            def put(self, key: str, value: bytes, **how: Any) -> PutResult:
                if not key.startswith(prefix):
                    return super().put(key, value, **how)
                time.sleep(how["timeout"])
                raise RendezvousConnectionError("no answer")

        monkeypatch.setattr(run, "backend", lambda: Hanging(run.service))
        node = refusing_node(run, join=0.5)
        assert not node.is_closed()
        with ends_within(0.5), pytest.raises(RendezvousTimeoutError, match=r"'run' on backend 'memory' .* \d+\.\d s"):
            node.next_rendezvous()

    def registering_again(self, run: Run) -> DynamicRendezvousHandler:
        """A node that has lost its lease, and cannot open another one."""
        # Twice it has to get a world in this time.
        node = refusing_node(run, join=2.0)
        run.gather(node)
        run.backends[0].refuse(NO_SPACE, "open_lease")
        with run.service.changed:
            lose_lease(run, node)
        wait_until(lambda: node._node.registration.writing and node.view.connection_error)
        return node

    def test_keep_alive_loop_that_registers_again(self, run: Run) -> None:
        node = self.registering_again(run)
        with ends_within(2.0), pytest.raises(RendezvousTimeoutError, match="its disk is full") as late:
            node.next_rendezvous()
        assert "could not be reached" not in str(late.value)
        run.backends[0].accept()
        wait_until(lambda: not node._node.registration.writing)
        assert run.gather(node)[0].round == 2

    def test_service_that_is_away_while_the_loop_registers_again(self, run: Run) -> None:
        node = self.registering_again(run)
        run.backends[0].disconnect("the service is away")
        # Answers from before may be as young as the wait.
        with ends_within(2.0), pytest.raises(RendezvousError, match="the service is away") as late:
            node.next_rendezvous()
        assert isinstance(late.value, RendezvousConnectionError | RendezvousTimeoutError)

    def test_service_that_goes_away_while_no_node_comes(self, run: Run) -> None:
        node = run.node(2, 2, join=2.0)
        waiting = run.join(node)[0]
        wait_until(lambda: node._node.leading)
        run.backends[0].disconnect("the service is away")
        with ends_within(2.0), pytest.raises(RendezvousTimeoutError, match=r"'run' .* The last error: .*is away"):
            waiting.result(30)


def test_fork_while_the_parent_joins_says_whose_node_it_is(run: Run) -> None:
    node = run.node(2, 2)
    run.join(node)
    wait_until(lambda: node._node.registration.record)
    assert f"belongs to process {os.getpid()}" in said_in_fork(node.next_rendezvous)


def test_error_is_raised_again_as_it_is_whatever_its_constructor_takes() -> None:
    class OwnError(RendezvousConnectionError):
        def __init__(self, code: int, *, endpoint: str) -> None:
            super().__init__(f"{endpoint} said {code}")
            self.code = code

    kept = OwnError(7, endpoint="there")
    fresh = again(kept)
    assert (type(fresh), str(fresh), vars(fresh), fresh.__cause__) == (OwnError, "there said 7", {"code": 7}, kept)
    assert fresh is not kept
