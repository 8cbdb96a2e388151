"""The coroutines of the leader, effect by effect: who is elected, what it publishes and removes, and when."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from rdzv_core.backend import STATE_KEY
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError, RendezvousStateError

from rdzv.engine import leader, pace, records
from rdzv.engine.codec import decode
from rdzv.engine.effects import (
    AssignRanks,
    Delete,
    Emit,
    Put,
    Read,
    ReadAll,
    Revoke,
    Sleep,
    SpawnLeader,
    Wait,
    WaitForChange,
)
from rdzv.engine.failures import LASTING, LEAD
from rdzv.engine.node import Node
from rdzv.engine.notices import (
    QUARANTINES,
    DrainNotice,
    Failure,
    Quarantine,
    Verdict,
    drain_key,
    failure_key,
    quarantine_key,
)
from rdzv.engine.records import Closed, Departure, LeaderRecord, NodeRecord, Phase, RunStatus, State
from rdzv.engine.run_view import Presence
from rdzv.hooks import EventKind
from rdzv.outcome import Outcome
from rdzv.settings import ROUNDS_KEPT

from .coroutines import INTERVAL, TTL, Harness, Stepper

AWAY = RendezvousConnectionError("away")
LAST_CALL = 30.0


@pytest.fixture
def harness() -> Harness:
    return Harness()


def claim(node: str, attempt: int = 0) -> LeaderRecord:
    """A claim to lead."""
    return LeaderRecord(node, attempt, 2, 4)


def running(*world: str, round: int = 1, **more: Any) -> State:
    """The state while a round runs."""
    fields: dict[str, Any] = {"attempt": 0, "address": "a.host", "port": 29500, **more}
    return State(round=round, world=world, min_nodes=2, max_nodes=4, **fields)


def write(harness: Harness, names: Iterable[str], last_round: int = 0, **more: Any) -> None:
    """Let the service hold what nodes say of themselves."""
    for name in names:
        fields: dict[str, Any] = {"attempt": 0, **more}
        record = NodeRecord(
            name, last_round=last_round, min_nodes=2, max_nodes=4, address=f"{name}.host", port=1, **fields
        )
        harness.put(record.key, record.encode())


def notice_of(harness: Harness) -> RunStatus:
    """The statuses that are published."""
    held = harness.read(records.STATUS_KEY)
    assert held is not None
    return decode(RunStatus, held.payload)


def state_of(harness: Harness) -> State:
    """The state that is published."""
    held = harness.read(STATE_KEY)
    assert held is not None
    return decode(State, held.payload)


def take_away(harness: Harness, *names: str) -> None:
    """Let records go, as when leases end."""
    for name in names:
        harness.client.delete(records.node_key(0, name), harness.now)


class TestElection:
    def elect(self, harness: Harness, node: Node) -> Stepper[None]:
        return harness.stepper(leader.elect(node, harness.now + 3.0))

    def test_who_writes_the_key_first_leads(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        put = coroutine.to_write(records.LEADER_KEY)
        assert (put.deadline, put.previous, put.lease) == (harness.now + 3.0, None, node.registration.lease)
        told = coroutine.go()
        assert isinstance(told, Emit)
        assert [(event.kind, event.node) for event in told.events] == [(EventKind.LEADER_CHANGED, "a")]
        assert coroutine.go() == SpawnLeader(node.candidacy.term)
        assert node.leading
        assert coroutine.go() is None

    def test_a_claim_is_on_its_way_until_it_is_fenced(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        coroutine.to_write(records.LEADER_KEY)
        with pytest.raises(RendezvousConnectionError):
            coroutine.throw(RendezvousConnectionError("no answer"))
        assert node.candidacy.claims
        # A tombstone, though no node leads; once.
        harness.run(leader.resign(node, harness.now + 3.0))
        assert harness.writes(records.LEADER_KEY) == 1
        harness.run(leader.resign(node, harness.now + 3.0))
        assert harness.writes(records.LEADER_KEY) == 1
        harness.show(node)
        node.candidacy.stands_from = harness.now
        self.elect(harness, node).end()
        assert node.leading

    def test_a_claim_that_was_answered_may_arrive_once_more(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        claim_of_a = coroutine.to_write(records.LEADER_KEY)
        harness.put(records.LEADER_KEY, claim("b").encode())
        coroutine.end()
        assert not node.leading
        harness.client.delete(records.LEADER_KEY, harness.now)
        harness.run(leader.resign(node, harness.now + 3.0))
        assert harness.perform(claim_of_a)[0] is False
        assert harness.read(records.LEADER_KEY) is None

    def test_each_term_has_another_number(self, harness: Harness) -> None:
        node = harness.registered()
        harness.run(leader.elect(node, harness.now + 3.0))
        first = node.candidacy.term
        harness.run(leader.resign(node, harness.now + 3.0))
        harness.show(node)
        harness.run(leader.elect(node, harness.now + 3.0))
        assert node.leading
        assert node.candidacy.term != first

    def test_who_is_second_knows_who_leads(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        harness.put(records.LEADER_KEY, claim("b").encode())
        coroutine.to(Emit)
        assert coroutine.go() is None
        assert node.run.leader == claim("b")
        assert not node.leading

    def test_an_old_answer_does_not_hide_who_leads_now(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        coroutine.to_write(records.LEADER_KEY)
        before = harness.put(records.LEADER_KEY, claim("b").encode())
        harness.client.delete(records.LEADER_KEY, harness.now)
        # By another coroutine of the node, as the watch tells before the answer comes.
        harness.put(records.LEADER_KEY, claim("a").encode())
        harness.show(node)
        assert isinstance(coroutine.send((False, before)), SpawnLeader)
        assert node.leading

    def test_who_has_won_leads_whatever_the_watch_has_brought_before(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        coroutine.to_write(records.LEADER_KEY)
        harness.put(records.STATUS_KEY, RunStatus(0, Phase.GATHERING, 1, 0).encode())
        harness.show(node)
        coroutine.end()
        assert node.leading

    def test_who_is_second_over_a_tombstone_tries_no_more(self, harness: Harness) -> None:
        tombstone = harness.put(records.LEADER_KEY, b"", deleted=True)
        coroutine = self.elect(harness, harness.registered())
        harness.put(records.LEADER_KEY, claim("b").encode(), previous=tombstone)
        assert isinstance(coroutine.go(), Emit)

    def test_a_tombstone_is_written_over(self, harness: Harness) -> None:
        tombstone = harness.put(records.LEADER_KEY, b"", deleted=True)
        node = harness.registered()
        assert self.elect(harness, node).to_write(records.LEADER_KEY).previous == tombstone

    def test_claim_that_is_gone_unseen_is_no_obstacle(self, harness: Harness) -> None:
        node = harness.registered()
        gone = harness.put(records.LEADER_KEY, claim("b").encode())
        harness.show(node)
        node.run.leader = None
        harness.client.delete(records.LEADER_KEY, harness.now)
        coroutine, lease = self.elect(harness, node), node.registration.lease
        assert coroutine.to_write(records.LEADER_KEY).previous == gone
        # What comes second belongs to the lease that it had, whatever has become of that.
        node.registration.lose_lease()
        again = coroutine.go()
        assert isinstance(again, Put)
        assert (again.previous, again.lease) == (None, lease)
        coroutine.to(Emit)
        assert node.run.leader == claim("a")

    @pytest.mark.parametrize("there", ["nothing", "a tombstone"])
    def test_who_cannot_write_does_not_lead(self, harness: Harness, there: str) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        tombstone = harness.put(records.LEADER_KEY, b"", deleted=True)
        assert coroutine.send((False, None if there == "nothing" else tombstone)) is None
        assert not node.leading
        assert node.run.leader is None

    def test_a_write_whose_reply_was_lost_has_won_too(self, harness: Harness) -> None:
        node = harness.registered()
        harness.put(records.LEADER_KEY, claim("a").encode(), lease=node.registration.lease)
        harness.show(node)
        assert isinstance(self.elect(harness, node).effect, SpawnLeader)
        assert node.leading

    def test_who_has_lost_its_lease_meanwhile_does_not_lead(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        coroutine.to(Emit)
        node.registration.lose_lease()
        assert coroutine.go() is None
        assert not node.leading

    def test_who_cannot_write_does_not_forget_who_leads_meanwhile(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        node.apply_leader(claim("b"))
        assert coroutine.send((False, None)) is None
        assert node.run.leader == claim("b")

    @pytest.mark.parametrize("why", ["another leads", "it leads", "no record", "no look"])
    def test_who_need_not_or_may_not_lead_asks_for_nothing(self, harness: Harness, why: str) -> None:
        node = harness.registered()
        if why == "another leads":
            harness.put(records.LEADER_KEY, claim("b").encode())
            harness.show(node)
        elif why == "it leads":
            harness.lead(node)
        elif why == "no record":
            node.registration.withdraw()
        else:
            node.run.snapshot = None
        assert self.elect(harness, node).effect is None

    def test_who_cannot_start_its_loop_does_not_lead(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = self.elect(harness, node)
        coroutine.to(SpawnLeader)
        with pytest.raises(RuntimeError):
            coroutine.throw(RuntimeError("no thread"))
        assert not node.leading
        assert node.failures.latest is None

    @pytest.mark.parametrize("failed", [False, True], ids=["else well", "failing already"])
    def test_without_room_for_its_loop_it_says_so_until_there_is(self, harness: Harness, failed: bool) -> None:
        node = harness.registered()
        if failed:
            node.failures.add(LEAD, RendezvousError("broken"))
        before = node.failures.latest
        coroutine = self.elect(harness, node)
        coroutine.to(SpawnLeader)
        lacks = RendezvousConnectionError("no thread")
        lacks.__cause__ = RuntimeError("can't start new thread")
        with pytest.raises(RendezvousConnectionError):
            coroutine.throw(lacks)
        assert node.failures.shortage is (None if failed else lacks)
        harness.show(node)
        coroutine = self.elect(harness, node)
        coroutine.to(SpawnLeader)
        assert coroutine.go() is None
        assert node.failures.latest is before


class TestResigning:
    def resign(self, harness: Harness, node: Node) -> Stepper[LeaderRecord | None]:
        return harness.stepper(leader.resign(node, harness.now + 3.0))

    def test_its_claim_becomes_a_tombstone(self, harness: Harness) -> None:
        node = harness.registered()
        harness.lead(node)
        coroutine = self.resign(harness, node)
        assert not node.leading
        assert coroutine.effect == Read(records.LEADER_KEY, harness.now + 3.0)
        put = coroutine.to_write(records.LEADER_KEY)
        assert (put.deadline, put.lease, put.deleted) == (harness.now + 3.0, node.registration.lease, True)
        assert coroutine.end() is None
        assert records.LEADER_KEY not in harness.names()

    def test_a_claim_that_belongs_to_an_earlier_lease_stays_there(self, harness: Harness) -> None:
        node = harness.registered()
        harness.lead(node)
        earlier, node.registration.lease = node.registration.lease, None
        coroutine = harness.stepper(leader.resign(node, harness.now + 3.0, earlier))
        assert coroutine.to_write(records.LEADER_KEY).lease is earlier

    def test_a_claim_whose_lease_could_not_be_revoked_ends_with_it(self, harness: Harness) -> None:
        node = harness.registered()
        harness.lead(node)
        node.registration.lease = None
        assert self.resign(harness, node).end() is None
        # A tombstone without a lease would stay for ever.
        assert harness.writes(records.LEADER_KEY) == 1

    def test_the_claim_of_another_stays(self, harness: Harness) -> None:
        node = harness.registered()
        harness.put(records.LEADER_KEY, claim("b").encode())
        assert self.resign(harness, node).end() == claim("b")
        assert harness.writes(records.LEADER_KEY) == 1

    def test_a_later_claim_of_its_own_is_taken_back_too(self, harness: Harness) -> None:
        node = harness.registered()
        harness.lead(node)
        coroutine = self.resign(harness, node)
        coroutine.to(Put)
        harness.put(records.LEADER_KEY, claim("a").encode(), lease=node.registration.lease)
        assert isinstance(coroutine.go(), Put)
        assert coroutine.end() is None
        assert records.LEADER_KEY not in harness.names()

    @pytest.mark.parametrize("there", ["nothing", "a tombstone"])
    def test_there_may_be_nothing_to_take_back_any_more(self, harness: Harness, there: str) -> None:
        node = harness.registered()
        harness.lead(node)
        coroutine = self.resign(harness, node)
        coroutine.to(Put)
        now = harness.put(records.LEADER_KEY, b"", deleted=True)
        assert coroutine.send((False, None if there == "nothing" else now)) is None
        assert coroutine.end() is None

    def test_a_claim_whose_lease_is_over_is_gone_once_the_service_says_so(self, harness: Harness) -> None:
        node = harness.registered()
        harness.lead(node)
        coroutine = self.resign(harness, node)
        coroutine.to(Put)
        # The same value, and yet it has lost. Where leases are heartbeats, the others see it until that is removed.
        coroutine.send((False, harness.read(records.LEADER_KEY)))
        assert node.registration.lease is not None
        assert coroutine.effect == Revoke(node.registration.lease, harness.now + 3.0)
        assert coroutine.end() is None
        assert records.LEADER_KEY not in harness.names()

    def test_another_may_have_taken_over_already(self, harness: Harness) -> None:
        node = harness.registered()
        harness.lead(node)
        coroutine = self.resign(harness, node)
        coroutine.to(Put)
        harness.put(records.LEADER_KEY, claim("b").encode())
        assert coroutine.end() == claim("b")
        assert harness.writes(records.LEADER_KEY) == 2


class Leader:
    """A leader at work."""

    def __init__(self, harness: Harness, *, state: State | None = None, last_round: int = 0, **more: Any) -> None:
        if state is not None:
            harness.publish(state)
        self.harness = harness
        self.node = harness.registered(**more)
        assert self.node.registration.record is not None
        if last_round:
            write(harness, "a", last_round)
        harness.lead(self.node)
        self.coroutine: Stepper[None] = harness.stepper(leader.lead(self.node, self.node.candidacy.term))

    def until(self, seconds: float) -> None:
        """Let it work until so much time has passed; it sees what it has written."""
        end = self.harness.now + seconds
        while not self.rests(end):
            self.go()
        self.harness.now = end

    def rests(self, until: float) -> bool:
        """Whether there is nothing to do until then."""
        match self.coroutine.effect:
            case Wait(prefix, since, deadline):
                now = self.harness.client.read_all(prefix, self.harness.now)
                return now.encoded.entries == since.encoded.entries and deadline >= until
            case Sleep(deadline):
                return deadline >= until
            case _:
                return False

    def go(self) -> None:
        self.coroutine.go()
        self.harness.show(self.node)


class TestGathering:
    def test_it_reads_the_nodes_and_waits_for_others(self, harness: Harness) -> None:
        coroutine = Leader(harness).coroutine
        assert coroutine.effect == ReadAll(records.NODES, harness.now + TTL)
        arrived = coroutine.to(Emit)
        assert [(event.kind, event.node, event.cause) for event in arrived.events] == [
            (EventKind.NODE_ARRIVED, "a", "it waits at a.host")
        ]
        put = coroutine.to_write(records.STATUS_KEY)
        assert (put.previous, put.deadline) == (None, harness.now + TTL)
        coroutine.go()
        assert notice_of(harness) == RunStatus(0, Phase.GATHERING, 1, 0)
        assert isinstance(coroutine.effect, Wait)
        # Not longer than an interval, to see that it leads no more.
        assert coroutine.effect.deadline == harness.now + INTERVAL

    def test_each_arrival_is_reported_once(self, harness: Harness) -> None:
        lead = Leader(harness)
        lead.coroutine.to(Wait)
        write(harness, "b")
        arrived = lead.coroutine.to(Emit)
        assert [event.node for event in arrived.events] == ["b"]
        lead.coroutine.to(Wait)
        write(harness, "c", left="drained")
        lead.until(2.0)
        assert len([effect for effect in lead.coroutine.taken if isinstance(effect, Emit)]) == 2

    def test_members_of_the_world_that_runs_have_not_arrived(self, harness: Harness) -> None:
        write(harness, "bc")
        lead = Leader(harness, state=running("a", "b"))
        lead.coroutine.to(Wait)
        told = [effect.events for effect in lead.coroutine.taken if isinstance(effect, Emit)]
        assert [[event.node for event in events] for events in told] == [["c"]]

    def test_a_record_that_did_not_change_is_not_parsed_again(self, harness: Harness) -> None:
        desk = leader._LeaderTerm(harness.registered())
        write(harness, "b")
        before = harness.client.read_all(records.NODES, harness.now)
        first = desk.read(before)
        write(harness, "b", last_round=1)
        again = desk.read(harness.client.read_all(records.NODES, harness.now, before))
        assert [one is other for one, other in zip(first, again, strict=True)] == [True, False]

    def test_many_who_come_together_are_read_together(self, harness: Harness) -> None:
        lead = Leader(harness)
        lead.coroutine.to(Wait)
        write(harness, "b")
        # One node was there when it began to wait.
        assert lead.coroutine.go() == Sleep(harness.now + leader.COALESCE)
        lead.coroutine.to(Wait)
        # The wait says what it waits for: the nodes are read once.
        assert len([effect for effect in lead.coroutine.taken if isinstance(effect, ReadAll)]) == 1
        began = harness.now
        lead.until(INTERVAL)
        slept = [effect.until for effect in lead.coroutine.taken if isinstance(effect, Sleep)]
        assert slept == [began]

    def test_the_last_call_is_reported_and_kept(self, harness: Harness) -> None:
        write(harness, "b")
        lead, began = Leader(harness), harness.now
        lead.until(LAST_CALL - 0.5)
        assert notice_of(harness).phase == "last call"
        # It is news after a second, with the seconds that are left then.
        assert notice_of(harness).ends_in == LAST_CALL - 1.0
        assert STATE_KEY not in harness.names()
        lead.coroutine.to_write(STATE_KEY)
        assert harness.now == began + LAST_CALL
        lead.go()
        assert lead.node.run.state == state_of(harness)
        assert set(state_of(harness).world) == {"a", "b"}

    def test_who_arrives_near_its_end_extends_the_last_call(self, harness: Harness) -> None:
        write(harness, "b")
        lead, began = Leader(harness), harness.now
        lead.until(LAST_CALL - 2.0)
        write(harness, "c")
        lead.until(LAST_CALL / 4 - 1.0)
        assert STATE_KEY not in harness.names()
        lead.coroutine.to_write(STATE_KEY)
        # The leader has looked a moment later, when those who came together were there.
        assert began + LAST_CALL * 5 / 4 - 2.0 <= harness.now <= began + LAST_CALL * 5 / 4 - 1.9

    def test_who_comes_back_into_its_world_does_not(self, harness: Harness) -> None:
        write(harness, "b")
        lead, began = Leader(harness), harness.now
        lead.until(LAST_CALL - 2.0)
        write(harness, "b", last_round=1)
        lead.coroutine.to_write(STATE_KEY)
        assert harness.now == began + LAST_CALL

    def test_who_goes_during_the_last_call_lets_it_begin_anew(self, harness: Harness) -> None:
        write(harness, "b")
        lead = Leader(harness)
        lead.until(20.0)
        take_away(harness, "b")
        lead.until(1.0)
        assert notice_of(harness).phase == "gathering"
        write(harness, "b")
        began = harness.now
        lead.coroutine.to_write(STATE_KEY)
        assert began + LAST_CALL - 1.0 < harness.now < began + LAST_CALL + 1.0

    def test_at_max_it_publishes_at_once_over_the_state_that_it_knew(self, harness: Harness) -> None:
        write(harness, "bcd")
        lead, began = Leader(harness), harness.now
        put = lead.coroutine.to_write(STATE_KEY)
        assert harness.now == began
        assert (put.previous, put.deadline) == (None, began + TTL)
        # It reads the nodes once: who waits there waits, and no node is left out.
        assert [effect.prefix for effect in lead.coroutine.taken if isinstance(effect, ReadAll)] == [records.NODES]
        assert not any(isinstance(effect, Put) and "pending" in effect.key for effect in lead.coroutine.taken)

    @pytest.mark.parametrize(("more", "looks"), [(0.0, False), (0.01, True)])
    def test_what_was_seen_a_while_ago_is_read_again(self, harness: Harness, more: float, looks: bool) -> None:
        write(harness, "bcd")
        lead = Leader(harness)
        lead.coroutine.to(AssignRanks)
        harness.now += leader.FRESH + more
        assert isinstance(lead.coroutine.send(None), ReadAll) == looks

    def test_plugins_assign_ranks_before_the_nodes_are_read_for_the_last_time(self, harness: Harness) -> None:
        write(harness, "bcd", last_round=1)
        lead = Leader(harness, state=running("b", "a"), last_round=1)
        asked = lead.coroutine.to(AssignRanks)
        assert ({node.id for node in asked.arrived}, asked.previous) == (set("abcd"), ("b", "a"))
        assert asked.deadline == harness.now + leader.ASSIGNING
        harness.now += 1.0
        assert isinstance(lead.coroutine.send(["d", "c", "b", "a"]), ReadAll)
        lead.coroutine.to_write(STATE_KEY)
        lead.go()
        assert (state_of(harness).world, state_of(harness).address) == (("d", "c", "b", "a"), "d.host")

    def test_the_world_before_is_none_of_another_attempt(self, harness: Harness) -> None:
        harness.publish(running("x", "y", closed=Closed("x", "done", done=True)))
        write(harness, "bcd", attempt=1)
        assert Leader(harness, attempt=1).coroutine.to(AssignRanks).previous == ()

    def test_for_another_world_plugins_are_asked_again(self, harness: Harness) -> None:
        write(harness, "bcd")
        lead = Leader(harness)
        lead.coroutine.to(AssignRanks)
        take_away(harness, "d")
        harness.now += 1.0
        lead.coroutine.send(["d", "c", "b", "a"])
        harness.now += LAST_CALL
        asked = lead.coroutine.to(AssignRanks)
        assert {node.id for node in asked.arrived} == set("abc")
        assert harness.read(STATE_KEY) is None

    def test_a_closed_attempt_has_no_ranks(self, harness: Harness) -> None:
        write(harness, "b")
        write(harness, "c", attempt=1)
        lead = Leader(harness)
        lead.coroutine.to_write(STATE_KEY)
        assert not any(isinstance(effect, AssignRanks) for effect in lead.coroutine.taken)

    def test_who_goes_between_the_two_looks_is_in_no_world(self, harness: Harness) -> None:
        write(harness, "bcd")
        lead = Leader(harness)
        lead.coroutine.to(AssignRanks)
        harness.now += 1.0
        assert isinstance(lead.coroutine.send(None), ReadAll)
        take_away(harness, "d")
        # That is no failure of the leader.
        assert not isinstance(lead.coroutine.go(), Sleep)
        lead.coroutine.to(Wait)
        assert STATE_KEY not in harness.names()

    def test_a_record_that_cannot_be_read_is_no_nodes(self, harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
        harness.put(f"{records.NODES}/0/evil", b"[]")
        write(harness, "bc")
        lead = Leader(harness)
        lead.until(2.0)
        assert notice_of(harness).present == 3
        # Once, and not at each of its looks.
        assert caplog.text.count("ignoring 'nodes/0/evil'") == 1


class TestReforming:
    def about_to_evict(self, harness: Harness, gone: str = "c") -> Leader:
        """A leader that writes the round without these nodes next."""
        write(harness, "b", last_round=1)
        lead = Leader(harness, state=running("a", "b", *gone), last_round=1)
        harness.now += TTL
        lead.coroutine.to_write(STATE_KEY)
        return lead

    def test_members_who_are_back_get_their_world_at_once(self, harness: Harness) -> None:
        write(harness, "b", last_round=1)
        lead, began = Leader(harness, state=running("a", "b"), last_round=1), harness.now
        before = lead.node.run.version
        put = lead.coroutine.to_write(STATE_KEY)
        assert harness.now == began
        assert put.previous == before
        assert decode(State, put.payload).round == 2
        # No member is missing: it is not announced.
        assert not any(isinstance(effect, Put) and "pending" in effect.key for effect in lead.coroutine.taken)

    def test_a_member_without_a_record_is_missed_after_a_time_to_live(self, harness: Harness) -> None:
        write(harness, "b")
        lead = Leader(harness, state=running("a", "b", "c"))
        lead.node.connection.reset_grace_period()
        lead.until(TTL - 0.5)
        assert notice_of(harness) == RunStatus(1, Phase.RE_FORMING, 2, 0, awaited=("a", "b", "c"))
        lead.until(1.0)
        departure = Departure("c", 2, False, "its lease ran out: it died, hangs or is cut off")
        assert notice_of(harness) == RunStatus(1, Phase.RE_FORMING, 2, 1, (departure,), awaited=("a", "b"))

    def test_a_round_without_a_silent_member_is_announced_and_looked_at_once_more(self, harness: Harness) -> None:
        write(harness, "b", last_round=1)
        lead = Leader(harness, state=running("a", "b", "c"), last_round=1)
        harness.now += TTL
        put = lead.coroutine.to(Put, Wait)
        while not (isinstance(put, Put) and "pending" in put.key):
            lead.go()
            put = lead.coroutine.to(Put, Wait)
        assert (put.key, put.previous, put.deadline) == (records.pending_key(2), None, harness.now + TTL)
        assert decode(LeaderRecord, put.payload) == claim("a")
        lead.coroutine.go()
        assert isinstance(lead.coroutine.effect, ReadAll)
        # It came back at the last moment: it is in its round, and no other is formed.
        write(harness, "c")
        lead.coroutine.to(Wait)
        assert state_of(harness).round == 1

    def test_the_log_of_the_leader_names_who_is_evicted_and_why(
        self, harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leader, "NAMED", 1)
        lead = self.about_to_evict(harness)
        assert not caplog.messages
        lead.go()
        (line,) = caplog.messages
        assert "round 2 of 'run' is formed without node 'c', rank 2 of the round before: its lease ran out" in line

    def test_a_round_without_a_member_is_announced_and_then_the_nodes_are_read_again(self, harness: Harness) -> None:
        taken = self.about_to_evict(harness).coroutine.taken
        announced = next(n for n, one in enumerate(taken) if isinstance(one, Put) and "pending" in one.key)
        assert [type(effect) for effect in taken[announced:]] == [Put, ReadAll]

    def test_of_many_that_are_evicted_the_log_names_some(
        self, harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leader, "NAMED", 1)
        lead = self.about_to_evict(harness, "cd")
        lead.go()
        count, line = caplog.messages
        assert count == "round 2 of 'run' is formed without 2 nodes, of which 1 are named"
        assert "round 2 of 'run' is formed without node 'c', rank 2 " in line

    def test_a_round_that_another_leader_published_evicts_no_node_here(
        self, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        lead = self.about_to_evict(harness)
        harness.publish(running("a", "b", round=2))
        lead.go()
        assert not caplog.messages

    def test_a_member_that_dies_unannounced_between_the_looks_is_announced_first(self, harness: Harness) -> None:
        write(harness, "bc", last_round=1)
        lead = Leader(harness, state=running("a", "b", "c"), last_round=1)
        lead.node.connection.on_renewal(harness.now)
        harness.now += INTERVAL
        lead.node.connection.on_renewal(harness.now)
        harness.now += 2 * INTERVAL
        lead.coroutine.to(AssignRanks)
        harness.now += leader.FRESH + 0.01
        assert isinstance(lead.coroutine.send(None), ReadAll)
        take_away(harness, "c")
        writes = []
        while STATE_KEY not in writes:
            if isinstance(lead.coroutine.effect, Put):
                writes.append(lead.coroutine.effect.key)
            lead.coroutine.go()
        assert writes[-2:] == [records.pending_key(2), STATE_KEY]
        assert state_of(harness).world == ("a", "b")

    def test_a_higher_attempt_that_takes_over_is_announced_under_the_one_before(self, harness: Harness) -> None:
        write(harness, "bcd", attempt=1)
        over = running("x", "y", closed=Closed("a", "superseded", done=False))
        lead = Leader(harness, state=over, attempt=1)
        put = lead.coroutine.to_write(records.pending_key(2))
        assert decode(LeaderRecord, put.payload) == LeaderRecord("a", 0, 2, 4)
        assert isinstance(lead.coroutine.go(), ReadAll), "what it saw before the announcement may be too old"
        lead.coroutine.to_write(STATE_KEY)
        lead.go()
        assert (state_of(harness).attempt, state_of(harness).round) == (1, 2)

    def test_a_state_that_another_wrote_meanwhile_stands(self, harness: Harness) -> None:
        write(harness, "bcd")
        lead = Leader(harness)
        lead.coroutine.to_write(STATE_KEY)
        harness.publish(running("c", "d"))
        told = lead.coroutine.go()
        assert isinstance(told, Emit)
        assert lead.node.run.state == running("c", "d")
        # It decides at once what that makes of the nodes.
        assert isinstance(lead.coroutine.go(), Wait)
        lead.coroutine.to_write(records.STATUS_KEY)
        lead.coroutine.to(Wait)
        assert not any(isinstance(effect, (Read, WaitForChange)) for effect in lead.coroutine.taken)
        assert harness.writes(STATE_KEY) == 1

    def test_over_a_state_that_is_gone_nothing_is_published_until_the_keep_alive_loop_has_found_out_why(
        self, harness: Harness
    ) -> None:
        harness.publish(running("x", "y", closed=Closed("x", "done", done=True)))
        write(harness, "bcd", attempt=1)
        lead = Leader(harness, attempt=1)
        lead.coroutine.to_write(STATE_KEY)
        harness.client.delete(STATE_KEY, harness.now)
        assert lead.coroutine.go() == WaitForChange(harness.now + INTERVAL)
        assert lead.node.run.presence is Presence.MISSING
        lead.node.run.version = None
        lead.coroutine.to_write(STATE_KEY)
        lead.go()
        assert (state_of(harness).attempt, state_of(harness).round) == (1, 2)


class TestNews:
    """Which status is published, and how often: each one wakes every node."""

    def published(self, lead: Leader, seconds: float) -> list[RunStatus]:
        """The statuses that it publishes within some time."""
        before = len(lead.coroutine.taken)
        lead.until(seconds)
        writes = [
            effect
            for effect in lead.coroutine.taken[before:]
            if isinstance(effect, Put) and effect.key == records.STATUS_KEY
        ]
        return [decode(RunStatus, effect.payload) for effect in writes]

    @pytest.fixture
    def lead(self, harness: Harness) -> Leader:
        """Leads a world of three, all of whom are there."""
        write(harness, "bc")
        lead = Leader(harness, state=running("a", "b", "c"))
        assert self.published(lead, 2 * TTL) == []
        return lead

    def test_each_loss_is_urgent(self, harness: Harness) -> None:
        write(harness, "bcd")
        lead = Leader(harness, state=running("a", "b", "c", "d"))
        assert self.published(lead, 2 * TTL) == []
        for gone, name in enumerate("dc", start=1):
            take_away(harness, name)
            assert [(len(one.departures), one.waiting) for one in self.published(lead, 0.4)] == [(gone, 1)]

    def test_a_member_that_left_after_the_run_was_closed_is_not_reported_as_lost(
        self, harness: Harness, lead: Leader
    ) -> None:
        # Its watch has not shown the leader yet that the run is closed.
        harness.publish(running("a", "b", "c", closed=Closed("c", "done", done=True)))
        take_away(harness, "c")
        before = harness.writes(records.STATUS_KEY)
        assert isinstance(lead.coroutine.to(Read), Read)
        lead.until(60.0)
        assert lead.node.closed() is not None
        assert harness.writes(records.STATUS_KEY) == before

    def test_nor_by_what_was_decided_before_the_leader_saw_that(self, harness: Harness, lead: Leader) -> None:
        take_away(harness, "c")
        write(harness, "d")
        # The arrival: the state has been read, and what it means is decided next.
        lead.coroutine.to(Emit)
        harness.publish(running("a", "b", "c", closed=Closed("c", "done", done=True)))
        harness.show(lead.node)
        before = harness.writes(records.STATUS_KEY)
        lead.until(60.0)
        assert harness.writes(records.STATUS_KEY) == before

    @pytest.mark.parametrize(("wakes", "seconds"), [(1000.0, 0.0), (4.0, 0.5), (0.01, pace.INTERVAL_MOST)])
    def test_of_many_that_go_the_first_is_news_at_once_and_the_others_as_soon_as_all_can_bear(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch, wakes: float, seconds: float
    ) -> None:
        monkeypatch.setattr(pace, "WAKES", wakes)
        for name in "bcd":
            write(harness, name)
        lead = Leader(harness, state=running("a", "b", "c", "d"))
        lead.until(60.0)
        began = harness.now
        take_away(harness, "c")
        lead.coroutine.to_write(records.STATUS_KEY)
        assert harness.now == pytest.approx(began, abs=0.01)
        lead.coroutine.go()
        take_away(harness, "b")
        lead.coroutine.to_write(records.STATUS_KEY)
        assert harness.now == pytest.approx(began + seconds, abs=0.02)

    def test_the_first_that_goes_is_news_at_once_also_where_too_few_are_left(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pace, "WAKES", 0.01)
        write(harness, "b")
        lead = Leader(harness, state=running("a", "b"))
        write(harness, "b", left="drained")
        began = harness.now
        lead.coroutine.to_write(records.STATUS_KEY)
        assert harness.now == pytest.approx(began, abs=0.01)

    def test_a_status_whose_write_failed_may_stand_there_all_the_same(self, harness: Harness, lead: Leader) -> None:
        lead.until(60.0)
        write(harness, "d")
        harness.put(records.STATUS_KEY, lead.coroutine.to_write(records.STATUS_KEY).payload)
        lead.coroutine.throw(OSError("a bug"))
        take_away(harness, "d")
        lead.until(60.0)
        status = harness.read(records.STATUS_KEY)
        assert status is not None
        assert decode(RunStatus, status.payload).waiting == 0

    def test_a_leader_that_learns_of_its_successor_while_it_reads_the_state_publishes_nothing(
        self, harness: Harness, lead: Leader
    ) -> None:
        take_away(harness, "c")
        assert isinstance(lead.coroutine.to(Read), Read)
        lead.node.apply_leader(claim("b"))
        before = harness.writes(records.STATUS_KEY)
        lead.coroutine.end()
        assert harness.writes(records.STATUS_KEY) == before

    def test_the_state_is_read_again_for_a_loss_and_not_for_a_reason(self, harness: Harness, lead: Leader) -> None:
        before = len(lead.coroutine.taken)
        write(harness, "b", left="drained")
        assert [one.departures[0].left for one in self.published(lead, 0.4)] == [True]
        assert not any(isinstance(effect, Read) for effect in lead.coroutine.taken[before:])
        take_away(harness, "c")
        assert [len(one.departures) for one in self.published(lead, 0.4)] == [2]
        assert sum(isinstance(effect, Read) for effect in lead.coroutine.taken[before:]) == 1

    def test_the_first_who_waits_and_the_last_who_goes_are_urgent(self, harness: Harness, lead: Leader) -> None:
        write(harness, "d")
        assert [one.waiting for one in self.published(lead, 0.5)] == [1]
        take_away(harness, "d")
        assert [one.waiting for one in self.published(lead, 0.4)] == [0]
        write(harness, "d")
        assert [one.waiting for one in self.published(lead, 0.4)] == [1]

    def test_what_is_not_waited_for_is_posted_once_a_second(self, harness: Harness, lead: Leader) -> None:
        write(harness, "d")
        assert [one.present for one in self.published(lead, 0.5)] == [4]
        write(harness, "e")
        assert self.published(lead, 0.4) == []
        write(harness, "f")
        assert [one.present for one in self.published(lead, 0.5)] == [6]
        assert self.published(lead, 60.0) == []

    def test_what_a_leader_before_has_posted_is_posted_over(self, harness: Harness) -> None:
        write(harness, "bc")
        harness.put(records.STATUS_KEY, RunStatus(1, Phase.RUNNING, 9, 0).encode())
        lead = Leader(harness, state=running("a", "b", "c"))
        write(harness, "d")
        assert [one.waiting for one in self.published(lead, 0.5)] == [1]
        assert notice_of(harness).waiting == 1

    def test_what_a_leader_before_posts_late_is_known_and_posted_over(self, harness: Harness, lead: Leader) -> None:
        take_away(harness, "c")
        known = Departure("c", 2, True, "drained")
        harness.put(records.STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 9, 1, (known,)).encode())
        harness.show(lead.node)
        assert self.published(lead, 1.5)[-1].departures == (known,)
        assert notice_of(harness).departures == (known,)

    def test_what_was_posted_meanwhile_is_known_and_posted_over(self, harness: Harness, lead: Leader) -> None:
        take_away(harness, "c")
        lead.coroutine.to_write(records.STATUS_KEY)
        known = Departure("c", 2, True, "drained")
        harness.put(records.STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 9, 1, (known,)).encode())
        began = harness.now
        published = self.published(lead, 1.5)
        # It was the first to know why.
        assert [(one.present, one.departures) for one in published[1:]] == [(2, (known,))]
        assert harness.now == began + 1.5

    def test_what_was_posted_and_is_taken_away_is_posted_again(self, harness: Harness, lead: Leader) -> None:
        write(harness, "d")
        assert len(self.published(lead, 1.0)) == 1
        harness.client.delete(records.STATUS_KEY, harness.now)
        harness.show(lead.node)
        # A snapshot may be older than the published status: an interval later it is not.
        write(harness, "b")
        assert self.published(lead, INTERVAL - 1.5) == []
        assert len(self.published(lead, 2 * INTERVAL)) == 1
        assert notice_of(harness).waiting == 1

    def test_a_status_that_cannot_be_written_is_written_as_soon_as_it_can(self, harness: Harness, lead: Leader) -> None:
        take_away(harness, "c")
        lead.coroutine.to_write(records.STATUS_KEY)
        # That is no failure of the leader.
        assert isinstance(lead.coroutine.send((False, None)), Wait)
        assert len(self.published(lead, 2.0)) == 1

    def test_the_news_of_a_leader_before_are_not_posted_again(self, harness: Harness) -> None:
        write(harness, "bcd")
        harness.put(records.STATUS_KEY, RunStatus(1, Phase.RUNNING, 4, 1).encode())
        lead = Leader(harness, state=running("a", "b", "c"))
        assert self.published(lead, 60.0) == []

    def test_the_news_of_a_leader_before_that_the_service_has_lost_are_posted_again(self, harness: Harness) -> None:
        write(harness, "bcd")
        harness.put(records.STATUS_KEY, RunStatus(1, Phase.RUNNING, 4, 1).encode())
        lead = Leader(harness, state=running("a", "b", "c"))
        harness.client.delete(records.STATUS_KEY, harness.now)
        harness.show(lead.node)
        assert self.published(lead, 3 * INTERVAL) == [RunStatus(1, Phase.RUNNING, 4, 1)]

    def test_those_of_another_round_are_not_kept(self, harness: Harness) -> None:
        write(harness, "bc")
        harness.put(records.STATUS_KEY, RunStatus(1, Phase.RUNNING, 4, 1).encode())
        lead = Leader(harness, state=running("a", "b", "c", round=2))
        # No node waits, and that is what nodes take for granted.
        assert self.published(lead, 60.0) == []

    def test_its_own_posts_follow_each_other_whatever_it_has_seen_of_them(self, harness: Harness, lead: Leader) -> None:
        for number, name in enumerate("def"):
            write(harness, name)
            harness.now += 2.0
            put = lead.coroutine.to_write(records.STATUS_KEY)
            assert put.previous == harness.read(records.STATUS_KEY)
            lead.coroutine.go()
            assert harness.writes(records.STATUS_KEY) == number + 1


class TestRemoving:
    def all_removed(self, lead: Leader, *rounds: int) -> list[str]:
        """What it has removed a minute after each of these rounds was published."""
        for number in rounds:
            lead.harness.publish(running("a", "b", round=number))
            lead.harness.show(lead.node)
            lead.until(60.0)
        return [effect.prefix for effect in lead.coroutine.taken if isinstance(effect, Delete)]

    def removed(self, lead: Leader) -> list[str]:
        """What it removes in its first turn."""
        lead.coroutine.to(Wait)
        deletes = [effect for effect in lead.coroutine.taken if isinstance(effect, Delete)]
        assert {effect.deadline for effect in deletes} <= {lead.harness.now + TTL}
        return [effect.prefix for effect in deletes]

    def test_before_the_first_round_there_is_nothing_to_remove(self, harness: Harness) -> None:
        assert self.removed(Leader(harness)) == []

    @pytest.mark.parametrize(("number", "stores"), [(1, []), (2, []), (3, [1]), (4, [1, 2]), (30, [*range(21, 29)])])
    def test_a_new_leader_removes_the_stores_that_one_before_may_have_left(
        self, harness: Harness, number: int, stores: list[int]
    ) -> None:
        write(harness, "b")
        lead = Leader(harness, state=running("a", "b", round=number))
        assert self.removed(lead) == [records.round_folder(store) for store in stores]
        lead.until(60.0)
        assert len([effect for effect in lead.coroutine.taken if isinstance(effect, Delete)]) == len(stores)

    def test_a_leader_that_goes_on_removes_each_once(self, harness: Harness) -> None:
        write(harness, "b")
        lead = Leader(harness, state=running("a", "b", round=4))
        self.removed(lead)
        assert self.all_removed(lead, 5) == [records.round_folder(number) for number in (1, 2, 3)]

    def test_what_could_not_be_removed_is_tried_again(self, harness: Harness) -> None:
        write(harness, "b")
        lead = Leader(harness, state=running("a", "b", round=4))
        lead.coroutine.to(Delete)
        lead.coroutine.throw(AWAY)
        lead.until(60.0)
        assert self.all_removed(lead) == [records.round_folder(number) for number in (1, 1, 2)]

    def test_rounds_that_begin_anew_are_removed_as_well(self, harness: Harness) -> None:
        write(harness, "b")
        lead = Leader(harness, state=running("a", "b", round=9))
        self.removed(lead)
        assert self.all_removed(lead, 1, 3)[7:] == [records.round_folder(1)]

    def test_rounds_that_jump_are_not_removed_one_by_one(self, harness: Harness) -> None:
        write(harness, "b")
        lead = Leader(harness, state=running("a", "b", round=4))
        self.removed(lead)
        assert self.all_removed(lead, 1000)[2:] == [records.round_folder(number) for number in range(991, 999)]

    def test_the_attempt_before_goes_with_its_pending_round_last(self, harness: Harness) -> None:
        write(harness, "b", attempt=1)
        harness.put(records.pending_key(2), claim("x").encode())
        lead = Leader(harness, state=running("a", "b", round=2, attempt=1), attempt=1)
        assert self.removed(lead) == ["nodes/0", "heartbeats/0", records.pending_key(2)]
        lead.until(60.0)
        assert len(self.all_removed(lead)) == 3

    def test_of_its_own_attempt_only_the_pending_round_goes(self, harness: Harness) -> None:
        write(harness, "b")
        harness.put(records.pending_key(1), claim("x").encode())
        harness.put(records.pending_key(2), claim("x").encode())
        assert self.removed(Leader(harness, state=running("a", "b"))) == [records.pending_key(1)]

    def test_what_is_no_pending_round_stays(self, harness: Harness) -> None:
        write(harness, "b")
        harness.put(records.pending_key(1).replace("1", "what?"), claim("x").encode())
        harness.put(f"{records.pending_key(1)}/0", claim("x").encode())
        assert self.removed(Leader(harness, state=running("a", "b"))) == []

    def test_a_pending_round_that_cannot_be_read_goes_alone(self, harness: Harness) -> None:
        write(harness, "b", attempt=1)
        harness.put(records.pending_key(1), b"[]")
        assert self.removed(Leader(harness, state=running("a", "b", attempt=1), attempt=1)) == [records.pending_key(1)]


class TestNotices:
    """What the leader makes of drains, and of programs that fail."""

    @pytest.fixture
    def lead(self, harness: Harness) -> Leader:
        write(harness, ["b", "c"])
        lead = Leader(harness, state=running("a", "b", "c", round=7))
        lead.until(1.0)
        return lead

    def fail(self, lead: Leader, *numbers: int, node: str = "b") -> None:
        """Let the program of a node fail first in these rounds."""
        for number in numbers:
            failure = Failure(node, f"failure {number}", False, verdict=Verdict.FIRST)
            lead.harness.put(failure_key(number), failure.encode())
        lead.harness.show(lead.node)

    def quarantine_of(self, harness: Harness, name: str = "b") -> Quarantine | None:
        held = harness.read(quarantine_key(name))
        return None if held is None else decode(Quarantine, held.payload)

    def test_three_failures_running_are_a_quarantine_and_no_failure_counts_twice(
        self, harness: Harness, lead: Leader
    ) -> None:
        self.fail(lead, 6, 7)
        lead.until(INTERVAL)
        assert self.quarantine_of(harness) is None
        self.fail(lead, 5)
        lead.until(INTERVAL)
        first = Quarantine(1, 7, 60.0, "it failed first in 3 consecutive rounds: failure 7")
        assert self.quarantine_of(harness) == first
        lead.until(60.0)
        assert harness.writes(quarantine_key("b")) == 1
        harness.publish(running("a", "b", "c", round=8))
        self.fail(lead, 8)
        lead.until(INTERVAL)
        assert self.quarantine_of(harness) == first

    @pytest.mark.parametrize("before", [False, True])
    def test_what_the_watch_does_not_show_yet_is_not_written_again(
        self, harness: Harness, lead: Leader, before: bool
    ) -> None:
        if before:
            harness.put(quarantine_key("b"), Quarantine(1, 3, 60.0, "it failed", over=True).encode())
        self.fail(lead, 5, 6, 7)
        lead.coroutine.to_write(quarantine_key("b"))
        for name in "xyz":
            lead.coroutine.to(Wait)
            write(harness, [name])
            lead.coroutine.go()
        lead.coroutine.to(Wait)
        puts = [one for one in lead.coroutine.taken if isinstance(one, Put) and one.key == quarantine_key("b")]
        assert len(puts) == 1

    @pytest.mark.parametrize(("shown", "reads", "world"), [((5, 6), True, ("a", "c")), ((6,), False, ("a", "b", "c"))])
    def test_the_last_failure_counts_although_the_watch_has_not_shown_it(
        self, harness: Harness, lead: Leader, shown: tuple[int, ...], reads: bool, world: tuple[str, ...]
    ) -> None:
        self.fail(lead, *shown)
        harness.put(failure_key(7), Failure("b", "failure 7", False).encode())
        write(harness, ["a", "b", "c"], last_round=7)
        put = lead.coroutine.to_write(STATE_KEY)
        assert decode(State, put.payload).world == world
        read = [effect.key for effect in lead.coroutine.taken if isinstance(effect, Read)]
        assert (failure_key(7) in read) is reads
        assert (self.quarantine_of(harness) is not None) is reads

    @pytest.mark.parametrize("watch_shows", [False, True])
    def test_a_verdict_counts_in_later_rounds_although_the_watch_has_not_shown_it(
        self, harness: Harness, lead: Leader, watch_shows: bool
    ) -> None:
        worlds = []
        for number in (7, 8, 9):
            harness.put(failure_key(number), Failure("b", f"failure {number}", False).encode())
            write(harness, ["a", "b", "c"], last_round=number, outcome=Outcome())
            if watch_shows:
                harness.show(lead.node)
            put = lead.coroutine.to_write(STATE_KEY)
            worlds.append(decode(State, put.payload).world)
            lead.coroutine.go()
        assert bool(lead.node.run.notices.failures) is watch_shows
        assert worlds == [("a", "b", "c"), ("a", "b", "c"), ("a", "c")]

    def verdict(self, harness: Harness) -> Verdict | None:
        held = harness.read(failure_key(7))
        return None if held is None else decode(Failure, held.payload).verdict

    def test_it_says_whose_the_failure_was_before_the_next_world_is_formed(
        self, harness: Harness, lead: Leader, caplog: pytest.LogCaptureFixture
    ) -> None:
        harness.put(failure_key(7), Failure("b", "failure 7", False).encode())
        lead.until(INTERVAL)
        assert self.verdict(harness) is None
        write(harness, ["a", "b"], last_round=7)
        write(harness, ["c"], left="drained: spot")
        lead.coroutine.to_write(STATE_KEY)
        assert self.verdict(harness) is Verdict.EXPLAINED
        because = "'c' has left: drained: spot"
        assert caplog.messages == [f"round 7 of 'run' has ended by the failure of no node: {because}"]
        lead.until(2 * INTERVAL)
        assert harness.writes(failure_key(7)) == 2

    def test_a_loss_is_said_to_explain_it_before_all_are_back(self, harness: Harness, lead: Leader) -> None:
        harness.put(failure_key(7), Failure("b", "failure 7", False).encode())
        write(harness, ["b"], last_round=7)
        write(harness, ["c"], left="SIGTERM")
        lead.until(INTERVAL)
        assert self.verdict(harness) is Verdict.EXPLAINED
        assert state_of(harness).round == 7

    def test_a_verdict_of_another_leader_stands(
        self, harness: Harness, lead: Leader, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = Failure("b", "failure 7", False)
        harness.put(failure_key(7), mine.encode())
        harness.show(lead.node)
        write(harness, ["a", "b", "c"], last_round=7)
        lead.coroutine.to_write(failure_key(7))
        harness.put(failure_key(7), replace(mine, verdict=Verdict.EXPLAINED, because="lost").encode())
        lead.coroutine.to_write(STATE_KEY)
        assert self.verdict(harness) is Verdict.EXPLAINED
        assert caplog.messages == ["round 7 of 'run' has ended by the failure of no node: lost"]

    @pytest.mark.parametrize("there", [None, Verdict.UNCLEAR])
    def test_a_report_that_the_watch_has_not_shown_is_judged_if_a_record_says_that_a_program_failed(
        self, harness: Harness, lead: Leader, there: Verdict | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        harness.put(failure_key(7), Failure("b", "failure 7", False, verdict=there, because="why").encode())
        write(harness, ["a", "b", "c"], last_round=7, outcome=Outcome())
        lead.coroutine.to_write(STATE_KEY)
        assert self.verdict(harness) is (there or Verdict.FIRST)
        # What another leader has judged is not written again.
        assert harness.writes(failure_key(7)) == (1 if there else 2)
        assert caplog.messages == (["round 7 of 'run' has ended by the failure of no node: why"] if there else [])

    @pytest.mark.parametrize("reports", [True, False])
    def test_a_report_that_cannot_be_judged_yet_or_is_missing_is_no_error(
        self, harness: Harness, lead: Leader, reports: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        if reports:
            harness.put(failure_key(7), Failure("b", "failure 7", False).encode())
        write(harness, ["b"], last_round=7, outcome=Outcome())
        lead.coroutine.go()
        while not isinstance(lead.coroutine.effect, Wait):
            lead.coroutine.go()
        assert self.reads(lead)
        assert self.verdict(harness) is None
        assert lead.node.failures.latest is None
        assert not caplog.messages

    def reads(self, lead: Leader) -> int:
        """How often the leader has read the report of the last round."""
        return sum(isinstance(effect, Read) and effect.key == failure_key(7) for effect in lead.coroutine.taken)

    def test_a_report_is_not_read_before_something_can_be_said_of_it(self, harness: Harness, lead: Leader) -> None:
        self.fail(lead, 5, 6)
        lead.until(INTERVAL)
        harness.put(failure_key(7), Failure("b", "failure 7", False).encode())
        lead.until(3 * INTERVAL)
        assert self.reads(lead) == 0

    def test_a_report_that_the_watch_shows_is_judged_without_a_look(self, harness: Harness, lead: Leader) -> None:
        harness.put(failure_key(7), Failure("b", "failure 7", False).encode())
        harness.show(lead.node)
        write(harness, ["b", "c", "a"], last_round=7, outcome=Outcome())
        put = lead.coroutine.to_write(failure_key(7))
        assert put.previous is not None
        assert self.reads(lead) == 0

    def test_a_report_that_is_known_to_be_judged_is_not_read_again(self, harness: Harness, lead: Leader) -> None:
        self.fail(lead, 7)
        write(harness, ["b"], last_round=7, outcome=Outcome())
        write(harness, ["c"], left="SIGTERM")
        lead.until(INTERVAL)
        assert self.reads(lead) == 0

    def test_a_round_in_which_no_program_failed_makes_none_due(self, harness: Harness, lead: Leader) -> None:
        self.fail(lead, 5, 6)
        write(harness, ["a", "b", "c"], last_round=7)
        put = lead.coroutine.to_write(STATE_KEY)
        assert decode(State, put.payload).world == ("a", "b", "c")

    def test_a_node_whose_name_others_have_is_quarantined_by_its_id(self, harness: Harness, lead: Leader) -> None:
        write(harness, ["same.1", "same.2"])
        self.fail(lead, 5, 6, 7, node="same.1")
        lead.until(INTERVAL)
        assert self.quarantine_of(harness, "same") is None
        assert self.quarantine_of(harness, "same.1") is not None

    def test_a_quarantine_of_a_name_is_lifted_where_others_have_it_for_longer_than_the_dead_have_records(
        self, harness: Harness, lead: Leader
    ) -> None:
        harness.put(quarantine_key("same"), Quarantine(1, 3, 60.0, "it failed").encode())
        harness.show(lead.node)
        write(harness, ["same.1", "same.2"])
        lead.until(TTL - INTERVAL)
        assert self.quarantine_of(harness, "same") == Quarantine(1, 3, 60.0, "it failed")
        lead.until(2 * INTERVAL)
        assert self.quarantine_of(harness, "same") == Quarantine(1, 3, 60.0, "it failed", over=True)

    def test_the_log_says_who_is_quarantined_and_no_more(
        self, harness: Harness, lead: Leader, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.fail(lead, 5, 6, 7)
        with caplog.at_level(logging.INFO):
            lead.until(INTERVAL)
        because = "it failed first in 3 consecutive rounds: failure 7"
        # It is an event on every node.
        assert [(record.levelno, record.message) for record in caplog.records if "quarantine" in record.message] == [
            (logging.INFO, f"node 'b' of 'run' is quarantined: {because}")
        ]
        caplog.clear()
        record = NodeRecord("b", 0, 0, 2, 4, "b.host", 1, served=7)
        harness.put(record.key, record.encode())
        lead.until(INTERVAL)
        assert caplog.messages == ["node 'b' of 'run' is not quarantined any more"]

    def test_the_log_names_a_quarantined_node_of_a_world_that_needs_it(
        self, harness: Harness, lead: Leader, caplog: pytest.LogCaptureFixture
    ) -> None:
        harness.put(quarantine_key("b"), Quarantine(1, 3, 60.0, "it failed").encode())
        harness.show(lead.node)
        write(harness, ["a", "b"], last_round=7)
        write(harness, ["c"], left="done")
        lead.until(1.0)
        assert state_of(harness).world == ("a", "b")
        assert "round 8 of 'run' has node 'b' although it is quarantined: the others are too few" in caplog.messages

    def test_one_that_was_waited_out_is_over_for_later_handlers_of_the_node(
        self, harness: Harness, lead: Leader
    ) -> None:
        there = Quarantine(2, 3, 60.0, "it failed")
        harness.put(quarantine_key("b"), there.encode())
        harness.show(lead.node)
        lead.until(INTERVAL)
        assert self.quarantine_of(harness) == there
        record = NodeRecord("b", 0, 0, 2, 4, "b.host", 1, served=3)
        harness.put(record.key, record.encode())
        lead.until(60.0)
        assert self.quarantine_of(harness) == Quarantine(2, 3, 60.0, "it failed", over=True)
        assert harness.writes(quarantine_key("b")) == 2

    @pytest.mark.parametrize("key", [quarantine_key("b"), failure_key(7)])
    def test_what_cannot_be_read_is_written_over_or_left_out(
        self, harness: Harness, lead: Leader, key: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.fail(lead, 5, 6)
        with harness.memory.changed:
            harness.memory.write(f"run/{key}", b"not ours", None)
        self.fail(lead, *(() if key == failure_key(7) else (7,)))
        write(harness, ["a", "b", "c"], last_round=7)
        lead.until(INTERVAL)
        if key == failure_key(7):
            assert self.quarantine_of(harness) is None
        else:
            quarantine = self.quarantine_of(harness)
            assert quarantine is not None
            assert quarantine.times == 1
        assert state_of(harness).round == 8

    @pytest.mark.parametrize("before", [None, Quarantine(1, 3, 60.0, "long ago", over=True)])
    def test_a_quarantine_counts_although_the_watch_has_not_shown_it(
        self, harness: Harness, lead: Leader, before: Quarantine | None
    ) -> None:
        if before is not None:
            harness.put(quarantine_key("b"), before.encode())
        self.fail(lead, 5, 6, 7)
        write(harness, ["a", "b", "c"], last_round=7)
        lead.coroutine.to_write(STATE_KEY)
        lead.coroutine.go()
        lead.coroutine.to(Wait)
        assert (state_of(harness).round, state_of(harness).world) == (8, ("a", "c"))
        assert lead.node.run.notices.quarantines.get("b") == before
        # No member hears of a node that waits.
        status = harness.read(records.STATUS_KEY)
        assert status is None or decode(RunStatus, status.payload).waiting == 0
        harness.show(lead.node)
        lead.until(2 * INTERVAL)
        assert harness.read(records.STATUS_KEY) is None or notice_of(harness).waiting == 0
        # What an operator has written since counts as soon as the watch shows it.
        harness.put(quarantine_key("b"), Quarantine(0, 8, 0.0, "pardoned", over=True).encode())
        harness.show(lead.node)
        lead.until(INTERVAL)
        assert notice_of(harness).waiting == 1

    def test_two_nodes_in_turn_are_none(self, harness: Harness, lead: Leader) -> None:
        self.fail(lead, 5, 7)
        self.fail(lead, 6, node="c")
        lead.until(INTERVAL)
        assert not [key for key in harness.names() if key.startswith(QUARANTINES)]

    def test_a_quarantine_that_another_leader_has_written_stands(
        self, harness: Harness, lead: Leader, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        self.fail(lead, 5, 6, 7)
        put = lead.coroutine.to_write(quarantine_key("b"))
        there = Quarantine(1, 7, 60.0, "of a leader with other options")
        harness.put(put.key, there.encode())
        lead.until(60.0)
        assert self.quarantine_of(harness) == there
        assert not [record for record in caplog.records if record.levelno >= logging.INFO]

    def test_a_member_that_goes_is_released_at_once(self, harness: Harness, lead: Leader) -> None:
        harness.put(drain_key("b"), DrainNotice(60.0, "spot").encode())
        harness.show(lead.node)
        lead.until(2.0)
        # The members know of it already.
        assert harness.read(records.STATUS_KEY) is None
        record = NodeRecord("b", 0, 0, 2, 4, "b.host", 1, goes=True)
        harness.put(record.key, record.encode())
        lead.until(0.1)
        assert (notice_of(harness).drained, notice_of(harness).departures) == (("b",), ())
        assert notice_of(harness).waiting == 1

    def test_the_drain_of_a_node_that_is_gone_is_removed_after_a_time_to_live(
        self, harness: Harness, lead: Leader
    ) -> None:
        for name in ("b", "gone.1"):
            harness.put(drain_key(name), DrainNotice(60.0, "spot").encode())
        harness.show(lead.node)
        lead.until(TTL - 1.0)
        assert drain_key("gone.1") in harness.names()
        lead.until(1.0 + INTERVAL)
        assert drain_key("gone.1") not in harness.names()
        assert drain_key("b") in harness.names()

    def test_what_cannot_be_read_is_removed_in_its_time(self, harness: Harness, lead: Leader) -> None:
        for key in (drain_key("gone.1"), failure_key(6), failure_key(7)):
            with harness.memory.changed:
                harness.memory.write(f"run/{key}", b"not ours", None)
        harness.publish(running("a", "b", "c", round=6 + ROUNDS_KEPT))
        harness.show(lead.node)
        lead.until(TTL + INTERVAL)
        left = harness.client.read_all("control", harness.now).names()
        assert {failure_key(6), failure_key(7), drain_key("gone.1")} & set(left) == {failure_key(7)}

    def test_failures_of_long_ago_are_removed(self, harness: Harness, lead: Leader) -> None:
        self.fail(lead, 6, 7)
        harness.publish(running("a", "b", "c", round=6 + ROUNDS_KEPT))
        harness.show(lead.node)
        lead.until(INTERVAL)
        assert failure_key(6) not in harness.names()
        assert failure_key(7) in harness.names()


class TestFailing:
    def test_what_does_not_answer_is_tried_again_with_a_fresh_snapshot(self, harness: Harness) -> None:
        lead = Leader(harness)
        lead.coroutine.to(Wait)
        for _ in range(5):
            assert isinstance(lead.coroutine.throw(AWAY), Sleep)
            assert lead.coroutine.to(ReadAll, Wait) == ReadAll(records.NODES, harness.now + TTL)
        assert lead.node.leading

    def test_a_leader_that_fails_resigns_and_rests(self, harness: Harness) -> None:
        lead = Leader(harness)
        for _ in range(leader.FAILURES):
            lead.coroutine.to(ReadAll)
            lead.coroutine.throw(RendezvousStateError("corrupt"))
        assert lead.coroutine.to(Read).deadline == lead.node.candidacy.stands_from == harness.now + INTERVAL
        assert not lead.node.candidacy.may_lead(lead.node.clock())
        lead.coroutine.end()
        assert not lead.node.leading
        assert records.LEADER_KEY not in harness.names()

    def test_a_failure_now_and_then_costs_no_lead(self, harness: Harness) -> None:
        lead = Leader(harness)
        for _ in range(4):
            lead.coroutine.to(Wait)
            lead.coroutine.throw(RendezvousStateError("corrupt"))
            lead.coroutine.to(ReadAll)
            lead.until(20.0)
        assert lead.node.leading

    def test_a_leader_whose_calls_fail_while_the_service_answers_others_resigns(self, harness: Harness) -> None:
        lead, began = Leader(harness), harness.now
        while lead.node.leading and harness.now < began + 60.0:
            lead.node.connection.on_renewal(harness.now)
            if isinstance(lead.coroutine.effect, Sleep):
                lead.coroutine.go()
            else:
                lead.coroutine.throw(AWAY)
        assert began + TTL <= harness.now < began + TTL + 5.0
        assert "has failed for 1" in str(lead.node.failures.latest)

    @pytest.mark.parametrize(("seconds", "fails"), [(TTL - 0.5, False), (TTL, True)])
    def test_that_takes_a_time_to_live(self, harness: Harness, seconds: float, fails: bool) -> None:
        lead = Leader(harness)

        def pass_by(until: float) -> None:
            for _ in range(4):
                harness.now = min(harness.now + INTERVAL, until)
                lead.node.connection.on_renewal(harness.now)

        pass_by(harness.now + TTL)
        lead.coroutine.to(Wait)
        began = harness.now
        lead.coroutine.throw(AWAY)
        # Once is nothing, whichever call the service has answered meanwhile.
        assert lead.node.failures.count(LEAD) == 0
        lead.coroutine.to(ReadAll)
        pass_by(began + seconds)
        lead.coroutine.throw(AWAY)
        assert lead.node.failures.count(LEAD) == fails

    @pytest.mark.parametrize(("grace", "fails"), [(0.5, False), (0.0, True)])
    def test_after_an_outage_that_takes_the_grace_period(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch, grace: float, fails: bool
    ) -> None:
        lead = Leader(harness)
        monkeypatch.setattr(lead.node.connection, "grace_remaining", lambda: grace)
        lead.coroutine.to(Wait)
        lead.coroutine.throw(AWAY)
        lead.coroutine.to(ReadAll)
        harness.now += TTL
        lead.coroutine.throw(AWAY)
        assert lead.node.failures.count(LEAD) == fails

    @pytest.mark.parametrize("one_before", [False, True])
    def test_one_call_that_hangs_for_long_is_one_lost_message(self, harness: Harness, one_before: bool) -> None:
        lead = Leader(harness)
        lead.coroutine.to(Wait)
        if one_before:
            lead.coroutine.throw(AWAY)
            lead.coroutine.to(ReadAll, Wait)
            # A turn that went well lies between the two.
            lead.until(INTERVAL)
            lead.coroutine.to(Wait)
        for _ in range(8):
            lead.node.connection.on_renewal(harness.now)
            harness.now += INTERVAL
        lead.node.connection.on_renewal(harness.now)
        lead.coroutine.throw(AWAY)
        assert lead.node.failures.count(LEAD) == 0
        lead.coroutine.to(ReadAll)
        lead.coroutine.throw(AWAY)
        assert lead.node.failures.count(LEAD) == 1

    def test_a_leader_that_is_refused_while_its_lease_is_renewed_makes_room_for_another(self, harness: Harness) -> None:
        lead = Leader(harness)
        for _ in range(8):
            lead.node.connection.on_renewal(harness.now)
            harness.now += INTERVAL
        lead.node.connection.on_renewal(harness.now)
        lead.coroutine.throw(AWAY)
        lead.coroutine.to(ReadAll)
        lead.coroutine.throw(RendezvousDeniedError("no permission"))
        assert lead.node.leading
        lead.coroutine.to(Read)
        # It resigns, and no error of it ends it: it may be a member of another's world.
        assert not lead.node.leading
        assert lead.node.failures.lasting is None
        assert str(lead.node.failures.refusal) == "no permission"

    def test_a_leader_of_a_service_that_is_away_leads_on(self, harness: Harness) -> None:
        lead, began = Leader(harness), harness.now
        while harness.now < began + 60.0:
            if isinstance(lead.coroutine.effect, Sleep):
                lead.coroutine.go()
            else:
                lead.coroutine.throw(AWAY)
        assert lead.node.leading

    def test_a_leader_that_cannot_resign_leads_no_more(self, harness: Harness) -> None:
        lead = Leader(harness)
        for _ in range(leader.FAILURES):
            lead.coroutine.to(ReadAll)
            lead.coroutine.throw(RendezvousStateError("corrupt"))
        lead.coroutine.to(Read)
        assert lead.coroutine.throw(AWAY) is None
        assert not lead.node.leading

    @pytest.mark.parametrize("why", ["another leads", "a later term", "closing"])
    def test_a_node_that_leads_no_more_ends_and_takes_nothing_back(self, harness: Harness, why: str) -> None:
        lead = Leader(harness)
        lead.coroutine.to(Wait)
        if why == "another leads":
            harness.put(records.LEADER_KEY, claim("b").encode())
            harness.show(lead.node)
        elif why == "a later term":
            lead.node.candidacy.term += 1
        else:
            lead.node.stop()
        lead.coroutine.go()
        assert lead.coroutine.effect is None
        assert lead.node.leading is (why == "a later term")
        assert harness.read(records.LEADER_KEY) is not None

    def test_an_error_ends_with_the_next_turn_that_goes_well(self, harness: Harness) -> None:
        lead = Leader(harness)
        lead.coroutine.throw(RendezvousError("once"))
        assert str(lead.node.failures.latest) == "once"
        harness.now += LASTING
        lead.coroutine.to(Wait)
        lead.coroutine.go()
        assert lead.node.failures.latest is None
