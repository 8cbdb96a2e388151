"""How a node closes a run or leaves it, step by step: what is written, and what is removed when."""

from dataclasses import replace
from typing import Any

import pytest

from rdzv.engine import member
from rdzv.engine.node import Node
from rdzv.engine.records import (
    LEADER_KEY,
    NOTICE_KEY,
    STATE_KEY,
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
from rdzv.engine.steps import Delete, Put, Read, ReadAll, Revoke, Tell
from rdzv.errors import RendezvousConnectionError

from .lanes import Stage

ENOUGH = Closed("b", "enough", done=False)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def running(*world: str, round: int = 1, **more: Any) -> State:
    """The state while a round runs."""
    fields: dict[str, Any] = {"attempt": 0, **more}
    return State(round=round, world=world, address="a.host", port=29500, min_nodes=2, max_nodes=4, **fields)


def state_of(stage: Stage) -> State:
    """What the service holds."""
    held = stage.read(STATE_KEY)
    assert held is not None
    return decode(State, held.payload)


def record(name: str, attempt: int = 0, left: str | None = None) -> NodeRecord:
    """What a node says of itself."""
    return NodeRecord(name, attempt, 0, 2, 4, f"{name}.host", 1, left=left)


def write(stage: Stage, *records: NodeRecord) -> None:
    """Let the service hold what nodes say of themselves."""
    for one in records:
        stage.put(one.key, one.encode())


class TestClosing:
    def close(self, node: Node, stage: Stage, *, done: bool = False) -> Any:
        return stage.walk(member.close(node, "enough", done, stage.now + 30.0))

    @pytest.mark.parametrize("done", [True, False])
    def test_it_is_told_who_closed_the_run_and_why(self, stage: Stage, done: bool) -> None:
        node = stage.enrolled()
        stage.publish(running("a", "b"))
        closing = self.close(node, stage, done=done)
        assert closing.step == Read(STATE_KEY, stage.now + 30.0)
        assert closing.go().deadline == stage.now + 30.0
        closing.end()
        closed = Closed("a", "enough", done)
        assert state_of(stage) == running("a", "b", closed=closed)
        # It knows it at once: the watch may be slower.
        assert node.closed() == closed
        assert [type(step) for step in closing.taken] == [Read, Put, Tell]

    def test_a_run_without_a_state_gets_one_that_is_closed(self, stage: Stage) -> None:
        self.close(stage.node(), stage).end()
        closed = Closed("a", "enough", done=False)
        assert state_of(stage) == State(0, 0, (), "", 0, 2, 4, closed)

    def test_the_first_reason_stands(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.publish(running("a", "b", closed=Closed("b", "first", done=True)))
        self.close(node, stage).end()
        assert stage.writes(STATE_KEY) == 1
        assert node.closed() == Closed("b", "first", done=True)

    def test_a_round_that_comes_meanwhile_is_closed_too(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.publish(running("a", "b"))
        closing = self.close(node, stage)
        closing.to(Put)
        stage.publish(running("b", "c", round=2))
        closing.end()
        assert state_of(stage) == running("b", "c", round=2, closed=Closed("a", "enough", done=False))


class TestLeaving:
    def leave(self, node: Node, stage: Stage) -> Any:
        return stage.walk(member.leave(node, "drained", stage.now + 30.0))

    def test_a_node_that_never_wrote_anything_asks_for_nothing(self, stage: Stage) -> None:
        assert self.leave(stage.node(), stage).step is None

    def test_its_record_stays_and_says_why(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.publish(running("a", "b"))
        stage.look(node)
        before, lease = node.record, node.lease
        write(stage, record("b"))
        leaving = self.leave(node, stage)
        assert before is not None
        assert isinstance(leaving.step, Put)
        assert (leaving.step.lease, leaving.step.deadline) == (lease, stage.now + 30.0)
        leaving.end()
        held = stage.read(before.key)
        assert held is not None
        assert decode(NodeRecord, held.payload) == replace(before, left="drained")
        assert lease in stage.memory.leases
        assert (node.record, node.lease) == (None, None)

    @pytest.mark.parametrize("why", ["closed", "only waiting to come back"])
    def test_where_nobody_reads_the_reason_the_record_goes_at_once(self, stage: Stage, why: str) -> None:
        node = stage.enrolled()
        assert node.record is not None
        key = node.record.key
        if why == "closed":
            stage.publish(running("a", "b", closed=ENOUGH))
            stage.look(node)
        else:
            node.record = None
        leaving = self.leave(node, stage)
        assert isinstance(leaving.step, Revoke)
        leaving.end()
        assert key not in stage.names()

    def test_a_lease_that_cannot_be_revoked_runs_out(self, stage: Stage) -> None:
        node = stage.enrolled()
        node.record = None
        leaving = self.leave(node, stage)
        leaving.to(Revoke)
        leaving.throw(RendezvousConnectionError("away"))
        leaving.end()

    def test_a_record_without_a_lease_is_not_written_again(self, stage: Stage) -> None:
        node = stage.enrolled()
        node.lease = None
        assert self.leave(node, stage).step == Read(LEADER_KEY, stage.now + 30.0)

    def test_a_leader_resigns_and_another_may_be_elected_at_once(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.lead(node)
        write(stage, record("b"))
        self.leave(node, stage).end()
        assert not node.leading
        assert LEADER_KEY not in stage.names()

    def test_while_another_leads_nothing_is_removed(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.publish(running("a"))
        stage.put("store/1/key", b"value")
        stage.put(LEADER_KEY, Leadership("b", 0, 2, 4).encode())
        stage.look(node)
        leaving = self.leave(node, stage)
        leaving.to(Read)
        assert leaving.go() is None
        assert {LEADER_KEY, "store/1/key"} <= stage.names()

    def test_a_superseded_node_removes_what_it_has_written_itself(self, stage: Stage) -> None:
        node = stage.enrolled()
        stage.publish(running("b", "c", attempt=1))
        stage.put("store/1/key", b"value")
        stage.look(node)
        leaving = self.leave(node, stage)
        assert leaving.to(Delete) == Delete(node_key(0, "a"), stage.now + 30.0)
        leaving.end()
        assert stage.names() == {STATE_KEY, "store/1/key"}


class TestCleaningUp:
    """The last one out removes what nobody will use again."""

    @pytest.fixture
    def node(self, stage: Stage) -> Node:
        return stage.enrolled()

    def leave(self, stage: Stage, node: Node, *records: NodeRecord, **more: Any) -> set[str]:
        """What is there after a node has left beside others, with stores of every round."""
        state: State | None = more.get("state")
        if state is not None:
            stage.publish(state)
            for number in range(state.round + 1):
                stage.put(f"store/{number}/key", b"value")
        write(stage, *records)
        stage.put(NOTICE_KEY, more.get("notice", Notice(0, "gathering", 1, 0)).encode())
        stage.look(node)
        leaving = stage.walk(member.leave(node, "drained", stage.now + 30.0))
        leaving.end()
        assert {step.deadline for step in leaving.taken if isinstance(step, Delete | ReadAll)} <= {stage.now + 30.0}
        return stage.names()

    def test_where_no_world_ever_was_records_and_news_go(self, stage: Stage, node: Node) -> None:
        assert self.leave(stage, node, record("b", left="drained")) == set()

    @pytest.mark.parametrize("state", [None, running("a", "b")], ids=["none", "round 1"])
    def test_the_store_of_a_round_that_it_has_not_heard_of_stays(
        self, stage: Stage, node: Node, state: State | None
    ) -> None:
        unheard = f"store/{1 if state is None else 2}/key"
        stage.put(unheard, b"value")
        assert unheard in self.leave(stage, node, record("b", left="drained"), state=state)

    def test_beside_another_node_nothing_goes(self, stage: Stage, node: Node) -> None:
        there = self.leave(stage, node, record("b"))
        assert there == {NOTICE_KEY, node_key(0, "a"), node_key(0, "b")}

    def test_who_leaves_last_removes_the_stores_too(self, stage: Stage, node: Node) -> None:
        state = running("a", "b", round=5)
        there = self.leave(stage, node, record("b", left="drained"), state=state)
        # A leader removes the earlier ones.
        assert there == {STATE_KEY, NOTICE_KEY, *(f"store/{number}/key" for number in (0, 1, 2))}

    def test_the_stores_of_the_first_rounds_have_low_numbers(self, stage: Stage, node: Node) -> None:
        there = self.leave(stage, node, record("b", left="drained"), state=running("a", "b"))
        assert there == {STATE_KEY, NOTICE_KEY, "store/0/key"}

    def test_a_member_without_a_record_keeps_its_store(self, stage: Stage, node: Node) -> None:
        there = self.leave(stage, node, state=running("a", "b"))
        assert there == {STATE_KEY, NOTICE_KEY, "store/0/key", "store/1/key", node_key(0, "a")}

    def test_a_member_that_is_known_to_have_left_keeps_nothing(self, stage: Stage, node: Node) -> None:
        notice = Notice(1, "re-forming", 1, 0, (Loss("b", 1, True, "drained"),))
        there = self.leave(stage, node, state=running("a", "b"), notice=notice)
        assert there == {STATE_KEY, NOTICE_KEY, "store/0/key"}

    def test_the_last_notice_says_who_has_left_and_why(self, stage: Stage, node: Node) -> None:
        stage.publish(running("a", "b"))
        stage.put(NOTICE_KEY, Notice(1, "re-forming", 1, 0, (Loss("b", 1, True, "too hot"),)).encode())
        stage.look(node)
        leaving = stage.walk(member.leave(node, "drained", stage.now + 30.0))
        assert leaving.to_write(NOTICE_KEY).deadline == stage.now + 30.0
        leaving.end()
        held = stage.read(NOTICE_KEY)
        assert held is not None
        lost = (Loss("a", 0, True, "drained"), Loss("b", 1, True, "too hot"))
        assert decode(Notice, held.payload) == Notice(1, "abandoned", 0, 0, lost)
        # One call, on top of what the node knew.
        assert sum(isinstance(step, Put) and step.key == NOTICE_KEY for step in leaving.taken) == 1

    def test_news_of_a_leader_that_came_meanwhile_stay(self, stage: Stage, node: Node) -> None:
        stage.publish(running("a", "b"))
        write(stage, record("b", left="drained"))
        stage.look(node)
        leaving = stage.walk(member.leave(node, "drained", stage.now + 30.0))
        leaving.to_write(NOTICE_KEY)
        write(stage, record("c"))
        news = Notice(1, "re-forming", 1, 0)
        stage.put(NOTICE_KEY, news.encode())
        leaving.end()
        held = stage.read(NOTICE_KEY)
        assert held is not None
        assert decode(Notice, held.payload) == news
        assert node_key(0, "b") in stage.names()

    def test_a_later_round_that_it_has_not_heard_of_keeps_its_last_notice(self, stage: Stage, node: Node) -> None:
        stage.publish(running("a", "b"))
        stage.look(node)
        stage.publish(running("b", "c", round=2))
        lost = (Loss("b", 0, True, "disk full"), Loss("c", 1, True, "drained"))
        stage.put(NOTICE_KEY, Notice(2, "abandoned", 0, 0, lost).encode())
        stage.run(member.leave(node, "drained", stage.now + 30.0))
        held = stage.read(NOTICE_KEY)
        assert held is not None
        assert decode(Notice, held.payload) == Notice(2, "abandoned", 0, 0, lost)

    def test_of_a_run_that_is_purged_meanwhile_nothing_stays(self, stage: Stage, node: Node) -> None:
        stage.publish(running("a", "b"))
        stage.put(NOTICE_KEY, Notice(1, "re-forming", 1, 0).encode())
        stage.look(node)
        leaving = stage.walk(member.leave(node, "drained", stage.now + 30.0))
        leaving.to_write(NOTICE_KEY)
        stage.forget()
        leaving.end()
        assert stage.names() == set()

    def test_a_closed_run_gets_no_last_notice(self, stage: Stage, node: Node) -> None:
        stage.publish(running("a", "b", closed=ENOUGH))
        stage.look(node)
        leaving = stage.walk(member.leave(node, "drained", stage.now + 30.0))
        leaving.end()
        assert not any(isinstance(step, Put) and step.key == NOTICE_KEY for step in leaving.taken)

    def test_of_a_closed_run_only_the_state_stays(self, stage: Stage, node: Node) -> None:
        # Where the service has no leases, what is dead stays.
        stage.put("beats/0/lease", b"7")
        stage.put(intent_key(2), Leadership("b", 0, 2, 4).encode())
        stage.put(LEADER_KEY, b"", deleted=True)
        there = self.leave(stage, node, record("b", left="drained"), state=running("a", "b", closed=ENOUGH))
        assert there == {STATE_KEY, "store/0/key"}
        assert not stage.memory.under("run/control/leader")

    def test_a_closed_run_is_cleaned_by_who_goes_last(self, stage: Stage, node: Node) -> None:
        state = running("a", "b", closed=ENOUGH)
        there = self.leave(stage, node, record("b"), state=state)
        assert there == {STATE_KEY, NOTICE_KEY, "store/0/key", "store/1/key", node_key(0, "b")}

    def test_what_an_attempt_before_has_left_goes_with_the_run(self, stage: Stage) -> None:
        node = stage.enrolled(attempt=1)
        write(stage, record("old", left="drained"))
        stage.put("beats/0/lease", b"7")
        for number in (2, 3):
            stage.put(intent_key(number), Leadership("b", 0, 2, 4).encode())
        state = running("a", "b", attempt=1, closed=ENOUGH)
        # The intent of a later round is of a leader that knows more.
        assert self.leave(stage, node, state=state) == {STATE_KEY, "store/0/key", intent_key(3)}
