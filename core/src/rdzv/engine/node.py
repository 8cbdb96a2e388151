"""What one node knows and wants: the memory that its coroutines share. No I/O, no threads."""

import math
import os
import random
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..backend import Lease
from ..errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousParameterError,
    RendezvousTimeoutError,
    again,
)
from ..hooks import Event, EventKind
from ..keys import escape
from ..settings import RendezvousSettings
from . import rules
from .client import DecodedSnapshot, VersionedValue, backoff
from .records import LEADER_KEY, STATE_KEY, STATUS_KEY, Closed, LeaderRecord, NodeRecord, RunStatus, State, decode
from .rules import MembershipState

__all__ = ["KEEP", "LEAD", "WATCH", "Failure", "Node", "has_lasted", "unexpected"]

WATCH, KEEP, LEAD = "watch", "keep", "lead"
"""The loops of a node: each owns the errors that it meets."""

LASTING = 1.0
"""Seconds that a loop must have failed for until the caller gets its error; half a second is a server's restart."""

LASTING_TIMES = 4
"""The same in failures, one after the other: a single one may have taken long. A leader fails so often in two terms."""


_FINAL = (RendezvousDeniedError, RendezvousParameterError)
"""What trying again does not mend: the caller gets it at once."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failures of a loop since its last success.

    Attributes:
        error: The latest error.
        times: How many there were, one after the other; 0: a passing fault.
        since: The moment of the first.
        lasts: It is not a passing fault: the caller gets the error.
    """

    error: RendezvousError
    times: int
    since: float
    lasts: bool


@dataclass
class Node:
    """One node of one run.

    Attributes:
        settings: What the user asked for.
        backend: The backend's name, for messages.
        clock: This node's monotonic clock, in seconds.
        id: Made anew for each handler; readable, and unique by its random part.
        snapshot: What the service holds under ``control``; None until it was seen once.
        state: The published state in that snapshot, and
        state_version: the versioned value that it came from: its token is the condition of the next write.
        round: The last round that this node took part in; 0: none.
        record: What this node wants to be written of itself; None while it is not registered.
        lease: The lease that the record hangs on.
        lease_until: The moment until which the lease certainly lives.
        record_version: What the service holds of it, as far as this node knows.
        ever_registered: The record was, or may have been, in the service before.
        registering: A coroutine is writing the record.
        settled: False while this node registers again after a lost lease: no world is to be trusted meanwhile.
        state_missing: The state seems to be missing in the service; not verified yet.
        run_deleted: It is: the run was removed.
        leading: This node leads.
        term: How often this node has begun to lead.
        stands_from: The moment before which this node does not stand for election: it has just resigned.
        alone_since: Since when this node waits and all others of its world have left; None: they have not.
        evicted_from: The round whose eviction this node has reported.
        failures: Loop to what has gone wrong in it; nothing but the loop itself clears it.
        connection_error: Why the service could not be reached lately; None while it can be.
        closing: The handler shuts down; every coroutine ends.
    """

    settings: RendezvousSettings
    backend: str
    clock: Callable[[], float]
    assign: rules.Assign = rules.sticky_ranks
    rng: random.Random = field(default_factory=random.Random)
    id: str = ""

    snapshot: DecodedSnapshot | None = None
    state: State | None = None
    state_version: VersionedValue | None = None
    status: RunStatus | None = None
    leader: LeaderRecord | None = None

    round: int = 0
    record: NodeRecord | None = None
    record_version: VersionedValue | None = None
    ever_registered: bool = False
    registering: bool = False
    lease: Lease | None = None
    lease_until: float = -math.inf
    settled: bool = True
    state_missing: bool = False
    run_deleted: bool = False
    leading: bool = False
    term: int = 0
    stands_from: float = -math.inf
    alone_since: float | None = None
    evicted_from: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    connection_error: RendezvousConnectionError | None = None
    closing: bool = False

    _contact_since: float | None = None
    _last_contact: float = -math.inf

    def __post_init__(self) -> None:
        """Give the node its id."""
        if not self.id:
            name = self.settings.node_name or os.uname().nodename
            self.id = f"{escape(name)[:32]}.{secrets.token_hex(6)}"

    # What time it is.

    @property
    def interval(self) -> float:
        """Seconds between two keep-alives."""
        return self.settings.keep_alive_interval.total_seconds()

    @property
    def ttl(self) -> float:
        """Seconds after which a silent node counts as dead."""
        return self.interval * self.settings.keep_alive_max_attempt

    def background_deadline(self) -> float:
        """The deadline for a call in the background."""
        return self.clock() + max(self.ttl, self.settings.timeout.heartbeat.total_seconds())

    def pauses(self) -> Iterator[float]:
        """Seconds between attempts at what failed."""
        return backoff(self.rng)

    def on_contact(self) -> None:
        """Note a contact: the service has just answered."""
        now = self.clock()
        if self._contact_since is None or self._is_gap(now):
            self._contact_since = now
        self._last_contact = now
        self.connection_error = None

    def on_connection_error(self, error: RendezvousConnectionError) -> None:
        """Note that the service did not answer."""
        self.connection_error = error

    def since_last_contact(self) -> float:
        """Seconds since the service last answered; infinite if it never did."""
        return self.clock() - self._last_contact

    def reset_grace_period(self) -> None:
        """Begin the grace period: the others get a time to live to come back."""
        self._contact_since = None

    def grace_remaining(self) -> float:
        """Seconds of the grace period that are left, until this node may declare a silent member lost."""
        now = self.clock()
        # A service that was frozen may push the end of all leases before it answers anything.
        since = now if self._contact_since is None or self._is_gap(now) else self._contact_since
        return max(0.0, since + self.ttl - now)

    def _is_gap(self, now: float) -> bool:
        """Whether the last contact is so long ago that the others, too, may have lost their leases meanwhile."""
        return now - self._last_contact > max(1.5 * self.interval, self.ttl - self.interval)

    # What is there.

    def apply_snapshot(self, snapshot: DecodedSnapshot) -> list[Event]:
        """Apply a new snapshot of ``control``; returns what has happened since the last one."""
        state = snapshot.get(STATE_KEY)
        status = snapshot.get(STATUS_KEY)
        leader = snapshot.get(LEADER_KEY)
        events = self.apply_leader(None if leader is None else decode(LeaderRecord, leader.payload))
        events += self.apply_state(state)
        events += self._apply_status(None if status is None else decode(RunStatus, status.payload))
        # Last, so that what cannot be read is looked at again.
        self.snapshot = snapshot
        return events

    def apply_state(self, versioned: VersionedValue | None) -> list[Event]:
        """Apply the state, from the watch or from a write of this node, whichever is newer."""
        if versioned is None:
            # Only deleting the whole run, or a service that forgot, takes a state away; but a view
            # may also be older than this node's own write. The keep-alive loop finds out.
            self.state_missing = self.state_version is not None
            return []
        self.state_missing = False
        if self.state_version is not None and not versioned.envelope.supersedes(self.state_version.envelope):
            if versioned.envelope.nonce == self.state_version.envelope.nonce:
                # The same value may have been put back by other means: then it has another token.
                self.state_version = versioned
            return []
        before, state = self.state, decode(State, versioned.payload)
        self.state, self.state_version = state, versioned
        if self._is_finished():
            # There is nothing to lead any more.
            self.clear_failure(LEAD)
        events = []
        if state.round > (before.round if before else 0) and state.world:
            cause = f"a world of {len(state.world)}, with rank 0 at {state.address}:{state.port}"
            events.append(self.event(EventKind.ROUND_PUBLISHED, state.world[0], cause))
        if state.closed and not (before and before.closed == state.closed):
            events.append(self.event(EventKind.CLOSED, state.closed.by, state.closed.reason))
        if self.is_evicted() and self.evicted_from != self.round:
            self.evicted_from = self.round
            cause = f"round {state.round} was formed while this node was away from round {self.round}"
            events.append(self.event(EventKind.EVICTED, self.id, cause))
        return events

    def _apply_status(self, status: RunStatus | None) -> list[Event]:
        before, self.status = self.status, status
        # What a node finds when it comes happened before: an abandoned run still says why it was.
        if status is None or self.snapshot is None or self.state is None or status.round != self.state.round:
            return []
        known = before.departures if before is not None and before.round == status.round else ()
        # Not of this node itself: it comes back, or its caller learns that it was evicted.
        return [
            self.event(EventKind.NODE_LEFT if departure.left else EventKind.NODE_LOST, departure.node, departure.cause)
            for departure in status.departures
            if departure not in known and departure.node != self.id
        ]

    def apply_leader(self, leader: LeaderRecord | None) -> list[Event]:
        """Apply the leader's record."""
        before, self.leader = self.leader, leader
        if leader is None:
            if self.leading:
                # A snapshot older than this node's own election; a lost lease is found by the keep-alive loop.
                self.leader = before
            return []
        if leader.node != self.id:
            self.leading = False
            # What kept this node from leading does not matter any more.
            self.clear_failure(LEAD)
        if before is not None and before.node == leader.node:
            return []
        return [self.event(EventKind.LEADER_CHANGED, leader.node, "it holds the leader's lease")]

    def event(self, kind: EventKind, node: str, cause: str) -> Event:
        """An event of this run, in the round that is known now."""
        return Event(kind, self.settings.run_id, self.state.round if self.state else 0, node, cause)

    # What it means.

    def membership(self) -> MembershipState:
        """What the state means to this node."""
        return rules.membership(self.state, self.id, self.settings.attempt, self.round)

    def raise_if_cannot_join(self) -> None:
        """Raise what keeps this node from waiting for a world.

        Raises:
            RendezvousError: A loop of this node fails, and not just for a moment.
            RendezvousClosedError: The attempt is closed or superseded, or the run was removed.
            RendezvousGracefulExitError: The job is done, and this node was never needed.
            RendezvousParameterError: The run has other limits.
        """
        if self.state is not None:
            self._refuse_what_is_over(self.state)
        if self.run_deleted:
            raise RendezvousClosedError(
                f"The rendezvous '{self.settings.run}' was removed from the service while this node took part in it. "
                "Start the nodes again to begin anew."
            )
        self.raise_problem()
        self._check_limits()

    def _refuse_what_is_over(self, state: State) -> None:
        run = f"The rendezvous '{self.settings.run}'"
        mine, closed = self.settings.attempt, state.closed
        if state.attempt > mine:
            raise RendezvousClosedError(
                f"{run} is at attempt {state.attempt}; this node belongs to attempt {mine}. "
                f"Start it with attempt {state.attempt} to join that one, with a higher one to supersede it, or "
                "under another run id."
            )
        if state.attempt == mine and closed is not None:
            if closed.done and self.is_waiting():
                raise RendezvousGracefulExitError(f"{run} is done; this node was not needed ({closed.reason}).")
            raise RendezvousClosedError(
                f"{run} was closed by {closed.by}: {closed.reason}. To run it again, use a higher attempt "
                f"than {mine} or another run id."
            )

    def _check_limits(self) -> None:
        mine = (self.settings.min_nodes, self.settings.max_nodes)
        there = self.state if self.state is not None and self.state.attempt == self.settings.attempt else self.leader
        if there is None or there.attempt != self.settings.attempt:
            return
        theirs = (there.min_nodes, there.max_nodes)
        if theirs != mine:
            raise RendezvousParameterError(
                f"The rendezvous '{self.settings.run}' was started for {theirs[0]} to {theirs[1]} nodes; "
                f"this node asks for {mine[0]} to {mine[1]}. All nodes of a run need the same limits; to start the "
                f"run anew with others, use a higher attempt (`rdzv run --attempt {there.attempt + 1}`), or remove "
                "what its nodes have left behind with `rdzv close --purge`."
            )

    def is_evicted(self) -> bool:
        """Whether a later round was formed while this node believed itself in its own."""
        running = self.record is not None and self.record.last_round < self.round
        # A smaller round is one that was formed after the service had forgotten everything.
        return running and self.state is not None and self.state.round != self.round

    def running(self) -> State | None:
        """The state while a round is running, with or without this node; else None."""
        return self.state if self.state is not None and self.state.world and self.state.closed is None else None

    def is_waiting(self) -> bool:
        """Whether this node waits for a world, having left behind the one it had, if any."""
        return self.record is not None and self.record.last_round == self.round

    def is_member(self) -> bool:
        """Whether this node is in the round that runs now."""
        running = self.record is not None and self.record.last_round < self.round
        return running and self.state is not None and self.state.round == self.round and self.state.closed is None

    def alone_until(self) -> float:
        """Until when to wait although all others of this node's world have left; infinite while that is not certain."""
        alone = self.connection_error is None and self.is_waiting() and rules.is_alone(self.state, self.status, self.id)
        if not alone:
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
        return self.settled and self.clock() < self.lease_until

    def may_lead(self) -> bool:
        """Whether this node could lead: it is registered, and there is something to lead."""
        registered = self.record is not None and self.lease is not None and self.settled
        rested = self.clock() >= self.stands_from
        return registered and rested and not self.closing and not self._is_finished()

    def sees_no_leader(self) -> bool:
        """Whether the service shows no leader of the run that this node is in or waits for, nor this node, if it
        believes to lead."""
        unseen = self.snapshot is None or self.snapshot.get(LEADER_KEY) is None
        # Its own claim outlives its lead: it has resigned, and the service did not hear of it.
        unseen = unseen or self.leader is None or (self.leader.node == self.id and not self.leading)
        return unseen and self.record is not None and not self._is_finished()

    def _is_finished(self) -> bool:
        return self.membership() in (MembershipState.CLOSED, MembershipState.SUPERSEDED)

    def limits(self) -> LeaderRecord:
        """This node's own limits, as the leader's key holds them."""
        return LeaderRecord(self.id, self.settings.attempt, self.settings.min_nodes, self.settings.max_nodes)

    def closed(self) -> Closed | None:
        """Why the run is over for this node; None while it is not."""
        if self.run_deleted:
            return Closed("", "the run was removed from the service", done=False)
        if self.state is None:
            return None
        if self.state.attempt > self.settings.attempt:
            return Closed("", f"superseded by attempt {self.state.attempt}", done=False)
        return self.state.closed if self.state.attempt == self.settings.attempt else None

    def waiting(self) -> int:
        """How many nodes wait for a world that would differ from this node's."""
        if self.is_evicted():
            return 1
        current = self.round or (self.state.round if self.state else 0)
        return self.status.waiting if self.status is not None and self.status.round == current else 0

    # What it does.

    def step_down(self) -> None:
        """Cease to lead."""
        self.leading = False
        self.leader = None

    def fail(self, loop: str, error: BaseException, *, lasts: bool = False) -> int:
        """Note that a loop has failed; the caller gets the error if that lasts.

        Args:
            loop: Which: it owns the error until it heals.
            error: Why.
            lasts: It has ended for good.

        Returns:
            How many times it has failed now, one after the other.
        """
        before = self.failures.get(loop)
        since, times = (before.since, before.times + 1) if before and before.times else (self.clock(), 1)
        lasts = lasts or (before is not None and before.lasts) or isinstance(error, _FINAL)
        lasts = lasts or has_lasted(times, self.clock() - since)
        ours = error if isinstance(error, RendezvousError) else unexpected(error)
        self.failures[loop] = Failure(ours, times, since, lasts)
        return times

    def note_passing_failure(self, loop: str, error: RendezvousError) -> None:
        """Note a passing fault of a loop: a caller gets it only with the error of a wait that it gives up.

        Args:
            loop: Which: it owns the error until it heals.
            error: Why its calls do not succeed.
        """
        if not self.failed(loop):
            self.failures[loop] = Failure(error, 0, self.clock(), False)

    def clear_failure(self, loop: str) -> None:
        """Note that a loop goes well."""
        self.failures.pop(loop, None)

    def failed(self, loop: str) -> int:
        """How many times a loop has failed since it last went well."""
        return self.failures[loop].times if loop in self.failures else 0

    @property
    def problem(self) -> RendezvousError | None:
        """What keeps a loop from going on; None: nothing, or not for long yet."""
        # A copy: a caller asks while the loops go on.
        return next((failure.error for failure in tuple(self.failures.values()) if failure.lasts), None)

    def failure(self) -> RendezvousError | None:
        """The error of a loop that does not go well now, whether that lasts or not."""
        return self.problem or next((failure.error for failure in tuple(self.failures.values())), None)

    def raise_problem(self, *, lasting: bool = True) -> None:
        """Give the caller the error that keeps a loop from going on, if there is one.

        Args:
            lasting: Only an error that lasts.

        Raises:
            RendezvousError: That.
        """
        error = self.problem if lasting else self.failure()
        if error is not None:
            raise again(error)

    def unreachable(self, since: float) -> RendezvousConnectionError:
        """The error for a service that has not answered since that moment."""
        error = RendezvousConnectionError(
            f"The service of the rendezvous '{self.settings.run}' on backend '{self.backend}' could not be reached "
            f"within {self.clock() - since:.1f} s: "
            f"{self.connection_error or 'no answer. Is it up, and is the endpoint right?'}"
        )
        error.__cause__ = self.connection_error
        return error

    def unregistered(self, since: float, error: RendezvousError) -> RendezvousTimeoutError:
        """The error for a record that the service has not taken since that moment, although it is there."""
        return RendezvousTimeoutError(
            f"The rendezvous '{self.settings.run}' on backend '{self.backend}' did not complete within "
            f"{self.clock() - since:.1f} s: the record of node '{self.id}' could not be written: {error}"
        )


def has_lasted(times: int, seconds: float) -> bool:
    """Whether an error is no passing fault: it came often, for long. Time alone passes in a paused process, too."""
    return times >= LASTING_TIMES and seconds >= LASTING


def unexpected(error: BaseException) -> RendezvousError:
    """The error that a caller gets for an unexpected exception."""
    ours = RendezvousError(f"Unexpected {type(error).__name__}: {error}. Please report this.")
    ours.__cause__ = error
    return ours
