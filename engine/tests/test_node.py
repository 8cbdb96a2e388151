"""What one node remembers, and what it makes of that: no service, no thread, a clock that stands still."""

import errno
import math
import os
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from rdzv_core import errors
from rdzv_core.backend import STATE_KEY, Entry, Snapshot
from rdzv_core.envelope import Envelope

from rdzv.engine import refusals
from rdzv.engine.client import MOST_IGNORED, DecodedSnapshot, VersionedValue
from rdzv.engine.failures import KEEP, LASTING, LASTING_TIMES, LEAD, WATCH, Failures
from rdzv.engine.node import Node
from rdzv.engine.node_view import NodeView
from rdzv.engine.notices import DrainNotice, Failure, Quarantine, Verdict, drain_key, failure_key, quarantine_key
from rdzv.engine.records import (
    LEADER_KEY,
    STATUS_KEY,
    Closed,
    Departure,
    LeaderRecord,
    NodeRecord,
    Pages,
    Phase,
    RunStatus,
    State,
)
from rdzv.engine.registration import NodeState
from rdzv.engine.run_view import Presence
from rdzv.hooks import Event, EventKind
from rdzv.settings import RendezvousSettings, RendezvousTimeout

from .coroutines import TTL, Harness
from .test_join_coroutine import Granted
from .test_rules import state

INTERVAL = 5.0
DONE = Closed("b", "the job is done", done=True)
ENOUGH = Closed("b", "enough", done=False)
LOST, LEFT = Departure("b", 1, False, "its lease is over"), Departure("c", 2, True, "drained")


class Clock:
    """A clock that a test sets.

    Attributes:
        now: What it shows.
    """

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(clock: Clock, last_round: int | None = None, round: int = 0, signs: int = 3, **more: Any) -> Node:
    """The node "a" of attempt 1, after `round`; it has a record if it has left a round behind."""
    fields: dict[str, Any] = {"attempt": 1, **more}
    settings = RendezvousSettings("run", 2, 4, RendezvousTimeout(), timedelta(seconds=INTERVAL), signs, **fields)
    node = Node(settings, "memory", clock, id="a", round=round)
    if last_round is not None:
        node.registration.record = NodeRecord("a", 1, last_round, 2, 4, "a.host", 1)
        node.registration.state = NodeState.REGISTERED
    return node


def versioned(payload: bytes, previous: VersionedValue | None = None) -> VersionedValue:
    """What a key holds."""
    envelope = Envelope.wrap(payload, writer="b", previous=previous.envelope if previous else None)
    return VersionedValue(envelope, token=envelope.epoch, order=1)


def shows(node: Node, *world: str, **more: Any) -> list[Event]:
    """Let a node see a state of its attempt that is newer than the one that it knows."""
    fields: dict[str, Any] = {"attempt": 1, **more}
    return node.apply_state(versioned(state(*world, **fields).encode(), node.run.version))


def snapshot(**values: bytes) -> DecodedSnapshot:
    """A view of ``control``."""
    keys = {"state": STATE_KEY, "status": STATUS_KEY, "leader": LEADER_KEY}
    return DecodedSnapshot(
        Snapshot({keys[name]: Entry(Envelope.wrap(value, writer="b").pack(), 1, 1) for name, value in values.items()})
    )


def claim(node: str = "b", attempt: int = 1, low: int = 2, high: int = 4) -> LeaderRecord:
    """A claim to lead."""
    return LeaderRecord(node, attempt, low, high)


def reported(events: list[Event]) -> list[tuple[EventKind, int, str, str]]:
    """What events say."""
    return [(event.kind, event.round, event.node, event.cause) for event in events]


class TestName:
    @pytest.mark.parametrize("name", ["gpu7", None])
    def test_a_node_has_the_name_that_it_was_given_or_else_its_machines(self, clock: Clock, name: str | None) -> None:
        one, other = (Node(replace(made(clock).settings, node_name=name), "memory", clock) for _ in range(2))
        assert one.id.startswith(f"{name or os.uname().nodename}"[:32])
        assert one.id != other.id


class TestTime:
    @pytest.mark.parametrize(("signs", "seconds"), [(3, 15.0), (1, 7.0)])
    def test_a_call_that_is_not_waited_for_may_take_a_time_to_live_or_the_heartbeat_timeout(
        self, clock: Clock, signs: int, seconds: float
    ) -> None:
        node = made(clock, signs=signs)
        timeout = RendezvousTimeout(heartbeat=timedelta(seconds=7))
        node.settings = replace(node.settings, timeout=timeout)
        assert node.background_deadline() == 1000.0 + seconds

    def test_silence_is_for_ever_until_the_service_has_answered(self, clock: Clock) -> None:
        node = made(clock)
        assert node.connection.since_last_contact() == math.inf
        node.connection.on_contact()
        clock.now += 3.0
        assert node.connection.since_last_contact() == 3.0

    def test_an_answer_ends_the_trouble(self, clock: Clock) -> None:
        node = made(clock)
        node.connection.on_error(errors.RendezvousConnectionError("away"))
        assert node.connection.error is not None
        node.connection.on_contact()
        assert node.connection.error is None

    def test_a_silent_member_is_missed_after_a_time_to_live_of_contact(self, clock: Clock) -> None:
        node = made(clock)
        assert node.connection.grace_remaining() == 15.0
        for seconds in (15.0, 10.0, 5.0, 0.0, 0.0):
            node.connection.on_renewal(clock.now)
            assert node.connection.grace_remaining() == seconds
            clock.now += INTERVAL

    @pytest.mark.parametrize(("signs", "longest"), [(3, 10.0), (2, 7.5)])
    def test_after_a_long_silence_the_others_get_a_time_to_live_again(
        self, clock: Clock, signs: int, longest: float
    ) -> None:
        node = made(clock, signs=signs)
        node.connection.on_renewal(clock.now)
        clock.now += longest
        assert node.connection.grace_remaining() == node.ttl - longest
        node.connection.on_renewal(clock.now)
        assert node.connection.grace_remaining() == node.ttl - longest
        clock.now += longest + 0.5
        assert node.connection.grace_remaining() == node.ttl
        node.connection.on_renewal(clock.now)
        assert node.connection.grace_remaining() == node.ttl

    def test_answers_alone_do_not_tell_that_leases_are_renewed(self, clock: Clock) -> None:
        node = made(clock)
        node.connection.on_renewal(clock.now)
        for _ in range(8):
            clock.now += INTERVAL
            # Reads are answered, and writes refused: to all nodes, as far as this one knows.
            node.connection.on_contact()
        assert node.connection.grace_remaining() == node.ttl
        node.connection.on_renewal(clock.now)
        assert node.connection.grace_remaining() == node.ttl

    def test_a_renewal_counts_from_when_it_was_asked_for(self, clock: Clock) -> None:
        node = made(clock)
        node.connection.on_renewal(clock.now)
        clock.now += 10.0
        # Its process stood still before it saw the answer.
        node.connection.on_renewal(clock.now - 9.0)
        assert node.connection.grace_remaining() == node.ttl - 10.0
        clock.now += 1.5
        assert node.connection.grace_remaining() == node.ttl

    def test_a_node_whose_lease_was_lost_gives_the_others_a_time_to_live_too(self, clock: Clock) -> None:
        node = made(clock)
        node.connection.on_renewal(clock.now)
        clock.now += INTERVAL
        node.connection.reset_grace_period()
        assert node.connection.grace_remaining() == 15.0
        node.connection.on_renewal(clock.now)
        clock.now += INTERVAL
        assert node.connection.grace_remaining() == 10.0


class TestState:
    def test_a_new_world_is_reported_once(self, clock: Clock) -> None:
        node = made(clock)
        events = shows(node, "b", "c", address="b.host", port=29500)
        assert reported(events) == [
            (EventKind.ROUND_PUBLISHED, 1, "b", "a world of 2, with rank 0 at b.host:29500"),
        ]
        assert shows(node, "b", "c", address="b.host", port=29500) == []

    def test_a_state_without_a_world_tells_of_none(self, clock: Clock) -> None:
        node = made(clock)
        assert shows(node, round=3) == []

    def test_closing_is_reported_once(self, clock: Clock) -> None:
        node = made(clock)
        shows(node, "b", "c")
        closing = [(EventKind.CLOSED, 1, "b", "enough")]
        assert reported(shows(node, "b", "c", closed=ENOUGH)) == closing
        assert shows(node, "b", "c", closed=ENOUGH) == []

    def test_a_world_and_its_end_may_be_seen_at_once(self, clock: Clock) -> None:
        events = shows(made(clock), "b", "c", closed=ENOUGH)
        assert [event.kind for event in events] == [EventKind.ROUND_PUBLISHED, EventKind.CLOSED]

    def test_an_older_state_changes_nothing(self, clock: Clock) -> None:
        node = made(clock)
        shows(node, "b", "c")
        old = node.run.version
        shows(node, "b", "c", round=2)
        now = node.run.version
        assert node.apply_state(old) == []
        assert (node.run.version, node.run.state) == (now, state("b", "c", attempt=1, round=2))

    def test_a_state_that_was_put_back_has_another_token(self, clock: Clock) -> None:
        node = made(clock)
        shows(node, "b", "c")
        assert node.run.version is not None
        back = replace(node.run.version, token="another")
        assert node.apply_state(back) == []
        assert node.run.version is back

    def test_a_state_that_was_there_and_is_not_has_vanished(self, clock: Clock) -> None:
        node = made(clock)
        seen = []
        node.apply_state(None)
        seen.append(node.run.presence)
        shows(node, "b", "c")
        for found in (None, node.run.version):
            node.apply_state(found)
            seen.append(node.run.presence)
        assert seen == [Presence.THERE, Presence.MISSING, Presence.THERE]

    def test_a_run_that_was_removed_stays_so_for_a_node_that_took_part_in_it(self, clock: Clock) -> None:
        node = made(clock)
        node.run.presence = Presence.DELETED
        shows(node, "b", "c")
        node.apply_state(None)
        assert node.run.presence is Presence.DELETED

    def test_eviction_is_reported_once_for_each_round(self, clock: Clock) -> None:
        node = made(clock, last_round=0, round=1)
        events = shows(node, "b", "c", round=2)
        cause = "round 2 was formed while this node was away from round 1"
        assert reported(events)[1:] == [(EventKind.EVICTED, 2, "a", cause)]
        assert [event.kind for event in shows(node, "b", "c", round=3)] == [EventKind.ROUND_PUBLISHED]

    def test_an_error_of_leading_ends_with_the_run(self, clock: Clock) -> None:
        node = made(clock)
        node.failures.add(LEAD, OSError("no"), lasts=True)
        shows(node, "b", "c")
        assert node.failures.lasting is not None
        shows(node, "b", "c", closed=ENOUGH)
        assert node.failures.lasting is None


class TestStatus:
    def test_a_loss_is_reported_once_for_each_round(self, clock: Clock) -> None:
        node = made(clock)
        worlds = [state("a", "b", "c", attempt=1, round=number).encode() for number in (1, 2)]
        node.apply_snapshot(snapshot(state=worlds[0], status=RunStatus(1, Phase.RE_FORMING, 2, 1, (LOST,)).encode()))
        events = node.apply_snapshot(
            snapshot(state=worlds[0], status=RunStatus(1, Phase.RE_FORMING, 1, 1, (LOST, LEFT)).encode())
        )
        assert reported(events) == [(EventKind.NODE_LEFT, 1, "c", "drained")]
        events = node.apply_snapshot(
            snapshot(state=worlds[1], status=RunStatus(2, Phase.RE_FORMING, 1, 1, (LOST,)).encode())
        )
        assert reported(events)[1:] == [(EventKind.NODE_LOST, 2, "b", "its lease is over")]

    def test_its_own_loss_is_not_reported_to_a_node(self, clock: Clock) -> None:
        node = made(clock)
        world = state("a", "b", attempt=1).encode()
        node.apply_snapshot(snapshot(state=world))
        lost = (replace(LOST, node="a"), LOST)
        events = node.apply_snapshot(snapshot(state=world, status=RunStatus(1, Phase.RE_FORMING, 1, 1, lost).encode()))
        assert reported(events) == [(EventKind.NODE_LOST, 1, "b", "its lease is over")]

    def test_what_was_lost_before_it_came_is_no_news(self, clock: Clock) -> None:
        status = RunStatus(1, Phase.ABANDONED, 0, 0, (LOST,)).encode()
        events = made(clock).apply_snapshot(snapshot(state=state("a", "b", attempt=1).encode(), status=status))
        assert [event.kind for event in events] == [EventKind.ROUND_PUBLISHED]

    def test_news_of_another_round_tell_of_no_loss(self, clock: Clock) -> None:
        node = made(clock)
        status = RunStatus(1, Phase.RE_FORMING, 2, 1, (LOST,)).encode()
        assert node.apply_snapshot(snapshot(status=status)) == []
        assert node.apply_snapshot(snapshot(status=status)) == []
        later = state("a", "b", attempt=1, round=2).encode()
        assert node.apply_snapshot(snapshot(state=later)) != []
        assert node.apply_snapshot(snapshot(status=status, state=later)) == []

    def test_news_that_go_are_forgotten(self, clock: Clock) -> None:
        node = made(clock)
        node.apply_snapshot(snapshot(status=RunStatus(0, Phase.GATHERING, 2, 0).encode()))
        assert node.run.status is not None
        node.apply_snapshot(snapshot())
        assert node.run.status is None

    def test_what_cannot_be_read_is_looked_at_again(self, clock: Clock) -> None:
        node = made(clock)
        with pytest.raises(errors.RendezvousStateError):
            node.apply_snapshot(snapshot(status=b"[]"))
        assert node.run.snapshot is None


class TestLeader:
    def test_a_change_is_reported_once(self, clock: Clock) -> None:
        node = made(clock)
        assert reported(node.apply_leader(claim("b"))) == [
            (EventKind.LEADER_CHANGED, 0, "b", "it holds the leader's lease")
        ]
        assert node.apply_snapshot(snapshot(leader=claim("b").encode())) == []
        assert node.run.leader == claim("b")
        assert [event.node for event in node.apply_leader(claim("c"))] == ["c"]
        assert node.apply_snapshot(snapshot()) == []
        assert node.run.leader is None
        assert [event.node for event in node.apply_leader(claim("c"))] == ["c"]

    def test_a_view_older_than_its_election_ends_no_lead(self, clock: Clock) -> None:
        node = made(clock)
        node.apply_leader(claim("a"))
        node.candidacy.begin_term()
        node.apply_leader(None)
        assert node.leading
        assert node.run.leader == claim("a")

    def test_who_leads_steps_down_when_another_does(self, clock: Clock) -> None:
        node = made(clock)
        node.apply_leader(claim("a"))
        node.candidacy.begin_term()
        node.apply_leader(claim("a"))
        assert node.leading
        node.apply_leader(claim("b"))
        assert not node.leading
        assert node.run.leader == claim("b")

    @pytest.mark.parametrize(("leader", "healed"), [(claim("a"), False), (None, False), (claim("b"), True)])
    def test_an_error_of_leading_ends_when_another_leads(
        self, clock: Clock, leader: LeaderRecord | None, healed: bool
    ) -> None:
        node = made(clock)
        node.failures.add(LEAD, OSError("no"), lasts=True)
        node.apply_leader(leader)
        assert (node.failures.lasting is None) is healed

    @pytest.mark.parametrize("leader", ["a", "b"])
    def test_who_steps_down_knows_no_leader_but_another(self, clock: Clock, leader: str) -> None:
        node = made(clock)
        node.apply_leader(claim(leader))
        node.candidacy.begin_term()
        node.candidacy.step_down()
        assert not node.leading
        assert node.run.leader == (claim("b") if leader == "b" else None)

    @pytest.mark.parametrize("state", NodeState)
    def test_who_is_registered_may_lead(self, clock: Clock, state: NodeState) -> None:
        node = made(clock, last_round=0)
        node.registration.state = state
        assert node.candidacy.may_lead(node.clock()) is (state is NodeState.REGISTERED)

    @pytest.mark.parametrize(("stands_from", "may"), [(1000.0, True), (1000.5, False)])
    def test_who_has_resigned_rests(self, clock: Clock, stands_from: float, may: bool) -> None:
        node = made(clock, last_round=0)
        node.candidacy.stands_from = stands_from
        assert node.candidacy.may_lead(node.clock()) is may

    @pytest.mark.parametrize(
        ("more", "may"), [({}, True), ({"closed": ENOUGH}, False), ({"attempt": 2}, False), ({"attempt": 0}, True)]
    )
    def test_what_is_over_is_not_led(self, clock: Clock, more: dict[str, Any], may: bool) -> None:
        node = made(clock, last_round=0)
        node.registration.lease = Granted(15.0)
        shows(node, "b", "c", **more)
        assert node.candidacy.may_lead(node.clock()) is may
        assert node.candidacy.sees_no_leader() is may

    @pytest.mark.parametrize(
        ("there", "believed", "leading", "unseen"),
        [
            (claim("b"), claim("b"), False, False),
            (claim("a"), claim("a"), True, False),
            (None, claim("a"), True, True),
            (claim("a"), claim("a"), False, True),
            (claim("a"), None, False, True),
            (None, None, False, True),
        ],
        ids=["another leads", "it leads", "its claim is gone", "it has resigned", "it has stepped down", "none does"],
    )
    def test_a_node_with_a_record_sees_whether_a_node_leads(
        self, clock: Clock, there: LeaderRecord | None, believed: LeaderRecord | None, leading: bool, unseen: bool
    ) -> None:
        node = made(clock, last_round=0)
        node.apply_snapshot(snapshot() if there is None else snapshot(leader=there.encode()))
        node.run.leader, node.candidacy.term = believed, int(leading)
        assert node.candidacy.sees_no_leader() is unseen
        node.registration.record = None
        assert not node.candidacy.sees_no_leader()

    def test_before_its_first_snapshot_it_sees_no_leader(self, clock: Clock) -> None:
        node = made(clock, last_round=0)
        node.run.leader = claim("b")
        assert node.candidacy.sees_no_leader()


def test_the_longest_refusal_of_a_loop_counts_and_no_silence(clock: Clock) -> None:
    failures = Failures(clock)
    assert failures.refused_since == math.inf
    failures.add_passing(WATCH, errors.RendezvousConnectionError("it is away"), 1.0)
    assert failures.refused_since == math.inf
    for loop, began in ((KEEP, 5.0), (LEAD, 3.0)):
        failures.add_passing(loop, errors.RendezvousDeniedError("no permission"), began)
    assert failures.refused_since == 3


def test_what_a_loop_fails_with_is_said_once(clock: Clock) -> None:
    failures = Failures(clock)
    assert failures.unsaid(None) == ""
    assert failures.unsaid(ValueError("gone")) == ": Unexpected ValueError: gone. Please report this."
    failures.add(KEEP, ValueError("gone"))
    failures.add(KEEP, errors.RendezvousError("another"))
    failures.add(WATCH, errors.RendezvousError("of another loop"))
    assert failures.unsaid(ValueError("gone")) == ""
    # The log says the first of a loop.
    assert failures.unsaid(errors.RendezvousError("another")) == ": another"
    assert failures.unsaid(None) == ""
    failures.clear(KEEP)
    assert failures.unsaid(ValueError("gone")) != ""


def test_what_the_machine_lacks_is_noted_until_it_does_not(clock: Clock) -> None:
    failures = Failures(clock)
    failures.add_passing(WATCH, errors.RendezvousConnectionError("it is away"), clock())
    assert failures.shortage is None
    failures.note_shortage(OSError(errno.EMFILE, "Too many open files"))
    assert failures.shortage is not None
    assert "Too many open files" in str(failures.shortage)
    failures.note_shortage(None)
    failures.clear(WATCH)
    assert failures.latest is None


class TestRefusal:
    def test_what_runs_is_joined(self, clock: Clock) -> None:
        node = made(clock)
        refusals.raise_if_cannot_join(node)
        shows(node, "b", "c")
        refusals.raise_if_cannot_join(node)

    def test_a_later_attempt_takes_no_node_of_this_one(self, clock: Clock) -> None:
        node = made(clock)
        shows(node, "b", "c", attempt=3, closed=DONE)
        with pytest.raises(errors.RendezvousClosedError, match=r"is at attempt 3; this node belongs to attempt 1\. "):
            refusals.raise_if_cannot_join(node)

    def test_a_run_that_was_removed_takes_no_node_that_took_part_in_it(self, clock: Clock) -> None:
        node = made(clock)
        shows(node, "b", "c")
        node.run.presence = Presence.DELETED
        with pytest.raises(
            errors.RendezvousClosedError, match="'run' was removed from the service while this node took part"
        ):
            refusals.raise_if_cannot_join(node)

    def test_an_earlier_attempt_may_be_closed(self, clock: Clock) -> None:
        node = made(clock)
        shows(node, "b", "c", attempt=0, closed=DONE, max_nodes=9)
        refusals.raise_if_cannot_join(node)

    @pytest.mark.parametrize(
        ("closed", "last_round", "kind"),
        [
            (DONE, 1, errors.RendezvousGracefulExitError),
            (DONE, 0, errors.RendezvousClosedError),
            (ENOUGH, 1, errors.RendezvousClosedError),
        ],
    )
    def test_only_a_waiting_node_ends_gracefully_when_the_job_is_done(
        self, clock: Clock, closed: Closed, last_round: int, kind: type[errors.RendezvousError]
    ) -> None:
        node = made(clock, last_round=last_round, round=1)
        shows(node, "b", "c", closed=closed)
        with pytest.raises(kind, match=closed.reason) as refused:
            refusals.raise_if_cannot_join(node)
        assert type(refused.value) is kind

    @pytest.mark.parametrize(
        ("world", "part"),
        [("bc", "was not needed"), ("ba", "was rank 1 of round 1, which has ended before this node learned of it")],
    )
    def test_a_node_whose_job_is_done_learns_which_part_it_had(self, clock: Clock, world: str, part: str) -> None:
        node = made(clock, last_round=1, round=1)
        shows(node, *world, closed=DONE)
        with pytest.raises(errors.RendezvousGracefulExitError, match=f"is done; this node {part} "):
            refusals.raise_if_cannot_join(node)

    @pytest.mark.parametrize("low, high", [(1, 4), (2, 5)])  # noqa: PT006 - two numbers
    def test_the_limits_are_those_of_the_run(self, clock: Clock, low: int, high: int) -> None:
        node = made(clock)
        shows(node, "b", "c", min_nodes=low, max_nodes=high)
        with pytest.raises(errors.RendezvousParameterError, match=f"{low} to {high} nodes; this node asks for 2 to 4"):
            refusals.raise_if_cannot_join(node)

    @pytest.mark.parametrize(("attempt", "refused"), [(1, True), (0, False)])
    def test_before_its_first_world_they_are_those_of_the_attempts_leader(
        self, clock: Clock, attempt: int, refused: bool
    ) -> None:
        node = made(clock)
        shows(node, "b", "c", attempt=0, max_nodes=9)
        node.apply_leader(claim(attempt=attempt, high=5))
        if not refused:
            refusals.raise_if_cannot_join(node)
            return
        with pytest.raises(errors.RendezvousParameterError, match="2 to 5 nodes"):
            refusals.raise_if_cannot_join(node)

    def test_an_error_that_lasts_is_raised(self, clock: Clock) -> None:
        node = made(clock)
        node.failures.add(KEEP, errors.RendezvousStateError("corrupt"), lasts=True)
        with pytest.raises(errors.RendezvousStateError, match="corrupt"):
            refusals.raise_if_cannot_join(node)


class TestStanding:
    """What a node says of itself, as (waits, is a member, is evicted)."""

    @pytest.mark.parametrize(
        ("last_round", "current", "expected"),
        [
            (None, 2, (False, False, False)),
            (2, 2, (True, False, False)),
            (2, 3, (True, False, False)),
            (1, 2, (False, True, False)),
            (1, 3, (False, False, True)),
            # The service has forgotten everything, and the others have begun anew.
            (1, 1, (False, False, True)),
            (1, None, (False, False, False)),
        ],
    )
    def test_it_follows_from_the_rounds(
        self, clock: Clock, last_round: int | None, current: int | None, expected: tuple[bool, bool, bool]
    ) -> None:
        node = made(clock, last_round=last_round, round=2)
        if current is not None:
            shows(node, "a", "b", round=current)
        assert (node.is_waiting(), node.in_running_round(), node.is_evicted()) == expected

    @pytest.mark.parametrize(("world", "evicted"), [("ab", False), ("bc", True), ("b", True), ("", False)])
    def test_a_round_of_the_same_number_may_be_of_others(self, clock: Clock, world: str, evicted: bool) -> None:
        """The service has forgotten everything, and others have begun anew."""
        node = made(clock, last_round=1, round=2)
        shows(node, *world, round=2)
        assert node.is_evicted() is evicted

    def test_a_round_of_the_same_number_evicts_no_one_while_its_pages_are_unread(self, clock: Clock) -> None:
        node = made(clock, last_round=1, round=2)
        shows(node, round=2, pages=Pages("pages", 1, 2, "b"))
        assert not node.is_evicted()

    def test_no_node_is_a_member_of_what_is_closed(self, clock: Clock) -> None:
        node = made(clock, last_round=0, round=1)
        shows(node, "a", "b", closed=ENOUGH)
        assert not node.in_running_round()

    @pytest.mark.parametrize(
        ("world", "closed", "runs"), [("ab", None, True), ("", None, False), ("ab", ENOUGH, False)]
    )
    def test_a_round_runs_while_it_has_a_world_and_is_not_closed(
        self, clock: Clock, world: str, closed: Closed | None, runs: bool
    ) -> None:
        node = made(clock)
        assert node.run.running() is None
        shows(node, *world, closed=closed)
        assert (node.run.running() is node.run.state) is runs

    @pytest.mark.parametrize(
        ("state", "left", "trusts"),
        [(NodeState.REGISTERED, 1.0, True), (NodeState.REGISTERED, 0.0, False), (NodeState.REREGISTERING, 1.0, False)],
    )
    def test_a_world_is_trusted_while_the_lease_certainly_lives(
        self, clock: Clock, state: NodeState, left: float, trusts: bool
    ) -> None:
        node = made(clock)
        node.registration.state, node.registration.lease_until = state, clock.now + left
        assert node.has_valid_lease() is trusts

    @pytest.mark.parametrize(
        ("attempt", "closed", "expected"),
        [
            (0, ENOUGH, None),
            (1, None, None),
            (1, ENOUGH, ENOUGH),
            (2, ENOUGH, Closed("", "superseded by attempt 2", done=False)),
        ],
    )
    def test_the_run_is_over_when_its_own_attempt_is(
        self, clock: Clock, attempt: int, closed: Closed | None, expected: Closed | None
    ) -> None:
        node = made(clock)
        assert node.closed() is None
        shows(node, "b", "c", attempt=attempt, closed=closed)
        assert node.closed() == expected
        node.run.presence = Presence.DELETED
        assert node.closed() == Closed("", "the run was removed from the service", done=False)


class TestWaiting:
    """How many nodes wait, as a member hears it."""

    def test_the_news_of_the_own_round_tell(self, clock: Clock) -> None:
        node = made(clock, last_round=0, round=1)
        shows(node, "a", "b")
        assert node.waiting() == 0
        node.run.status = RunStatus(1, Phase.RUNNING, 4, 2)
        assert node.waiting() == 2
        node.run.status = RunStatus(2, Phase.RUNNING, 4, 2)
        assert node.waiting() == 0

    def test_a_node_that_was_in_none_hears_those_of_the_round_that_runs(self, clock: Clock) -> None:
        node = made(clock)
        node.run.status = RunStatus(0, Phase.GATHERING, 4, 2)
        assert node.waiting() == 2
        shows(node, "b", "c", round=3)
        assert node.waiting() == 0
        node.run.status = RunStatus(3, Phase.RUNNING, 4, 1)
        assert node.waiting() == 1

    def test_a_node_that_was_in_a_round_hears_of_that_one(self, clock: Clock) -> None:
        node = made(clock, last_round=1, round=1)
        shows(node, "b", "c", round=2)
        node.run.status = RunStatus(2, Phase.RUNNING, 4, 2)
        assert node.waiting() == 0

    def test_an_evicted_node_hears_that_it_should_come(self, clock: Clock) -> None:
        node = made(clock, last_round=0, round=1)
        shows(node, "b", "c", round=2)
        node.run.status = RunStatus(2, Phase.RUNNING, 4, 2)
        assert node.waiting() == 1


class TestAlone:
    """A member that waits after all others of its world have left."""

    @pytest.fixture
    def node(self, clock: Clock) -> Node:
        node = made(clock, last_round=1, round=1)
        shows(node, "a", "b")
        node.run.status = RunStatus(1, Phase.RE_FORMING, 1, 1, (replace(LEFT, node="b"),))
        return node

    @pytest.mark.parametrize("change", ["connection.error", "registration.record", "run.status"])
    def test_it_is_alone_unless_that_is_uncertain(self, node: Node, change: str) -> None:
        assert node.is_alone()
        part, name = change.split(".")
        setattr(getattr(node, part), name, errors.RendezvousConnectionError("away") if name == "error" else None)
        assert not node.is_alone()

    def test_a_question_changes_nothing(self, node: Node) -> None:
        assert node.is_alone()
        assert node.countdown.alone_since is None


class TestFailures:
    def test_an_error_lasts_when_it_has_come_often_for_long(self, node: Node, clock: Clock) -> None:
        for times in range(1, LASTING_TIMES):
            assert node.failures.add(KEEP, errors.RendezvousStateError(f"error {times}")) == times
        clock.now += LASTING
        assert node.failures.lasting is None
        node.failures.add(KEEP, errors.RendezvousStateError("the latest"))
        assert str(node.failures.lasting) == "the latest"

    def test_an_error_that_came_seldom_does_not_last(self, node: Node, clock: Clock) -> None:
        # Time alone passes in a paused process, too.
        for _ in range(LASTING_TIMES - 1):
            node.failures.add(KEEP, errors.RendezvousStateError("corrupt"))
            clock.now += 60.0
        assert node.failures.lasting is None

    def test_an_error_that_came_often_in_no_time_does_not_last(self, node: Node, clock: Clock) -> None:
        for _ in range(9):
            node.failures.add(KEEP, errors.RendezvousStateError("corrupt"))
        clock.now += LASTING - 0.125
        node.failures.add(KEEP, errors.RendezvousStateError("corrupt"))
        assert node.failures.lasting is None
        assert node.failures.count(KEEP) == 10

    def test_a_turn_that_ends_well_clears_the_error_of_its_own_loop(self, node: Node) -> None:
        for loop in (KEEP, WATCH):
            node.failures.add(loop, errors.RendezvousStateError(loop), lasts=True)
        node.failures.clear(KEEP)
        assert (node.failures.count(KEEP), node.failures.count(WATCH)) == (0, 1)
        assert str(node.failures.lasting) == WATCH
        node.failures.clear(WATCH)
        assert node.failures.lasting is None
        assert node.failures.latest is None
        node.failures.raise_lasting()

    @pytest.mark.parametrize("kind", [errors.RendezvousConnectionError, errors.RendezvousDeniedError])
    def test_error_of_a_service_that_is_not_reached_tells_whether_it_refuses(
        self, node: Node, clock: Clock, kind: type[errors.RendezvousConnectionError]
    ) -> None:
        node.connection.on_error(kind("no"))
        error = refusals.unreachable(node, clock.now)
        assert (type(error), error.__cause__) == (kind, node.connection.error)

    def refuse(self, node: Node, loop: str, began: float) -> None:
        node.failures.add_passing(loop, errors.RendezvousDeniedError(f"{loop} is refused"), began)

    @pytest.mark.parametrize(
        ("state", "patience"), [(NodeState.NEW, 30.0), (NodeState.REGISTERING, 30.0), (NodeState.LOST, 600.0)]
    )
    def test_a_refusal_lasts_after_a_while_longer_for_a_node_that_has_been_in(
        self, node: Node, clock: Clock, state: NodeState, patience: float
    ) -> None:
        node.registration.state = state
        # Two calls that are refused, one after the other, take no longer than it may last.
        assert node.failures.patience_of_a_call() == patience / 2
        began = clock.now
        self.refuse(node, KEEP, began)
        clock.now += patience - 0.5
        self.refuse(node, KEEP, clock.now)
        assert node.failures.lasting is None
        assert str(node.failures.refusal) == "keep is refused"
        clock.now += 0.5
        self.refuse(node, KEEP, clock.now)
        assert str(node.failures.lasting) == (
            f"The service has refused this node for {patience:g} s, and is asked for {patience:g} s (refused_timeout, "
            "but 30 s at most before a node was in): keep is refused"
        )

    def test_a_refusal_that_lasts_is_said_in_the_words_of_the_service(self, node: Node, clock: Clock) -> None:
        error = errors.RendezvousDeniedError("it refuses this token")
        node.failures.add_passing(KEEP, error, clock.now - 40.0)
        node.failures.add_passing(KEEP, error, clock.now)
        assert str(node.failures.lasting).endswith(
            "for 40 s, and is asked for 30 s (refused_timeout, but 30 s at most before a node was in): it refuses this "
            "token"
        )
        assert node.failures.lasting is not None
        assert node.failures.lasting.__cause__ is error

    def test_one_refusal_never_lasts(self, node: Node, clock: Clock) -> None:
        # Its process may have been paused.
        clock.now += 1000.0
        self.refuse(node, KEEP, clock.now - 1000.0)
        assert node.failures.lasting is None
        self.refuse(node, KEEP, clock.now)
        assert node.failures.lasting is not None

    @pytest.mark.parametrize("between", ["success", "silence", "another loop"])
    def test_a_loop_that_is_refused_anew_begins_to_count_anew(self, node: Node, clock: Clock, between: str) -> None:
        self.refuse(node, KEEP, clock.now)
        clock.now += 60.0
        if between == "success":
            node.failures.clear(KEEP)
        elif between == "silence":
            node.failures.add_passing(KEEP, errors.RendezvousConnectionError("away"), clock.now)
        self.refuse(node, KEEP if between != "another loop" else WATCH, clock.now)
        assert node.failures.lasting is None
        assert node.failures.count(KEEP) == 1

    def test_seconds_without_an_answer_are_none_of_refusals(self, node: Node, clock: Clock) -> None:
        node.failures.add_passing(KEEP, errors.RendezvousConnectionError("away"), clock.now)
        clock.now += 1000.0
        for times in (1, 2):
            self.refuse(node, KEEP, clock.now)
            assert (node.failures.count(KEEP), node.failures.lasting) == (times, None)

    def test_what_is_no_refusal_is_not_named_as_one(self, node: Node, clock: Clock) -> None:
        node.failures.add_passing(WATCH, errors.RendezvousConnectionError("away"), clock.now)
        assert node.failures.refusal is None
        self.refuse(node, KEEP, clock.now)
        assert str(node.failures.refusal) == "keep is refused"

    def test_a_refusal_is_no_failure_that_counts_for_one(self, node: Node, clock: Clock) -> None:
        for _ in range(LASTING_TIMES):
            self.refuse(node, KEEP, clock.now)
        clock.now += 20.0
        node.failures.add(KEEP, errors.RendezvousStateError("corrupt"))
        assert (node.failures.lasting, node.failures.count(KEEP)) == (None, 1)
        self.refuse(node, KEEP, clock.now)
        assert str(node.failures.latest) == "corrupt"

    def test_a_service_that_answers_reads_and_refuses_writes_is_trouble(self, node: Node, clock: Clock) -> None:
        self.refuse(node, KEEP, clock.now)
        node.connection.on_contact()
        assert str(NodeView(node, node.member_until).connection_error) == "keep is refused"
        node.failures.clear(KEEP)
        assert NodeView(node, node.member_until).connection_error is None
        assert node.failures.refusal is None

    def test_what_trying_again_does_not_mend_lasts_at_once_and_stays(self, node: Node) -> None:
        error = errors.RendezvousParameterError("option")
        node.failures.add(KEEP, error)
        assert node.failures.lasting is error
        node.failures.add(KEEP, errors.RendezvousStateError("another"))
        assert str(node.failures.lasting) == "another"

    def test_an_unexpected_error_is_wrapped(self, node: Node) -> None:
        node.failures.add(KEEP, OSError("oops"), lasts=True)
        assert str(node.failures.lasting) == "Unexpected OSError: oops. Please report this."
        assert isinstance(getattr(node.failures.lasting, "__cause__", None), OSError)

    def test_a_passing_fault_is_no_failure_and_starts_no_count(self, node: Node, clock: Clock) -> None:
        node.failures.add_passing(KEEP, errors.RendezvousConnectionError("away"), clock.now)
        assert (node.failures.count(KEEP), node.failures.lasting) == (0, None)
        clock.now += 60.0
        for _ in range(LASTING_TIMES):
            node.failures.add(KEEP, errors.RendezvousStateError("corrupt"))
        assert node.failures.count(KEEP) == LASTING_TIMES
        assert node.failures.lasting is None

    def test_a_passing_fault_does_not_hide_a_failure(self, node: Node, clock: Clock) -> None:
        node.failures.add(KEEP, errors.RendezvousStateError("corrupt"))
        node.failures.add_passing(KEEP, errors.RendezvousConnectionError("away"), clock.now)
        assert str(node.failures.latest) == "corrupt"

    def test_the_latest_passing_fault_counts(self, node: Node, clock: Clock) -> None:
        for why in ("away", "still away"):
            node.failures.add_passing(KEEP, errors.RendezvousConnectionError(why), clock.now)
        assert str(node.failures.latest) == "still away"

    def test_who_gives_up_hears_of_what_does_not_last_too_but_first_of_what_does(
        self, node: Node, clock: Clock
    ) -> None:
        node.failures.add_passing(WATCH, errors.RendezvousConnectionError("away"), clock.now)
        node.failures.raise_lasting()
        assert str(node.failures.latest) == "away"
        node.failures.add(KEEP, errors.RendezvousStateError("corrupt"), lasts=True)
        assert str(node.failures.latest) == "corrupt"
        with pytest.raises(errors.RendezvousStateError, match="corrupt"):
            node.failures.raise_lasting()

    @pytest.fixture
    def node(self, clock: Clock) -> Node:
        return made(clock)


class TestMembership:
    def test_it_is_sure_until_its_lease_may_end(self) -> None:
        harness = Harness()
        node = harness.registered()
        # It waits for its first world.
        assert node.member_until() is None
        harness.publish(State(0, 1, ("a", "b"), "a.host", 1, 2, 4))
        harness.show(node)
        node.round = 1
        assert node.member_until() == node.registration.lease_until
        harness.now += TTL
        assert node.member_until() is None

    def test_it_is_not_sure_once_a_later_round_was_formed(self) -> None:
        harness = Harness()
        node = harness.registered()
        node.round = 1
        harness.publish(State(0, 2, ("b", "c"), "b.host", 1, 2, 4))
        harness.show(node)
        assert node.has_valid_lease()
        assert node.member_until() is None


class TestNotices:
    """Who drains, whose program failed first, who is quarantined, as one member sees it."""

    @pytest.fixture
    def harness(self) -> Harness:
        harness = Harness()
        harness.put(STATE_KEY, state("a", "b", round=3).encode())
        return harness

    def member(self, harness: Harness, name: str = "a") -> Node:
        node = harness.registered(name)
        node.round = 3
        return node

    def draining(self, harness: Harness) -> Node:
        """The same, when it has read that it drains."""
        node = self.member(harness)
        harness.put(drain_key("a"), DrainNotice(60.0, "spot").encode())
        harness.show(node)
        return node

    def look(self, harness: Harness, node: Node) -> list[tuple[EventKind, int, str, str]]:
        return reported(node.apply_snapshot(harness.client.read_all("control", harness.now)))

    def test_each_is_reported_once(self, harness: Harness) -> None:
        node = self.member(harness)
        harness.put(drain_key("b"), DrainNotice(60.0, "spot").encode())
        harness.put(failure_key(3), Failure("b", "exit code 1", False).encode())
        harness.put(quarantine_key("b"), Quarantine(1, 3, 300.0, "again and again").encode())
        assert self.look(harness, node) == [
            (EventKind.NODE_DRAINS, 3, "b", "in 60 s: spot"),
            (EventKind.NODE_FAILED, 3, "b", "exit code 1"),
            (EventKind.NODE_QUARANTINED, 3, "b", "for 300 s: again and again"),
        ]
        harness.put(drain_key("c"), DrainNotice(5.0, "").encode())
        assert [event[2] for event in self.look(harness, node)] == ["c"]
        assert self.look(harness, node) == []

    def test_a_verdict_that_names_another_node_is_news(self, harness: Harness) -> None:
        node = self.member(harness)
        first = Failure("b", "it hangs", False)
        harness.put(failure_key(3), first.encode())
        assert [event[2] for event in self.look(harness, node)] == ["b"]
        harness.put(failure_key(3), replace(first, verdict=Verdict.FIRST).encode())
        assert self.look(harness, node) == []
        harness.put(failure_key(3), replace(first, node="c", verdict=Verdict.BEHIND).encode())
        assert [event[:3] for event in self.look(harness, node)] == [(EventKind.NODE_FAILED, 3, "c")]

    def test_what_a_node_finds_when_it_comes_is_no_news(self, harness: Harness) -> None:
        harness.put(drain_key("b"), DrainNotice(60.0, "spot").encode())
        node = Node(harness.node().settings, "memory", harness.clock, id="x")
        events = node.apply_snapshot(harness.client.read_all("control", harness.now))
        assert EventKind.NODE_DRAINS not in {event.kind for event in events}
        assert node.countdown.drains["b"].moment == harness.now + 60.0

    def test_drain_of_a_node_outside_this_world_is_known_as_such(self, harness: Harness) -> None:
        node = self.member(harness)
        harness.show(node)
        assert [node.is_outside(name) for name in ("a", "b", "spare")] == [False, False, True]
        node.round = 2
        # It is in that world no more.
        assert not node.is_outside("spare")
        assert not Harness().registered().is_outside("spare")

    def test_of_a_world_on_pages_no_node_is_known_to_be_outside(self, harness: Harness) -> None:
        node = self.member(harness)
        harness.put(STATE_KEY, replace(state("a", "b", round=3), world=(), pages=Pages("f", 1, 2, "a")).encode())
        harness.show(node)
        assert not node.is_outside("spare")

    def test_notice_that_cannot_be_read_is_named_once(self, harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
        node = self.member(harness)
        for key in (drain_key("b"), failure_key(3), quarantine_key("c")):
            with harness.memory.changed:
                harness.memory.write(f"run/{key}", b"not ours", None)
            harness.show(node)
        harness.put(drain_key("d"), DrainNotice(60.0, "spot").encode())
        harness.show(node)
        assert set(node.run.notices.drains) == {"d"}
        assert [message.partition(": ")[0] for message in caplog.messages] == [
            f"ignoring '{key}'" for key in (drain_key("b"), failure_key(3), quarantine_key("c"))
        ]

    def test_of_many_that_cannot_be_read_the_first_are_named(
        self, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        node = self.member(harness)
        for numbers in (range(1, 10), range(10, 100)):
            with harness.memory.changed:
                for number in numbers:
                    harness.memory.write(f"run/{failure_key(number)}", b"not ours", None)
            harness.show(node)
        assert len(caplog.messages) == MOST_IGNORED + 1
        assert caplog.messages[-1] == "ignoring further keys that cannot be read"

    def test_before_the_first_round_they_are_news_too(self) -> None:
        harness = Harness()
        node = harness.registered()
        harness.put(drain_key("b"), DrainNotice(60.0, "spot").encode())
        assert self.look(harness, node) == [(EventKind.NODE_DRAINS, 0, "b", "in 60 s: spot")]

    def test_before_the_first_round_no_failure_is_news(self) -> None:
        harness = Harness()
        node = harness.registered()
        harness.put(failure_key(1), Failure("b", "exit code 1", False).encode())
        assert self.look(harness, node) == []

    def test_the_end_of_a_last_call_is_counted_from_the_news(self) -> None:
        harness = Harness()
        node = harness.registered()
        harness.put(STATUS_KEY, RunStatus(0, Phase.LAST_CALL, 2, 0, ends_in=30.0).encode())
        harness.show(node)
        assert node.countdown.forms_at == harness.now + 30.0

    def test_own_failure_one_of_another_round_and_what_is_over_are_no_news(self, harness: Harness) -> None:
        node = self.member(harness)
        harness.put(failure_key(2), Failure("b", "exit code 1", False).encode())
        harness.put(quarantine_key("b"), Quarantine(0, 3, 0.0, "pardoned", over=True).encode())
        harness.put(quarantine_key("c"), Quarantine(1, 3, 9.0, "waited out", over=True).encode())
        assert self.look(harness, node) == []
        harness.put(failure_key(3), Failure("a", "exit code 1", False).encode())
        assert self.look(harness, node) == []
        assert set(node.run.notices.failures) == {2, 3}

    def test_node_goes_when_its_time_is_over(self, harness: Harness) -> None:
        node = self.member(harness)
        assert node.goes_at() == math.inf
        harness.put(drain_key("a"), DrainNotice(60.0, "spot").encode())
        harness.show(node)
        ends = harness.now + 60.0
        assert (node.goes_at(), node.waiting(), node.countdown.drain_reason()) == (ends, 0, "drained: spot")
        harness.now = ends - 1.0
        assert not node.is_drained()
        harness.now = ends
        assert node.is_drained()
        assert node.waiting() == 1
        record = node.registration.record
        assert record is not None
        node.registration.record = replace(record, goes=True)
        assert node.goes_at() == math.inf
        assert node.is_drained()

    def test_node_that_has_said_so_goes(self, harness: Harness) -> None:
        node = self.draining(harness)
        record = node.registration.record
        assert record is not None
        node.registration.record = replace(record, goes=True)
        assert node.is_drained()
        node.registration.record = None
        assert (node.is_drained(), node.goes_at()) == (False, math.inf)

    @pytest.mark.parametrize(
        ("drained", "round", "goes"), [(("a",), 3, True), (("b",), 3, False), (("a",), 2, False), ((), 3, False)]
    )
    def test_node_goes_when_the_leader_releases_it(
        self, harness: Harness, drained: tuple[str, ...], round: int, goes: bool
    ) -> None:
        node = self.draining(harness)
        harness.put(STATUS_KEY, RunStatus(round, Phase.RUNNING, 2, 0, drained=drained).encode())
        harness.show(node)
        assert node.is_drained() is goes

    def test_node_goes_when_the_others_have_gone_on(self, harness: Harness) -> None:
        node = self.draining(harness)
        node.apply_state(versioned(state("b", "c", round=4).encode(), node.run.version))
        assert node.is_drained()
        # One that was in no world waits for one.
        for round, goes in ((0, False), (1, True), (4, False)):
            node.round = round
            assert node.is_drained() is goes

    def test_node_that_the_others_have_taken_along_stays(self, harness: Harness) -> None:
        node = self.draining(harness)
        node.apply_state(versioned(state("a", "b", round=4).encode(), node.run.version))
        assert not node.is_drained()

    def test_node_goes_when_the_others_have_left(self, harness: Harness) -> None:
        node = self.draining(harness)
        node.countdown.alone_since = harness.now
        assert node.is_drained()

    def test_node_that_does_not_drain_stays(self, harness: Harness) -> None:
        node = self.member(harness)
        node.countdown.alone_since = harness.now
        harness.put(STATUS_KEY, RunStatus(3, Phase.RUNNING, 2, 0, drained=("a",)).encode())
        harness.show(node)
        assert not node.is_drained()

    def test_quarantine_is_in_words_for_as_long_as_it_lasts(self, harness: Harness) -> None:
        node = self.member(harness)
        assert node.countdown.quarantined(node.clock()) is None
        harness.put(quarantine_key("a"), Quarantine(1, 3, 300.0, "it failed").encode())
        harness.show(node)
        harness.now += 100.0
        assert node.countdown.quarantined(node.clock()) == "quarantined for another 200 s: it failed"
        harness.now += 201.0
        assert node.countdown.quarantined(node.clock()) == "quarantined for another 0 s: it failed"
        assert node.countdown.serve(harness.now)
        assert node.countdown.quarantined(node.clock()) is None
