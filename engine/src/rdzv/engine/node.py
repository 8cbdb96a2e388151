"""What one node knows and wants: the memory that its coroutines share. No I/O, no threads."""

import logging
import math
import os
import random
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from rdzv_core.backend import STATE_KEY

from ..hooks import Event, EventKind
from ..settings import RendezvousSettings
from . import rules
from .client import DecodedSnapshot, VersionedValue, backoff
from .connection import Connection
from .countdown import Countdown
from .failures import LEAD, Failures
from .notices import Notices, name_in_id, read_notices
from .records import LEADER_KEY, STATUS_KEY, Closed, LeaderRecord, Page, RunStatus, decode_state, read_record
from .registration import NodeState, Registration, Trigger
from .rules import MembershipState
from .run_view import Presence, RunView

logger = logging.getLogger(__name__)

FIRST_CANDIDATES: Final = 2
"""Of many nodes that see at once that there is no leader, so many, on average, stand for election at once."""

CLAIM_PAUSE: Final = 0.05
"""Seconds after which more stand, unless they have heard of a claim by then."""

CANDIDATES: Final = 12
"""So many, on average, have stood by then."""

NO_LEADER_TIMEOUT: Final = 1.0
"""Seconds after which others do, if there is still no leader: the election may have failed."""

MORE_CANDIDATES: Final = 4
"""So many times as many as before: those that are slow to hear of a leader do not all stand."""

RATE: Final = 500
"""Attempts a second that all nodes together make at a service that does not answer, each in each of its loops."""


@dataclass
class Node:
    """One node of one run.

    Attributes:
        settings: What the user asked for.
        backend: The backend's name, for messages.
        clock: This node's monotonic clock, in seconds.
        assign: Which node gets which rank in a world that this node publishes.
        rng: Where pauses come from.
        id: Made anew for each handler; readable, and unique by its random part.
        interval: Seconds between two keep-alives.
        ttl: Seconds after which a silent node counts as dead.
        run: What the service shows of the run.
        registration: This node's record, and its state.
        connection: Whether the service answers.
        failures: What has gone wrong in the node's loops.
        round: The last round that this node took part in; 0: none.
        term: The term in which this node leads; 0: it does not lead.
        elections: How many terms it has begun.
        stands_from: The moment before which this node does not stand for election: it has just resigned, or others
            stand first.
        alone_since: Since when this node waits and all others of its world have left; None: they have not.
        evicted_from: The round whose eviction this node has reported.
        countdown: Until when drains and its own quarantine last.
    """

    settings: RendezvousSettings
    backend: str
    clock: Callable[[], float]
    assign: rules.Assign = rules.sticky_ranks
    rng: random.Random = field(default_factory=random.Random)
    id: str = ""

    interval: float = field(init=False)
    ttl: float = field(init=False)
    run: RunView = field(default_factory=RunView)
    registration: Registration = field(default_factory=Registration)
    connection: Connection = field(init=False)
    failures: Failures = field(init=False)

    round: int = 0
    term: int = 0
    elections: int = 0
    stands_from: float = -math.inf
    alone_since: float | None = None
    evicted_from: int = 0
    countdown: Countdown = field(init=False)

    def __post_init__(self) -> None:
        """Give the node its id, and what follows from its settings."""
        if not self.id:
            name = self.settings.node_name or os.uname().nodename
            self.id = f"{name_in_id(name)}.{secrets.token_hex(6)}"
        self.interval = self.settings.keep_alive_interval.total_seconds()
        self.ttl = self.interval * self.settings.keep_alive_max_attempt
        self.connection = Connection(self.settings.run, self.backend, self.clock, self.interval, self.ttl)
        self.failures = Failures(self.clock)
        self.countdown = Countdown(self.id)

    # What time it is.

    def background_deadline(self, at_most: float = math.inf) -> float:
        """The deadline for a call in the background; `at_most` is one that the caller has."""
        return min(at_most, self.clock() + max(self.ttl, self.settings.timeout.heartbeat.total_seconds()))

    def pauses(self) -> Iterator[float]:
        """Seconds between attempts at what failed."""
        return backoff(self.rng, self.longest_pause)

    def longest_pause(self) -> float:
        """The most seconds between two attempts: so long that all nodes together make `RATE` attempts a second, but no
        longer than an interval, in which a lease is renewed in any case, or a second, if that is longer."""
        # `backoff` draws three quarters of it on average.
        return max(1.0, min(self.nodes_known() / (0.75 * RATE), self.interval))

    # What is there.

    def apply_snapshot(self, snapshot: DecodedSnapshot, page: Page | None = None) -> list[Event]:
        """Apply a new snapshot of ``control``; returns what has happened since the last one. See `apply_state`."""
        events = self.apply_leader(read_record(LeaderRecord, snapshot.get(LEADER_KEY)))
        events += self.apply_state(snapshot.get(STATE_KEY), page)
        events += self._apply_status(read_record(RunStatus, snapshot.get(STATUS_KEY)))
        events += self.apply_notices(read_notices(snapshot))
        # Last, so that what cannot be read is looked at again.
        self.run.snapshot = snapshot
        return events

    def is_news(self, versioned: VersionedValue) -> bool:
        """Whether this is a newer state than the one that is known."""
        return self.run.version is None or versioned.envelope.supersedes(self.run.version.envelope)

    def apply_state(self, versioned: VersionedValue | None, page: Page | None = None) -> list[Event]:
        """Apply the state, from the watch or from a write of this node, whichever is newer.

        Args:
            versioned: The state; None: there is none.
            page: The page on which this node stands, if its world stands on pages.
        """
        if versioned is None:
            # Only deleting the whole run, or a service that forgot, takes a state away; but a snapshot
            # may also be older than this node's own write. The keep-alive loop finds out.
            self.run.found(self.run.version is None)
            return []
        self.run.found(True)
        if self.run.version is not None and not self.is_news(versioned):
            if versioned.envelope.nonce == self.run.version.envelope.nonce:
                # The same value may have been put back by other means: then it has another token.
                self.run.version = versioned
                if page is not None:
                    self.run.page, self.run.rank = page, page.ranks.get(self.id)
            return []
        before, state = self.run.state, decode_state(versioned.payload)
        self.run.state, self.run.version, self.run.page = state, versioned, page
        self.run.rank = rules.rank_of(state, page, self.id)
        if self._is_finished():
            # There is nothing to lead any more.
            self.failures.clear(LEAD)
        events = []
        if state.round > (before.round if before else 0) and state.size:
            cause = f"a world of {state.size}, with rank 0 at {state.address}:{state.port}"
            events.append(self.event(EventKind.ROUND_PUBLISHED, state.first, cause))
        if state.closed and not (before and before.closed == state.closed):
            events.append(self.event(EventKind.CLOSED, state.closed.by, state.closed.reason))
        if self.is_evicted() and self.evicted_from != self.round:
            self.evicted_from = self.round
            cause = f"round {state.round} was formed while this node was away from round {self.round}"
            events.append(self.event(EventKind.EVICTED, self.id, cause))
        return events

    def _apply_status(self, status: RunStatus | None) -> list[Event]:
        before, self.run.status = self.run.status, status
        # What a node finds when it comes happened before: an abandoned run still says why it was.
        state = self.run.state
        if status is None or self.run.snapshot is None or state is None or status.round != state.round:
            return []
        known = frozenset(before.departures if before is not None and before.round == status.round else ())
        # Not of this node itself: it comes back, or its caller learns that it was evicted.
        return [
            self.event(EventKind.NODE_LEFT if departure.left else EventKind.NODE_LOST, departure.node, departure.cause)
            for departure in status.departures
            if departure not in known and departure.node != self.id
        ]

    def apply_notices(self, notices: Notices) -> list[Event]:
        """Apply the notices of the run; returns what is new to this node."""
        before, self.run.notices = self.run.notices, notices
        self.countdown.observe(notices, self.clock())
        for key in notices.unreadable.keys() - before.unreadable.keys():
            logger.warning("ignoring '%s' of '%s': %s", key, self.settings.run, notices.unreadable[key])
        state = self.run.state
        if self.run.snapshot is None or state is None:
            # What a node finds when it comes happened before.
            return []
        number = state.round
        events = [
            self.event(EventKind.NODE_DRAINS, node, f"in {notice.seconds:g} s: {notice.reason}")
            for node, notice in notices.drains.items()
            if before.drains.get(node) != notice
        ]
        failure = notices.failures.get(number)
        if failure is not None and failure.node != self.id and number not in before.failures:
            events.append(self.event(EventKind.NODE_FAILED, failure.node, failure.reason))
        events += [
            self.event(EventKind.NODE_QUARANTINED, name, f"for {quarantine.cooldown:g} s: {quarantine.reason}")
            for name, quarantine in notices.quarantines.items()
            if not quarantine.over and before.quarantines.get(name) != quarantine
        ]
        return events

    def apply_leader(self, leader: LeaderRecord | None) -> list[Event]:
        """Apply the leader's record."""
        before, self.run.leader = self.run.leader, leader
        if leader is None:
            if self.leading:
                # A snapshot older than this node's own election; a lost lease is found by the keep-alive loop.
                self.run.leader = before
            elif before is not None:
                self.draw_candidates()
            return []
        if leader.node != self.id:
            self.term = 0
            # What kept this node from leading does not matter any more.
            self.failures.clear(LEAD)
        if before is not None and before.node == leader.node:
            return []
        return [self.event(EventKind.LEADER_CHANGED, leader.node, "it holds the leader's lease")]

    def nodes_known(self) -> int:
        """About how many nodes take part, as far as this one knows: as many as a world needs, where there was none."""
        state, status = self.run.state, self.run.status
        in_world = self.settings.min_nodes if state is None else state.size
        return in_world if status is None else max(in_world, status.present)

    def observers(self) -> int:
        """About how many nodes observe the same leases as this one: all observe the leader's, only it all others'."""
        return 1 if self.leading else self.nodes_known()

    def event(self, kind: EventKind, node: str, cause: str) -> Event:
        """An event of this run, in the round that is known now."""
        return Event(kind, self.settings.run_id, self.run.state.round if self.run.state else 0, node, cause)

    # What it means.

    @property
    def leading(self) -> bool:
        """Whether this node leads."""
        return self.term > 0

    @property
    def stopped(self) -> bool:
        """Whether every coroutine is to end."""
        return self.registration.state is NodeState.STOPPED

    def membership(self) -> MembershipState:
        """What the state means to this node."""
        return rules.membership(self.run.state, self.run.rank, self.settings.attempt, self.round)

    def is_evicted(self) -> bool:
        """Whether another round was formed while this node believed itself in its own."""
        state = self.run.state
        if state is None or not self._in_own_round():
            return False
        # One of a smaller number, or of the same, was formed after the service had forgotten everything.
        return state.round != self.round or (state.size > 0 and self.run.rank is None and not self.run.lacks_page())

    def drain_reason(self) -> str:
        """Why this node drains, in words."""
        end = self.countdown.drains.get(self.id)
        return f"drained: {'no reason given' if end is None else end.reason}"

    def quarantine(self) -> str | None:
        """For how many more seconds this node is quarantined, and why, in words; None: it is not."""
        countdown, now = self.countdown, self.clock()
        if countdown.quarantine is None or countdown.cooled_at == math.inf:
            return None
        return f"quarantined for another {max(0.0, countdown.cooled_at - now):.0f} s: {countdown.quarantine.reason}"

    def is_outside(self, node_id: str) -> bool:
        """Whether a node is known to be in no world with this one. Of a world on pages a node knows few members."""
        state = self.run.state
        if state is None or state.pages is not None or not self.in_running_round():
            return False
        return node_id not in state.world

    def goes_at(self) -> float:
        """When this node has to say that it goes, as its drain is over; infinite: it does not drain, or has said it."""
        record = self.registration.record
        has_said = record is None or record.goes
        return math.inf if has_said else self.countdown.goes_at()

    def is_drained(self) -> bool:
        """Whether this node drains, and goes now: its time is over, all are ready, or the others left or went on."""
        moment, record = self.countdown.goes_at(), self.registration.record
        if moment == math.inf:
            return False
        state, status = self.run.state, self.run.status
        is_released = status is not None and status.round == self.round and self.id in status.drained
        is_replaced = state is not None and state.round > self.round > 0 and self.run.rank is None
        is_alone = self.alone_since is not None
        return self.clock() >= moment or is_released or is_replaced or is_alone or (record is not None and record.goes)

    def is_waiting(self) -> bool:
        """Whether this node waits for a world, having left behind the one it had, if any."""
        record = self.registration.record
        return record is not None and record.last_round == self.round

    def in_running_round(self) -> bool:
        """Whether this node is in the round that runs now."""
        state = self.run.running()
        return self._in_own_round() and state is not None and state.round == self.round

    def _in_own_round(self) -> bool:
        """Whether this node believes itself in the round that it joined last."""
        record = self.registration.record
        return record is not None and record.last_round < self.round

    def alone_until(self) -> float:
        """Until when to wait although all others of this node's world have left; infinite while that is not certain."""
        alone = rules.is_alone(self.run.state, self.run.status, self.run.rank)
        if not (alone and self.is_waiting() and self.connection.error is None):
            self.alone_since = None
            return math.inf
        if self.alone_since is None:
            self.alone_since = self.clock()
        return self.alone_since + self.settings.timeout.alone.total_seconds()

    def alone(self) -> float | None:
        """Seconds since `alone_until` first said that this node is alone; None: it is not."""
        since = self.alone_since
        return None if since is None else self.clock() - since

    def has_valid_lease(self) -> bool:
        """Whether this node's record certainly lives, so that its world is still its own."""
        live = self.registration.state is NodeState.REGISTERED
        return live and self.clock() < self.registration.lease_until

    def member_until(self) -> float | None:
        """Until when this node is certainly a member of the world that it has joined last; None: it is not sure."""
        is_sure = self.has_valid_lease() and not (self.is_waiting() or self.is_evicted())
        return self.registration.lease_until if is_sure else None

    def draw_candidates(self) -> None:
        """There is no leader, as many see at once: draw from when on this node stands for election."""
        place = self.rng.random() * self.nodes_known()
        pause = CLAIM_PAUSE if FIRST_CANDIDATES < place <= CANDIDATES else 0.0
        moments = math.ceil(math.log(max(place / CANDIDATES, 1.0), MORE_CANDIDATES))
        self.stands_from = max(self.stands_from, self.clock() + pause + moments * NO_LEADER_TIMEOUT)

    def next_election(self) -> float:
        """The moment at which this node stands for election, or stands again, if there is no leader by then."""
        now = self.clock()
        soon = now + NO_LEADER_TIMEOUT
        return min(soon, self.stands_from) if self.stands_from > now else soon

    def may_lead(self) -> bool:
        """Whether this node could lead: it is registered, and there is something to lead."""
        registered = self.registration.state is NodeState.REGISTERED
        return registered and self.clock() >= self.stands_from and not self._is_finished()

    def sees_no_leader(self) -> bool:
        """Whether the service shows no leader of the run that this node is in or waits for, nor this node, if it
        believes to lead."""
        snapshot, leader = self.run.snapshot, self.run.leader
        unseen = snapshot is None or snapshot.get(LEADER_KEY) is None
        # Its own claim outlives its lead: it has resigned, and the service did not hear of it.
        unseen = unseen or leader is None or (leader.node == self.id and not self.leading)
        return unseen and self.registration.record is not None and not self._is_finished()

    def _is_finished(self) -> bool:
        return self.membership() in (MembershipState.CLOSED, MembershipState.SUPERSEDED)

    def limits(self) -> LeaderRecord:
        """This node's own limits, as the leader's key holds them."""
        mine = self.settings
        return LeaderRecord(self.id, mine.attempt, mine.min_nodes, mine.max_nodes, mine.limits.rule)

    def closed(self) -> Closed | None:
        """Why the run is over for this node; None while it is not."""
        state = self.run.state
        if self.run.presence is Presence.DELETED:
            return Closed("", "the run was removed from the service", done=False)
        if state is None:
            return None
        if state.attempt > self.settings.attempt:
            return Closed("", f"superseded by attempt {state.attempt}", done=False)
        return state.closed if state.attempt == self.settings.attempt else None

    def waiting(self) -> int:
        """How many nodes wait for a world that would differ from this node's."""
        if self.is_evicted() or self.is_drained():
            return 1
        state, status = self.run.state, self.run.status
        current = self.round or (state.round if state else 0)
        return status.waiting if status is not None and status.round == current else 0

    # What it does.

    def step_down(self) -> None:
        """Cease to lead."""
        self.term = 0
        self.run.leader = None

    def begin_term(self) -> int:
        """Begin to lead; returns the number of the term."""
        self.elections += 1
        self.term = self.elections
        return self.term

    def stop(self) -> None:
        """End every coroutine of this node."""
        self.registration.on(Trigger.STOPPED)
