"""The lanes of the leader: how it is elected, and how it publishes what the rules decide.

Leading needs no trust: every write of the state is a compare-and-set on the token that was known
*before* the nodes were read, so a leader that was paused, replaced or overtaken changes nothing.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from ..backend import Lease
from ..errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from ..hooks import Event, EventKind
from . import rules
from .node import LEAD, Node
from .records import (
    BEATS,
    INTENTS,
    LEADER_KEY,
    NODES,
    NOTICE_KEY,
    STATE_KEY,
    STORE,
    Leadership,
    NodeRecord,
    Notice,
    State,
    decode,
    intent_key,
)
from .service import Held, View
from .steps import Changed, Delete, Lane, Lead, Put, Read, ReadAll, Sleep, Tell, Wait
from .supervisor import is_passing, supervised

__all__ = ["elect", "lead", "outdated", "resign"]

logger = logging.getLogger(__name__)

COALESCE = 20e-6
"""Seconds for each node that is there, in which a leader lets news gather: 20 ms for a thousand."""

FAILURES = 2
"""Failures, one after the other, after which a leader resigns; a service that does not answer is none."""

SWEPT = 10
"""Rounds back to which a leader removes stores that it could not remove before."""

NOTICE_INTERVAL = 1.0
"""Seconds between two notices that nobody is waiting for: each one wakes every node."""


def elect(node: Node, deadline: float) -> Lane[None]:
    """Lead if nobody does: the first to write the leader's key has won."""
    if not node.may_lead() or node.view is None:
        return
    if node.leader is None:
        before = node.view.raw(LEADER_KEY)
        _, held = yield Put(LEADER_KEY, node.limits().encode(), deadline, after=before, lease=node.lease)
        there = decode(Leadership, held.payload) if held is not None and not held.envelope.deleted else None
        if there is not None and (events := node.look_at_leader(there)):
            yield Tell(tuple(events))
    if node.may_lead() and not node.leading and node.leader is not None and node.leader.node == node.id:
        # Won just now, or long ago by a write whose reply was lost.
        node.leading = True
        node.term += 1
        try:
            yield Lead(node.term)
        except Exception:
            # Without its loop it does not lead.
            node.step_down()
            raise


def resign(node: Node, deadline: float, lease: Lease | None = None) -> Lane[Leadership | None]:
    """Give up the lead, if this node has it, so that another can be elected. Returns who leads now, if anybody.

    A tombstone replaces this node's own claim, under the version that names it: a node that only believes to lead
    takes nothing from another. It hangs on the same lease, so that nothing of it stays.

    Args:
        node: Who resigns.
        deadline: Until when to try.
        lease: What its claim hangs on; None: the lease that the node has.
    """
    lease = lease or node.lease
    node.step_down()
    held = yield Read(LEADER_KEY, deadline)
    while held is not None and not held.envelope.deleted:
        leads = decode(Leadership, held.payload)
        if leads.node != node.id:
            return leads
        if lease is None:
            # Its claim ends with the lease that it had, which could not be revoked.
            return None
        _, now = yield Put(LEADER_KEY, b"", deadline, after=held, lease=lease, deleted=True)
        if now is not None and now.token == held.token:
            # The lease is over, and the key with it.
            return None
        held = now
    return None


def lead(node: Node, term: int) -> Lane[None]:
    """Watch the nodes and publish what the rules decide, for as long as this node leads.

    A leader that fails resigns: another may do better. A service that does not answer is no reason, unless it answers
    this node's other calls for a time to live. If no other node takes over, it stands for election again, and its
    caller gets the error if that goes wrong, too.
    """
    desk = _Desk(node)
    view: View | None = None

    def leads() -> bool:
        return node.leading and node.term == term

    def turn() -> Lane[None]:
        nonlocal view
        # After a failure the nodes are read anew.
        seen, view = view, None
        try:
            if seen is None:
                seen = yield ReadAll(NODES, node.soon())
            view = yield from desk.turn(seen)
        except RendezvousConnectionError as error:
            seconds = node.clock() - desk.done_at
            if is_passing(error) and seconds >= node.ttl and node.trusted_in() == 0:
                # The service has answered this node's other calls all the time: it is no outage.
                raise RendezvousError(f"What a leader asks for has failed for {seconds:.1f} s: {error}") from error
            raise

    try:
        yield from supervised(node, LEAD, turn, leads, most=FAILURES)
        if leads() and not node.closing:
            logger.warning("node '%s' does not lead '%s' any more: %s", node.id, node.settings.run, node.failure())
            node.stands_from = node.clock() + node.interval
            yield from resign(node, node.stands_from)
    except Exception as error:
        # Its key stays for now. If nobody takes over it is elected again, by that key.
        logger.warning("node '%s' could not resign in '%s': %r", node.id, node.settings.run, error)
    finally:
        if leads():
            node.step_down()


def _announce(node: Node, before: State, number: int) -> Lane[None]:
    """Say that this round is about to be formed without some member of the one before, or by the next attempt.

    A member that comes back reads this after it has written its record. If it is not there yet, the
    look that follows sees the record; if it is, the member fences the state. A later leader reads
    from it what the attempt before has left: this leader may die before it has removed that.
    """
    intent = replace(node.limits(), attempt=before.attempt)
    yield Put(intent_key(number), intent.encode(), node.soon(), after=None)


def _publish(node: Node, decision: rules.Publish, held: Held | None) -> Lane[None]:
    _, now = yield Put(STATE_KEY, decision.state.encode(), node.soon(), after=held)
    if events := node.look_at_state(now):
        yield Tell(tuple(events))
    if node.vanished:
        # Trying again at once is of no use: first the keeper finds out what became of the state.
        yield Changed(node.clock() + node.interval)


def outdated(view: View, state: State, until: int) -> list[str]:
    """What the intents up to a round show to be needed no more, whichever leader has announced them.

    Args:
        view: What stands there: the intents are read, the rest is not.
        state: The state.
        until: The last round whose intent is of no more use.

    Returns:
        Prefixes in the order in which to remove them: an intent goes last, since it names the others.
    """
    found = []
    for key, held in view.readable().items():
        folder, _, number = key.rpartition("/")
        if folder != INTENTS or not number.isdecimal() or int(number) > until:
            continue
        try:
            attempt = decode(Leadership, held.payload).attempt
        except RendezvousStateError:
            attempt = state.attempt
        if attempt < state.attempt:
            # Where the service has no leases, what is dead stays.
            found += [f"{NODES}/{attempt}", f"{BEATS}/{attempt}"]
        found.append(key)
    return found


@dataclass
class _Desk:
    """What a leader remembers during its term."""

    node: Node
    parsed: dict[str, tuple[Held, NodeRecord]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    enough_since: float | None = None
    posted: Notice | None = None
    posted_at: float = 0.0
    held: Held | None = None
    removed: set[str] = field(default_factory=set)
    swept: int = 0
    done_at: float = 0.0

    def __post_init__(self) -> None:
        self.done_at = self.node.clock()
        self.posted = self.node.notice
        self.posted_at = self.node.clock()
        if (state := self.node.state) is not None:
            # The leader that published this round may have died before it removed anything.
            self.swept = max(0, state.round - 3)

    def turn(self, view: View) -> Lane[View]:
        """Decide on a view of the nodes, and do it; returns the next view: after a change, or when it is time."""
        node = self.node
        records = self.read(view)
        if events := self.arrivals(records):
            yield Tell(events)
        decision = self.decide(node.state, records)
        if isinstance(decision, rules.Publish):
            state, held = node.state, node.held
            if state is not None and (decision.bereaved or state.attempt < decision.state.attempt):
                yield from _announce(node, state, decision.state.round)
            # The view may be older than the state: look again with the token in hand.
            view = yield ReadAll(NODES, node.soon(), view)
            again = self.decide(state, self.read(view))
            # A node may have died between the two looks, unannounced: then once more.
            if isinstance(again, rules.Publish) and again.bereaved <= decision.bereaved:
                yield from _publish(node, again, held)
            return view
        post_in = yield from self.post(decision.notice)
        yield from self.tidy()
        since, self.done_at = view, node.clock()
        view = yield Wait(NODES, since, node.clock() + min(post_in, self.again_in(decision)))
        if view is not since:
            # Many come together: reading them costs by their number, so give them time to.
            yield Sleep(node.clock() + COALESCE * len(records))
        return view

    def read(self, view: View) -> list[NodeRecord]:
        """The records in a view; those that did not change are not parsed again."""
        parsed = {}
        for key, held in view.readable().items():
            before = self.parsed.get(key)
            if before is not None and before[0] is held:
                parsed[key] = before
                continue
            try:
                record = decode(NodeRecord, held.payload)
            except RendezvousStateError as error:
                logger.warning("ignoring '%s': %s", key, error)
                continue
            parsed[key] = (held, replace(record, order=held.order))
        self.parsed = parsed
        return [record for _, record in parsed.values()]

    def arrivals(self, records: Collection[NodeRecord]) -> tuple[Event, ...]:
        """An event for each waiting node that was not there before."""
        world = frozenset(self.node.state.world if self.node.state else ())
        new = [node for node in records if node.id not in self.known and node.id not in world and node.left is None]
        self.known = {node.id for node in records}
        return tuple(
            self.node.event(EventKind.NODE_ARRIVED, node.id, f"it waits at {node.address or 'no address'}")
            for node in new
        )

    def decide(self, state: State | None, records: Collection[NodeRecord]) -> rules.Publish | rules.Hold:
        """Ask the rules."""
        now = self.node.clock()
        decision = rules.decide(
            state,
            records,
            self.node.limits(),
            enough_for=0.0 if self.enough_since is None else now - self.enough_since,
            last_call=self.node.settings.timeout.last_call.total_seconds(),
            trusted=self.node.trusted_in() == 0,
            known=self.posted,
            assign=self.node.assign,
        )
        if isinstance(decision, rules.Hold):
            if not decision.enough:
                self.enough_since = None
            elif self.enough_since is None:
                self.enough_since = now
        return decision

    def tidy(self) -> Lane[None]:
        """Remove what nobody needs any more.

        By what is there, not by what this leader has published: the one before may have died, and the
        reply to a write may have been lost.
        """
        state, view = self.node.state, self.node.view
        if state is None or view is None:
            return
        for prefix in outdated(view, state, state.round):
            if prefix not in self.removed:
                yield Delete(prefix, self.node.soon())
                self.removed.add(prefix)
        # After a service has forgotten its data the numbers jump: there is nothing far back.
        self.swept = max(self.swept, state.round - SWEPT)
        for number in range(self.swept + 1, state.round - 1):
            yield Delete(f"{STORE}/{number}", self.node.soon())
            self.swept = number

    def again_in(self, hold: rules.Hold) -> float:
        """Seconds after which to decide anew although nothing has changed."""
        # Once an interval in any case, to see that this node leads no more.
        moments = [self.node.interval, hold.again_in, self.node.trusted_in() or None]
        return min(moment for moment in moments if moment is not None)

    def post(self, notice: Notice) -> Lane[float]:
        """Post the news if it is worth waking everyone; returns seconds until it may be."""
        posted = self.posted
        if posted is None or posted.round != notice.round:
            # What nodes take for granted: all of the world are there.
            world = self.node.state.world if self.node.state else ()
            posted = Notice(notice.round, "running", len(world), 0)
        now = self.node.clock()
        # A delete that was applied too late may have taken away what we posted.
        taken = self.held is not None and self.node.notice is None and now - self.posted_at > self.node.interval
        if notice == posted and not taken:
            return self.node.interval
        urgent = notice.lost != posted.lost or (notice.waiting > 0) != (posted.waiting > 0)
        due = 0.0 if urgent else self.posted_at + NOTICE_INTERVAL - now
        if due > 0:
            return due
        before = None if taken else self.held or (self.node.view.raw(NOTICE_KEY) if self.node.view else None)
        won, self.held = yield Put(NOTICE_KEY, notice.encode(), self.node.soon(), after=before)
        self.posted_at = self.node.clock()
        if won:
            self.posted = notice
            return self.node.interval
        # A leader before us posted last: know what it knew, then post on top of it.
        self.posted = decode(Notice, self.held.payload) if self.held is not None else None
        return 0.0
