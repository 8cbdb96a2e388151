"""The coroutine that joins, driven by hand: nothing that comes between two of its effects is missed."""

import math
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from rdzv_core.backend import STATE_KEY, Entry, Lease, Snapshot
from rdzv_core.envelope import Envelope
from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from rdzv.engine import join, leave, report
from rdzv.engine.candidacy import NO_LEADER_TIMEOUT
from rdzv.engine.client import DecodedSnapshot, VersionedValue
from rdzv.engine.codec import decode
from rdzv.engine.effects import (
    Call,
    Coroutine,
    Effect,
    Emit,
    OpenLease,
    Put,
    Read,
    ReadAll,
    Revoke,
    Sleep,
    WaitForChange,
)
from rdzv.engine.failures import WATCH
from rdzv.engine.node import Node
from rdzv.engine.notices import (
    DrainNotice,
    Failure,
    Quarantine,
    Verdict,
    drain_key,
    failure_key,
    quarantine_key,
)
from rdzv.engine.records import (
    LEADER_KEY,
    NODES,
    STATUS_KEY,
    VERSION,
    Closed,
    Departure,
    LeaderRecord,
    NodeRecord,
    Phase,
    RunStatus,
    State,
)
from rdzv.outcome import Ending, Outcome
from rdzv.settings import RendezvousSettings, RendezvousTimeout

from .coroutines import Harness, Stepper

OTHER = b'{"schema":3,"node":"other","attempt":0,"min_nodes":2,"max_nodes":2,"rule":null}'


TTL = 15.0


class Granted(Lease):
    def keep_alive(self, timeout: float) -> bool:
        return True

    def revoke(self, timeout: float) -> None:
        """Nothing belongs to it."""


def held(payload: bytes) -> VersionedValue:
    return VersionedValue(Envelope.wrap(payload, writer="service"), token=1, order=1)


def writing_its_record(size: int = 2) -> tuple[Node, Coroutine[tuple[State, int]], Put]:
    """A node whose record is on its way to the service."""
    settings = RendezvousSettings("run", size, size, RendezvousTimeout(), timedelta(seconds=5), 3)
    node = Node(settings, "memory", clock=lambda: 0.0)
    node.apply_snapshot(DecodedSnapshot(Snapshot()))
    coroutine = join.join(node, "127.0.0.1", 29500, 600.0)
    assert isinstance(next(coroutine), OpenLease)
    registered = coroutine.send(Granted(TTL))
    assert isinstance(registered, Put)
    return node, coroutine, registered


def asking_for_the_lead() -> tuple[Node, Coroutine[tuple[State, int]]]:
    """A node whose record is written, and that has just asked to lead."""
    node, coroutine, registered = writing_its_record()
    asked = coroutine.send((True, held(registered.payload)))
    assert isinstance(asked, Put)
    assert asked.key == LEADER_KEY
    return node, coroutine


def another_leads(coroutine: Coroutine[tuple[State, int]]) -> Effect:
    """Answer that its write is a conflict; what it asks for next, once the plugins have the event."""
    coroutine.send((False, held(OTHER)))
    return coroutine.send([None])


def test_world_that_comes_while_a_node_asks_to_lead_is_taken_at_once() -> None:
    node, coroutine = asking_for_the_lead()
    world = State(0, 1, ("other", node.id), "127.0.0.1", 29500, 2, 2)
    node.apply_state(held(world.encode()))
    with pytest.raises(StopIteration) as end:
        another_leads(coroutine)
    assert end.value.value == (world, 1)


def test_closing_that_comes_while_a_node_asks_to_lead_is_heard_at_once() -> None:
    node, coroutine = asking_for_the_lead()
    node.apply_state(held(State(0, 0, (), "", 0, 2, 2, Closed("other", "enough", done=False)).encode()))
    coroutine.send((False, held(OTHER)))
    # The lease is revoked, for half an interval at most: the caller waits.
    revoked = coroutine.send([None])
    assert isinstance(revoked, Revoke)
    assert revoked.deadline == node.interval / 2
    with pytest.raises(RendezvousClosedError, match="enough"):
        coroutine.send(None)


def test_node_that_has_missed_nothing_waits() -> None:
    _, coroutine = asking_for_the_lead()
    assert another_leads(coroutine) == WaitForChange(600.0)


@pytest.mark.parametrize(("leads", "stands_from"), [(False, 4 * NO_LEADER_TIMEOUT), (True, -math.inf)])
def test_of_many_that_register_where_no_node_leads_most_leave_the_election_to_others(
    leads: bool, stands_from: float
) -> None:
    node, coroutine, registered = writing_its_record(1000)
    # Its chance is 0.84.
    node.rng = random.Random(0)
    if leads:
        node.apply_leader(LeaderRecord("other", 0, 1000, 1000))
    assert isinstance(coroutine.send((True, held(registered.payload))), WaitForChange)
    assert node.candidacy.stands_from == stands_from


@pytest.mark.parametrize(("now", "until"), [(0.0, NO_LEADER_TIMEOUT), (599.5, 600.0)])
def test_node_without_a_leader_looks_again_soon_and_at_its_deadline(now: float, until: float) -> None:
    node, coroutine = asking_for_the_lead()
    node.clock = lambda: now
    node.registration.lease_until = 700.0
    assert coroutine.send((False, None)) == WaitForChange(until)


def test_node_that_leaves_while_its_record_is_on_its_way_replaces_it() -> None:
    node, _, registered = writing_its_record()
    leaving = leave.leave(node, "enough", 600.0)
    last = next(leaving)
    assert isinstance(last, Put)
    assert last.previous is None
    arrived = held(registered.payload)
    again = leaving.send((False, arrived))
    assert isinstance(again, Put)
    assert again.previous == arrived
    assert decode(NodeRecord, again.payload).left == "enough"


def test_node_that_leaves_while_it_is_elected_takes_that_back() -> None:
    node, _ = asking_for_the_lead()
    leaving = leave.leave(node, "enough", 600.0)
    last = next(leaving)
    assert isinstance(last, Put)
    assert leaving.send((True, held(last.payload))) == Read(LEADER_KEY, 600.0)
    mine = held(node.limits().encode())
    resigned = leaving.send(mine)
    assert isinstance(resigned, Put)
    assert (resigned.key, resigned.previous, resigned.deleted) == (LEADER_KEY, mine, True)
    assert resigned.lease is node.registration.lease
    assert isinstance(leaving.send((True, None)), ReadAll)


def resigning() -> tuple[Node, Coroutine[None]]:
    """A node that leaves, believes to lead, and has asked who does."""
    node, _ = asking_for_the_lead()
    node.candidacy.begin_term()
    leaving = leave.leave(node, "enough", 600.0)
    last = next(leaving)
    assert isinstance(last, Put)
    assert leaving.send((True, held(last.payload))) == Read(LEADER_KEY, 600.0)
    return node, leaving


def test_node_that_only_believes_to_lead_leaves_the_key_of_another_alone() -> None:
    _, leaving = resigning()
    with pytest.raises(StopIteration):
        leaving.send(held(OTHER))


def test_node_whose_lead_is_taken_while_it_resigns_takes_nothing_back() -> None:
    node, leaving = resigning()
    mine = held(node.limits().encode())
    resigned = leaving.send(mine)
    assert isinstance(resigned, Put)
    assert resigned.previous == mine
    with pytest.raises(StopIteration):
        leaving.send((False, replace(held(OTHER), token=2)))


def test_node_that_leaves_after_its_lease_was_lost_does_not_insist() -> None:
    node, _, _ = writing_its_record()
    leaving = leave.leave(node, "enough", 600.0)
    next(leaving)
    assert not isinstance(leaving.send((False, None)), Put)


def given_up_when_its_world_came() -> tuple[Node, Coroutine[tuple[State, int]], State]:
    """A node whose time was over when a world with it was published: it has registered again, and looks once more."""
    node, coroutine, registered = writing_its_record()
    node.clock = lambda: 600.0
    # Its caller waits, so all that is left takes half an interval of 5 s at most.
    assert coroutine.send((True, held(registered.payload))) == ReadAll(NODES, 601.25)
    revoked = coroutine.send(DecodedSnapshot(Snapshot()))
    assert isinstance(revoked, Revoke)
    assert revoked.deadline == 602.5
    assert coroutine.send(None) == Read(STATE_KEY, 602.5)
    world = State(0, 1, ("other", node.id), "127.0.0.1", 29500, 2, 2)
    effect = coroutine.send(held(world.encode()))
    while isinstance(effect, Emit):
        effect = coroutine.send([None])
    assert isinstance(effect, OpenLease)
    effect = coroutine.send(Granted(TTL))
    assert isinstance(effect, Put)
    assert isinstance(coroutine.send((True, held(effect.payload))), ReadAll)
    return node, coroutine, world


def test_node_that_gives_up_alone_asks_for_nothing_more_and_names_no_error_that_there_was_not() -> None:
    node, coroutine, registered = writing_its_record()
    node.clock = lambda: 600.0
    coroutine.send((True, held(registered.payload)))
    assert isinstance(coroutine.send(DecodedSnapshot(Snapshot())), Revoke)
    assert isinstance(coroutine.send(None), Read)
    with pytest.raises(RendezvousTimeoutError) as late:
        coroutine.send(None)
    assert str(late.value).endswith("2 are missing.")


def test_node_that_has_left_is_not_named_among_those_who_are_here() -> None:
    node, coroutine, registered = writing_its_record()
    node.clock = lambda: 600.0
    coroutine.send((True, held(registered.payload)))
    assert node.registration.record is not None
    records = {
        record.key: Entry(Envelope.wrap(record.encode(), writer="other").pack(), 2, 1)
        for record in (node.registration.record, replace(node.registration.record, id="gone", left="enough"))
    }
    assert isinstance(coroutine.send(DecodedSnapshot(Snapshot(records))), Revoke)
    assert isinstance(coroutine.send(None), Read)
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes is here") as late:
        coroutine.send(None)
    assert "gone" not in str(late.value)


@pytest.mark.parametrize(
    ("others", "summary"),
    [
        (0, "gave up after 600.0 s: 1 of at least 2 nodes"),
        # Enough are here: it was not for the number.
        (1, "gave up after 600.0 s"),
        (None, "gave up after 600.0 s"),
    ],
)
def test_a_node_that_gives_up_leaves_the_number_of_nodes_if_that_was_why(others: int | None, summary: str) -> None:
    node, coroutine, registered = writing_its_record()
    node.clock = lambda: 600.0
    coroutine.send((True, held(registered.payload)))
    assert node.registration.record is not None
    here = [
        node.registration.record,
        *(replace(node.registration.record, id=f"other{number}") for number in range(others or 0)),
    ]
    records = {one.key: Entry(Envelope.wrap(one.encode(), writer="other").pack(), 2, 1) for one in here}

    def give_up() -> None:
        effect = (
            coroutine.throw(RendezvousConnectionError("gone"))
            if others is None
            else coroutine.send(DecodedSnapshot(Snapshot(records)))
        )
        while effect:
            effect = coroutine.send(None)

    with pytest.raises(RendezvousTimeoutError) as late:
        give_up()
    assert late.value.summary == summary


def control(state: State) -> DecodedSnapshot:
    """What a look at the run shows."""
    return DecodedSnapshot(Snapshot({STATE_KEY: Entry(Envelope.wrap(state.encode(), writer="other").pack(), 2, 1)}))


def test_world_that_comes_while_a_node_gives_up_is_returned() -> None:
    _, coroutine, world = given_up_when_its_world_came()
    with pytest.raises(StopIteration) as end:
        coroutine.send(control(world))
    assert end.value.value == (world, 1)


def test_world_that_is_over_before_a_node_is_back_in_it_is_not_returned() -> None:
    node, coroutine, world = given_up_when_its_world_came()
    assert isinstance(coroutine.send(control(replace(world, round=2, world=("other", "third")))), Emit)
    assert isinstance(coroutine.send([None]), Revoke)
    with pytest.raises(RendezvousTimeoutError, match="2 are missing"):
        coroutine.send(None)
    assert node.round == 0


def test_world_is_not_returned_while_the_lease_may_be_over() -> None:
    node, coroutine = asking_for_the_lead()
    node.clock = lambda: TTL
    node.apply_state(held(State(0, 1, ("other", node.id), "127.0.0.1", 29500, 2, 2).encode()))
    assert isinstance(another_leads(coroutine), Put | WaitForChange)
    assert not node.in_running_round()


def test_service_that_goes_away_after_a_node_has_given_up_is_not_waited_for() -> None:
    node, coroutine, registered = writing_its_record()
    now = 600.0
    node.clock = lambda: now
    effect = coroutine.send((True, held(registered.payload)))
    assert isinstance(effect, ReadAll)
    assert isinstance(coroutine.send(DecodedSnapshot(Snapshot())), Revoke)
    assert isinstance(coroutine.send(None), Read)
    # Its world was published at the last moment: it takes its withdrawal back, and the service is gone.
    effect = coroutine.send(held(State(0, 1, ("other", node.id), "127.0.0.1", 29500, 2, 2).encode()))

    def go_on() -> None:
        nonlocal now, effect
        while now < 3600:
            slept = isinstance(effect, Sleep)
            now = max(now, effect.until if isinstance(effect, Sleep) else now + 0.5)
            effect = coroutine.send(None) if slept else coroutine.throw(RendezvousConnectionError("gone"))

    with pytest.raises(RendezvousTimeoutError, match=r"'run' on backend 'memory' .* 600\.0 s.* The last error: gone"):
        go_on()
    assert now <= 600.0 + node.interval


@pytest.fixture
def harness() -> Harness:
    return Harness()


def write(harness: Harness, names: str, last_round: int = 0) -> None:
    """Let the service hold records of other nodes."""
    for name in names:
        record = NodeRecord(name, 0, last_round, 2, 4, f"{name}.host", 1)
        harness.put(record.key, record.encode())


def running(*world: str) -> State:
    return State(0, 1, world, "b.host", 29500, 2, 4)


class TestRegistering:
    """A service that takes no record."""

    def join(self, harness: Harness, node: Node) -> Stepper[tuple[State, int]]:
        return harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))

    def fail(self, harness: Harness, coroutine: Stepper[tuple[State, int]], error: Exception) -> None:
        """Let every write fail; what is slept is slept."""
        while coroutine.effect is not None:
            if isinstance(coroutine.effect, OpenLease):
                coroutine.throw(error)
            else:
                coroutine.go()

    def test_a_service_that_refuses_writes_and_answers_others_is_there(self, harness: Harness) -> None:
        node = harness.node()
        coroutine = self.join(harness, node)
        with pytest.raises(RendezvousTimeoutError) as late:
            self.fail(harness, coroutine, RendezvousConnectionError("full"))
        assert "the record of node 'a' could not be written: full" in str(late.value)
        assert not any(isinstance(effect, Read) for effect in coroutine.taken)

    def test_one_that_has_answered_nothing_meanwhile_is_asked_once_more(self, harness: Harness) -> None:
        node = harness.node()
        harness.now += 1.0
        coroutine = self.join(harness, node)
        with pytest.raises(RendezvousTimeoutError, match="could not be written: full"):
            self.fail(harness, coroutine, RendezvousConnectionError("full"))
        asked = coroutine.taken[-1]
        assert isinstance(asked, Read)
        assert asked.deadline == harness.now + node.interval / 2

    def test_one_that_does_not_answer_that_either_could_not_be_reached(self, harness: Harness) -> None:
        node = harness.node()
        harness.now += 1.0
        coroutine = self.join(harness, node)
        while not isinstance(coroutine.effect, Read):
            if isinstance(coroutine.effect, OpenLease):
                coroutine.throw(RendezvousConnectionError("away"))
            else:
                coroutine.go()
        with pytest.raises(RendezvousConnectionError, match=r"could not be reached within \d+\.\d s"):
            coroutine.throw(RendezvousConnectionError("away"))

    @pytest.mark.parametrize(
        ("error", "kind", "says"),
        [
            (RendezvousStateError("corrupt"), RendezvousStateError, "^corrupt$"),
            (RendezvousDeniedError("no"), RendezvousDeniedError, "^no$"),
            (OSError("oops"), RendezvousError, "^Unexpected OSError: oops"),
        ],
    )
    def test_what_is_no_passing_fault_is_raised(
        self, harness: Harness, error: Exception, kind: type[RendezvousError], says: str
    ) -> None:
        coroutine = self.join(harness, harness.node())
        with pytest.raises(kind, match=says):
            self.fail(harness, coroutine, error)


def test_a_node_that_leaves_while_it_waits_waits_no_more(harness: Harness) -> None:
    node = harness.node()
    coroutine = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
    coroutine.to(WaitForChange)
    harness.run(leave.leave(node, "SIGTERM", harness.now + 5.0))
    with pytest.raises(RendezvousClosedError, match="has left 'run' while it waited"):
        coroutine.end()


@pytest.mark.parametrize("until", [None, OpenLease])
def test_a_node_that_leaves_before_its_record_is_written_announces_nothing(
    harness: Harness, until: type[Effect] | None
) -> None:
    node = harness.node()
    coroutine = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
    if until is not None:
        coroutine.to(until)
    harness.run(leave.leave(node, "SIGTERM", harness.now + 5.0))
    with pytest.raises(RendezvousClosedError, match="has left 'run' while it waited"):
        coroutine.end()
    assert not harness.names()


def waits_for(harness: Harness, state: State) -> Stepper[tuple[State, int]]:
    """The coroutine of a node, which offers port 1 of a.host, once this world was published."""
    node = harness.node()
    coroutine = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
    coroutine.to(WaitForChange)
    node.apply_state(harness.publish(state))
    return coroutine


@pytest.mark.parametrize(("address", "port"), [("a.old", 1), ("a.host", 2)])
def test_a_world_that_is_where_its_rank_0_was_when_it_waited_before_is_not_returned(
    harness: Harness, address: str, port: int
) -> None:
    coroutine = waits_for(harness, State(0, 1, ("a", "b"), address, port, 2, 4))
    coroutine.send(None)
    coroutine.to(WaitForChange)
    there = harness.read(NodeRecord("a", 0, 0, 2, 4, "a.host", 1).key)
    assert there is not None
    # It waits for the next one.
    assert decode(NodeRecord, there.payload) == NodeRecord("a", 0, 1, 2, 4, "a.host", 1, version=VERSION)


@pytest.mark.parametrize(
    "state", [State(0, 1, ("a", "b"), "a.host", 1, 2, 4), State(0, 1, ("b", "a"), "b.host", 29500, 2, 4)]
)
def test_a_world_that_is_where_its_rank_0_is_now_is_returned(harness: Harness, state: State) -> None:
    assert waits_for(harness, state).end() == (state, state.world.index("a"))


@pytest.mark.parametrize(
    ("own", "first", "expected"),
    [("::1", "b.host", 1), ("a.host", "b.host", 0), ("127.0.0.1", "localhost", 0), ("a.host", "127.0.0.1", 0)],
)
def test_a_node_that_others_cannot_reach_says_what_to_give(
    harness: Harness, caplog: pytest.LogCaptureFixture, own: str, first: str, expected: int
) -> None:
    node = harness.node()
    coroutine = harness.stepper(join.join(node, own, 1, harness.now + 600.0))
    coroutine.to(WaitForChange)
    node.apply_state(harness.publish(State(0, 1, ("b", "a"), first, 29500, 2, 4)))
    coroutine.end()
    assert caplog.text.count("it cannot be rank 0 among them. Give the address") == expected


def test_a_node_that_has_reported_its_failure_says_so_in_its_next_record(harness: Harness) -> None:
    harness.publish(running("a", "b"))
    node = harness.registered()
    harness.show(node)
    node.round = 1
    harness.run(report.report_failure(node, "exit code 7", False, harness.now + 5.0))
    harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0)).to(WaitForChange)
    held = harness.read("nodes/0/a")
    assert held is not None
    assert decode(NodeRecord, held.payload).outcome == Outcome()


class TestLearningWhoFailed:
    """A node that has failed asks whether it has to pay for that, when its next world is there."""

    @pytest.fixture(params=[False, True], ids=["has-restarts-left", "has-none-left"])
    def asking(self, request: pytest.FixtureRequest, harness: Harness) -> tuple[Node, Stepper[tuple[State, int]]]:
        harness.publish(running("b", "a"))
        node = harness.node()
        node.round = 1
        outcome = Outcome(Ending.FAILED, spent=request.param)
        joining = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0, outcome))
        joining.to(WaitForChange)
        node.apply_state(harness.publish(State(0, 2, ("b", "a"), "b.host", 29500, 2, 4)))
        joining.send(None)
        assert joining.to(Read).key == failure_key(1)
        return node, joining

    @pytest.mark.parametrize("error", [RendezvousConnectionError("away"), OSError("oops")], ids=type)
    def test_an_answer_that_cannot_be_had_is_no_error_of_its_caller(
        self, asking: tuple[Node, Stepper[tuple[State, int]]], error: Exception
    ) -> None:
        node, joining = asking
        joining.throw(error)
        state, rank = joining.end()
        assert (state.round, rank, node.round) == (2, 1, 2)

    def test_one_whose_drain_ends_meanwhile_gets_no_world(
        self, harness: Harness, asking: tuple[Node, Stepper[tuple[State, int]]]
    ) -> None:
        node, joining = asking
        node.countdown.announce(DrainNotice(3.0, "spot"), harness.now)
        harness.now += 3.0
        with pytest.raises(RendezvousGracefulExitError, match="drained: spot"):
            joining.end()
        assert node.registration.record is None
        assert harness.read("nodes/0/a") is None

    def test_one_that_is_interrupted_meanwhile_is_not_counted_on(
        self, harness: Harness, asking: tuple[Node, Stepper[tuple[State, int]]]
    ) -> None:
        node, joining = asking
        joining.throw(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            joining.end()
        assert node.registration.record is None
        assert harness.read("nodes/0/a") is None


class TestElecting:
    """An election is a matter of the watch: to who joins it is only quicker."""

    @pytest.fixture
    def coroutine(self, harness: Harness) -> Stepper[tuple[State, int]]:
        coroutine = harness.stepper(join.join(harness.node(), "a.host", 1, harness.now + 1.0))
        assert coroutine.to_write(LEADER_KEY).deadline == harness.now + 1.0
        return coroutine

    def test_one_that_fails_is_left_to_the_others(self, coroutine: Stepper[tuple[State, int]]) -> None:
        assert isinstance(coroutine.throw(RendezvousConnectionError("away")), WaitForChange)

    def test_one_that_is_refused_is_too(self, coroutine: Stepper[tuple[State, int]]) -> None:
        assert isinstance(coroutine.throw(RendezvousDeniedError("no")), WaitForChange)


class TestGivingUp:
    """What a node that has waited for too long says."""

    def message(self, harness: Harness, node: Node) -> str:
        """The error of a node that waits as long as it may."""
        deadline = harness.now + node.settings.timeout.join.total_seconds()
        with pytest.raises(RendezvousTimeoutError) as late:
            harness.run(join.join(node, "a.host", 1, deadline))
        began, here = "The rendezvous 'run' on backend 'memory' did not complete within ", ""
        message = str(late.value)
        assert message.startswith(began)
        here = message.removeprefix(began)
        assert here.startswith(f"{node.settings.timeout.join.total_seconds()} s: ")
        return here.partition(": ")[2]

    def test_too_few_are_here(self, harness: Harness) -> None:
        assert self.message(harness, harness.node()) == "1 of at least 2 nodes is here (a), 1 is missing."

    def test_far_too_few_are_here(self, harness: Harness) -> None:
        write(harness, "cb")
        node = harness.node(low=5, high=9)
        assert self.message(harness, node) == "3 of at least 5 nodes are here (a, b, c), 2 are missing."

    @pytest.mark.parametrize("join", [31.0, 32.0])
    def test_enough_are_here_and_no_leader_publishes(self, harness: Harness, join: float) -> None:
        write(harness, "bc")
        said = self.message(harness, harness.node(join=join))
        assert said.startswith("3 of at least 2 nodes are here (a, b, c). ")
        # A leader publishes its status once a second: until then nothing is known of it.
        told = "Up to 4 are waited for during the last call of 30 s: " if join == 31.0 else "No leader has published "
        assert told in said

    @pytest.mark.parametrize(
        ("phase", "told"),
        [(Phase.LAST_CALL, "Up to 4 are waited for"), (Phase.GATHERING, "No leader has published")],
    )
    def test_enough_are_here_for_the_last_call(self, harness: Harness, phase: Phase, told: str) -> None:
        write(harness, "b")
        harness.put(STATUS_KEY, RunStatus(0, phase, 2, 0).encode())
        assert told in self.message(harness, harness.node())

    @pytest.mark.parametrize(("wanted", "told"), [(4, "The wanted 4 nodes"), (3, "No leader"), (2, "No leader")])
    def test_enough_are_here_and_more_are_wanted(self, harness: Harness, wanted: int, told: str) -> None:
        write(harness, "bc")
        said = self.message(harness, harness.node(wanted=wanted, wanted_timeout=timedelta(seconds=700)))
        assert said.startswith("3 of at least 2 nodes are here (a, b, c); a world takes 2, 3 or 4 nodes")
        assert said.partition("nodes. ")[2].startswith(told)
        assert (" have 700 s to come: give a longer join_timeout, or a shorter wanted_timeout." in said) == (
            wanted == 4
        )

    def test_of_a_world_that_is_full_no_more_are_waited_for(self, harness: Harness) -> None:
        write(harness, "b")
        assert "No leader has published " in self.message(harness, harness.node(high=2, join=1.0))

    def test_enough_are_here_and_an_error_says_why_there_is_no_world(self, harness: Harness) -> None:
        write(harness, "b")
        node = harness.node(join=1.0)
        node.failures.add("lead", RendezvousConnectionError("no thread"))
        assert self.message(harness, node) == "2 of at least 2 nodes are here (a, b). The last error: no thread"

    @pytest.mark.parametrize(("unit", "told"), [(3, "No leader has published"), (4, "")])
    def test_enough_are_here_and_no_world_is_possible(self, harness: Harness, unit: int, told: str) -> None:
        write(harness, "bc")
        said = self.message(harness, harness.node(node_unit=unit))
        assert said.startswith(f"3 of at least 2 nodes are here (a, b, c); a world takes {unit} nodes.")
        assert said.partition(" nodes. ")[2][: len("No leader has published")] == told

    @pytest.mark.parametrize(("world", "nodes"), [("bc", "2 nodes"), ("b", "1 node")])
    def test_a_round_runs_without_it(self, harness: Harness, world: str, nodes: str) -> None:
        write(harness, world)
        harness.publish(running(*world))
        said = self.message(harness, harness.node())
        assert said.endswith(f"). Round 1 is running with {nodes}.")

    def test_a_round_runs_and_some_of_it_are_gone(self, harness: Harness) -> None:
        write(harness, "b")
        harness.publish(running("b", "c", "d"))
        lost = Departure("c", 1, False, "its lease ran out"), Departure("d", 2, True, "drained")
        harness.put(STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 1, 0, lost).encode())
        assert self.message(harness, harness.node()).endswith(
            " Round 1 is running with 1 node ('c' is gone: its lease ran out; 'd' has left: drained)."
        )

    @pytest.mark.parametrize(("number", "told"), [(1, " Of round 1, 'b' has left: drained."), (2, "")])
    def test_all_of_a_round_are_gone(self, harness: Harness, number: int, told: str) -> None:
        harness.publish(running("b"))
        harness.put(
            STATUS_KEY, RunStatus(number, Phase.RE_FORMING, 0, 0, (Departure("b", 0, True, "drained"),)).encode()
        )
        said = self.message(harness, harness.node())
        assert said == f"1 of at least 2 nodes is here (a), 1 is missing.{told}"

    def test_all_others_of_its_world_have_left(self, harness: Harness) -> None:
        harness.publish(running("a", "b"))
        harness.put(STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 1, 0, (Departure("b", 1, True, "drained"),)).encode())
        node, began = harness.node(), harness.now
        node.round = 1
        with pytest.raises(RendezvousTimeoutError, match=r"within 60\.0 s: .* No other node has come for 60 s: "):
            harness.run(join.join(node, "a.host", 1, harness.now + 600.0))
        assert harness.now == began + 60.0

    def test_one_that_drains_does_not_wait_for_another(self, harness: Harness) -> None:
        harness.publish(running("a", "b"))
        harness.put(STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 1, 0, (Departure("b", 1, True, "drained"),)).encode())
        node, began = harness.node(), harness.now
        node.round = 1
        node.countdown.announce(DrainNotice(100.0, "spot"), harness.now)
        with pytest.raises(RendezvousGracefulExitError, match="drained: spot"):
            harness.run(join.join(node, "a.host", 1, harness.now + 600.0))
        assert (harness.now, node.is_drained()) == (began, True)

    @pytest.mark.parametrize("error", [RendezvousConnectionError("away"), OSError("oops")], ids=type)
    def test_one_that_is_asked_to_drain_while_it_registers_goes_in_time(
        self, harness: Harness, error: Exception
    ) -> None:
        node, began = harness.node(), harness.now
        joining = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
        joining.to(OpenLease)
        node.countdown.announce(DrainNotice(20.0, "spot"), harness.now)

        def without_the_service() -> None:
            while joining.effect is not None:
                joining.throw(error) if isinstance(joining.effect, Call) else joining.go()

        harness.now += 1.0
        joining.throw(error)
        assert harness.now < began + 20.0
        node.countdown.announce(DrainNotice(0.5, "sooner"), harness.now)
        assert joining.to(OpenLease).deadline == node.goes_at()
        with pytest.raises(RendezvousGracefulExitError, match="drained: sooner"):
            without_the_service()
        assert began + 1.5 <= harness.now <= began + 1.6

    def test_each_call_of_one_that_registers_ends_with_its_drain(self, harness: Harness) -> None:
        node = harness.node()
        joining = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
        joining.to(Put)
        node.countdown.announce(DrainNotice(3.0, "spot"), harness.now)
        # Its lease has ended meanwhile.
        joining.send((False, None))
        assert joining.to(OpenLease).deadline == node.goes_at()

    def test_one_that_drains_waits_for_no_election_that_takes_longer(self, harness: Harness) -> None:
        node = harness.node()
        joining = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
        joining.to(Put)
        node.countdown.announce(DrainNotice(3.0, "spot"), harness.now)
        assert joining.to_write(LEADER_KEY).deadline == node.goes_at()

    def test_one_whose_drain_is_over_when_its_last_call_ends_gets_no_world(self, harness: Harness) -> None:
        node = harness.node()
        joining = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
        joining.to_write(LEADER_KEY)
        harness.publish(State(0, 1, ("b", "a"), "b.host", 1, 2, 4))
        harness.show(node)
        node.countdown.announce(DrainNotice(3.0, "spot"), harness.now)
        harness.now += 3.0
        with pytest.raises(RendezvousGracefulExitError, match="drained: spot"):
            joining.end()

    def test_one_of_many_reads_no_records(self, harness: Harness) -> None:
        harness.put(STATUS_KEY, RunStatus(0, Phase.GATHERING, 700, 0).encode())
        node = harness.node(low=1000, high=1000)
        coroutine = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
        with pytest.raises(RendezvousTimeoutError) as late:
            coroutine.end()
        assert str(late.value).endswith(
            "by the last news 700 of at least 1000 nodes are here, 300 are missing, and the run is gathering."
        )
        assert late.value.summary.endswith(": 700 of at least 1000 nodes")
        assert not [one for one in coroutine.taken if isinstance(one, ReadAll) and one.prefix == NODES]

    @pytest.mark.parametrize(("least", "known", "reads"), [(64, True, True), (65, True, False), (1000, False, True)])
    def test_the_records_are_read_by_a_few_or_where_there_is_no_news(
        self, harness: Harness, least: int, known: bool, reads: bool
    ) -> None:
        if known:
            harness.put(STATUS_KEY, RunStatus(0, Phase.GATHERING, 1, 0).encode())
        node = harness.node(low=least, high=1000)
        coroutine = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
        with pytest.raises(RendezvousTimeoutError):
            coroutine.end()
        assert reads is any(isinstance(one, ReadAll) and one.prefix == NODES for one in coroutine.taken)

    def test_the_one_that_is_left_of_many_reads_the_records(self, harness: Harness) -> None:
        others = [f"b{number}" for number in range(64)]
        harness.publish(running("a", *others))
        gone = tuple(Departure(name, rank, True, "drained") for rank, name in enumerate(others, 1))
        harness.put(STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 1, 0, gone).encode())
        node = harness.node()
        node.round = 1
        with pytest.raises(RendezvousTimeoutError, match=r"is here \(a\), 1 is missing.* No other node has come"):
            harness.run(join.join(node, "a.host", 1, harness.now + 600.0))

    def test_of_many_enough_are_here(self, harness: Harness) -> None:
        harness.put(STATUS_KEY, RunStatus(0, Phase.LAST_CALL, 1001, 0).encode())
        with pytest.raises(RendezvousTimeoutError, match=r"1001 of at least 1000 nodes are here, "):
            harness.run(join.join(harness.node(low=1000, high=2000), "a.host", 1, harness.now + 600.0))

    @pytest.mark.parametrize(("before", "told"), [(3, " By the last news 3 were here."), (1, "")])
    def test_those_that_gave_up_a_moment_ago_are_counted(self, harness: Harness, before: int, told: str) -> None:
        harness.put(STATUS_KEY, RunStatus(0, Phase.GATHERING, before, 0).encode())
        said = self.message(harness, harness.node(low=4))
        assert said == f"1 of at least 4 nodes is here (a), 3 are missing.{told}"

    def test_no_other_node_is_here(self, harness: Harness) -> None:
        node = harness.node()
        coroutine = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
        while not (isinstance(coroutine.effect, ReadAll) and coroutine.effect.prefix == NODES):
            coroutine.go()
        harness.end_leases()
        with pytest.raises(RendezvousTimeoutError, match=r"0 of at least 2 nodes are here \(none\), 2 are missing\.$"):
            coroutine.end()

    def test_the_last_error_is_named(self, harness: Harness) -> None:
        node = harness.node()
        node.failures.add_passing(WATCH, RendezvousConnectionError("away"), harness.now)
        assert self.message(harness, node).endswith("1 is missing. The last error: away")


def test_a_node_that_was_alone_is_so_no_more_in_its_next_world(harness: Harness) -> None:
    harness.publish(running("a", "b"))
    left = Departure("b", 1, True, "drained")
    harness.put(STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 1, 0, (left,)).encode())
    node = harness.node("a")
    node.round = 1
    joins = harness.stepper(join.join(node, "b.host", 29500, harness.now + 600.0))
    joins.to(WaitForChange)
    assert node.countdown.alone_since == harness.now
    # A node has come, and the world with it, before any status says that it is here.
    harness.publish(replace(running("a", "c"), round=2))
    harness.show(node)
    joins.send(None)
    assert joins.end()[0].round == node.round == 2
    assert node.countdown.alone_since is None
    harness.put(drain_key("a"), DrainNotice(60.0, "spot").encode())
    harness.show(node)
    assert not node.is_drained()


def test_a_node_that_stops_waits_no_more(harness: Harness) -> None:
    node = harness.node("a")
    joins = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
    joins.to(WaitForChange)
    node.stop()
    with pytest.raises(RendezvousClosedError, match="has left 'run' while it waited"):
        joins.end()


class TestQuarantine:
    """A node that is quarantined waits that out by its own clock."""

    def quarantined(self, harness: Harness, cooldown: float = 100.0, times: int = 1) -> Node:
        quarantine = Quarantine(times, 3, cooldown, "it failed first in 3 consecutive rounds: exit code 7")
        harness.put(quarantine_key("a"), quarantine.encode())
        return harness.node("a.1")

    def served(self, harness: Harness) -> int:
        versioned = harness.read(f"{NODES}/0/a.1")
        assert versioned is not None
        return decode(NodeRecord, versioned.payload).served

    def test_it_says_when_it_has_waited_it_out(self, harness: Harness) -> None:
        node, began = self.quarantined(harness, times=2), harness.now
        joins = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
        while harness.now < began + 100.0:
            assert node.countdown.served == 0
            joins.go()
        while node.countdown.served == 0 or self.served(harness) == 0:
            joins.go()
        assert (harness.now, self.served(harness), node.countdown.quarantined(node.clock())) == (began + 100.0, 3, None)

    def test_the_next_record_says_so_too(self, harness: Harness) -> None:
        node = self.quarantined(harness, cooldown=0.0)
        with pytest.raises(RendezvousTimeoutError):
            harness.run(join.join(node, "a.host", 1, harness.now + 10.0))
        joins = harness.stepper(join.join(node, "a.host", 1, harness.now + 10.0))
        assert decode(NodeRecord, joins.to_write(f"{NODES}/0/a.1").payload).served == 3

    def test_a_pardon_ends_it(self, harness: Harness) -> None:
        node = self.quarantined(harness)
        assert (
            node.countdown.quarantined(node.clock())
            == "quarantined for another 100 s: it failed first in 3 consecutive rounds: exit code 7"
        )
        harness.put(quarantine_key("a"), Quarantine(0, 3, 0.0, "pardoned by the operator", over=True).encode())
        harness.show(node)
        assert node.countdown.quarantined(node.clock()) is None

    def test_the_error_of_one_that_gives_up_names_it(self, harness: Harness) -> None:
        node = self.quarantined(harness)
        with pytest.raises(RendezvousTimeoutError, match=r"This node is quarantined for another 40 s: it failed first"):
            harness.run(join.join(node, "a.host", 1, harness.now + 60.0))


class TestSpent:
    """A node whose program has failed, and has no restart left."""

    SPENT = Outcome(spent=True)

    @pytest.fixture
    def node(self, harness: Harness) -> Node:
        harness.publish(running("a", "b"))
        # Another node leads.
        harness.put(LEADER_KEY, OTHER)
        node = harness.node()
        node.round = 1
        return node

    def join(self, harness: Harness, node: Node) -> Stepper[tuple[State, int]]:
        joining = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0, self.SPENT))
        joining.to(WaitForChange)
        held = harness.read("nodes/0/a")
        assert held is not None
        assert decode(NodeRecord, held.payload).outcome == self.SPENT
        return joining

    def judge(self, harness: Harness, node: Node, verdict: Verdict | None, name: str = "b") -> None:
        failure = Failure(name, "exit code 7", False, verdict=verdict, because="that is why")
        harness.put(failure_key(1), failure.encode())
        harness.show(node)

    @pytest.mark.parametrize("verdict", [Verdict.FIRST, Verdict.UNCLEAR])
    def test_it_ends_as_soon_as_it_has_to_pay_and_its_record_stays_until_it_leaves(
        self, harness: Harness, node: Node, verdict: Verdict
    ) -> None:
        joining, began = self.join(harness, node), harness.now
        self.judge(harness, node, verdict)
        with pytest.raises(RendezvousGracefulExitError, match=r"takes no further part in 'run': .*that is why"):
            joining.end()
        # The wait for news had a deadline, which it has not waited for.
        assert harness.now <= began + TTL + 2.0
        assert (node.reckoning.pays, node.registration.record is not None) == (True, True)
        harness.run(leave.leave(node, "exit code 7", harness.now + 5.0))
        held = harness.read("nodes/0/a")
        assert held is not None
        left = decode(NodeRecord, held.payload)
        assert (left.left, left.outcome) == ("exit code 7", self.SPENT)

    def test_it_waits_for_a_world_if_its_failure_is_explained(self, harness: Harness, node: Node) -> None:
        joining = self.join(harness, node)
        self.judge(harness, node, Verdict.EXPLAINED)
        joining.go()
        assert isinstance(joining.effect, WaitForChange)
        assert joining.effect.until > harness.now + TTL + 2.0

    def test_it_waits_as_long_as_its_failure_is_not_judged(self, harness: Harness, node: Node) -> None:
        self.judge(harness, node, None)
        assert isinstance(self.join(harness, node).effect, WaitForChange)

    def test_one_that_was_behind_ends_though_its_program_worked(self, harness: Harness, node: Node) -> None:
        joining = harness.stepper(
            join.join(node, "a.host", 1, harness.now + 600.0, Outcome(Ending.CHANGED, 19, 2.0, spent=True))
        )
        joining.to(WaitForChange)
        self.judge(harness, node, Verdict.BEHIND, "a")
        with pytest.raises(RendezvousGracefulExitError):
            joining.end()
        assert node.reckoning.ended_by is not None

    def test_it_ends_when_no_loss_was_seen_for_a_time_to_live_and_two_seconds(
        self, harness: Harness, node: Node
    ) -> None:
        joining, began = self.join(harness, node), harness.now
        with pytest.raises(RendezvousGracefulExitError, match="no other node was lost"):
            joining.end()
        assert harness.now == began + TTL + 2.0

    @pytest.mark.parametrize("lacks", ["a leader", "the service", "a permission"])
    def test_while_none_looks_it_waits_on(self, harness: Harness, node: Node, lacks: str) -> None:
        joining, began = self.join(harness, node), harness.now
        harness.now += TTL
        if lacks == "a leader":
            node.run.leader = None
        elif lacks == "the service":
            node.connection.on_error(RendezvousConnectionError("away"))
        else:
            # Its lease is renewed, but it cannot read whose failure it was.
            node.failures.add_passing(WATCH, RendezvousDeniedError("no permission"), harness.now)
        joining.go()
        assert node.reckoning.out_since is None
        assert harness.now >= began + TTL
