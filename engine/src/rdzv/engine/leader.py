"""The coroutines of the leader: how it is elected, and how it publishes what the rules decide.

Leading needs no trust: every write of the state is a compare-and-set, so a leader that was paused, replaced or
overtaken changes nothing. A node that waits or has left in an older view still does; a round that lacks a member is
formed from nodes that were read after the token of the state was known (`_LeaderTerm.form`).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from rdzv_core.backend import STATE_KEY, Lease
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError

from ..hooks import Event, EventKind
from . import records, rules, worlds
from .aside import node_logger
from .client import DecodedSnapshot, VersionedValue, same_version
from .collector import GarbageCollector
from .effects import AssignRanks, Coroutine, Emit, Put, Read, ReadAll, Revoke, Sleep, SpawnLeader, Wait, WaitForChange
from .failures import LEAD
from .growth import Growth
from .node import Node
from .quarantine_ledger import QuarantineLedger
from .records import NAMED, LeaderRecord, NodeRecord, Pages, ReadNodes, State, read_nodes, read_record
from .register import apply_and_emit
from .status_writer import StatusWriter
from .supervisor import supervised

logger = node_logger(__name__)

COALESCE = 20e-6
"""Seconds for each node that is there, in which a leader lets news gather: 20 ms for a thousand."""

COALESCE_MOST = 0.05
"""The most seconds of that."""

FRESH = 0.25
"""Seconds for which a snapshot counts as what is there: a round that evicts no node is formed without a second look."""

ASSIGNING = 5.0
"""Seconds that plugins have to assign the ranks of a new world."""

FAILURES = 2
"""Failures, one after the other, after which a leader resigns; a service that does not answer is none."""


def elect(node: Node, deadline: float) -> Coroutine[None]:
    """Stand for election if there is no leader: the node whose write comes first leads."""
    candidacy = node.candidacy
    if not candidacy.may_lead(node.clock()) or node.run.snapshot is None:
        return
    if node.run.leader is None:
        yield from _claim(node, node.run.snapshot, deadline)
    leader = node.run.leader
    if candidacy.may_lead(node.clock()) and not node.leading and leader is not None and leader.node == node.id:
        # Won just now, or long ago by a write whose reply was lost.
        term = candidacy.begin_term()
        try:
            yield SpawnLeader(term)
        except Exception as error:
            # Without its loop it does not lead.
            candidacy.step_down()
            if isinstance(error, RendezvousConnectionError):
                # Another coroutine may be the one that waits for a leader: it finds the error here.
                node.failures.add_passing(LEAD, error, node.clock())
            raise
        if not node.failures.count(LEAD):
            # There was no room for its loop before, and nothing else.
            node.failures.clear(LEAD)


def _claim(node: Node, seen: DecodedSnapshot, deadline: float) -> Coroutine[None]:
    """Claim the lead that no node has in this snapshot, and learn from the answer who leads."""
    before, lease = seen.raw(records.LEADER_KEY), node.registration.lease
    claim = Put(records.LEADER_KEY, node.limits().encode(), deadline, previous=before, lease=lease)
    # As long as it has not resigned: one that was sent twice may arrive once more after it was answered.
    node.candidacy.claims = True
    applied, versioned = yield claim
    if versioned is None and before is not None:
        # The key is gone. The watch of a node that was cut off may not say so before it is made again.
        applied, versioned = yield replace(claim, previous=None)
    there = read_record(LeaderRecord, versioned)
    # What the watch has brought meanwhile may be newer than an answer that names another.
    is_latest = applied or node.run.snapshot is seen
    if there is not None and is_latest and (events := node.apply_leader(there)):
        yield Emit(tuple(events))


def resign(node: Node, deadline: float, lease: Lease | None = None) -> Coroutine[LeaderRecord | None]:
    """Resign, if this node leads, so that another can be elected. Returns the record of another leader, if there is
    one.

    A tombstone replaces this node's own claim, under the version that names it: a node that only believes to lead
    takes nothing from another. It belongs to the same lease, so that nothing of it stays. Of a claim that is on its way
    it takes the place, so that a node that has left is not elected.

    Args:
        node: The leader that resigns.
        deadline: Until when to try.
        lease: The lease of its claim; None: the lease that the node has.
    """
    lease = lease or node.registration.lease
    node.candidacy.step_down()
    versioned = yield Read(records.LEADER_KEY, deadline)
    while True:
        leads = read_record(LeaderRecord, versioned)
        if leads is not None and leads.node != node.id:
            return leads
        if lease is None or (leads is None and not node.candidacy.claims):
            # Without a lease its claim ends with the one that it had, which could not be revoked.
            return None
        before = versioned
        resigned, versioned = yield Put(records.LEADER_KEY, b"", deadline, previous=before, lease=lease, deleted=True)
        if resigned:
            node.candidacy.claims = False
            return None
        if same_version(before, versioned):
            # The lease is over, and the key with it; or it is being revoked by the call that waited, which would end
            # unfinished if this node went: the others would still see a leader, and leave the garbage to it.
            yield Revoke(lease, deadline)
            return None


def lead(node: Node, term: int) -> Coroutine[None]:
    """Watch the nodes and publish what the rules decide, for as long as this node leads.

    A leader that fails resigns: another may do better. A service that does not answer is no reason, unless it answers
    this node's other calls for a time to live. If no other node takes over, it stands for election again, and its
    caller gets the error if that goes wrong, too.
    """
    own_term = _LeaderTerm(node)
    snapshot: DecodedSnapshot | None = None

    def leads() -> bool:
        return node.candidacy.term == term

    def goes_on() -> bool:
        return leads() and not own_term.is_refused

    def turn() -> Coroutine[None]:
        nonlocal snapshot
        # After a failure the nodes are read anew.
        seen, snapshot = snapshot, None
        try:
            if seen is None:
                seen = yield from own_term.look()
            snapshot = yield from own_term.turn(seen)
        except RendezvousConnectionError as error:
            own_term.on_silence(error)
            raise
        own_term.silent_turns = 0

    try:
        yield from supervised(node, LEAD, turn, goes_on, most=FAILURES)
        if leads() and not node.stopped:
            why = node.failures.unsaid(node.failures.latest)
            logger.warning("node '%s' does not lead '%s' any more%s", node.id, node.settings.run, why)
            node.candidacy.stands_from = node.clock() + node.interval
            yield from resign(node, node.candidacy.stands_from)
    except Exception as error:
        # Its key stays for now. If no other node takes over it is elected again, by that key.
        why = node.failures.unsaid(error)
        logger.warning("node '%s' could not resign in '%s'%s", node.id, node.settings.run, why)
    finally:
        if leads():
            node.candidacy.step_down()


def _declare_pending_round(node: Node, before: State, number: int) -> Coroutine[None]:
    """Declare that this round is about to be formed without some member of the one before, or by the next attempt.

    A member that comes back reads this after it has written its record. If it is not there yet, the
    look that follows sees the record; if it is, the member fences the state. A later leader reads
    from it what the attempt before has left: this leader may die before it has removed that.
    """
    pending = replace(node.limits(), attempt=before.attempt)
    yield Put(records.pending_key(number), pending.encode(), node.background_deadline(), previous=None)


def _assign_ranks(node: Node, before: State | None, decision: rules.Publish) -> Coroutine[Sequence[str] | None]:
    """Ask the plugins for the ranks of a new world. They may take their time, or hang: then the default holds, None.

    If that takes longer than `FRESH` the nodes are read again, so that what happens meanwhile is seen; that the state
    has changed, its token tells.
    """
    if not decision.arrived:
        return None
    previous = before.world if before is not None and before.attempt == decision.state.attempt else ()
    order: Sequence[str] | None = yield AssignRanks(decision.arrived, previous, node.clock() + ASSIGNING)
    return order


def _publish(
    node: Node, decision: rules.Publish, versioned: VersionedValue | None, same: Pages | None
) -> Coroutine[None]:
    nonce = f"{node.rng.getrandbits(64):016x}"
    state = yield from worlds.write_world(decision.state, nonce, node.background_deadline, same, node.creates_at_once)
    applied, now = yield Put(STATE_KEY, state.encode(), node.background_deadline(), previous=versioned)
    if applied:
        _log_choice(node, decision)
    yield from apply_and_emit(node, now, node.background_deadline())
    if now is None:
        # Trying again at once is of no use: first the keep-alive loop finds out what became of the state.
        yield WaitForChange(node.clock() + node.interval)


def _log_choice(node: Node, decision: rules.Publish) -> None:
    """Say which nodes a new world has or lacks that a user would not expect."""
    number, run = decision.state.round, node.settings.run
    for node_id, why in decision.objections.items():
        logger.warning("round %d of '%s' has node '%s' although %s: the others are too few", number, run, node_id, why)
    if (count := len(decision.evicted)) > NAMED:
        logger.warning("round %d of '%s' is formed without %d nodes, of which %d are named", number, run, count, NAMED)
    for member in decision.evicted[:NAMED]:
        logger.warning(
            "round %d of '%s' is formed without node '%s', rank %d of the round before: %s",
            number,
            run,
            member.node,
            member.rank,
            member.cause,
        )


class _LeaderTerm:
    """The memory of a leader during its term."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.parsed: ReadNodes = {}
        self.known: set[str] = set()
        self.quorum_since: float | None = None
        self.arrived_at = -math.inf
        self.seen_at = -math.inf
        self.done_at = node.clock()
        self.silent_turns = 0
        self.is_refused = False
        self.whole: State | None = None
        self.pages: Pages | None = None
        self.growth = Growth(node.settings.grow_delay.total_seconds())
        self.status = StatusWriter(node)
        self.quarantines = QuarantineLedger(node)
        self.garbage = GarbageCollector(node)

    def look(self, before: DecodedSnapshot | None = None) -> Coroutine[DecodedSnapshot]:
        """Read the nodes."""
        snapshot: DecodedSnapshot = yield ReadAll(records.NODES, self.node.background_deadline(), before)
        self.seen_at = self.node.clock()
        return snapshot

    def turn(self, snapshot: DecodedSnapshot) -> Coroutine[DecodedSnapshot]:
        """Decide on a snapshot of the nodes, and do it; returns the next one: after a change, or when it is time."""
        node = self.node
        state, versioned = yield from self.read_state()
        nodes = self.read(snapshot)
        if events := self.arrivals(state, nodes):
            yield Emit(events)
        yield from self.quarantines.judge(self.situation(state, nodes))
        yield from self.quarantines.settle(state, nodes)
        decision = self.decide(state, nodes)
        if isinstance(decision, rules.Publish):
            return (yield from self.form(decision, snapshot, state, versioned))
        status_due_in = yield from self.status.publish(decision.status, versioned)
        yield from self.garbage.collect(self.known)
        since, self.done_at = snapshot, node.clock()
        snapshot = yield Wait(records.NODES, since, node.clock() + min(status_due_in, self.recheck_after(decision)))
        if snapshot is not since:
            self.seen_at = node.clock()
            # Many come together: reading them costs by their number, so give them time to.
            yield Sleep(node.clock() + min(COALESCE * len(nodes), COALESCE_MOST))
        return snapshot

    def form(
        self, decision: rules.Publish, snapshot: DecodedSnapshot, state: State | None, versioned: VersionedValue | None
    ) -> Coroutine[DecodedSnapshot]:
        """Form the round that was decided on; returns the snapshot of the nodes on which the next turn goes on.

        A snapshot may be older than the state, and older than what a node has written since. Where it shows a node that
        waits, or has left, that stays true. Where it lacks a member, that may have come back: a round without it is
        announced, and the nodes are read again, with the token of the state in hand.
        """
        node = self.node
        nodes = self.read(snapshot)
        order = yield from _assign_ranks(node, state, decision)
        yield from self.quarantines.judge(self.situation(state, nodes), publishes=True)
        yield from self.quarantines.settle(state, nodes)
        before = state if state and (decision.evicted or state.attempt < decision.state.attempt) else None
        if before is not None:
            yield from _declare_pending_round(node, before, decision.state.round)
        if before is not None or node.clock() > self.seen_at + FRESH:
            snapshot = yield from self.look(snapshot)
        again = self.decide(state, self.read(snapshot))
        publish = again.with_ranks(order) if isinstance(again, rules.Publish) else None
        # A member may have died between the two reads, without a pending round, or the ranks are those of another
        # world: then once more.
        if publish is not None and (decision.evicted or not publish.evicted):
            is_same = state is not None and state.world == publish.state.world
            yield from _publish(node, publish, versioned, self.pages if is_same else None)
        return snapshot

    def on_silence(self, error: RendezvousConnectionError) -> None:
        """Note that a turn has ended with a call that was not answered.

        Raises:
            RendezvousError: That lasts although the service answers this node's other calls.
        """
        seconds = self.node.clock() - self.done_at
        # A single one may be one lost message, for which a call waits until its deadline.
        self.silent_turns += 1
        lasts = self.silent_turns > 1 and seconds >= self.node.ttl
        if not lasts or self.node.connection.grace_remaining() > 0:
            return
        # The service has renewed this node's lease all the time: it is no outage.
        if isinstance(error, RendezvousDeniedError):
            # It may let another lead. How long this node goes on is a matter of the refusal.
            self.is_refused = True
        else:
            raise RendezvousError(f"What a leader asks for has failed for {seconds:.1f} s: {error}") from error

    def read_state(self) -> Coroutine[tuple[State | None, VersionedValue | None]]:
        """The state with all members of its world, and the value that it came from."""
        state, versioned = self.node.run.state, self.node.run.version
        if state is None or state.pages is None:
            return state, versioned
        # What a service has lost with its data the members write again.
        if self.whole is None or self.pages != state.pages or not worlds.is_whole(self.whole):
            self.whole = yield from worlds.read_world(state, self.node.background_deadline())
            # Now, and not before it was read: a turn that fails is followed by another.
            self.pages = state.pages
        return replace(state, world=self.whole.world, pages=None), versioned

    def read(self, snapshot: DecodedSnapshot) -> list[NodeRecord]:
        """The nodes in a snapshot; those that did not change are not parsed again."""
        self.parsed = read_nodes(snapshot, self.parsed)
        return [record for _, record in self.parsed.values()]

    def arrivals(self, state: State | None, nodes: Collection[NodeRecord]) -> tuple[Event, ...]:
        """Note the nodes that wait and were not there before: when the last one came; returns an event for each."""
        world = frozenset(state.world if state else ())
        new = [node for node in nodes if node.id not in self.known and node.id not in world and node.left is None]
        self.known = {node.id for node in nodes}
        if new:
            self.arrived_at = self.node.clock()
        return tuple(
            self.node.event(EventKind.NODE_ARRIVED, node.id, f"it waits at {node.address or 'no address'}")
            for node in new
        )

    def situation(self, state: State | None, nodes: Collection[NodeRecord]) -> rules.Situation:
        """What the rules are asked about."""
        now = self.node.clock()
        return rules.Situation(
            state,
            nodes,
            self.node.limits(),
            last_call=self.node.settings.timeout.last_call.total_seconds(),
            trusted=self.node.connection.grace_remaining() == 0,
            quorum_for=0.0 if self.quorum_since is None else now - self.quorum_since,
            since_arrival=now - self.arrived_at,
            wanted=self.node.settings.wanted_timeout.total_seconds(),
            known=self.status.last,
            due=self.growth.due(now),
            notices=self.quarantines.notices(state)[0],
            expected=self.node.expected,
        )

    def decide(self, state: State | None, nodes: Collection[NodeRecord]) -> rules.Publish | rules.Defer:
        """Ask the rules."""
        now = self.node.clock()
        self.growth.observe(state, nodes, now)
        decision = rules.decide(self.situation(state, nodes))
        if isinstance(decision, rules.Defer):
            if decision.recheck_after is None:
                self.quorum_since = None
            elif self.quorum_since is None:
                self.quorum_since = now
        return decision

    def recheck_after(self, defer: rules.Defer) -> float:
        """Seconds after which to decide anew although nothing has changed."""
        # Once an interval in any case, to see that this node leads no more.
        growth, grace = self.growth.recheck_after(self.node.clock()), self.node.connection.grace_remaining() or None
        due = (self.node.interval, defer.recheck_after, growth, grace)
        return min(seconds for seconds in due if seconds is not None)
