"""The lanes that watch the run, keep a node's lease and mend it, step by step."""

from dataclasses import replace
from typing import Any

import pytest

from rdzv.engine import member
from rdzv.engine.node import KEEP, WATCH, Node
from rdzv.engine.records import (
    CONTROL,
    LEADER_KEY,
    STATE_KEY,
    Closed,
    Leadership,
    NodeRecord,
    State,
    decode,
    intent_key,
)
from rdzv.engine.steps import Changed, KeepAlive, OpenLease, Put, Read, ReadAll, Sleep, Tell, Wait
from rdzv.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousStateError,
)

from .lanes import INTERVAL, TTL, Stage, Walk

ENOUGH = Closed("b", "enough", done=False)
AWAY = RendezvousConnectionError("away")


@pytest.fixture
def stage() -> Stage:
    return Stage()


def running(*world: str, round: int = 1, **more: Any) -> State:
    """The state while a round runs."""
    return State(0, round, world, "a.host", 29500, 2, 4, **more)


def record_of(stage: Stage, node: Node) -> NodeRecord:
    """What the service holds of a node."""
    assert node.record is not None
    held = stage.read(node.record.key)
    assert held is not None
    return decode(NodeRecord, held.payload)


def intend(stage: Stage, name: str) -> None:
    """Let a leader say that it is about to form a round."""
    stage.put(intent_key(1).replace("1", name), Leadership("b", 0, 2, 4).encode())


class TestWatching:
    def test_a_node_looks_once_and_then_waits_for_changes(self, stage: Stage) -> None:
        node = stage.node()
        node.view = None
        watch = stage.walk(member.watch(node))
        assert watch.step == ReadAll(CONTROL, node.soon(), None)
        watch.go()
        assert isinstance(watch.step, Wait)
        assert watch.step.deadline == stage.now + member.WATCH_SLICE
        stage.publish(running("b", "c"))
        assert isinstance(watch.go(), Tell)
        watch.to(Wait)
        assert node.state == running("b", "c")

    def test_while_nobody_leads_it_looks_more_often(self, stage: Stage) -> None:
        node = stage.enrolled()
        watch = stage.walk(member.watch(node))
        assert isinstance(watch.step, Wait)
        assert watch.step.deadline == stage.now + member.LEADERLESS
        watch.go()
        assert isinstance(watch.step, Put)
        assert watch.step.key == LEADER_KEY

    @pytest.mark.parametrize("error", [AWAY, RendezvousStateError("corrupt")])
    def test_what_has_failed_is_read_again_after_a_pause(self, stage: Stage, error: RendezvousError) -> None:
        node = stage.node()
        watch = stage.walk(member.watch(node))
        assert isinstance(watch.throw(error), Sleep)
        watch.go()
        assert isinstance(watch.step, Wait if error is AWAY else ReadAll)

    def test_it_ends_when_the_node_closes(self, stage: Stage) -> None:
        node = stage.node()
        watch = stage.walk(member.watch(node))
        node.closing = True
        assert watch.go() is None


class TestFirstLook:
    @pytest.fixture
    def node(self, stage: Stage) -> Node:
        node = stage.node()
        node.view = None
        return node

    def test_it_ends_when_the_service_was_seen(self, stage: Stage, node: Node) -> None:
        look = stage.walk(member.first_look(node, stage.now + 30.0))
        assert look.step == Changed(stage.now + 30.0)
        stage.look(node)
        assert look.send(None) is None

    def test_a_service_that_was_not_seen_until_the_deadline_could_not_be_reached(
        self, stage: Stage, node: Node
    ) -> None:
        look = stage.walk(member.first_look(node, stage.now + 30.0))
        node.troubled(AWAY)
        with pytest.raises(RendezvousConnectionError, match=r"could not be reached within 30\.0 s: away"):
            look.go()

    def test_a_service_that_answers_what_cannot_be_used_is_not_unreachable(self, stage: Stage, node: Node) -> None:
        look = stage.walk(member.first_look(node, stage.now + 30.0))
        node.fail(WATCH, RendezvousStateError("corrupt"))
        with pytest.raises(RendezvousStateError, match="corrupt"):
            look.go()

    def test_a_service_that_is_away_now_is_unreachable_whatever_it_has_answered(self, stage: Stage, node: Node) -> None:
        look = stage.walk(member.first_look(node, stage.now + 30.0))
        node.fail(WATCH, RendezvousStateError("corrupt"))
        node.troubled(AWAY)
        with pytest.raises(RendezvousConnectionError, match="could not be reached"):
            look.go()

    def test_a_service_of_which_nothing_was_heard_gave_no_answer(self, stage: Stage, node: Node) -> None:
        with pytest.raises(RendezvousConnectionError, match="no answer"):
            stage.run(member.first_look(node, stage.now + 30.0))

    def test_an_error_that_lasts_is_not_waited_out(self, stage: Stage, node: Node) -> None:
        look = stage.walk(member.first_look(node, stage.now + 30.0))
        node.fail(WATCH, RendezvousDeniedError("wrong password"))
        with pytest.raises(RendezvousDeniedError, match="wrong password"):
            look.send(None)

    def test_it_ends_when_the_node_leaves(self, stage: Stage, node: Node) -> None:
        look = stage.walk(member.first_look(node, stage.now + 30.0))
        node.closing = True
        with pytest.raises(RendezvousClosedError, match="has left 'run' while it waited"):
            look.send(None)


class TestKeeping:
    def test_a_lease_is_renewed_once_an_interval(self, stage: Stage) -> None:
        node = stage.enrolled()
        began = stage.now
        keep = stage.walk(member.keep(node))
        for times in range(1, 4):
            assert keep.step == Sleep(began + times * INTERVAL)
            sent = began + times * INTERVAL
            assert node.lease is not None
            assert keep.go() == KeepAlive(node.lease, sent + INTERVAL)
            # What counts is when it was sent, not when the answer came.
            stage.now += 1.0
            keep.go()
            assert node.lease_until == sent + TTL

    @pytest.mark.parametrize("why", ["no record", "closing"])
    def test_who_is_not_there_renews_nothing(self, stage: Stage, why: str) -> None:
        node = stage.enrolled()
        keep = stage.walk(member.keep(node))
        if why == "no record":
            node.record = None
            assert isinstance(keep.go(), Sleep)
        else:
            node.closing = True
            assert keep.go() is None

    def test_a_renewal_that_fails_is_tried_again_after_a_pause(self, stage: Stage) -> None:
        node = stage.enrolled()
        keep = stage.walk(member.keep(node))
        keep.go()
        assert isinstance(keep.throw(AWAY), Sleep)
        pause = stage.now
        keep.to(KeepAlive)
        assert stage.now < pause + 0.1

    def test_who_has_lost_its_lease_comes_back_on_another(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.publish(running("a", "b"))
        stage.lead(node)
        node.round = 1
        node.contacted()
        lost = node.lease
        keep = stage.walk(member.keep(node))
        stage.end_leases()
        keep.to(OpenLease)
        assert not node.leading
        assert not node.may_trust_world()
        # The others may have lost theirs, too.
        assert node.trusted_in() == TTL
        keep.to(Sleep)
        assert node.lease is not lost
        assert node.lease in stage.memory.leases
        assert record_of(stage, node) == node.record
        assert node.may_trust_world()
        assert keep.step == Sleep(stage.now + INTERVAL)

    def test_who_comes_back_still_knows_who_leads(self, stage: Stage) -> None:
        stage.put(LEADER_KEY, Leadership("b", 0, 2, 4).encode())
        node = stage.enrolled()
        keep = stage.walk(member.keep(node))
        keep.to(KeepAlive)
        keep.send(False)
        assert node.leader == Leadership("b", 0, 2, 4)

    def test_an_answer_for_a_lease_that_is_replaced_says_nothing(self, stage: Stage) -> None:
        node = stage.enrolled()
        keep = stage.walk(member.keep(node))
        keep.to(KeepAlive)
        node.lease, node.lease_until = stage.service.open_lease(TTL, stage.now), stage.now + 1.0
        assert isinstance(keep.send(True), Sleep)
        assert node.lease_until == stage.now + 1.0

    @pytest.mark.parametrize("settled", [True, False])
    def test_registering_that_has_not_succeeded_yet_goes_on(self, stage: Stage, settled: bool) -> None:
        node = stage.enrolled()
        stage.publish(running("a", "b"))
        stage.look(node)
        node.lease, node.settled = None, settled
        keep = stage.walk(member.keep(node))
        assert isinstance(keep.go(), OpenLease)
        keep.to(Sleep)
        assert node.settled

    def test_what_has_begun_to_be_mended_is_mended(self, stage: Stage) -> None:
        node = stage.enrolled()
        assert node.record is not None
        stage.publish(running("a", "b"))
        stage.look(node)
        node.settled = False
        keep = stage.walk(member.keep(node))
        keep.to(KeepAlive)
        keep.go()
        assert isinstance(keep.step, Put)
        assert keep.step.payload == node.record.encode()
        keep.to(Sleep)
        assert node.settled

    def test_nothing_is_mended_in_a_run_that_is_over(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.publish(running("a", "b", closed=ENOUGH))
        stage.look(node)
        node.settled = False
        keep = stage.walk(member.keep(node))
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)

    @pytest.mark.parametrize("settled", [True, False])
    def test_the_keeper_does_not_wait_for_a_caller_who_writes_the_record(self, stage: Stage, settled: bool) -> None:
        node = stage.enrolled()
        node.writing, node.settled = True, settled
        keep = stage.walk(member.keep(node))
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)


class TestRemoval:
    @pytest.fixture
    def node(self, stage: Stage) -> Node:
        node = stage.enrolled()
        stage.publish(running("a", "b"))
        stage.look(node)
        return node

    def finds_no_state(self, stage: Stage, node: Node) -> Walk[None]:
        """The lane that keeps its lease, about to read a state that is gone."""
        stage.service.delete(STATE_KEY, stage.now)
        stage.look(node)
        keep = stage.walk(member.keep(node))
        keep.to(Read)
        return keep

    def test_who_keeps_its_lease_while_the_state_goes_knows_that_the_run_was_removed(
        self, stage: Stage, node: Node
    ) -> None:
        stage.service.delete(STATE_KEY, stage.now)
        stage.look(node)
        assert node.closed() is None
        keep = stage.walk(member.keep(node))
        keep.to(KeepAlive)
        assert keep.go() == Read(STATE_KEY, node.soon())
        # The service may have forgotten everything, the lease too, after it has renewed that.
        assert node.lease is not None
        assert keep.go() == KeepAlive(node.lease, node.soon())
        assert node.closed() is None
        keep.go()
        assert node.closed() == Closed("", "the run was removed from the service", done=False)
        assert node.held is None
        # That is certain now, and not asked again.
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)

    def test_a_purge_of_an_earlier_attempt_removes_nothing_of_the_next(self, stage: Stage) -> None:
        stage.publish(running("x", "y", closed=Closed("x", "done", done=True)))
        node = stage.enrolled(attempt=1)
        stage.look(node)
        keep = self.finds_no_state(stage, node)
        keep.to(Sleep)
        assert node.closed() is None
        assert not node.removed
        # Nothing is there to write over.
        assert node.held is None

    def test_a_service_that_forgets_everything_after_a_keep_alive_has_not_removed_the_run(
        self, stage: Stage, node: Node
    ) -> None:
        keep = stage.walk(member.keep(node))
        keep.to(KeepAlive)
        node.vanished = True
        assert isinstance(keep.send(True), Read)
        stage.forget()
        assert isinstance(keep.go(), KeepAlive)
        assert isinstance(keep.go(), OpenLease)
        keep.to(Sleep)
        assert node.closed() is None
        # Its fence has put the state back.
        there = stage.read(STATE_KEY)
        assert there is not None
        assert there.payload == running("a", "b").encode()

    def test_a_lease_that_another_lane_replaces_meanwhile_proves_nothing(self, stage: Stage, node: Node) -> None:
        keep = self.finds_no_state(stage, node)
        assert isinstance(keep.go(), KeepAlive)
        node.lease = stage.service.open_lease(TTL, stage.now)
        assert isinstance(keep.send(False), Sleep)
        assert node.closed() is None

    def test_a_lease_that_is_not_settled_may_be_younger_than_the_loss(self, stage: Stage, node: Node) -> None:
        stage.service.delete(STATE_KEY, stage.now)
        stage.look(node)
        node.settled, node.writing = False, True
        keep = stage.walk(member.keep(node))
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)
        assert node.closed() is None

    def test_a_state_that_is_there_after_all_is_looked_at(self, stage: Stage, node: Node) -> None:
        node.look_at_state(None)
        stage.publish(running("a", "b", round=2))
        keep = stage.walk(member.keep(node))
        keep.to(Read)
        keep.to(Sleep)
        assert node.closed() is None
        assert node.state == running("a", "b", round=2)
        assert not node.vanished

    def test_nothing_is_asked_while_the_state_is_there(self, stage: Stage, node: Node) -> None:
        keep = stage.walk(member.keep(node))
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)

    def test_a_state_that_another_lane_brings_back_was_not_removed(self, stage: Stage, node: Node) -> None:
        keep = self.finds_no_state(stage, node)
        node.held = None
        assert isinstance(keep.go(), Sleep)
        assert node.closed() is None

    def test_a_state_that_comes_back_during_the_keep_alive_was_not_removed(self, stage: Stage, node: Node) -> None:
        keep = self.finds_no_state(stage, node)
        assert isinstance(keep.go(), KeepAlive)
        stage.publish(running("a", "b", round=2))
        stage.look(node)
        assert isinstance(keep.go(), Sleep)
        assert node.closed() is None
        assert node.held is not None


class TestEnrolling:
    """What a node does to have its record in the service."""

    @pytest.fixture
    def node(self, stage: Stage) -> Node:
        node = stage.node()
        node.record = NodeRecord("a", 0, 0, 2, 4, "a.host", 1)
        return node

    def enroll(self, stage: Stage, node: Node, seconds: float = 60.0) -> Walk[None]:
        return stage.walk(member._enroll(node, stage.now + seconds))

    def test_a_new_node_opens_a_lease_and_writes_its_record_and_that_is_all(self, stage: Stage, node: Node) -> None:
        lane = self.enroll(stage, node)
        assert lane.step == OpenLease(TTL, node.soon())
        began = stage.now
        stage.now += 2.0
        put = lane.go()
        assert node.lease_until == began + TTL
        assert isinstance(put, Put)
        assert (put.after, put.lease, put.deadline) == (None, node.lease, node.soon())
        assert lane.go() is None
        assert record_of(stage, node) == node.record
        assert node.settled
        assert not node.writing

    def test_its_calls_end_with_the_callers_time(self, stage: Stage, node: Node) -> None:
        lane = self.enroll(stage, node, 1.0)
        opened = lane.to(OpenLease)
        put = lane.to(Put)
        assert opened.deadline == put.deadline == stage.now + 1.0

    def test_two_lanes_do_not_write_at_once(self, stage: Stage, node: Node) -> None:
        node.writing = True
        lane = self.enroll(stage, node)
        assert lane.step == Changed(stage.now + 60.0)
        node.writing = False
        lane.send(None)
        assert isinstance(lane.step, OpenLease)
        assert node.writing

    @pytest.mark.parametrize(("trouble", "why"), [(AWAY, "away"), (None, "its last call is not over")])
    def test_who_waits_for_another_lane_until_its_deadline_says_why(
        self, stage: Stage, node: Node, trouble: RendezvousConnectionError | None, why: str
    ) -> None:
        node.writing, node.trouble = True, trouble
        lane = self.enroll(stage, node)
        with pytest.raises(RendezvousConnectionError, match=f"it is being written: {why}"):
            lane.go()
        assert node.writing

    @pytest.mark.parametrize("writing", [True, False])
    def test_a_node_that_closes_writes_nothing_more(self, stage: Stage, node: Node, writing: bool) -> None:
        node.closing, node.writing = True, writing
        assert self.enroll(stage, node).step is None

    @pytest.mark.parametrize("at", [OpenLease, Put])
    def test_what_does_not_answer_is_tried_again_after_a_pause(self, stage: Stage, node: Node, at: Any) -> None:
        lane = self.enroll(stage, node)
        for _ in range(6):
            lane.to(at)
            assert isinstance(lane.throw(AWAY), Sleep)
        lane.end()
        assert record_of(stage, node) == node.record

    def test_what_does_not_answer_until_the_deadline_is_given_up(self, stage: Stage, node: Node) -> None:
        lane, began = self.enroll(stage, node), stage.now

        def fail() -> None:
            while lane.step is not None:
                lane.to(OpenLease)
                lane.throw(AWAY)

        with pytest.raises(RendezvousConnectionError, match="away"):
            fail()
        assert began + 58.0 < stage.now < began + 60.0
        assert not node.writing

    @pytest.mark.parametrize("error", [RendezvousDeniedError("no"), RendezvousStateError("corrupt")])
    def test_what_trying_again_does_not_mend_is_raised(self, stage: Stage, node: Node, error: RendezvousError) -> None:
        lane = self.enroll(stage, node)
        with pytest.raises(type(error)):
            lane.throw(error)
        assert not node.writing

    def test_a_backends_own_error_is_raised_if_it_lasts(self, stage: Stage, node: Node) -> None:
        lane, began = self.enroll(stage, node), stage.now

        def fail() -> None:
            while lane.step is not None:
                lane.to(OpenLease)
                lane.throw(OSError("oops"))

        with pytest.raises(OSError, match="oops"):
            fail()
        assert began + 1.0 <= stage.now < began + 3.0

    def test_a_record_that_changes_while_it_is_written_is_written_again(self, stage: Stage, node: Node) -> None:
        lane = self.enroll(stage, node)
        lane.to(Put)
        assert node.record is not None
        node.record = replace(node.record, last_round=1)
        lane.end()
        assert record_of(stage, node).last_round == 1

    @pytest.mark.parametrize("change", [{"record": None}, {"closing": True}])
    def test_a_record_that_is_of_no_use_any_more_is_not(self, stage: Stage, node: Node, change: dict[str, Any]) -> None:
        lane = self.enroll(stage, node)
        lane.to(OpenLease)
        vars(node).update(change)
        assert lane.go() is None

    def test_a_write_of_its_own_that_was_late_is_written_over(self, stage: Stage, node: Node) -> None:
        assert node.record is not None
        before = stage.put(node.record.key, replace(node.record, address="old").encode())
        lane = self.enroll(stage, node)
        lane.to(Put)
        lease = node.lease
        again = lane.go()
        assert isinstance(again, Put)
        assert again.after == before
        assert again.lease is node.lease is lease
        lane.end()
        assert record_of(stage, node) == node.record

    @pytest.mark.parametrize("there", [False, True], ids=["the first write", "a later one"])
    def test_a_lease_on_which_nothing_can_be_written_is_over(self, stage: Stage, node: Node, there: bool) -> None:
        if there:
            stage.run(member._enroll(node, stage.now + 60.0))
            assert node.record is not None
            node.record = replace(node.record, last_round=1)
        lane = self.enroll(stage, node)
        lane.to(Put)
        with stage.memory.changed:
            stage.memory.leases.clear()
        lease = node.lease
        assert isinstance(lane.go(), OpenLease)
        lane.end()
        assert node.lease is not lease
        assert record_of(stage, node) == node.record

    def test_leases_that_are_over_one_after_the_other_are_given_up(self, stage: Stage, node: Node) -> None:
        lane = self.enroll(stage, node)
        for _ in range(3):
            lane.to(Put)
            stage.memory.leases.clear()
            lane.go()
        lane.to(Put)
        stage.now += 60.0
        stage.memory.leases.clear()
        with pytest.raises(RendezvousConnectionError, match="each lease was over before the record was written"):
            lane.go()


class TestFence:
    """What a node looks at, after its lease was lost and its record is there again."""

    @pytest.fixture
    def node(self, stage: Stage) -> Node:
        node = stage.enrolled()
        stage.publish(running("a", "b"))
        stage.look(node)
        stage.end_leases()
        node.lease = None
        return node

    def test_a_look_is_enough_if_no_leader_forms_a_round(self, stage: Stage, node: Node) -> None:
        lane = stage.walk(member._enroll(node, stage.now + 60.0))
        looked = lane.to(ReadAll)
        assert looked == ReadAll(CONTROL, node.soon())
        assert not node.settled
        assert lane.go() is None
        assert node.settled
        assert stage.writes(STATE_KEY) == 1

    @pytest.mark.parametrize(("intent", "writes"), [("1", 1), ("2", 2), ("3", 2), ("what?", 2)])
    def test_a_leader_that_is_about_to_form_the_next_round_loses_its_write(
        self, stage: Stage, node: Node, intent: str, writes: int
    ) -> None:
        intend(stage, intent)
        stage.run(member._enroll(node, stage.now + 60.0))
        assert stage.writes(STATE_KEY) == writes
        assert node.settled
        # Nothing but the epoch is new.
        assert node.state == running("a", "b")

    def test_what_others_write_meanwhile_is_looked_at_again(self, stage: Stage, node: Node) -> None:
        intend(stage, "2")
        lane = stage.walk(member._fence(node, stage.now + 1.0))
        assert lane.to(ReadAll).deadline == stage.now + 1.0
        assert lane.to(Put).deadline == stage.now + 1.0
        stage.publish(running("b", "c", round=2))
        lane.go()
        lane.to(ReadAll)
        lane.end()
        assert node.state == running("b", "c", round=2)
        assert stage.writes(STATE_KEY) == 2

    def test_a_node_that_has_seen_no_state_fences_what_is_there(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.publish(running("a", "b"))
        intend(stage, "2")
        stage.run(member._fence(node, stage.now + 60.0))
        assert node.state == running("a", "b")
        assert stage.writes(STATE_KEY) == 2

    def test_where_there_is_no_state_there_is_nothing_to_fence(self, stage: Stage) -> None:
        node = stage.enrolled()
        lane = stage.walk(member._fence(node, stage.now + 60.0))
        lane.to(ReadAll)
        assert lane.go() is None
        assert STATE_KEY not in stage.names()

    def test_a_service_that_forgot_is_told_what_the_state_was(self, stage: Stage, node: Node) -> None:
        stage.forget()
        stage.run(member._enroll(node, stage.now + 60.0))
        held = stage.read(STATE_KEY)
        assert held is not None
        assert decode(State, held.payload) == running("a", "b")
        assert node.held == held
        assert node.settled

    def test_if_others_have_begun_anew_meanwhile_theirs_stands(self, stage: Stage, node: Node) -> None:
        stage.forget()
        lane = stage.walk(member._fence(node, stage.now + 60.0))
        lane.to(Put)
        stage.publish(running("b", "c"))
        lane.end()
        assert node.state == running("b", "c")
        assert stage.writes(STATE_KEY) == 1

    def test_a_world_of_a_run_that_is_over_is_not_trusted_again(self, stage: Stage, node: Node) -> None:
        stage.publish(running("a", "b", closed=ENOUGH))
        stage.run(member._enroll(node, stage.now + 60.0))
        assert not node.settled
        assert not node.may_trust_world()

    def test_a_node_that_closes_looks_at_nothing_more(self, stage: Stage, node: Node) -> None:
        node.closing = True
        assert stage.walk(member._fence(node, stage.now + 60.0)).step is None


def test_who_keeps_its_lease_has_no_trouble(stage: Stage) -> None:
    node = stage.enrolled()
    keep = stage.walk(member.keep(node))
    keep.to(KeepAlive)
    keep.throw(AWAY)
    assert str(node.failure()) == "away"
    keep.to(KeepAlive)
    keep.go()
    assert node.failure() is None
    assert node.failed(KEEP) == 0
