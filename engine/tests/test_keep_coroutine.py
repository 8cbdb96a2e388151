"""The coroutines that watch the run, keep a node's lease and register again, effect by effect."""

from dataclasses import replace
from typing import Any

import pytest
from rdzv_core.backend import STATE_KEY
from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousStateError,
)

from rdzv.engine import join, keep_alive, register, watch
from rdzv.engine.candidacy import NO_LEADER_TIMEOUT
from rdzv.engine.codec import decode
from rdzv.engine.connection import ConnectionState
from rdzv.engine.effects import Emit, KeepAlive, OpenLease, Put, Read, ReadAll, Revoke, Sleep, Wait, WaitForChange
from rdzv.engine.failures import KEEP, WATCH
from rdzv.engine.node import Node
from rdzv.engine.records import CONTROL, LEADER_KEY, Closed, LeaderRecord, NodeRecord, Pages, State, pending_key
from rdzv.engine.registration import NodeState
from rdzv.engine.run_view import Presence
from rdzv.engine.worlds import page_key

from .coroutines import INTERVAL, TTL, Harness, Stepper

ENOUGH = Closed("b", "enough", done=False)
LEADER = LeaderRecord("b", 0, 2, 4)
AWAY = RendezvousConnectionError("away")


@pytest.fixture
def harness() -> Harness:
    return Harness()


def running(*world: str, round: int = 1, **more: Any) -> State:
    """The state while a round runs."""
    return State(0, round, world, "a.host", 29500, 2, 4, **more)


def member(harness: Harness) -> Node:
    """A node that is registered and knows that a round runs with it."""
    node = harness.registered()
    harness.publish(running("a", "b"))
    harness.show(node)
    return node


def record_of(harness: Harness, node: Node) -> NodeRecord:
    """What the service holds of a node."""
    assert node.registration.record is not None
    held = harness.read(node.registration.record.key)
    assert held is not None
    return decode(NodeRecord, held.payload)


def declare_pending(harness: Harness, name: str) -> None:
    """Let a leader say that it is about to form a round."""
    harness.put(pending_key(1).replace("1", name), LeaderRecord("b", 0, 2, 4).encode())


class TestWatching:
    def test_a_node_looks_once_and_then_waits_for_changes(self, harness: Harness) -> None:
        node = harness.node()
        node.run.snapshot = None
        loop = harness.stepper(watch.watch_loop(node))
        assert loop.effect == ReadAll(CONTROL, node.background_deadline(), None)
        loop.go()
        assert isinstance(loop.effect, Wait)
        assert loop.effect.deadline == harness.now + watch.WATCH_TIMEOUT
        harness.publish(running("b", "c"))
        assert isinstance(loop.go(), Emit)
        loop.to(Wait)
        assert node.run.state == running("b", "c")

    def test_what_it_has_seen_before_does_not_undo_what_the_node_knows_by_now(self, harness: Harness) -> None:
        node = harness.node()
        harness.publish(running("a", "b"))
        harness.show(node)
        loop = harness.stepper(watch.watch_loop(node))
        assert isinstance(loop.effect, Wait)
        # The service loses its data, another member writes what it knows, and this one reads it as it registers again.
        harness.forget()
        later = harness.publish(running("a", "b", round=2))
        node.apply_state(later)
        loop.send(loop.effect.since)
        assert node.run.state == running("a", "b", round=2)

    def test_without_a_leader_it_looks_more_often(self, harness: Harness) -> None:
        node = harness.registered()
        loop = harness.stepper(watch.watch_loop(node))
        assert isinstance(loop.effect, Wait)
        assert loop.effect.deadline == harness.now + NO_LEADER_TIMEOUT
        loop.go()
        assert isinstance(loop.effect, Put)
        assert loop.effect.key == LEADER_KEY

    @pytest.fixture
    def named(self, harness: Harness) -> tuple[Node, Stepper[None]]:
        """A node whom the answer to a claim has named a leader that its watch does not show, in its second wait."""
        node = harness.registered()
        loop = harness.stepper(watch.watch_loop(node))
        assert isinstance(loop.effect, Wait)
        # Another coroutine has made the claim, and the answer is younger than this wait.
        node.apply_leader(LEADER)
        loop.send(loop.effect.since)
        assert isinstance(loop.effect, Wait)
        assert loop.effect.deadline == harness.now + NO_LEADER_TIMEOUT
        return node, loop

    def test_a_leader_that_came_and_went_unseen_is_no_obstacle(
        self, harness: Harness, named: tuple[Node, Stepper[None]]
    ) -> None:
        node, loop = named
        look = loop.send(node.run.snapshot)
        assert look == ReadAll(CONTROL, node.background_deadline(), node.run.snapshot)
        assert node.run.leader == LEADER
        loop.go()
        assert node.run.leader is None
        while isinstance(loop.effect, Wait):
            harness.now = loop.effect.deadline
            loop.send(loop.effect.since)
        assert isinstance(loop.effect, Put)
        assert loop.effect.key == LEADER_KEY

    def test_one_that_the_watch_is_late_to_show_is_read_once(
        self, harness: Harness, named: tuple[Node, Stepper[None]]
    ) -> None:
        node, loop = named
        before = node.run.snapshot
        harness.put(LEADER_KEY, LEADER.encode())
        assert isinstance(loop.send(before), ReadAll)
        loop.go()
        for _ in range(3):
            wait = loop.effect
            assert isinstance(wait, Wait)
            assert wait.since is not before
            assert wait.deadline == harness.now + watch.WATCH_TIMEOUT
            assert node.run.leader == LEADER
            loop.send(wait.since)

    def test_what_the_watch_brings_is_not_read_again(self, harness: Harness, named: tuple[Node, Stepper[None]]) -> None:
        node, loop = named
        harness.publish(running("b", "c"))
        assert isinstance(loop.go(), Emit)
        assert node.run.leader is None

    def test_the_lead_of_its_own_is_not_looked_for(self, harness: Harness) -> None:
        node = harness.registered()
        loop = harness.stepper(watch.watch_loop(node))
        node.apply_leader(node.limits())
        node.candidacy.begin_term()
        for _ in range(3):
            assert isinstance(loop.effect, Wait)
            loop.send(loop.effect.since)

    def test_a_leader_that_it_shows_is_not_looked_for_without_news(self, harness: Harness) -> None:
        node = harness.registered()
        harness.put(LEADER_KEY, LEADER.encode())
        harness.show(node)
        loop = harness.stepper(watch.watch_loop(node))
        for _ in range(3):
            assert isinstance(loop.effect, Wait)
            assert node.run.leader == LEADER
            loop.send(loop.effect.since)

    def test_a_page_that_was_not_there_is_looked_for_again_without_news(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running(pages=Pages("rounds/1/world", 1, 2, "b")))
        harness.put(LEADER_KEY, LEADER.encode())
        harness.show(node)
        loop = harness.stepper(watch.watch_loop(node))
        for _ in range(2):
            look = loop.send(loop.to(Wait).since)
            assert isinstance(look, Read)
            assert look.key == page_key(Pages("rounds/1/world", 1, 2, "b"), node.id)

    @pytest.mark.parametrize("error", [AWAY, RendezvousStateError("corrupt")])
    def test_what_has_failed_is_read_again_after_a_pause(self, harness: Harness, error: RendezvousError) -> None:
        node = harness.node()
        loop = harness.stepper(watch.watch_loop(node))
        assert isinstance(loop.throw(error), Sleep)
        loop.go()
        assert isinstance(loop.effect, Wait if error is AWAY else ReadAll)

    def test_it_ends_when_the_node_closes(self, harness: Harness) -> None:
        node = harness.node()
        loop = harness.stepper(watch.watch_loop(node))
        node.stop()
        assert loop.go() is None


class TestWaitUntilConnected:
    @pytest.fixture
    def node(self, harness: Harness) -> Node:
        node = harness.node()
        node.run.snapshot = None
        return node

    def test_it_ends_when_the_service_was_seen(self, harness: Harness, node: Node) -> None:
        connecting = harness.stepper(watch.wait_until_connected(node, harness.now + 30.0, harness.now))
        assert connecting.effect == WaitForChange(harness.now + 30.0)
        harness.show(node)
        assert connecting.send(None) is None

    def test_a_service_that_was_not_seen_until_the_deadline_could_not_be_reached(
        self, harness: Harness, node: Node
    ) -> None:
        connecting = harness.stepper(watch.wait_until_connected(node, harness.now + 30.0, harness.now))
        node.connection.on_error(AWAY)
        with pytest.raises(RendezvousConnectionError, match=r"could not be reached within 30\.0 s: away"):
            connecting.go()

    def test_a_service_that_answers_what_cannot_be_used_is_not_unreachable(self, harness: Harness, node: Node) -> None:
        connecting = harness.stepper(watch.wait_until_connected(node, harness.now + 30.0, harness.now))
        node.failures.add(WATCH, RendezvousStateError("corrupt"))
        with pytest.raises(RendezvousStateError, match="corrupt"):
            connecting.go()

    def test_a_service_that_is_away_now_is_unreachable_whatever_it_has_answered(
        self, harness: Harness, node: Node
    ) -> None:
        connecting = harness.stepper(watch.wait_until_connected(node, harness.now + 30.0, harness.now))
        node.failures.add(WATCH, RendezvousStateError("corrupt"))
        node.connection.on_error(AWAY)
        with pytest.raises(RendezvousConnectionError, match="could not be reached"):
            connecting.go()

    def test_a_service_of_which_nothing_was_heard_gave_no_answer(self, harness: Harness, node: Node) -> None:
        with pytest.raises(RendezvousConnectionError, match="no answer"):
            harness.run(watch.wait_until_connected(node, harness.now + 30.0, harness.now))

    def test_an_error_that_lasts_is_not_waited_out(self, harness: Harness, node: Node) -> None:
        connecting = harness.stepper(watch.wait_until_connected(node, harness.now + 30.0, harness.now))
        for _ in range(2):
            node.failures.add_passing(WATCH, RendezvousDeniedError("wrong password"), harness.now - 30.0)
        with pytest.raises(RendezvousDeniedError, match="wrong password"):
            connecting.send(None)

    def test_it_ends_when_the_node_leaves(self, harness: Harness, node: Node) -> None:
        connecting = harness.stepper(watch.wait_until_connected(node, harness.now + 30.0, harness.now))
        node.stop()
        with pytest.raises(RendezvousClosedError, match="has left 'run' while it waited"):
            connecting.send(None)


class TestFirstLook:
    """What a node does until it has seen the service once, before it has a record."""

    @pytest.fixture
    def node(self, harness: Harness) -> Node:
        node = harness.node(join=30.0)
        node.run.snapshot = None
        return node

    def look(self, harness: Harness, node: Node) -> Stepper[None]:
        return harness.stepper(join.look_first(node, harness.now + 30.0))

    def test_its_lease_is_opened_meanwhile(self, harness: Harness, node: Node) -> None:
        looking, began = self.look(harness, node), harness.now
        assert looking.effect == OpenLease(TTL, began + INTERVAL)
        harness.now += 2.0
        assert looking.go() == WaitForChange(began + 30.0)
        assert (node.registration.lease_since, node.registration.lease_until) == (began + 2.0, began + TTL)
        harness.show(node)
        assert looking.send(None) is None

    def test_the_time_of_the_lease_counts_for_a_service_that_is_not_reached(self, harness: Harness, node: Node) -> None:
        looking = self.look(harness, node)
        harness.now += 2.0
        looking.throw(AWAY)
        with pytest.raises(RendezvousConnectionError, match=r"could not be reached within 30\.0 s"):
            looking.go()

    def test_the_time_counts_in_which_its_threads_were_started(self, harness: Harness, node: Node) -> None:
        deadline = harness.now + 30.0
        harness.now = deadline
        looking = harness.stepper(join.look_first(node, deadline))
        with pytest.raises(RendezvousConnectionError, match=r"could not be reached within 30\.0 s"):
            looking.throw(AWAY)

    def test_the_record_is_written_on_it(self, harness: Harness, node: Node) -> None:
        looking = self.look(harness, node)
        looking.go()
        lease = node.registration.lease
        node.registration.record = NodeRecord("a", 0, 0, 2, 4, "a.host", 1)
        harness.now = node.registration.lease_until - 1.5 * INTERVAL - 0.1
        put = harness.stepper(register.register(node, harness.now + 60.0)).effect
        assert isinstance(put, Put)
        assert put.lease is lease

    @pytest.mark.parametrize("left", [1.5 * INTERVAL, 0.0])
    def test_one_that_may_end_before_a_keep_alive_is_revoked(self, harness: Harness, node: Node, left: float) -> None:
        """A turn of the keep-alive may have found no record just before there is one."""
        self.look(harness, node).go()
        early = node.registration.lease
        node.registration.record = NodeRecord("a", 0, 0, 2, 4, "a.host", 1)
        harness.now = node.registration.lease_until - left
        registering = harness.stepper(register.register(node, harness.now + 60.0))
        if left:
            assert isinstance(registering.effect, Revoke)
            assert registering.effect.lease is early
            assert isinstance(registering.throw(AWAY), OpenLease)
        else:
            assert isinstance(registering.effect, OpenLease)
        assert isinstance(registering.go(), Put)
        assert registering.go() is None
        assert node.registration.state is NodeState.REGISTERED

    @pytest.mark.parametrize(("intervals", "first"), [(1.9, WaitForChange), (2.0, OpenLease)])
    def test_one_that_every_keep_alive_may_come_too_late_for_is_not_opened(
        self, harness: Harness, node: Node, intervals: float, first: type[object]
    ) -> None:
        node.ttl = intervals * node.interval
        assert isinstance(self.look(harness, node).effect, first)

    def test_one_that_the_service_does_not_grant_is_asked_for_again(self, harness: Harness, node: Node) -> None:
        looking = self.look(harness, node)
        assert isinstance(looking.throw(AWAY), WaitForChange)
        assert node.registration.lease is None

    def test_a_node_that_has_looked_or_has_a_lease_opens_none(self, harness: Harness, node: Node) -> None:
        node.registration.lease = harness.client.open_lease(TTL, harness.now)
        assert isinstance(self.look(harness, node).effect, WaitForChange)
        node.registration.lease = None
        harness.show(node)
        assert self.look(harness, node).effect is None

    def test_one_of_a_node_that_cannot_join_is_revoked(self, harness: Harness, node: Node) -> None:
        looking = self.look(harness, node)
        looking.go()
        harness.show(node)
        lease = node.registration.lease
        harness.publish(running("b", closed=ENOUGH))
        harness.show(node)
        joining = harness.stepper(join.join(node, "a.host", 1, harness.now + 60.0))
        revoke = joining.effect
        assert isinstance(revoke, Revoke)
        assert revoke.lease is lease
        with pytest.raises(RendezvousClosedError):
            joining.go()


class TestKeeping:
    def test_a_lease_is_renewed_once_an_interval(self, harness: Harness) -> None:
        node = harness.registered()
        began = harness.now
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        assert isinstance(keep.effect, Sleep)
        first = keep.effect.until
        # Nodes that begin together do not ask together.
        assert began + INTERVAL / 2 <= first < began + INTERVAL
        for times in range(3):
            sent = first + times * INTERVAL
            assert keep.effect == Sleep(sent)
            assert node.registration.lease is not None
            assert keep.go() == KeepAlive(node.registration.lease, sent + INTERVAL)
            # What counts is when it was sent, not when the answer came.
            harness.now += 1.0
            keep.go()
            assert node.registration.lease_until == sent + TTL

    @pytest.mark.parametrize("why", ["no record", "closing"])
    def test_who_is_not_there_renews_nothing(self, harness: Harness, why: str) -> None:
        node = harness.registered()
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        if why == "no record":
            node.registration.record = None
            assert isinstance(keep.go(), Sleep)
        else:
            node.stop()
            assert keep.go() is None

    @pytest.mark.parametrize(
        ("state", "presence", "is_renewed"),
        [
            (NodeState.REGISTERED, Presence.THERE, False),
            (NodeState.REGISTERED, Presence.MISSING, True),
            (NodeState.REREGISTERING, Presence.THERE, True),
        ],
    )
    def test_a_lease_that_was_just_opened_needs_no_renewal(
        self, harness: Harness, state: NodeState, presence: Presence, is_renewed: bool
    ) -> None:
        node = harness.registered()
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        assert isinstance(keep.effect, Sleep)
        first = keep.effect.until - harness.now
        node.registration.state, node.run.presence = state, presence
        node.registration.lease_since = opened = keep.effect.until - 0.1
        keep.go()
        if not is_renewed:
            assert keep.effect == Sleep(opened + first)
            keep.go()
        assert isinstance(keep.effect, KeepAlive)

    def test_a_renewal_that_fails_is_tried_again_after_a_pause(self, harness: Harness) -> None:
        node = harness.registered()
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.go()
        assert isinstance(keep.throw(AWAY), Sleep)
        pause = harness.now
        keep.to(KeepAlive)
        assert harness.now < pause + 0.1

    def test_who_has_lost_its_lease_comes_back_on_another(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running("a", "b"))
        harness.lead(node)
        node.round = 1
        node.connection.on_contact()
        lost = node.registration.lease
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        harness.end_leases()
        keep.to(OpenLease)
        assert not node.leading
        assert not node.has_valid_lease()
        # The others may have lost theirs, too.
        assert node.connection.grace_remaining() == TTL
        keep.to(Sleep)
        assert node.registration.lease is not lost
        assert node.registration.lease in harness.memory.leases
        assert record_of(harness, node) == node.registration.record
        assert node.has_valid_lease()
        assert keep.effect == Sleep(harness.now + INTERVAL)

    def test_who_comes_back_still_knows_who_leads(self, harness: Harness) -> None:
        harness.put(LEADER_KEY, LeaderRecord("b", 0, 2, 4).encode())
        node = harness.registered()
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(KeepAlive)
        keep.send(False)
        assert node.run.leader == LeaderRecord("b", 0, 2, 4)

    def test_an_answer_for_a_lease_that_is_replaced_says_nothing(self, harness: Harness) -> None:
        node = harness.registered()
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(KeepAlive)
        node.registration.lease, node.registration.lease_until = (
            harness.client.open_lease(TTL, harness.now),
            harness.now + 1.0,
        )
        assert isinstance(keep.send(True), Sleep)
        assert node.registration.lease_until == harness.now + 1.0

    def test_registering_that_has_not_succeeded_yet_goes_on(self, harness: Harness) -> None:
        node = member(harness)
        node.registration.lose_lease()
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        assert isinstance(keep.go(), OpenLease)
        keep.to(Sleep)
        assert node.registration.state is NodeState.REGISTERED

    def test_what_has_begun_to_be_mended_is_mended(self, harness: Harness) -> None:
        node = harness.registered()
        assert node.registration.record is not None
        harness.publish(running("a", "b"))
        harness.show(node)
        node.registration.state = NodeState.REREGISTERING
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(KeepAlive)
        keep.go()
        assert isinstance(keep.effect, Put)
        assert keep.effect.payload == node.registration.record.encode()
        keep.to(Sleep)
        assert node.registration.state is NodeState.REGISTERED

    def test_nothing_is_mended_in_a_run_that_is_over(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running("a", "b", closed=ENOUGH))
        harness.show(node)
        node.registration.state = NodeState.REREGISTERING
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)

    def test_a_lease_that_is_lost_in_a_run_that_is_over_is_replaced(self, harness: Harness) -> None:
        # The next attempt waits until this node has ended: it must see its record.
        node = harness.registered()
        harness.publish(running("a", "b", closed=ENOUGH))
        harness.show(node)
        node.registration.lose_lease()
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        assert isinstance(keep.go(), OpenLease)

    @pytest.mark.parametrize("state", [NodeState.REGISTERED, NodeState.REREGISTERING])
    def test_the_keep_alive_loop_does_not_wait_for_a_caller_who_writes_the_record(
        self, harness: Harness, state: NodeState
    ) -> None:
        node = harness.registered()
        node.registration.writing, node.registration.state = True, state
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)


class TestRemoval:
    @pytest.fixture
    def node(self, harness: Harness) -> Node:
        return member(harness)

    def finds_no_state(self, harness: Harness, node: Node) -> Stepper[None]:
        """The coroutine that keeps its lease, about to read a state that is gone."""
        harness.client.delete(STATE_KEY, harness.now)
        harness.show(node)
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(Read)
        return keep

    def test_who_keeps_its_lease_while_the_state_goes_knows_that_the_run_was_removed(
        self, harness: Harness, node: Node
    ) -> None:
        node.run.seen_at = node.registration.written_at = harness.now
        harness.client.delete(STATE_KEY, harness.now)
        harness.show(node)
        assert node.closed() is None
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(KeepAlive)
        assert keep.go() == Read(STATE_KEY, node.background_deadline())
        # The service may have forgotten everything, the lease too, after it has renewed that.
        assert node.registration.lease is not None
        assert keep.go() == KeepAlive(node.registration.lease, node.background_deadline())
        assert node.closed() is None
        keep.go()
        assert node.closed() == Closed("", "the run was removed from the service", done=False)
        assert node.run.version is None
        # That is certain now, and not asked again.
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)

    def test_a_state_that_was_seen_before_the_record_was_written_may_be_forgotten(
        self, harness: Harness, node: Node
    ) -> None:
        harness.now += 1.0
        node.registration.written_at = harness.now
        keep = self.finds_no_state(harness, node)
        keep.to(Sleep)
        assert node.closed() is None
        assert node.run.presence is Presence.MISSING
        # Its members would have written it again by now.
        harness.now = node.registration.written_at + TTL
        keep.to(Read)
        keep.to(Sleep)
        assert node.closed() == Closed("", "the run was removed from the service", done=False)

    def test_a_lease_that_is_older_than_its_record_says_nothing_of_a_state_that_is_gone(self, harness: Harness) -> None:
        """As on a service without leases, where the record is the first that it hears of one."""
        node = harness.node()
        harness.publish(running("x", "y"))
        node.run.snapshot = None
        harness.run(register.open_lease_early(node, harness.now + 1.0))
        harness.now += 0.5
        harness.show(node)
        node.run.seen_at = harness.now
        node.registration.record = NodeRecord("a", 0, 0, 2, 4, "a.host", 1)
        harness.client.delete(STATE_KEY, harness.now)
        harness.now += 0.5
        harness.run(register.register(node, harness.now + 60.0))
        assert node.registration.lease_since < node.registration.written_at == harness.now
        keep = self.finds_no_state(harness, node)
        keep.to(Sleep)
        assert node.closed() is None

    def test_a_record_that_is_written_again_is_there_since_the_first_time(self, harness: Harness, node: Node) -> None:
        before = node.registration.written_at
        harness.now += 0.5
        assert node.registration.record is not None
        node.registration.record = replace(node.registration.record, last_round=1)
        harness.run(register.register(node, harness.now + 60.0))
        assert record_of(harness, node).last_round == 1
        assert node.registration.written_at == before

    def test_a_purge_of_an_earlier_attempt_removes_nothing_of_the_next(self, harness: Harness) -> None:
        harness.publish(running("x", "y", closed=Closed("x", "done", done=True)))
        node = harness.registered(attempt=1)
        harness.show(node)
        keep = self.finds_no_state(harness, node)
        keep.to(Sleep)
        assert node.closed() is None
        assert node.run.presence is not Presence.DELETED
        # Nothing is there to write over.
        assert node.run.version is None

    def test_a_service_that_forgets_everything_after_a_keep_alive_has_not_removed_the_run(
        self, harness: Harness, node: Node
    ) -> None:
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(KeepAlive)
        node.run.presence = Presence.MISSING
        assert isinstance(keep.send(True), Read)
        harness.forget()
        assert isinstance(keep.go(), KeepAlive)
        assert isinstance(keep.go(), OpenLease)
        keep.to(Sleep)
        assert node.closed() is None
        # Its fence has put the state back.
        there = harness.read(STATE_KEY)
        assert there is not None
        assert there.payload == running("a", "b").encode()

    def test_a_lease_that_another_coroutine_replaces_meanwhile_proves_nothing(
        self, harness: Harness, node: Node
    ) -> None:
        keep = self.finds_no_state(harness, node)
        assert isinstance(keep.go(), KeepAlive)
        node.registration.lease = harness.client.open_lease(TTL, harness.now)
        assert isinstance(keep.send(False), Sleep)
        assert node.closed() is None

    def test_a_lease_that_is_not_settled_may_be_younger_than_the_loss(self, harness: Harness, node: Node) -> None:
        harness.client.delete(STATE_KEY, harness.now)
        harness.show(node)
        node.registration.state, node.registration.writing = NodeState.REREGISTERING, True
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)
        assert node.closed() is None

    def test_a_state_that_is_there_after_all_is_looked_at(self, harness: Harness, node: Node) -> None:
        node.apply_state(None)
        harness.publish(running("a", "b", round=2))
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(Read)
        keep.to(Sleep)
        assert node.closed() is None
        assert node.run.state == running("a", "b", round=2)
        assert node.run.presence is Presence.THERE

    def test_nothing_is_asked_while_the_state_is_there(self, harness: Harness, node: Node) -> None:
        keep = harness.stepper(keep_alive.keep_alive_loop(node))
        keep.to(KeepAlive)
        assert isinstance(keep.go(), Sleep)

    def test_a_state_that_another_coroutine_brings_back_was_not_removed(self, harness: Harness, node: Node) -> None:
        keep = self.finds_no_state(harness, node)
        node.run.version = None
        assert isinstance(keep.go(), Sleep)
        assert node.closed() is None

    def test_a_state_that_comes_back_during_the_keep_alive_was_not_removed(self, harness: Harness, node: Node) -> None:
        keep = self.finds_no_state(harness, node)
        assert isinstance(keep.go(), KeepAlive)
        harness.publish(running("a", "b", round=2))
        harness.show(node)
        assert isinstance(keep.go(), Sleep)
        assert node.closed() is None
        assert node.run.version is not None


class TestRegister:
    """What a node does to have its record in the service."""

    @pytest.fixture
    def node(self, harness: Harness) -> Node:
        node = harness.node()
        node.registration.record = NodeRecord("a", 0, 0, 2, 4, "a.host", 1)
        return node

    def register(self, harness: Harness, node: Node, seconds: float = 60.0) -> Stepper[None]:
        return harness.stepper(register.register(node, harness.now + seconds))

    def test_a_new_node_opens_a_lease_and_writes_its_record_and_that_is_all(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        assert coroutine.effect == OpenLease(TTL, node.background_deadline())
        began = harness.now
        harness.now += 2.0
        put = coroutine.go()
        assert node.registration.lease_until == began + TTL
        assert isinstance(put, Put)
        assert (put.previous, put.lease, put.deadline) == (None, node.registration.lease, node.background_deadline())
        assert coroutine.go() is None
        assert record_of(harness, node) == node.registration.record
        assert node.registration.state is NodeState.REGISTERED
        assert not node.registration.writing

    def test_one_that_was_registered_counts_on_its_lease_until_the_service_says_that_it_is_over(
        self, harness: Harness
    ) -> None:
        node = harness.registered()
        harness.now = node.registration.lease_until
        put = self.register(harness, node).effect
        assert isinstance(put, Put)
        assert put.lease is node.registration.lease

    def test_its_calls_end_with_the_callers_time(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node, 1.0)
        opened = coroutine.to(OpenLease)
        put = coroutine.to(Put)
        assert opened.deadline == put.deadline == harness.now + 1.0

    def test_two_coroutines_do_not_write_at_once(self, harness: Harness, node: Node) -> None:
        node.registration.writing = True
        coroutine = self.register(harness, node)
        assert coroutine.effect == WaitForChange(harness.now + 60.0)
        node.registration.writing = False
        coroutine.send(None)
        assert isinstance(coroutine.effect, OpenLease)
        assert node.registration.writing

    @pytest.mark.parametrize(("trouble", "why"), [(AWAY, "away"), (None, "its last call is not over")])
    def test_who_waits_for_another_coroutine_until_its_deadline_says_why(
        self, harness: Harness, node: Node, trouble: RendezvousConnectionError | None, why: str
    ) -> None:
        node.registration.writing, node.connection.error = True, trouble
        coroutine = self.register(harness, node)
        with pytest.raises(RendezvousConnectionError, match=f"it is being written: {why}"):
            coroutine.go()
        assert node.registration.writing

    @pytest.mark.parametrize("writing", [True, False])
    def test_a_node_that_closes_writes_nothing_more(self, harness: Harness, node: Node, writing: bool) -> None:
        node.stop()
        node.registration.writing = writing
        assert self.register(harness, node).effect is None

    @pytest.mark.parametrize("at", [OpenLease, Put])
    def test_what_does_not_answer_is_tried_again_after_a_pause(self, harness: Harness, node: Node, at: Any) -> None:
        coroutine = self.register(harness, node)
        for _ in range(6):
            coroutine.to(at)
            assert isinstance(coroutine.throw(AWAY), Sleep)
        coroutine.end()
        assert record_of(harness, node) == node.registration.record

    def test_what_does_not_answer_until_the_deadline_is_given_up(self, harness: Harness, node: Node) -> None:
        coroutine, began = self.register(harness, node), harness.now

        def fail() -> None:
            while coroutine.effect is not None:
                coroutine.to(OpenLease)
                coroutine.throw(AWAY)

        with pytest.raises(RendezvousConnectionError, match="away"):
            fail()
        assert began + 58.0 < harness.now < began + 60.0
        assert not node.registration.writing

    def test_what_trying_again_does_not_mend_is_raised(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        with pytest.raises(RendezvousStateError):
            coroutine.throw(RendezvousStateError("corrupt"))
        assert not node.registration.writing

    @pytest.mark.parametrize(("is_new", "seconds"), [(True, 30.0), (False, 58.0)])
    def test_what_is_refused_is_tried_again_for_30_s_by_a_node_that_was_never_in(
        self, harness: Harness, node: Node, is_new: bool, seconds: float
    ) -> None:
        if not is_new:
            node.registration.state = NodeState.LOST
        coroutine, began = self.register(harness, node), harness.now

        def fail() -> None:
            while coroutine.effect is not None:
                coroutine.to(OpenLease)
                coroutine.throw(RendezvousDeniedError("no"))

        with pytest.raises(RendezvousDeniedError):
            fail()
        # The other one has 60 s, and would try again for ten minutes.
        assert began + seconds <= harness.now < began + seconds + INTERVAL
        assert not node.registration.writing
        # Who has called it gets the error, and may try again later.
        assert node.failures.latest is None

    def test_another_error_that_lasts_makes_no_refusal_final(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        node.failures.add(WATCH, RendezvousStateError("corrupt"), lasts=True)
        for _ in range(3):
            coroutine.to(OpenLease)
            coroutine.throw(RendezvousDeniedError("no"))
        coroutine.end()

    def test_a_refusal_that_lasts_makes_no_silence_final(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        node.failures.add(WATCH, RendezvousDeniedError("no"), lasts=True)
        coroutine.to(OpenLease)
        coroutine.throw(RendezvousConnectionError("away"))
        coroutine.end()

    def test_it_is_said_once_that_a_service_refuses_and_that_it_does_not_any_more(
        self, harness: Harness, node: Node, caplog: pytest.LogCaptureFixture
    ) -> None:
        coroutine = self.register(harness, node)
        for _ in range(3):
            coroutine.to(OpenLease)
            coroutine.throw(RendezvousDeniedError("no"))
        coroutine.end()
        refuses, again = caplog.messages
        assert refuses == "the service of 'run' refuses node 'a', which asks it again and again for 30 s: no"
        assert again == "the service of 'run' does not refuse node 'a' any more"

    def test_a_backends_own_error_is_raised_if_it_lasts(self, harness: Harness, node: Node) -> None:
        coroutine, began = self.register(harness, node), harness.now

        def fail() -> None:
            while coroutine.effect is not None:
                coroutine.to(OpenLease)
                coroutine.throw(OSError("oops"))

        with pytest.raises(OSError, match="oops"):
            fail()
        assert began + 1.0 <= harness.now < began + 3.0

    def test_a_backends_own_error_is_no_trouble_with_the_service(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        assert isinstance(coroutine.throw(OSError("oops")), Sleep)
        assert node.failures.latest is None
        coroutine.to(OpenLease)
        coroutine.throw(AWAY)
        assert node.failures.latest is AWAY

    def test_what_does_not_answer_is_tried_again_whatever_another_loop_has_met(
        self, harness: Harness, node: Node
    ) -> None:
        node.failures.add(WATCH, RendezvousStateError("corrupt"), lasts=True)
        coroutine = self.register(harness, node)
        assert isinstance(coroutine.throw(AWAY), Sleep)
        coroutine.end()
        assert record_of(harness, node) == node.registration.record

    def test_a_record_that_changes_while_it_is_written_is_written_again(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        coroutine.to(Put)
        assert node.registration.record is not None
        node.registration.record = replace(node.registration.record, last_round=1)
        coroutine.end()
        assert record_of(harness, node).last_round == 1

    def test_a_node_that_stops_meanwhile_writes_no_record(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        coroutine.to(OpenLease)
        node.stop()
        assert coroutine.go() is None

    def test_a_lease_that_comes_after_the_node_has_withdrawn_is_revoked(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        coroutine.to(OpenLease)
        node.registration.withdraw()
        revoke = coroutine.go()
        assert isinstance(revoke, Revoke)
        assert revoke.deadline == node.background_deadline()
        assert coroutine.go() is None
        assert node.registration.lease is None
        assert not harness.memory.leases

    def test_a_write_of_its_own_that_was_late_is_written_over(self, harness: Harness, node: Node) -> None:
        assert node.registration.record is not None
        before = harness.put(node.registration.record.key, replace(node.registration.record, address="old").encode())
        coroutine = self.register(harness, node)
        coroutine.to(Put)
        lease = node.registration.lease
        again = coroutine.go()
        assert isinstance(again, Put)
        assert again.previous == before
        assert again.lease is node.registration.lease is lease
        coroutine.end()
        assert record_of(harness, node) == node.registration.record

    def test_a_write_proves_that_leases_are_renewed_if_it_was_applied(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        harness.now += TTL
        coroutine.send(harness.client.open_lease(TTL, harness.now))
        late = harness.put("nodes/0/a", b"old")
        states = []
        for applied in (False, True):
            coroutine.send((applied, late))
            states.append(node.connection.state)
        assert states == [ConnectionState.LOST, ConnectionState.CONNECTED]

    @pytest.mark.parametrize("there", [False, True], ids=["the first write", "a later one"])
    def test_a_lease_on_which_nothing_can_be_written_is_over(self, harness: Harness, node: Node, there: bool) -> None:
        if there:
            harness.run(register.register(node, harness.now + 60.0))
            assert node.registration.record is not None
            node.registration.record = replace(node.registration.record, last_round=1)
        coroutine = self.register(harness, node)
        coroutine.to(Put)
        with harness.memory.changed:
            harness.memory.leases.clear()
        lease = node.registration.lease
        assert isinstance(coroutine.go(), OpenLease)
        coroutine.end()
        assert node.registration.lease is not lease
        assert record_of(harness, node) == node.registration.record

    def test_leases_that_are_over_one_after_the_other_are_given_up(self, harness: Harness, node: Node) -> None:
        coroutine = self.register(harness, node)
        for _ in range(3):
            coroutine.to(Put)
            harness.memory.leases.clear()
            coroutine.go()
        coroutine.to(Put)
        harness.now += 60.0
        harness.memory.leases.clear()
        with pytest.raises(RendezvousConnectionError, match="each lease was over before the record was written"):
            coroutine.go()


class TestFence:
    """What a node looks at, after its lease was lost and its record is there again."""

    @pytest.fixture
    def node(self, harness: Harness) -> Node:
        node = member(harness)
        harness.end_leases()
        node.registration.lose_lease()
        return node

    def test_a_read_is_enough_if_no_leader_forms_a_round(self, harness: Harness, node: Node) -> None:
        coroutine = harness.stepper(register.register(node, harness.now + 60.0))
        looked = coroutine.to(ReadAll)
        assert looked == ReadAll(CONTROL, node.background_deadline())
        assert not node.has_valid_lease()
        assert coroutine.go() is None
        assert node.registration.state is NodeState.REGISTERED
        assert harness.writes(STATE_KEY) == 1

    @pytest.mark.parametrize(("pending", "writes"), [("1", 1), ("2", 2), ("3", 2), ("what?", 2)])
    def test_a_leader_that_is_about_to_form_the_next_round_loses_its_write(
        self, harness: Harness, node: Node, pending: str, writes: int
    ) -> None:
        declare_pending(harness, pending)
        harness.run(register.register(node, harness.now + 60.0))
        assert harness.writes(STATE_KEY) == writes
        assert node.registration.state is NodeState.REGISTERED
        # Nothing but the epoch is new.
        assert node.run.state == running("a", "b")

    def test_what_others_write_meanwhile_is_looked_at_again(self, harness: Harness, node: Node) -> None:
        declare_pending(harness, "2")
        coroutine = harness.stepper(register._fence(node, harness.now + 1.0))
        assert coroutine.to(ReadAll).deadline == harness.now + 1.0
        assert coroutine.to(Put).deadline == harness.now + 1.0
        harness.publish(running("b", "c", round=2))
        coroutine.go()
        coroutine.to(ReadAll)
        coroutine.end()
        assert node.run.state == running("b", "c", round=2)
        assert harness.writes(STATE_KEY) == 2

    def test_a_node_that_has_seen_no_state_fences_what_is_there(self, harness: Harness) -> None:
        node = harness.registered()
        harness.publish(running("a", "b"))
        declare_pending(harness, "2")
        harness.run(register._fence(node, harness.now + 60.0))
        assert node.run.state == running("a", "b")
        assert harness.writes(STATE_KEY) == 2

    def test_where_there_is_no_state_there_is_nothing_to_fence(self, harness: Harness) -> None:
        node = harness.registered()
        coroutine = harness.stepper(register._fence(node, harness.now + 60.0))
        coroutine.to(ReadAll)
        assert coroutine.go() is None
        assert STATE_KEY not in harness.names()

    def test_a_service_that_lost_its_data_gets_the_state_again(self, harness: Harness, node: Node) -> None:
        harness.forget()
        harness.run(register.register(node, harness.now + 60.0))
        held = harness.read(STATE_KEY)
        assert held is not None
        assert decode(State, held.payload) == running("a", "b")
        assert node.run.version == held
        assert node.registration.state is NodeState.REGISTERED

    def test_if_others_have_begun_anew_meanwhile_theirs_stands(self, harness: Harness, node: Node) -> None:
        harness.forget()
        coroutine = harness.stepper(register._fence(node, harness.now + 60.0))
        coroutine.to(Put)
        harness.publish(running("b", "c"))
        coroutine.end()
        assert node.run.state == running("b", "c")
        assert harness.writes(STATE_KEY) == 1

    def test_a_world_of_a_run_that_is_over_is_not_trusted_again(self, harness: Harness, node: Node) -> None:
        harness.publish(running("a", "b", closed=ENOUGH))
        harness.run(register.register(node, harness.now + 60.0))
        assert node.registration.state is NodeState.REREGISTERING
        assert not node.has_valid_lease()

    def test_a_node_that_closes_looks_at_nothing_more(self, harness: Harness, node: Node) -> None:
        node.stop()
        assert harness.stepper(register._fence(node, harness.now + 60.0)).effect is None


def test_a_refused_keep_alive_renews_nothing(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    node = harness.registered()
    until, since = node.registration.lease_until, harness.now
    keep = harness.stepper(keep_alive.keep_alive_loop(node))
    while harness.now < until + 2 * INTERVAL:
        keep.to(KeepAlive)
        harness.now += 0.1
        node.connection.on_contact()
        keep.throw(RendezvousDeniedError("no"))
    assert node.registration.lease_until == until
    assert not node.has_valid_lease()
    assert node.connection.state is ConnectionState.LOST
    assert node.connection.grace_remaining() == TTL
    assert node.failures.lasting is None
    # Once, and when it is so.
    (line,) = [line for line in caplog.messages if "others may go on without it" in line]
    assert line.startswith("the lease of node 'a' in 'run' was not renewed in time")
    keep.to(KeepAlive)
    keep.to(Sleep)
    assert node.has_valid_lease()
    assert node.failures.latest is None
    assert harness.now > since
    assert node.connection.grace_remaining() == TTL


def test_that_a_lease_was_not_renewed_in_time_is_said_once_and_not_before(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        return sum("others may go on without it" in line for line in caplog.messages)

    node = harness.registered()
    keep = harness.stepper(keep_alive.keep_alive_loop(node))
    keep.to(KeepAlive)
    keep.throw(AWAY)
    assert told() == 0
    keep.to(KeepAlive)
    harness.now = node.registration.lease_until
    keep.throw(AWAY)
    assert told() == 1
    assert caplog.messages[-1].endswith("without it: away")
    # It hears that this lease has ended, and gets no other for as long as it tries.
    keep.to(KeepAlive)
    keep.send(False)
    while node.failures.count(KEEP) == 0:
        keep.to(OpenLease)
        keep.throw(RendezvousDeniedError("no"))
    assert told() == 1


def test_why_the_service_does_not_answer_is_said_once(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    node = harness.registered()
    keep = harness.stepper(keep_alive.keep_alive_loop(node))
    keep.to(KeepAlive)
    node.connection.on_error(AWAY, 5.0)
    harness.now = node.registration.lease_until
    node.connection.on_error(AWAY, 5.0)
    keep.throw(AWAY)
    silence, lease = caplog.messages
    assert silence.endswith("go on without this node: away")
    assert lease == "the lease of node 'a' in 'run' was not renewed in time, so others may go on without it"


def test_who_keeps_its_lease_has_no_trouble(harness: Harness) -> None:
    node = harness.registered()
    keep = harness.stepper(keep_alive.keep_alive_loop(node))
    keep.to(KeepAlive)
    keep.throw(AWAY)
    assert str(node.failures.latest) == "away"
    keep.to(KeepAlive)
    keep.go()
    assert node.failures.latest is None
    assert node.failures.count(KEEP) == 0
