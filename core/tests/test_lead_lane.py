"""The lanes of the leader, step by step: who is elected, what it posts, publishes and removes, and when."""

from collections.abc import Iterable
from typing import Any

import pytest

from rdzv.engine import leader
from rdzv.engine.node import LASTING, LEAD, Node
from rdzv.engine.records import (
    LEADER_KEY,
    NODES,
    NOTICE_KEY,
    STATE_KEY,
    STORE,
    Closed,
    Leadership,
    Loss,
    NodeRecord,
    Notice,
    State,
    decode,
    intent_key,
    node_key,
)
from rdzv.engine.steps import Changed, Delete, Lead, Put, Read, ReadAll, Sleep, Tell, Wait
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError, RendezvousStateError
from rdzv.hooks import EventKind

from .lanes import INTERVAL, TTL, Stage, Walk

AWAY = RendezvousConnectionError("away")
LAST_CALL = 30.0


@pytest.fixture
def stage() -> Stage:
    return Stage()


def claim(node: str, attempt: int = 0) -> Leadership:
    """A claim to lead."""
    return Leadership(node, attempt, 2, 4)


def running(*world: str, round: int = 1, **more: Any) -> State:
    """The state while a round runs."""
    fields: dict[str, Any] = {"attempt": 0, "address": "a.host", "port": 29500, **more}
    return State(round=round, world=world, min_nodes=2, max_nodes=4, **fields)


def write(stage: Stage, names: Iterable[str], last_round: int = 0, **more: Any) -> None:
    """Let the service hold what nodes say of themselves."""
    for name in names:
        record = NodeRecord(name, more.get("attempt", 0), last_round, 2, 4, f"{name}.host", 1, left=more.get("left"))
        stage.put(record.key, record.encode())


def notice_of(stage: Stage) -> Notice:
    """The news that are posted."""
    held = stage.read(NOTICE_KEY)
    assert held is not None
    return decode(Notice, held.payload)


def state_of(stage: Stage) -> State:
    """The state that is published."""
    held = stage.read(STATE_KEY)
    assert held is not None
    return decode(State, held.payload)


def take_away(stage: Stage, *names: str) -> None:
    """Let records go, as when leases end."""
    for name in names:
        stage.service.delete(node_key(0, name), stage.now)


class TestElection:
    def elect(self, stage: Stage, node: Node) -> Walk[None]:
        return stage.walk(leader.elect(node, stage.now + 3.0))

    def test_who_writes_the_key_first_leads(self, stage: Stage) -> None:
        node = stage.enrolled()
        lane = self.elect(stage, node)
        put = lane.to_write(LEADER_KEY)
        assert (put.deadline, put.after, put.lease) == (stage.now + 3.0, None, node.lease)
        told = lane.go()
        assert isinstance(told, Tell)
        assert [(event.kind, event.node) for event in told.events] == [(EventKind.LEADER_CHANGED, "a")]
        assert lane.go() == Lead(node.term)
        assert node.leading
        assert lane.go() is None

    def test_each_term_has_another_number(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.run(leader.elect(node, stage.now + 3.0))
        first = node.term
        stage.run(leader.resign(node, stage.now + 3.0))
        stage.look(node)
        stage.run(leader.elect(node, stage.now + 3.0))
        assert node.leading
        assert node.term != first

    def test_who_is_second_knows_who_leads(self, stage: Stage) -> None:
        node = stage.enrolled()
        lane = self.elect(stage, node)
        stage.put(LEADER_KEY, claim("b").encode())
        lane.to(Tell)
        assert lane.go() is None
        assert node.leader == claim("b")
        assert not node.leading

    def test_a_tombstone_is_written_over(self, stage: Stage) -> None:
        tombstone = stage.put(LEADER_KEY, b"", deleted=True)
        node = stage.enrolled()
        assert self.elect(stage, node).to_write(LEADER_KEY).after == tombstone

    @pytest.mark.parametrize("there", ["nothing", "a tombstone"])
    def test_who_cannot_write_does_not_lead(self, stage: Stage, there: str) -> None:
        node = stage.enrolled()
        lane = self.elect(stage, node)
        tombstone = stage.put(LEADER_KEY, b"", deleted=True)
        assert lane.send((False, None if there == "nothing" else tombstone)) is None
        assert not node.leading
        assert node.leader is None

    def test_a_write_whose_reply_was_lost_has_won_too(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.put(LEADER_KEY, claim("a").encode(), lease=node.lease)
        stage.look(node)
        assert isinstance(self.elect(stage, node).step, Lead)
        assert node.leading

    def test_who_has_lost_its_lease_meanwhile_does_not_lead(self, stage: Stage) -> None:
        node = stage.enrolled()
        lane = self.elect(stage, node)
        lane.to(Tell)
        node.lease = None
        assert lane.go() is None
        assert not node.leading

    def test_who_cannot_write_does_not_forget_who_leads_meanwhile(self, stage: Stage) -> None:
        node = stage.enrolled()
        lane = self.elect(stage, node)
        node.look_at_leader(claim("b"))
        assert lane.send((False, None)) is None
        assert node.leader == claim("b")

    @pytest.mark.parametrize("why", ["another leads", "it leads", "no record", "no look"])
    def test_who_need_not_or_may_not_lead_asks_for_nothing(self, stage: Stage, why: str) -> None:
        node = stage.enrolled()
        if why == "another leads":
            stage.put(LEADER_KEY, claim("b").encode())
            stage.look(node)
        elif why == "it leads":
            stage.lead(node)
        elif why == "no record":
            node.record = None
        else:
            node.view = None
        assert self.elect(stage, node).step is None

    def test_who_cannot_start_its_loop_does_not_lead(self, stage: Stage) -> None:
        node = stage.enrolled()
        lane = self.elect(stage, node)
        lane.to(Lead)
        with pytest.raises(RuntimeError):
            lane.throw(RuntimeError("no thread"))
        assert not node.leading


class TestResigning:
    def resign(self, stage: Stage, node: Node) -> Walk[Leadership | None]:
        return stage.walk(leader.resign(node, stage.now + 3.0))

    def test_its_claim_becomes_a_tombstone(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.lead(node)
        lane = self.resign(stage, node)
        assert not node.leading
        assert lane.step == Read(LEADER_KEY, stage.now + 3.0)
        put = lane.to_write(LEADER_KEY)
        assert (put.deadline, put.lease, put.deleted) == (stage.now + 3.0, node.lease, True)
        assert lane.end() is None
        assert LEADER_KEY not in stage.names()

    def test_a_claim_that_hangs_on_an_earlier_lease_stays_there(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.lead(node)
        earlier, node.lease = node.lease, None
        lane = stage.walk(leader.resign(node, stage.now + 3.0, earlier))
        assert lane.to_write(LEADER_KEY).lease is earlier

    def test_a_claim_whose_lease_could_not_be_revoked_ends_with_it(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.lead(node)
        node.lease = None
        assert self.resign(stage, node).end() is None
        # A tombstone without a lease would stay for ever.
        assert stage.writes(LEADER_KEY) == 1

    def test_the_claim_of_another_stays(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.put(LEADER_KEY, claim("b").encode())
        assert self.resign(stage, node).end() == claim("b")
        assert stage.writes(LEADER_KEY) == 1

    def test_a_later_claim_of_its_own_is_taken_back_too(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.lead(node)
        lane = self.resign(stage, node)
        lane.to(Put)
        stage.put(LEADER_KEY, claim("a").encode(), lease=node.lease)
        assert isinstance(lane.go(), Put)
        assert lane.end() is None
        assert LEADER_KEY not in stage.names()

    @pytest.mark.parametrize("there", ["nothing", "a tombstone", "what it was"])
    def test_there_may_be_nothing_to_take_back_any_more(self, stage: Stage, there: str) -> None:
        node = stage.enrolled()
        stage.lead(node)
        lane = self.resign(stage, node)
        lane.to(Put)
        claimed = stage.read(LEADER_KEY)
        now = {"nothing": None, "what it was": claimed, "a tombstone": stage.put(LEADER_KEY, b"", deleted=True)}[there]
        # The same value, and yet it has lost: the lease is over.
        assert lane.send((False, now)) is None
        assert lane.end() is None

    def test_another_may_have_taken_over_already(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.lead(node)
        lane = self.resign(stage, node)
        lane.to(Put)
        stage.put(LEADER_KEY, claim("b").encode())
        assert lane.end() == claim("b")
        assert stage.writes(LEADER_KEY) == 2


class Leader:
    """A leader at work."""

    def __init__(self, stage: Stage, *, state: State | None = None, last_round: int = 0, **more: Any) -> None:
        if state is not None:
            stage.publish(state)
        self.stage = stage
        self.node = stage.enrolled(**more)
        assert self.node.record is not None
        if last_round:
            write(stage, "a", last_round)
        stage.lead(self.node)
        self.lane: Walk[None] = stage.walk(leader.lead(self.node, self.node.term))

    def until(self, seconds: float) -> None:
        """Let it work until so much time has passed; it sees what it has written."""
        end = self.stage.now + seconds
        while not self.rests(end):
            self.go()
        self.stage.now = end

    def rests(self, until: float) -> bool:
        """Whether there is nothing to do until then."""
        match self.lane.step:
            case Wait(prefix, since, deadline):
                now = self.stage.service.read_all(prefix, self.stage.now)
                return now.snapshot.entries == since.snapshot.entries and deadline >= until
            case Sleep(deadline):
                return deadline >= until
            case _:
                return False

    def go(self) -> None:
        self.lane.go()
        self.stage.look(self.node)


class TestGathering:
    def test_it_reads_the_nodes_and_waits_for_others(self, stage: Stage) -> None:
        lane = Leader(stage).lane
        assert lane.step == ReadAll(NODES, stage.now + TTL)
        arrived = lane.to(Tell)
        assert [(event.kind, event.node, event.cause) for event in arrived.events] == [
            (EventKind.NODE_ARRIVED, "a", "it waits at a.host")
        ]
        put = lane.to_write(NOTICE_KEY)
        assert (put.after, put.deadline) == (None, stage.now + TTL)
        lane.go()
        assert notice_of(stage) == Notice(0, "gathering", 1, 0)
        assert isinstance(lane.step, Wait)
        # Not longer than an interval, to see that it leads no more.
        assert lane.step.deadline == stage.now + INTERVAL

    def test_each_arrival_is_told_once(self, stage: Stage) -> None:
        lead = Leader(stage)
        lead.lane.to(Wait)
        write(stage, "b")
        arrived = lead.lane.to(Tell)
        assert [event.node for event in arrived.events] == ["b"]
        lead.lane.to(Wait)
        write(stage, "c", left="drained")
        lead.until(2.0)
        assert len([step for step in lead.lane.taken if isinstance(step, Tell)]) == 2

    def test_members_of_the_world_that_runs_have_not_arrived(self, stage: Stage) -> None:
        write(stage, "bc")
        lead = Leader(stage, state=running("a", "b"))
        lead.lane.to(Wait)
        told = [step.events for step in lead.lane.taken if isinstance(step, Tell)]
        assert [[event.node for event in events] for events in told] == [["c"]]

    def test_a_record_that_did_not_change_is_not_parsed_again(self, stage: Stage) -> None:
        desk = leader._Desk(stage.enrolled())
        write(stage, "b")
        before = stage.service.read_all(NODES, stage.now)
        first = desk.read(before)
        write(stage, "b", last_round=1)
        again = desk.read(stage.service.read_all(NODES, stage.now, before))
        assert [one is other for one, other in zip(first, again, strict=True)] == [True, False]

    def test_many_who_come_together_are_read_together(self, stage: Stage) -> None:
        lead = Leader(stage)
        lead.lane.to(Wait)
        write(stage, "b")
        # One node was there when it began to wait.
        assert lead.lane.go() == Sleep(stage.now + leader.COALESCE)
        lead.lane.to(Wait)
        # What it waits for is told by waiting: the nodes are read once.
        assert len([step for step in lead.lane.taken if isinstance(step, ReadAll)]) == 1
        began = stage.now
        lead.until(INTERVAL)
        slept = [step.until for step in lead.lane.taken if isinstance(step, Sleep)]
        assert slept == [began]

    def test_the_last_call_is_told_and_kept(self, stage: Stage) -> None:
        write(stage, "b")
        lead, began = Leader(stage), stage.now
        lead.until(LAST_CALL - 0.5)
        assert notice_of(stage).phase == "last call"
        assert STATE_KEY not in stage.names()
        lead.lane.to_write(STATE_KEY)
        assert stage.now == began + LAST_CALL
        lead.go()
        assert lead.node.state == state_of(stage)
        assert set(state_of(stage).world) == {"a", "b"}

    def test_who_goes_during_the_last_call_lets_it_begin_anew(self, stage: Stage) -> None:
        write(stage, "b")
        lead = Leader(stage)
        lead.until(20.0)
        take_away(stage, "b")
        lead.until(1.0)
        assert notice_of(stage).phase == "gathering"
        write(stage, "b")
        began = stage.now
        lead.lane.to_write(STATE_KEY)
        assert began + LAST_CALL - 1.0 < stage.now < began + LAST_CALL + 1.0

    def test_at_max_it_publishes_at_once_over_the_state_that_it_knew(self, stage: Stage) -> None:
        write(stage, "bcd")
        lead, began = Leader(stage), stage.now
        put = lead.lane.to_write(STATE_KEY)
        assert stage.now == began
        assert (put.after, put.deadline) == (None, began + TTL)
        # It reads the nodes a second time, after the token of the state was known.
        assert [step.prefix for step in lead.lane.taken if isinstance(step, ReadAll)] == [NODES, NODES]
        assert not any(isinstance(step, Put) and "intent" in step.key for step in lead.lane.taken)

    def test_who_goes_between_the_two_looks_is_in_no_world(self, stage: Stage) -> None:
        write(stage, "bcd")
        lead = Leader(stage)
        lead.lane.to(ReadAll)
        lead.lane.go()
        lead.lane.to(ReadAll)
        take_away(stage, "d")
        # That is no failure of the leader.
        assert not isinstance(lead.lane.go(), Sleep)
        lead.lane.to(Wait)
        assert STATE_KEY not in stage.names()

    def test_a_record_that_cannot_be_read_is_nobodys(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        stage.put(f"{NODES}/0/evil", b"[]")
        write(stage, "bc")
        lead = Leader(stage)
        lead.until(2.0)
        assert notice_of(stage).present == 3
        assert "ignoring 'nodes/0/evil'" in caplog.text


class TestReforming:
    def test_members_who_are_back_get_their_world_at_once(self, stage: Stage) -> None:
        write(stage, "b", last_round=1)
        lead, began = Leader(stage, state=running("a", "b"), last_round=1), stage.now
        before = lead.node.held
        put = lead.lane.to_write(STATE_KEY)
        assert stage.now == began
        assert put.after == before
        assert decode(State, put.payload).round == 2
        # Nobody is missing: it is not announced.
        assert not any(isinstance(step, Put) and "intent" in step.key for step in lead.lane.taken)

    def test_a_member_without_a_record_is_missed_after_a_time_to_live(self, stage: Stage) -> None:
        write(stage, "b")
        lead = Leader(stage, state=running("a", "b", "c"))
        lead.node.distrust()
        lead.until(TTL - 0.5)
        assert notice_of(stage) == Notice(1, "re-forming", 2, 0)
        lead.until(1.0)
        loss = Loss("c", 2, False, "its lease ran out: it died, hangs or is cut off")
        assert notice_of(stage) == Notice(1, "re-forming", 2, 1, (loss,))

    def test_a_round_without_a_silent_member_is_announced_and_looked_at_once_more(self, stage: Stage) -> None:
        write(stage, "b", last_round=1)
        lead = Leader(stage, state=running("a", "b", "c"), last_round=1)
        stage.now += TTL
        put = lead.lane.to(Put, Wait)
        while not (isinstance(put, Put) and "intent" in put.key):
            lead.go()
            put = lead.lane.to(Put, Wait)
        assert (put.key, put.after, put.deadline) == (intent_key(2), None, stage.now + TTL)
        assert decode(Leadership, put.payload) == claim("a")
        lead.lane.go()
        assert isinstance(lead.lane.step, ReadAll)
        # It came back at the last moment: it is in its round, and no other is formed.
        write(stage, "c")
        lead.lane.to(Wait)
        assert state_of(stage).round == 1

    def test_a_member_that_dies_unannounced_between_the_looks_is_announced_first(self, stage: Stage) -> None:
        write(stage, "bc", last_round=1)
        lead = Leader(stage, state=running("a", "b", "c"), last_round=1)
        lead.node.contacted()
        stage.now += INTERVAL
        lead.node.contacted()
        stage.now += 2 * INTERVAL
        lead.lane.to(ReadAll)
        lead.lane.go()
        lead.lane.to(ReadAll)
        take_away(stage, "c")
        writes = []
        while STATE_KEY not in writes:
            if isinstance(lead.lane.step, Put):
                writes.append(lead.lane.step.key)
            lead.lane.go()
        assert writes[-2:] == [intent_key(2), STATE_KEY]
        assert state_of(stage).world == ("a", "b")

    def test_a_higher_attempt_that_takes_over_is_announced_under_the_one_before(self, stage: Stage) -> None:
        write(stage, "bcd", attempt=1)
        over = running("x", "y", closed=Closed("a", "superseded", done=False))
        lead = Leader(stage, state=over, attempt=1)
        put = lead.lane.to_write(intent_key(2))
        assert decode(Leadership, put.payload) == Leadership("a", 0, 2, 4)
        lead.lane.to_write(STATE_KEY)
        lead.go()
        assert (state_of(stage).attempt, state_of(stage).round) == (1, 2)

    def test_a_state_that_another_wrote_meanwhile_stands(self, stage: Stage) -> None:
        write(stage, "bcd")
        lead = Leader(stage)
        lead.lane.to_write(STATE_KEY)
        stage.publish(running("c", "d"))
        told = lead.lane.go()
        assert isinstance(told, Tell)
        assert lead.node.state == running("c", "d")
        # It looks at once what that makes of the nodes.
        assert isinstance(lead.lane.go(), Put)
        lead.lane.to(Wait)
        assert stage.writes(STATE_KEY) == 1

    def test_over_a_state_that_is_gone_nothing_is_published_until_the_keeper_has_found_out_why(
        self, stage: Stage
    ) -> None:
        stage.publish(running("x", "y", closed=Closed("x", "done", done=True)))
        write(stage, "bcd", attempt=1)
        lead = Leader(stage, attempt=1)
        lead.lane.to_write(STATE_KEY)
        stage.service.delete(STATE_KEY, stage.now)
        assert lead.lane.go() == Changed(stage.now + INTERVAL)
        assert lead.node.vanished
        lead.node.held = None
        lead.lane.to_write(STATE_KEY)
        lead.go()
        assert (state_of(stage).attempt, state_of(stage).round) == (1, 2)


class TestNews:
    """What is posted, and how often: each notice wakes every node."""

    def posted(self, lead: Leader, seconds: float) -> list[Notice]:
        """What it posts within some time."""
        before = len(lead.lane.taken)
        lead.until(seconds)
        writes = [step for step in lead.lane.taken[before:] if isinstance(step, Put) and step.key == NOTICE_KEY]
        return [decode(Notice, step.payload) for step in writes]

    @pytest.fixture
    def lead(self, stage: Stage) -> Leader:
        """Leads a world of three, all of whom are there."""
        write(stage, "bc")
        lead = Leader(stage, state=running("a", "b", "c"))
        assert self.posted(lead, 2 * TTL) == []
        return lead

    def test_each_loss_is_urgent(self, stage: Stage) -> None:
        write(stage, "bcd")
        lead = Leader(stage, state=running("a", "b", "c", "d"))
        assert self.posted(lead, 2 * TTL) == []
        for gone, name in enumerate("dc", start=1):
            take_away(stage, name)
            assert [(len(one.lost), one.waiting) for one in self.posted(lead, 0.4)] == [(gone, 1)]

    def test_the_first_who_waits_and_the_last_who_goes_are_urgent(self, stage: Stage, lead: Leader) -> None:
        write(stage, "d")
        assert [one.waiting for one in self.posted(lead, 0.5)] == [1]
        take_away(stage, "d")
        assert [one.waiting for one in self.posted(lead, 0.4)] == [0]
        write(stage, "d")
        assert [one.waiting for one in self.posted(lead, 0.4)] == [1]

    def test_what_nobody_waits_for_is_posted_once_a_second(self, stage: Stage, lead: Leader) -> None:
        write(stage, "d")
        assert [one.present for one in self.posted(lead, 0.5)] == [4]
        write(stage, "e")
        assert self.posted(lead, 0.4) == []
        write(stage, "f")
        assert [one.present for one in self.posted(lead, 0.5)] == [6]
        assert self.posted(lead, 60.0) == []

    def test_what_a_leader_before_has_posted_is_posted_over(self, stage: Stage, lead: Leader) -> None:
        stage.put(NOTICE_KEY, Notice(1, "running", 9, 0).encode())
        stage.look(lead.node)
        write(stage, "d")
        assert [one.waiting for one in self.posted(lead, 0.5)] == [1]
        assert notice_of(stage).waiting == 1

    def test_what_was_posted_meanwhile_is_known_and_posted_over(self, stage: Stage, lead: Leader) -> None:
        take_away(stage, "c")
        lead.lane.to_write(NOTICE_KEY)
        known = Loss("c", 2, True, "drained")
        stage.put(NOTICE_KEY, Notice(1, "re-forming", 9, 1, (known,)).encode())
        began = stage.now
        posted = self.posted(lead, 1.5)
        # It was the first to know why.
        assert [(one.present, one.lost) for one in posted[1:]] == [(2, (known,))]
        assert stage.now == began + 1.5

    def test_what_was_posted_and_is_taken_away_is_posted_again(self, stage: Stage, lead: Leader) -> None:
        write(stage, "d")
        assert len(self.posted(lead, 1.0)) == 1
        stage.service.delete(NOTICE_KEY, stage.now)
        stage.look(lead.node)
        # A view may be older than what it posted: an interval later it is not.
        write(stage, "b")
        assert self.posted(lead, INTERVAL - 1.5) == []
        assert len(self.posted(lead, 2 * INTERVAL)) == 1
        assert notice_of(stage).waiting == 1

    def test_a_notice_that_cannot_be_written_is_written_as_soon_as_it_can(self, stage: Stage, lead: Leader) -> None:
        take_away(stage, "c")
        lead.lane.to_write(NOTICE_KEY)
        # That is no failure of the leader.
        assert isinstance(lead.lane.send((False, None)), Wait)
        assert len(self.posted(lead, 2.0)) == 1

    def test_the_news_of_a_leader_before_are_not_posted_again(self, stage: Stage) -> None:
        write(stage, "bcd")
        stage.put(NOTICE_KEY, Notice(1, "running", 4, 1).encode())
        lead = Leader(stage, state=running("a", "b", "c"))
        assert self.posted(lead, 60.0) == []

    def test_those_of_another_round_are_not_kept(self, stage: Stage) -> None:
        write(stage, "bc")
        stage.put(NOTICE_KEY, Notice(1, "running", 4, 1).encode())
        lead = Leader(stage, state=running("a", "b", "c", round=2))
        # Nobody waits, and that is what nodes take for granted.
        assert self.posted(lead, 60.0) == []

    def test_its_own_posts_follow_each_other_whatever_it_has_seen_of_them(self, stage: Stage, lead: Leader) -> None:
        for number, name in enumerate("def"):
            write(stage, name)
            stage.now += 2.0
            put = lead.lane.to_write(NOTICE_KEY)
            assert put.after == stage.read(NOTICE_KEY)
            lead.lane.go()
            assert stage.writes(NOTICE_KEY) == number + 1


class TestRemoving:
    def removed(self, lead: Leader) -> list[str]:
        """What it removes in its first turn."""
        lead.lane.to(Wait)
        deletes = [step for step in lead.lane.taken if isinstance(step, Delete)]
        assert {step.deadline for step in deletes} <= {lead.stage.now + TTL}
        return [step.prefix for step in deletes]

    def test_before_the_first_round_there_is_nothing_to_remove(self, stage: Stage) -> None:
        assert self.removed(Leader(stage)) == []

    @pytest.mark.parametrize(("number", "stores"), [(1, []), (2, []), (3, [1]), (4, [2]), (30, [28])])
    def test_a_new_leader_removes_the_stores_that_one_before_may_have_left(
        self, stage: Stage, number: int, stores: list[int]
    ) -> None:
        write(stage, "b")
        lead = Leader(stage, state=running("a", "b", round=number))
        assert self.removed(lead) == [f"{STORE}/{store}" for store in stores]
        lead.until(60.0)
        assert len([step for step in lead.lane.taken if isinstance(step, Delete)]) == len(stores)

    def test_a_leader_that_goes_on_removes_each_once(self, stage: Stage) -> None:
        write(stage, "b")
        lead = Leader(stage, state=running("a", "b", round=4))
        self.removed(lead)
        stage.publish(running("a", "b", round=5))
        stage.look(lead.node)
        lead.until(60.0)
        stores = [step.prefix for step in lead.lane.taken if isinstance(step, Delete)]
        assert stores == [f"{STORE}/{number}" for number in (2, 3)]

    def test_what_could_not_be_removed_is_tried_again(self, stage: Stage) -> None:
        write(stage, "b")
        lead = Leader(stage, state=running("a", "b", round=4))
        lead.lane.to(Delete)
        lead.lane.throw(AWAY)
        lead.until(60.0)
        stores = [step.prefix for step in lead.lane.taken if isinstance(step, Delete)]
        assert stores == [f"{STORE}/{number}" for number in (2, 2)]

    def test_rounds_that_jump_are_not_removed_one_by_one(self, stage: Stage) -> None:
        write(stage, "b")
        lead = Leader(stage, state=running("a", "b", round=4))
        self.removed(lead)
        stage.publish(running("a", "b", round=1000))
        stage.look(lead.node)
        lead.until(60.0)
        stores = [step.prefix for step in lead.lane.taken if isinstance(step, Delete)]
        assert stores[1:] == [f"{STORE}/{number}" for number in range(991, 999)]

    def test_the_attempt_before_goes_with_its_intent_last(self, stage: Stage) -> None:
        write(stage, "b", attempt=1)
        stage.put(intent_key(2), claim("x").encode())
        lead = Leader(stage, state=running("a", "b", round=2, attempt=1), attempt=1)
        assert self.removed(lead) == ["nodes/0", "beats/0", intent_key(2)]
        lead.until(60.0)
        assert len([step for step in lead.lane.taken if isinstance(step, Delete)]) == 3

    def test_of_its_own_attempt_only_the_intent_goes(self, stage: Stage) -> None:
        write(stage, "b")
        stage.put(intent_key(1), claim("x").encode())
        stage.put(intent_key(2), claim("x").encode())
        assert self.removed(Leader(stage, state=running("a", "b"))) == [intent_key(1)]

    def test_what_is_no_intent_stays(self, stage: Stage) -> None:
        write(stage, "b")
        stage.put(intent_key(1).replace("1", "what?"), claim("x").encode())
        stage.put(f"{intent_key(1)}/0", claim("x").encode())
        assert self.removed(Leader(stage, state=running("a", "b"))) == []

    def test_an_intent_that_cannot_be_read_goes_alone(self, stage: Stage) -> None:
        write(stage, "b", attempt=1)
        stage.put(intent_key(1), b"[]")
        assert self.removed(Leader(stage, state=running("a", "b", attempt=1), attempt=1)) == [intent_key(1)]


class TestFailing:
    def test_what_does_not_answer_is_tried_again_with_a_fresh_look(self, stage: Stage) -> None:
        lead = Leader(stage)
        lead.lane.to(Wait)
        for _ in range(5):
            assert isinstance(lead.lane.throw(AWAY), Sleep)
            assert lead.lane.to(ReadAll, Wait) == ReadAll(NODES, stage.now + TTL)
        assert lead.node.leading

    def test_a_leader_that_fails_resigns_and_rests(self, stage: Stage) -> None:
        lead = Leader(stage)
        for _ in range(leader.FAILURES):
            lead.lane.to(ReadAll)
            lead.lane.throw(RendezvousStateError("corrupt"))
        assert lead.lane.to(Read).deadline == lead.node.stands_from == stage.now + INTERVAL
        assert not lead.node.may_lead()
        lead.lane.end()
        assert not lead.node.leading
        assert LEADER_KEY not in stage.names()

    def test_a_failure_now_and_then_costs_no_lead(self, stage: Stage) -> None:
        lead = Leader(stage)
        for _ in range(4):
            lead.lane.to(Wait)
            lead.lane.throw(RendezvousStateError("corrupt"))
            lead.lane.to(ReadAll)
            lead.until(20.0)
        assert lead.node.leading

    def test_a_leader_whose_calls_fail_while_the_service_answers_others_resigns(self, stage: Stage) -> None:
        lead, began = Leader(stage), stage.now
        while lead.node.leading and stage.now < began + 60.0:
            lead.node.contacted()
            if isinstance(lead.lane.step, Sleep):
                lead.lane.go()
            else:
                lead.lane.throw(AWAY)
        assert began + TTL <= stage.now < began + TTL + 5.0
        assert "has failed for 1" in str(lead.node.failure())

    @pytest.mark.parametrize(("seconds", "fails"), [(TTL - 0.5, False), (TTL, True)])
    def test_that_takes_a_time_to_live(self, stage: Stage, seconds: float, fails: bool) -> None:
        lead = Leader(stage)

        def pass_by(until: float) -> None:
            for _ in range(4):
                stage.now = min(stage.now + INTERVAL, until)
                lead.node.contacted()

        pass_by(stage.now + TTL)
        lead.lane.to(Wait)
        began = stage.now
        lead.lane.throw(AWAY)
        # Once is nothing, whomever the service has answered meanwhile.
        assert lead.node.failed(LEAD) == 0
        lead.lane.to(ReadAll)
        pass_by(began + seconds)
        lead.lane.throw(AWAY)
        assert lead.node.failed(LEAD) == fails

    def test_a_refused_login_is_told_as_it_is(self, stage: Stage) -> None:
        lead = Leader(stage)
        for _ in range(8):
            lead.node.contacted()
            stage.now += INTERVAL
        lead.node.contacted()
        lead.lane.throw(RendezvousDeniedError("wrong password"))
        assert isinstance(lead.node.problem, RendezvousDeniedError)

    def test_a_leader_of_a_service_that_is_away_leads_on(self, stage: Stage) -> None:
        lead, began = Leader(stage), stage.now
        while stage.now < began + 60.0:
            if isinstance(lead.lane.step, Sleep):
                lead.lane.go()
            else:
                lead.lane.throw(AWAY)
        assert lead.node.leading

    def test_a_leader_that_cannot_resign_leads_no_more(self, stage: Stage) -> None:
        lead = Leader(stage)
        for _ in range(leader.FAILURES):
            lead.lane.to(ReadAll)
            lead.lane.throw(RendezvousStateError("corrupt"))
        lead.lane.to(Read)
        assert lead.lane.throw(AWAY) is None
        assert not lead.node.leading

    @pytest.mark.parametrize("why", ["another leads", "a later term", "closing"])
    def test_whoever_leads_no_more_ends_and_takes_nothing_back(self, stage: Stage, why: str) -> None:
        lead = Leader(stage)
        lead.lane.to(Wait)
        if why == "another leads":
            stage.put(LEADER_KEY, claim("b").encode())
            stage.look(lead.node)
        elif why == "a later term":
            lead.node.term += 1
        else:
            lead.node.closing = True
        lead.lane.go()
        assert lead.lane.step is None
        assert lead.node.leading is (why == "a later term")
        assert stage.read(LEADER_KEY) is not None

    def test_an_error_ends_with_the_next_turn_that_goes_well(self, stage: Stage) -> None:
        lead = Leader(stage)
        lead.lane.throw(RendezvousError("once"))
        assert str(lead.node.failure()) == "once"
        stage.now += LASTING
        lead.lane.to(Wait)
        lead.lane.go()
        assert lead.node.failure() is None
