"""What one node knows and wants: the memory that its coroutines share. No I/O, no threads."""

import math
import os
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rdzv_core.backend import STATE_KEY
from rdzv_core.errors import RendezvousConnectionError

from ..hooks import Event, EventKind
from ..settings import RendezvousSettings
from . import events, failures, rules
from .candidacy import Candidacy
from .client import DecodedSnapshot, Pauses, VersionedValue, longest_pause
from .connection import Connection
from .countdown import Countdown
from .failures import LEAD, Failures
from .notices import Notices, name_in_id, read_notices
from .reckoning import Reckoning
from .records import LEADER_KEY, STATUS_KEY, Closed, LeaderRecord, Page, RunStatus, read_record
from .registration import NodeState, Registration, Trigger
from .rules import MembershipState
from .run_view import RunView


@dataclass
class Node:
    """One node of one run.

    Attributes:
        settings: What the user asked for.
        backend: The backend's name, for messages.
        clock: This node's monotonic clock, in seconds.
        rng: Where pauses come from.
        id: Made anew for each handler; readable, and unique by its random part.
        interval: Seconds between two keep-alives.
        ttl: Seconds after which a silent node counts as dead.
        run: What the service shows of the run.
        registration: This node's record, and its state.
        connection: Whether the service answers.
        failures: What has gone wrong in the node's loops.
        round: The last round that this node took part in; 0: none.
        evicted_from: The round whose eviction this node has reported.
        candidacy: When it stands for election, and the term in which it leads.
        countdown: Until when drains and its own quarantine last, and since when it waits alone.
        reckoning: How its last round has ended, and what that costs it.
        expected: The names of the machines that are expected to take part; none: they are not known.
        creates_at_once: How many keys the service makes in one step.
    """

    settings: RendezvousSettings
    backend: str
    clock: Callable[[], float]
    rng: random.Random = field(default_factory=random.Random)
    id: str = ""
    interval: float = field(init=False)
    ttl: float = field(init=False)
    run: RunView = field(default_factory=RunView)
    registration: Registration = field(default_factory=Registration)
    connection: Connection = field(init=False)
    failures: Failures = field(init=False)
    round: int = 0
    evicted_from: int = 0
    candidacy: Candidacy = field(init=False)
    countdown: Countdown = field(init=False)
    reckoning: Reckoning = field(default_factory=Reckoning)
    expected: tuple[str, ...] = ()
    creates_at_once: int = 1

    def __post_init__(self) -> None:
        """Give the node its id, and what follows from its settings."""
        if not self.id:
            name = self.settings.node_name or os.uname().nodename
            self.id = f"{name_in_id(name)}.{secrets.token_hex(6)}"
        self.interval = self.settings.keep_alive_interval.total_seconds()
        self.ttl = self.interval * self.settings.keep_alive_max_attempt
        self.connection = Connection(self.settings.run, self.backend, self.clock, self.interval, self.ttl)
        self.failures = Failures(
            self.clock, partial(failures.patience, self.settings.timeout.refused.total_seconds(), self.registration)
        )
        self.candidacy = Candidacy(self.id, self.settings.attempt, self.run, self.registration)
        self.countdown = Countdown(self.id)

    # What time it is.

    def background_deadline(self, at_most: float = math.inf) -> float:
        """The deadline for a call in the background; `at_most` is one that the caller has."""
        return min(at_most, self.clock() + max(self.ttl, self.settings.timeout.heartbeat.total_seconds()))

    def pauses(self) -> Pauses:
        """Seconds between attempts at what failed."""
        longest = partial(longest_pause, interval=self.interval)
        return Pauses(self.rng, lambda: longest(self.nodes_known()), self.interval, self.failures.patience_of_a_call)

    # What the service shows.

    def apply_snapshot(self, snapshot: DecodedSnapshot, page: Page | None = None) -> list[Event]:
        """Apply a new snapshot of ``control``; returns what has happened since the last one. See `apply_state`."""
        happened = self.apply_leader(read_record(LeaderRecord, snapshot.get(LEADER_KEY)))
        happened += self.apply_state(snapshot.get(STATE_KEY), page)
        happened += self._apply_status(read_record(RunStatus, snapshot.get(STATUS_KEY)))
        happened += self.apply_notices(read_notices(snapshot))
        # Last, so that what cannot be read is looked at again.
        self.run.snapshot = snapshot
        return happened

    def apply_state(self, versioned: VersionedValue | None, page: Page | None = None) -> list[Event]:
        """Apply a state, from the watch or from a write of this node; returns what has happened. See `RunView.take`."""
        before = self.run.state
        state = self.run.take(versioned, page, self.id)
        if state is None:
            return []
        if self.run.is_over(self.settings.attempt):
            # There is nothing to lead any more.
            self.failures.clear(LEAD)
        happened = [self.event(*news) for news in events.in_state(before, state)]
        if self.is_evicted() and self.evicted_from != self.round:
            self.evicted_from = self.round
            cause = f"round {state.round} was formed while this node was away from round {self.round}"
            happened.append(self.event(EventKind.EVICTED, self.id, cause))
        return happened

    def _apply_status(self, status: RunStatus | None) -> list[Event]:
        before, self.run.status = self.run.status, status
        self.countdown.observe_last_call(status.ends_in if status is not None else None, self.clock())
        # What a node finds when it comes happened before: an abandoned run still says why it was.
        state = self.run.state
        if status is None or self.run.snapshot is None or state is None or status.round != state.round:
            return []
        return [self.event(*news) for news in events.in_status(before, status, self.id)]

    def apply_notices(self, notices: Notices) -> list[Event]:
        """Apply the notices of the run; returns what is new to this node."""
        before, self.run.notices = self.run.notices, notices
        self.countdown.observe(notices, self.clock())
        if self.run.snapshot is None:
            return []  # as in `_apply_status`
        number = self.run.state.round if self.run.state else 0
        return [self.event(*news) for news in events.in_notices(before, notices, number, self.id)]

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
            self.candidacy.term = 0
            # What kept this node from leading does not matter any more.
            self.failures.clear(LEAD)
        if before is not None and before.node == leader.node:
            return []
        return [self.event(EventKind.LEADER_CHANGED, leader.node, "it holds the leader's lease")]

    def nodes_known(self) -> int:
        """About how many nodes take part, as far as this one knows: as many as a world needs, where there was none."""
        return self.run.nodes_known(self.settings.min_nodes)

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
        return self.candidacy.term > 0

    @property
    def stopped(self) -> bool:
        """Whether every coroutine is to end."""
        return self.registration.state is NodeState.STOPPED

    @property
    def connection_error(self) -> RendezvousConnectionError | None:
        """Why the service could not be reached lately, or refuses this node; None while it does neither."""
        return self.connection.error or self.failures.refusal

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

    def is_outside(self, node_id: str) -> bool:
        """Whether a node is known to be in no world with this one. Of a world on pages a node knows few members."""
        state = self.run.state
        if state is None or state.pages is not None or not self.in_running_round():
            return False
        return node_id not in state.world

    def goes_at(self) -> float:
        """When this node has to say that it goes, as its drain is over; infinite: it does not drain, or has said it."""
        record = self.registration.record
        return math.inf if record is None or record.goes else self.countdown.goes_at()

    def is_drained(self) -> bool:
        """Whether this node drains, and goes now: its time is over, all are ready, or the others left or went on."""
        moment, record = self.countdown.goes_at(), self.registration.record
        if moment == math.inf:
            return False
        state, status = self.run.state, self.run.status
        is_released = status is not None and status.round == self.round and self.id in status.drained
        is_replaced = state is not None and state.round > self.round > 0 and self.run.rank is None
        is_alone = self.countdown.alone_since is not None
        return self.clock() >= moment or is_released or is_replaced or is_alone or (record is not None and record.goes)

    def is_waiting(self) -> bool:
        """Whether this node waits for a world, having left behind the one it had, if any."""
        record = self.registration.record
        return record is not None and record.last_round == self.round

    def in_running_round(self) -> bool:
        """Whether this node is in the round that runs now."""
        return self._in_own_round() and (state := self.run.running()) is not None and state.round == self.round

    def _in_own_round(self) -> bool:
        """Whether this node believes itself in the round that it joined last."""
        record = self.registration.record
        return record is not None and record.last_round < self.round

    def is_alone(self) -> bool:
        """Whether this node waits, and all others of its world have certainly left."""
        alone = rules.is_alone(self.run.state, self.run.status, self.run.rank)
        return alone and self.is_waiting() and self.connection_error is None

    def has_valid_lease(self) -> bool:
        """Whether this node's record certainly lives, so that its world is still its own."""
        return self.registration.state is NodeState.REGISTERED and self.clock() < self.registration.lease_until

    def member_until(self) -> float | None:
        """Until when this node is certainly a member of the world that it has joined last; None: it is not sure."""
        is_sure = self.has_valid_lease() and not (self.is_waiting() or self.is_evicted())
        return self.registration.lease_until if is_sure else None

    def limits(self) -> LeaderRecord:
        """This node's own limits, as the leader's key holds them."""
        mine, limits = self.settings, self.settings.limits
        return LeaderRecord(self.id, mine.attempt, mine.min_nodes, mine.max_nodes, limits.rule, limits.policy)

    def closed(self) -> Closed | None:
        """Why the run is over for this node; None while it is not."""
        return self.run.closed(self.settings.attempt)

    def waiting(self) -> int:
        """How many nodes wait for a world that would differ from this node's."""
        if self.is_evicted() or self.is_drained():
            return 1
        state, status = self.run.state, self.run.status
        current = self.round or (state.round if state else 0)
        return status.waiting if status is not None and status.round == current else 0

    # What it does.

    def draw_candidates(self) -> None:
        """Draw from when on this node stands for election: there is no leader, as many see at once."""
        self.candidacy.draw(self.nodes_known(), self.rng.random(), self.clock())

    def stop(self) -> None:
        """End every coroutine of this node."""
        self.registration.on(Trigger.STOPPED)
