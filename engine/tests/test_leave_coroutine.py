"""How a node closes a run or leaves it, effect by effect: what is written, and what is removed when."""

from dataclasses import replace
from typing import Any

import pytest
from rdzv_core.backend import STATE_KEY
from rdzv_core.errors import RendezvousConnectionError

from rdzv.engine import leader, leave, records, register
from rdzv.engine.codec import decode
from rdzv.engine.effects import Delete, Emit, Put, Read, ReadAll, Revoke
from rdzv.engine.node import Node
from rdzv.engine.notices import drain_key, failure_key, quarantine_key
from rdzv.engine.records import Closed, Departure, LeaderRecord, NodeRecord, Phase, RunStatus, State
from rdzv.outcome import Outcome

from .coroutines import INTERVAL, Harness

ENOUGH = Closed("b", "enough", done=False)
STORES = ("rounds/0/store/key", "rounds/1/store/key")
"""Those of the first two rounds."""
RECORDS = {records.node_key(0, "a"), records.node_key(0, "b")}
"""What the nodes of most tests say of themselves."""


@pytest.fixture
def harness() -> Harness:
    return Harness()


def running(*world: str, round: int = 1, **more: Any) -> State:
    """The state while a round runs."""
    fields: dict[str, Any] = {"attempt": 0, **more}
    return State(round=round, world=world, address="a.host", port=29500, min_nodes=2, max_nodes=4, **fields)


def state_of(harness: Harness) -> State:
    """What the service holds."""
    held = harness.read(STATE_KEY)
    assert held is not None
    return decode(State, held.payload)


def record(name: str, attempt: int = 0, left: str | None = None) -> NodeRecord:
    """What a node says of itself."""
    return NodeRecord(name, attempt, 0, 2, 4, f"{name}.host", 1, left=left)


def write(harness: Harness, *others: NodeRecord) -> None:
    """Let the service hold what nodes say of themselves."""
    for one in others:
        harness.put(one.key, one.encode())


class TestClosing:
    def close(self, node: Node, harness: Harness, *, done: bool = False) -> Any:
        return harness.stepper(leave.close(node, "enough", done, harness.now + 30.0))

    @pytest.mark.parametrize("done", [True, False])
    def test_it_learns_who_closed_the_run_and_why(self, harness: Harness, done: bool) -> None:
        node = harness.registered()
        harness.publish(running("a", "b"))
        closing = self.close(node, harness, done=done)
        assert closing.effect == Read(STATE_KEY, harness.now + 30.0)
        assert closing.go().deadline == harness.now + 30.0
        closing.end()
        closed = Closed("a", "enough", done)
        assert state_of(harness) == running("a", "b", closed=closed)
        # It knows it at once: the watch may be slower.
        assert node.closed() == closed
        assert [type(effect) for effect in closing.taken] == [Read, Put, Emit]

    def test_a_run_without_a_state_gets_one_that_is_closed(self, harness: Harness) -> None:
        self.close(harness.node(), harness).end()
        closed = Closed("a", "enough", done=False)
        assert state_of(harness) == State(0, 0, (), "", 0, 2, 4, closed)

    def test_the_first_reason_stands(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running("a", "b", closed=Closed("b", "first", done=True)))
        self.close(node, harness).end()
        assert harness.writes(STATE_KEY) == 1
        assert node.closed() == Closed("b", "first", done=True)

    def test_a_round_that_comes_meanwhile_is_closed_too(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running("a", "b"))
        closing = self.close(node, harness)
        closing.to(Put)
        harness.publish(running("b", "c", round=2))
        closing.end()
        assert state_of(harness) == running("b", "c", round=2, closed=Closed("a", "enough", done=False))


class TestLeaving:
    def leave(self, node: Node, harness: Harness) -> Any:
        return harness.stepper(leave.leave(node, "drained", harness.now + 30.0))

    def test_a_node_that_never_wrote_anything_asks_for_nothing(self, harness: Harness) -> None:
        assert self.leave(harness.node(), harness).effect is None

    def test_its_record_stays_and_says_why(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running("a", "b"))
        harness.show(node)
        before, lease = node.registration.record, node.registration.lease
        write(harness, record("b"))
        leaving = self.leave(node, harness)
        assert before is not None
        assert isinstance(leaving.effect, Put)
        assert (leaving.effect.lease, leaving.effect.deadline) == (lease, harness.now + 30.0)
        leaving.end()
        held = harness.read(before.key)
        assert held is not None
        assert decode(NodeRecord, held.payload) == replace(before, left="drained")
        assert lease in harness.memory.leases
        assert (node.registration.record, node.registration.lease) == (None, None)

    @pytest.mark.parametrize(("world", "outcome"), [(running("a", "b"), Outcome()), (running("a", "b", round=2), None)])
    def test_its_failure_is_that_of_the_round_that_it_was_in(
        self, harness: Harness, world: State, outcome: Outcome | None
    ) -> None:
        node = harness.registered()
        node.round, node.reckoning.outcome = 1, Outcome()
        # It has not entered the second one, and leaves it although its program has not failed there.
        harness.publish(world)
        harness.show(node)
        assert node.registration.record is not None
        key = node.registration.record.key
        write(harness, record("b"))
        self.leave(node, harness).end()
        held = harness.read(key)
        assert held is not None
        assert decode(NodeRecord, held.payload).outcome == outcome

    @pytest.mark.parametrize("why", ["closed", "only waiting to come back"])
    def test_where_no_node_reads_the_reason_the_record_goes_at_once(self, harness: Harness, why: str) -> None:
        node = harness.registered()
        assert node.registration.record is not None
        key = node.registration.record.key
        if why == "closed":
            harness.publish(running("a", "b", closed=ENOUGH))
            harness.show(node)
        else:
            node.registration.record = None
        leaving = self.leave(node, harness)
        assert isinstance(leaving.effect, Revoke)
        leaving.end()
        assert key not in harness.names()

    def test_a_lease_that_cannot_be_revoked_is_an_error_after_all_else_is_done(self, harness: Harness) -> None:
        node = harness.registered()
        node.registration.record = None
        leaving = self.leave(node, harness)
        leaving.to(Revoke)
        leaving.throw(RendezvousConnectionError("away"))
        with pytest.raises(RendezvousConnectionError, match="away"):
            leaving.end()
        assert [type(effect) for effect in leaving.taken] == [Revoke, Read, ReadAll, ReadAll]

    def test_a_lease_that_was_not_revoked_before_is_revoked_at_the_end(self, harness: Harness) -> None:
        node = harness.registered()
        assert (lease := node.registration.lease) is not None
        given_up = harness.stepper(register.deregister(node, harness.now + 1.0))
        given_up.to(Revoke)
        given_up.throw(RendezvousConnectionError("away"))
        leaving = self.leave(node, harness)
        assert leaving.effect == Revoke(lease, harness.now + 30.0)
        leaving.end()
        assert lease not in harness.memory.leases
        assert node.registration.unrevoked is None

    def test_a_reason_that_cannot_be_written_is_an_error_after_all_else_is_done(self, harness: Harness) -> None:
        node = harness.registered()
        harness.lead(node)
        write(harness, record("b"))
        leaving = self.leave(node, harness)
        leaving.throw(RendezvousConnectionError("away"))
        with pytest.raises(RendezvousConnectionError, match="away"):
            leaving.end()
        assert records.LEADER_KEY not in harness.names()

    def test_a_record_without_a_lease_is_not_written_again(self, harness: Harness) -> None:
        node = harness.registered()
        node.registration.lease = None
        assert self.leave(node, harness).effect == Read(records.LEADER_KEY, harness.now + 30.0)

    def test_a_leader_resigns_and_another_may_be_elected_at_once(self, harness: Harness) -> None:
        node = harness.registered()
        harness.lead(node)
        write(harness, record("b"))
        self.leave(node, harness).end()
        assert not node.leading
        assert records.LEADER_KEY not in harness.names()

    @pytest.mark.parametrize("there", ["nothing", "a tombstone"])
    def test_a_claim_on_its_way_elects_no_node_that_has_left(self, harness: Harness, there: str) -> None:
        node = harness.registered()
        if there == "a tombstone":
            other = harness.registered("b")
            harness.lead(other)
            harness.run(leader.resign(other, harness.now + 5.0))
            harness.show(node)
            node.candidacy.stands_from = harness.now
        claim = harness.stepper(leader.elect(node, harness.now + 5.0))
        claim.to_write(records.LEADER_KEY)
        self.leave(node, harness).end()
        claim.go()
        assert records.LEADER_KEY not in harness.names()

    def test_while_another_leads_nothing_is_removed(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running("a"))
        harness.put("rounds/1/store/key", b"value")
        harness.put(records.LEADER_KEY, LeaderRecord("b", 0, 2, 4).encode())
        harness.show(node)
        leaving = self.leave(node, harness)
        leaving.to(Read)
        assert leaving.go() is None
        assert {records.LEADER_KEY, "rounds/1/store/key"} <= harness.names()

    def test_a_superseded_node_removes_what_it_has_written_itself(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running("b", "c", attempt=1))
        # That one is dead, as its heartbeat says: without it, it would seem to live.
        others = {"rounds/1/store/key", "heartbeats/0/dead"}
        for key in others:
            harness.put(key, b"value")
        harness.show(node)
        leaving = self.leave(node, harness)
        assert leaving.to(Delete) == Delete(records.node_key(0, "a"), harness.now + 30.0)
        leaving.end()
        assert harness.names() == {STATE_KEY} | others

    def test_a_superseded_node_that_is_the_last_of_a_closed_run_removes_the_rest(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running("a", "b", attempt=1, closed=ENOUGH))
        for key in ("rounds/1/store/key", failure_key(1), "heartbeats/1/b"):
            harness.put(key, b"value")
        harness.put(records.LEADER_KEY, b"", deleted=True)
        harness.show(node)
        self.leave(node, harness).end()
        assert harness.names() == {STATE_KEY}


class TestEnding:
    @pytest.mark.parametrize(
        ("interval", "error", "seconds"),
        [
            (20.0, None, 20.0),
            (0.5, None, leave.PATIENCE),
            (60.0, None, 30.0),
            (0.5, RendezvousConnectionError("away"), 0.5),
        ],
    )
    def test_leaving_takes_about_an_interval(
        self, harness: Harness, interval: float, error: RendezvousConnectionError | None, seconds: float
    ) -> None:
        node = harness.registered()
        node.interval = interval
        if error is not None:
            node.connection.on_error(error)
        ending = harness.stepper(leave.end(node, "drained", closes=False))
        assert isinstance(ending.effect, Put)
        assert ending.effect.deadline == harness.now + seconds

    @pytest.mark.parametrize(("error", "seconds"), [(None, 30.0), (RendezvousConnectionError("away"), INTERVAL)])
    def test_closing_has_the_close_timeout_and_in_an_outage_an_interval(
        self, harness: Harness, error: RendezvousConnectionError | None, seconds: float
    ) -> None:
        node = harness.registered()
        harness.publish(running("a", "b"))
        if error is not None:
            node.connection.on_error(error)
        ending = harness.stepper(leave.end(node, "it has shut down", closes=True))
        assert ending.effect == Read(STATE_KEY, harness.now + seconds)
        # Then it has answered.
        assert ending.to(Revoke).deadline == harness.now + INTERVAL

    @pytest.mark.parametrize("closes", [True, False])
    def test_it_closes_the_run_where_the_job_is_done(self, harness: Harness, closes: bool) -> None:
        node = harness.registered()
        harness.publish(running("a", "b"))
        write(harness, record("b"))
        harness.show(node)
        harness.run(leave.end(node, "it has shut down", closes))
        assert state_of(harness).closed == (Closed("a", "the job is done", done=True) if closes else None)


class TestCleaningUp:
    """The last node removes what is not needed again."""

    @pytest.fixture
    def node(self, harness: Harness) -> Node:
        return harness.registered()

    def leave(self, harness: Harness, node: Node, *others: NodeRecord, **more: Any) -> set[str]:
        """What the service holds after a node has left beside others, with stores of every round."""
        state: State | None = more.get("state")
        if state is not None:
            harness.publish(state)
            for number in range(state.round + 1):
                harness.put(f"rounds/{number}/store/key", b"value")
        write(harness, *others)
        harness.put(records.STATUS_KEY, more.get("status", RunStatus(0, Phase.GATHERING, 1, 0)).encode())
        harness.show(node)
        leaving = harness.stepper(leave.leave(node, "drained", harness.now + 30.0))
        leaving.end()
        assert {effect.deadline for effect in leaving.taken if isinstance(effect, Delete | ReadAll)} <= {
            harness.now + 30.0
        }
        return harness.names()

    @pytest.mark.parametrize("closed", [True, False])
    def test_notices_stay_while_the_run_is_open_and_quarantines_for_ever(
        self, harness: Harness, node: Node, closed: bool
    ) -> None:
        keys = {drain_key("c"), failure_key(1)}
        for key in (*keys, quarantine_key("c")):
            harness.put(key, b"whatever it is")
        state = running("a", "b", closed=Closed("a", "enough", done=False) if closed else None)
        left = self.leave(harness, node, record("b", left="drained"), state=state)
        assert quarantine_key("c") in left
        assert left & keys == (set() if closed else keys)

    def test_where_no_world_ever_was_the_news_go(self, harness: Harness, node: Node) -> None:
        # Records go with their leases: a write that was on its way would make one anew that was removed by name.
        assert self.leave(harness, node, record("b", left="drained")) == RECORDS

    @pytest.mark.parametrize("state", [None, running("a", "b")], ids=["none", "round 1"])
    def test_the_store_of_a_round_that_it_has_not_heard_of_stays(
        self, harness: Harness, node: Node, state: State | None
    ) -> None:
        unheard = f"rounds/{1 if state is None else 2}/store/key"
        harness.put(unheard, b"value")
        assert unheard in self.leave(harness, node, record("b", left="drained"), state=state)

    def test_beside_another_node_nothing_goes(self, harness: Harness, node: Node) -> None:
        assert self.leave(harness, node, record("b")) == {records.STATUS_KEY, *RECORDS}

    def test_who_leaves_last_removes_the_stores_too(self, harness: Harness, node: Node) -> None:
        state = running("a", "b", round=5)
        there = self.leave(harness, node, record("b", left="drained"), state=state)
        # A leader removes the earlier ones.
        stores = {f"rounds/{number}/store/key" for number in (0, 1, 2)}
        assert there - RECORDS == {STATE_KEY, records.STATUS_KEY, *stores}

    def test_the_stores_of_the_first_rounds_have_low_numbers(self, harness: Harness, node: Node) -> None:
        there = self.leave(harness, node, record("b", left="drained"), state=running("a", "b"))
        assert there - RECORDS == {STATE_KEY, records.STATUS_KEY, "rounds/0/store/key"}

    def test_a_member_without_a_record_keeps_its_store(self, harness: Harness, node: Node) -> None:
        there = self.leave(harness, node, state=running("a", "b"))
        assert there - RECORDS == {STATE_KEY, records.STATUS_KEY, *STORES}

    def test_a_member_that_is_known_to_have_left_keeps_nothing(self, harness: Harness, node: Node) -> None:
        status = RunStatus(1, Phase.RE_FORMING, 1, 0, (Departure("b", 1, True, "drained"),))
        there = self.leave(harness, node, state=running("a", "b"), status=status)
        assert there - RECORDS == {STATE_KEY, records.STATUS_KEY, "rounds/0/store/key"}

    def test_the_last_status_says_who_has_left_and_why(self, harness: Harness, node: Node) -> None:
        harness.publish(running("a", "b"))
        harness.put(
            records.STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 1, 0, (Departure("b", 1, True, "too hot"),)).encode()
        )
        harness.show(node)
        leaving = harness.stepper(leave.leave(node, "drained", harness.now + 30.0))
        assert leaving.to_write(records.STATUS_KEY).deadline == harness.now + 30.0
        leaving.end()
        held = harness.read(records.STATUS_KEY)
        assert held is not None
        lost = (Departure("a", 0, True, "drained"), Departure("b", 1, True, "too hot"))
        assert decode(RunStatus, held.payload) == RunStatus(1, Phase.ABANDONED, 0, 0, lost)
        # One call, on top of what the node knew.
        assert sum(isinstance(effect, Put) and effect.key == records.STATUS_KEY for effect in leaving.taken) == 1

    def test_news_of_a_leader_that_came_meanwhile_stay(self, harness: Harness, node: Node) -> None:
        harness.publish(running("a", "b"))
        write(harness, record("b", left="drained"))
        harness.put(STORES[1], b"value")
        harness.show(node)
        leaving = harness.stepper(leave.leave(node, "drained", harness.now + 30.0))
        leaving.to_write(records.STATUS_KEY)
        write(harness, record("c"))
        news = RunStatus(1, Phase.RE_FORMING, 1, 0)
        harness.put(records.STATUS_KEY, news.encode())
        leaving.end()
        held = harness.read(records.STATUS_KEY)
        assert held is not None
        assert decode(RunStatus, held.payload) == news
        assert STORES[1] in harness.names()

    @pytest.mark.parametrize("when", ["before it looks at the nodes", "while it writes the last status"])
    def test_nothing_of_a_higher_attempt_that_begins_meanwhile_is_removed(
        self, harness: Harness, node: Node, when: str
    ) -> None:
        harness.publish(running("a", "b"))
        write(harness, record("b", left="drained"))
        harness.put("rounds/2/store/key", b"value")
        harness.put(records.STATUS_KEY, RunStatus(1, Phase.RUNNING, 1, 0).encode())
        harness.put(drain_key("c"), b"a notice")
        harness.show(node)
        leaving = harness.stepper(leave.leave(node, "drained", harness.now + 30.0))
        if when == "while it writes the last status":
            leaving.to_write(records.STATUS_KEY)
            # Its write is applied, and it hears late of that.
            leaving.go()
        else:
            leaving.to(ReadAll)
        # Its nodes are cut off.
        harness.publish(running("c", "d", attempt=1, round=2))
        harness.put(records.LEADER_KEY, LeaderRecord("c", 1, 2, 4).encode())
        harness.show(node)
        leaving.end()
        theirs = {STATE_KEY, records.STATUS_KEY, records.LEADER_KEY, "rounds/2/store/key", drain_key("c")}
        assert theirs <= harness.names()
        assert records.node_key(0, "a") not in harness.names()

    def test_a_later_round_that_it_has_not_heard_of_keeps_its_last_status(self, harness: Harness, node: Node) -> None:
        harness.publish(running("a", "b"))
        harness.show(node)
        harness.publish(running("b", "c", round=2))
        lost = (Departure("b", 0, True, "disk full"), Departure("c", 1, True, "drained"))
        harness.put(records.STATUS_KEY, RunStatus(2, Phase.ABANDONED, 0, 0, lost).encode())
        harness.run(leave.leave(node, "drained", harness.now + 30.0))
        held = harness.read(records.STATUS_KEY)
        assert held is not None
        assert decode(RunStatus, held.payload) == RunStatus(2, Phase.ABANDONED, 0, 0, lost)

    def test_of_a_run_that_is_purged_meanwhile_nothing_stays(self, harness: Harness, node: Node) -> None:
        harness.publish(running("a", "b"))
        harness.put(records.STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 1, 0).encode())
        harness.show(node)
        leaving = harness.stepper(leave.leave(node, "drained", harness.now + 30.0))
        leaving.to_write(records.STATUS_KEY)
        harness.forget()
        leaving.end()
        assert harness.names() == set()

    def test_a_member_that_closes_the_run_before_it_goes_is_not_said_to_be_lost(
        self, harness: Harness, node: Node
    ) -> None:
        harness.publish(running("a", "b"))
        write(harness, record("b"))
        harness.show(node)
        leaving = harness.stepper(leave.leave(node, "drained", harness.now + 30.0))
        # It has read that the run is open, and looks at the nodes.
        leaving.to(ReadAll)
        leaving.go()
        harness.publish(running("a", "b", closed=ENOUGH))
        with harness.memory.changed:
            harness.memory.remove(f"run/{records.node_key(0, 'b')}")
        leaving.end()
        assert not any(isinstance(effect, Put) and effect.key == records.STATUS_KEY for effect in leaving.taken)
        assert records.STATUS_KEY not in harness.names()

    def test_a_closed_run_gets_no_last_status(self, harness: Harness, node: Node) -> None:
        harness.publish(running("a", "b", closed=ENOUGH))
        harness.show(node)
        leaving = harness.stepper(leave.leave(node, "drained", harness.now + 30.0))
        leaving.end()
        assert not any(isinstance(effect, Put) and effect.key == records.STATUS_KEY for effect in leaving.taken)

    def test_of_a_closed_run_only_the_state_stays(self, harness: Harness, node: Node) -> None:
        # Where the service has no leases, what is dead stays.
        harness.put("heartbeats/0/lease", b"7")
        harness.put(records.pending_key(2), LeaderRecord("b", 0, 2, 4).encode())
        harness.put(records.LEADER_KEY, b"", deleted=True)
        there = self.leave(harness, node, record("b", left="drained"), state=running("a", "b", closed=ENOUGH))
        assert there == {STATE_KEY, "rounds/0/store/key"}
        assert not harness.memory.under("run/control/leader")

    def test_a_closed_run_is_cleaned_by_who_goes_last(self, harness: Harness, node: Node) -> None:
        state = running("a", "b", closed=ENOUGH)
        there = self.leave(harness, node, record("b"), state=state)
        assert there == {STATE_KEY, records.STATUS_KEY, *STORES, records.node_key(0, "b")}

    def test_what_an_attempt_before_has_left_goes_with_the_run(self, harness: Harness) -> None:
        node = harness.registered(attempt=1)
        write(harness, record("old", left="drained"))
        harness.put("heartbeats/0/lease", b"7")
        for number in (2, 3):
            harness.put(records.pending_key(number), LeaderRecord("b", 0, 2, 4).encode())
        state = running("a", "b", attempt=1, closed=ENOUGH)
        # The pending round after this one is of a leader that knows more.
        assert self.leave(harness, node, state=state) == {STATE_KEY, "rounds/0/store/key", records.pending_key(3)}
