"""The coroutines of a member: it watches, registers, keeps its lease, joins and leaves.

A node writes its own record, its claim to lead, and the state in two cases, under conditions: a node that
comes back after losing its lease raises its epoch (the fence), and one that closes the run says so. What is
of no more use when it leaves, it removes.
"""

import logging
from dataclasses import replace

from ..backend import Lease
from ..deadline import pause_within
from ..errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    again,
)
from . import leader, refusals, rules
from .client import DecodedSnapshot, VersionedValue
from .effects import (
    Coroutine,
    Delete,
    Emit,
    KeepAlive,
    OpenLease,
    Put,
    Read,
    ReadAll,
    Revoke,
    Sleep,
    Wait,
    WaitForChange,
)
from .failures import KEEP, LEAD, WATCH, has_lasted, unexpected
from .node import Node
from .records import (
    CONTROL,
    HEARTBEATS,
    LEADER_KEY,
    NODES,
    PENDING,
    STATE_KEY,
    STATUS_KEY,
    STORE,
    Closed,
    NodeRecord,
    RunStatus,
    State,
    decode,
    node_key,
    nodes_in,
)
from .registration import NodeState, Trigger
from .rules import MembershipState
from .run_view import Presence
from .supervisor import is_passing, supervised

__all__ = ["close", "join", "keep_alive_loop", "leave", "wait_until_connected", "watch_loop"]

logger = logging.getLogger(__name__)

WATCH_TIMEOUT = 30.0
"""Seconds after which a watch without news is made again."""

NO_LEADER_TIMEOUT = 1.0
"""The same while there is no leader: an election may have failed, and no other node may try."""


def watch_loop(node: Node) -> Coroutine[None]:
    """Keep the node's snapshot of ``control`` fresh, until it closes."""

    def turn() -> Coroutine[None]:
        if node.run.snapshot is None or node.failures.count(WATCH):
            # What has failed is looked at again at once: a wait may be a long one.
            snapshot = yield ReadAll(CONTROL, node.background_deadline(), node.run.snapshot)
        else:
            patience = NO_LEADER_TIMEOUT if node.sees_no_leader() else WATCH_TIMEOUT
            snapshot = yield Wait(CONTROL, node.run.snapshot, node.clock() + patience)
        if events := node.apply_snapshot(snapshot):
            yield Emit(tuple(events))
        yield from leader.elect(node, node.background_deadline())

    return supervised(node, WATCH, turn)


def wait_until_connected(node: Node, deadline: float) -> Coroutine[None]:
    """Wait until the service has been seen once.

    Raises:
        RendezvousConnectionError: It was not seen until the deadline.
        RendezvousError: What is there cannot be used.
    """
    started = node.clock()
    while node.run.snapshot is None:
        node.failures.raise_lasting()
        if node.closing:
            raise RendezvousClosedError(f"This node has left '{node.settings.run}' while it waited.")
        if node.clock() >= deadline:
            if node.connection.error is None and (error := node.failures.any) is not None:
                raise again(error)
            raise refusals.unreachable(node, started)
        yield WaitForChange(deadline)


def keep_alive_loop(node: Node) -> Coroutine[None]:
    """Keep the lease alive, until the node closes; register again when it is lost."""
    due = node.clock() + node.interval

    def turn() -> Coroutine[None]:
        nonlocal due
        yield Sleep(due)
        # Until it has gone well it is due: how long to pause after a failure is not decided here.
        due = sent = node.clock()
        if node.registration.record is not None and not node.closing:
            yield from _renew(node, sent)
        due = sent + node.interval

    return supervised(node, KEEP, turn)


def _renew(node: Node, sent: float) -> Coroutine[None]:
    """Renew the lease; register again if it has ended, or if registering again has not succeeded yet."""
    mine = node.registration
    lease = mine.lease
    if lease is not None:
        alive = yield KeepAlive(lease, sent + node.interval)
        if mine.lease is not lease:
            return
        if not alive:
            yield from _reregister(node, node.background_deadline())
            return
        mine.lease_until = sent + lease.ttl
        yield from _verify_state(node, lease)
    done = mine.state is NodeState.REGISTERED or (mine.lease is not None and node.closed() is not None)
    if not done and not mine.writing:
        yield from _register(node, node.background_deadline())


def _verify_state(node: Node, lease: Lease) -> Coroutine[None]:
    """Find out whether the state is gone although our lease lives: then the run was removed."""
    # The lease of a node that registers again may be younger than the loss; its fence puts the state back.
    run, mine = node.run, node.registration
    if run.presence is not Presence.MISSING or mine.state is not NodeState.REGISTERED:
        return
    versioned = yield Read(STATE_KEY, node.background_deadline())
    if versioned is None and run.version is not None:
        # Asked once more: a service that has forgotten everything may have done so since the lease was renewed.
        alive = yield KeepAlive(lease, node.background_deadline())
        if mine.lease is not lease or run.presence is not Presence.MISSING:
            return
        if not alive:
            yield from _reregister(node, node.background_deadline())
            return
        assert run.state is not None  # noqa: S101 - what has a version was read
        run.version = None
        # What an earlier attempt has left may be purged while this one begins.
        if run.state.attempt == node.settings.attempt:
            run.presence = Presence.DELETED
    yield from _apply_and_emit(node, versioned)


def _lose_lease(node: Node) -> None:
    """Trust nothing that hung on the lease."""
    node.registration.lose_lease()
    node.failures.clear(LEAD)
    if node.leading:
        node.step_down()


def _reregister(node: Node, deadline: float) -> Coroutine[None]:
    """Register again after a lost lease.

    Raises:
        RendezvousError: It could not register again until the deadline.
    """
    logger.warning("node '%s' has lost its lease in '%s' and registers again", node.id, node.settings.run)
    _lose_lease(node)
    # Where the service lost it, the others have lost theirs, too.
    node.connection.reset_grace_period()
    yield from _register(node, deadline)


def _register(node: Node, deadline: float) -> Coroutine[None]:
    """See to it that the service holds this node's record, on a lease that lives.

    When an earlier lease was lost, in two effects: the record, then the fence. A leader that scanned
    while the record was missing thereby loses its pending write and scans again. No world is to
    be trusted before.

    Raises:
        RendezvousConnectionError: The service did not take the record until the deadline.
        RendezvousError: What is there cannot be used.
        Exception: The backend's own, if it lasts.
    """
    mine, pauses = node.registration, node.pauses()
    while mine.writing and not node.closing:
        if node.clock() >= deadline:
            raise RendezvousConnectionError(
                f"it is being written: {node.connection.error or 'its last call is not over'}"
            )
        yield WaitForChange(deadline)
    mine.writing = True
    strange: list[float] = []
    try:
        while not node.closing:
            try:
                yield from _write_record(node, deadline)
                mine.on(Trigger.WRITTEN)
                if mine.state is NodeState.REREGISTERING:
                    yield from _fence(node, deadline)
                    # A world of a closed attempt ends with the lease: the last node that ends removes its records.
                    if node.closed() is None:
                        mine.on(Trigger.FENCED)
                return
            except Exception as error:
                if isinstance(error, RendezvousError) and not is_passing(error):
                    raise
                now = node.clock()
                if not isinstance(error, RendezvousError):
                    strange.append(now)
                    if has_lasted(len(strange), now - strange[0]):
                        raise
                if (pause := pause_within(deadline - now, next(pauses))) is None:
                    raise
                yield Sleep(now + pause)
    finally:
        mine.writing = False


def _write_record(node: Node, deadline: float) -> Coroutine[None]:
    mine = node.registration
    while (record := mine.record) is not None and not node.closing:
        if node.clock() >= deadline:
            raise RendezvousConnectionError("each lease was over before the record was written")
        if mine.lease is None:
            opened = node.clock()
            lease = yield OpenLease(node.ttl, min(deadline, node.background_deadline()))
            mine.lease, mine.lease_until = lease, opened + lease.ttl
            continue
        before = mine.version
        mine.on(Trigger.SENT)
        # Conditional, although nobody else writes it: a request that hung in a dead connection may
        # be applied seconds later, and must not undo what was written since.
        until = min(deadline, node.background_deadline())
        applied, mine.version = yield Put(record.key, record.encode(), until, previous=before, lease=mine.lease)
        if applied and record == mine.record:
            return
        if not applied and _same(before, mine.version):
            _lose_lease(node)


def _same(one: VersionedValue | None, other: VersionedValue | None) -> bool:
    return (one and one.token) == (other and other.token)


def _fence(node: Node, deadline: float) -> Coroutine[None]:
    """Make sure that no round is formed by a leader that has not seen this node's record.

    Usually a look is enough: a leader that forms a round without one of its members says so first
    and looks at the nodes after that. If a leader has said so, the epoch of the state is raised, and the
    pending write loses. Were it raised every time, a thousand nodes that come back together would
    write the state a thousand times, and each of them would read every one.
    """
    while not node.closing:
        control = yield ReadAll(CONTROL, min(deadline, node.background_deadline()))
        versioned = control.get(STATE_KEY)
        if versioned is not None:
            yield from _apply_and_emit(node, versioned)
            if not _has_pending_round(control, decode(State, versioned.payload).round):
                return
            payload = versioned.payload
        elif node.run.state is not None:
            # The service has lost its data: write the last known state again.
            node.run.version = None
            payload = node.run.state.encode()
        else:
            return
        applied, now = yield Put(STATE_KEY, payload, min(deadline, node.background_deadline()), previous=versioned)
        yield from _apply_and_emit(node, now)
        if applied:
            return


def _has_pending_round(control: DecodedSnapshot, number: int) -> bool:
    """Whether a leader is about to form a round after this one."""
    said = (key.removeprefix(f"{PENDING}/") for key in control.names() if key.startswith(f"{PENDING}/"))
    return any(not text.isdecimal() or int(text) > number for text in said)


def _apply_and_emit(node: Node, versioned: VersionedValue | None) -> Coroutine[None]:
    events = node.apply_state(versioned)
    if events:
        yield Emit(tuple(events))


def join(node: Node, address: str, port: int, deadline: float) -> Coroutine[State]:
    """Take part in the next round; returns the state whose world includes this node.

    Raises:
        RendezvousTimeoutError: There was no such world until the deadline.
        RendezvousConnectionError: The service could not be reached until then.
        RendezvousError: See `refusals.raise_if_cannot_join`.
    """
    started = deadline - node.settings.timeout.join.total_seconds()
    yield from wait_until_connected(node, deadline)
    refusals.raise_if_cannot_join(node)
    mine = node.settings
    node.registration.record = NodeRecord(
        node.id, mine.attempt, node.round, mine.min_nodes, mine.max_nodes, address, port, mine.labels
    )
    node.alone_since = None
    try:
        yield from _register_to_join(node, started, deadline)
        while not (node.membership() is MembershipState.MEMBER and node.has_valid_lease()):
            refusals.raise_if_cannot_join(node)
            if node.registration.record is None:
                raise RendezvousClosedError(f"This node has left '{mine.run}' while it waited.")
            alone_until = node.alone_until()
            patience = min(deadline, alone_until)
            if (now := node.clock()) >= patience:
                yield from _on_join_timeout(node, now - started, alone=now >= alone_until)
                break
            seen = node.run.version, node.failures.lasting, node.registration.record
            yield from _ensure_leader(node, deadline)
            # News that came during the call has woken no waiter: then look before waiting.
            if seen == (node.run.version, node.failures.lasting, node.registration.record):
                yield WaitForChange(
                    min(patience, node.clock() + NO_LEADER_TIMEOUT) if node.run.leader is None else patience
                )
    except GeneratorExit:
        raise
    except BaseException:
        # Ctrl-C too: a node that does not wait any more must not be counted.
        yield from _deregister(node, node.clock() + node.interval / 2)
        raise
    state = node.run.state
    assert state is not None  # noqa: S101 - a member has seen the state
    node.round = state.round
    if node.id == state.world[0] and (state.address, state.port) != (address, port):
        # It was formed from the record of an earlier wait: the others would look for rank 0 where nothing is any more.
        return (yield from join(node, address, port, deadline))
    return state


def _register_to_join(node: Node, started: float, deadline: float) -> Coroutine[None]:
    """Write the record of a node that joins."""
    try:
        yield from _register(node, deadline)
    except RendezvousError as error:
        if not is_passing(error):
            raise
        if node.connection.since_last_contact() > node.clock() - started:
            yield from _probe_service(node, started)
        raise refusals.unregistered(node, started, error) from error
    except Exception as error:
        raise unexpected(error) from error


def _probe_service(node: Node, started: float) -> Coroutine[None]:
    """Find out whether the service refuses what we write, or is not there at all.

    Raises:
        RendezvousConnectionError: It does not answer.
    """
    try:
        yield Read(STATE_KEY, node.clock() + node.interval / 2)
    except RendezvousConnectionError as error:
        raise refusals.unreachable(node, started) from error


def _ensure_leader(node: Node, deadline: float) -> Coroutine[None]:
    try:
        yield from leader.elect(node, min(deadline, node.background_deadline()))
    except RendezvousDeniedError:
        raise
    except Exception as error:
        # Another may win; if not, there is another time. What lasts, the watch meets, too.
        logger.debug("electing a leader of '%s': %r", node.settings.run, error)


def _on_join_timeout(node: Node, waited: float, *, alone: bool) -> Coroutine[None]:
    """Withdraw, unless a world was published meanwhile that includes this node.

    Args:
        node: Which gives up.
        waited: For how many seconds it has waited.
        alone: It ends because all others of its world are gone, and no other has come.

    Raises:
        RendezvousTimeoutError: There is no such world.
    """
    record = node.registration.record
    reason: Exception | None = node.failures.any
    # The deadline is over: what is left to do takes less than an interval in all.
    patience = node.clock() + node.interval / 2
    live: list[NodeRecord] | None = None
    try:
        snapshot = yield ReadAll(NODES, node.clock() + node.interval / 4)
        live = [record for record in nodes_in(snapshot) if record.left is None]
        yield from _deregister(node, patience)
        yield from _apply_and_emit(node, (yield Read(STATE_KEY, patience)))
        if node.membership() is MembershipState.MEMBER:
            # It was published before the record was gone.
            node.registration.record = record
            yield from _reregister(node, patience)
            if node.membership() is MembershipState.MEMBER:
                return
    except Exception as error:
        logger.debug("node '%s' gives up: %r", node.id, error)
        reason = error
    raise refusals.timed_out(node, live, waited, alone=alone, reason=reason) from reason


def _deregister(node: Node, deadline: float) -> Coroutine[None]:
    """Deregister: with the lease the record and the lead vanish, now or when it runs out."""
    lease = node.registration.lease
    node.registration.withdraw()
    _lose_lease(node)
    if lease is None:
        return
    try:
        yield Revoke(lease, deadline)
    except Exception as error:
        # The lease runs out by itself.
        logger.debug("node '%s' withdraws: %r", node.id, error)


def close(node: Node, reason: str, done: bool, deadline: float) -> Coroutine[None]:
    """Close this node's attempt, unless it is closed already: the first reason stands."""
    while True:
        versioned = yield Read(STATE_KEY, deadline)
        state = decode(State, versioned.payload) if versioned else None
        closed = rules.close(state, Closed(node.id, reason, done), node.limits())
        if closed is None:
            yield from _apply_and_emit(node, versioned)
            return
        applied, versioned = yield Put(STATE_KEY, closed.encode(), deadline, previous=versioned)
        yield from _apply_and_emit(node, versioned)
        if applied:
            return


def leave(node: Node, reason: str, deadline: float) -> Coroutine[None]:
    """Leave for good, saying why; the run goes on for the others."""
    record, lease = node.registration.record, node.registration.lease
    if record is not None and lease is not None and node.closed() is None:
        # The record stays until its lease runs out, so that the leader reads the reason.
        node.registration.withdraw()
        yield from _write_leave_record(replace(record, left=reason), node.registration.version, lease, deadline)
    else:
        yield from _deregister(node, deadline)
    if node.registration.state is NodeState.NEW:
        return
    # Also if it does not know that it leads: it may be elected by a write that was on its way.
    # On the lease that it had, also where a caller that waited has just given that up.
    leads = yield from leader.resign(node, deadline, lease)
    node.registration.lease = None
    if node.membership() is MembershipState.SUPERSEDED:
        # The next attempt removes all but what this node has written since.
        yield Delete(node_key(node.settings.attempt, node.id), deadline)
    elif leads is None:
        yield from _collect_garbage(node, reason, deadline)


def _write_leave_record(
    record: NodeRecord, before: VersionedValue | None, lease: Lease, deadline: float
) -> Coroutine[None]:
    """Replace the record by its last version, also one that was still on its way when this node decided to leave."""
    while True:
        applied, now = yield Put(record.key, record.encode(), deadline, previous=before, lease=lease)
        if applied or _same(before, now):
            return
        before = now


def _collect_garbage(node: Node, reason: str, deadline: float) -> Coroutine[None]:
    """If this node is the last one, say why the round ended, and collect the garbage if no other may come back.

    Nobody leads: a leader looks here after it has resigned.
    """
    while True:
        # Before the look at the nodes, so that nothing is put over the news of a leader that comes after that. What
        # this node knew of the state is not enough: others may have had a round, or purged the run.
        control = yield ReadAll(CONTROL, deadline)
        yield from _apply_and_emit(node, control.get(STATE_KEY))
        status = control.raw(STATUS_KEY)
        snapshot = yield ReadAll(NODES, deadline)
        records = nodes_in(snapshot)
        if any(record.left is None for record in records):
            return
        state = node.run.state
        if state is None or node.closed() is not None:
            break
        if control.get(STATE_KEY) is None:
            return
        known = decode(RunStatus, status.payload) if status is not None else None
        last = rules.last_status(state, records, known, node.id, reason).encode()
        applied, _ = yield Put(STATUS_KEY, last, deadline, previous=status)
        if applied:
            break
    for prefix in (yield from _ended(node, records, deadline)):
        yield Delete(prefix, deadline)


def _ended(node: Node, records: list[NodeRecord], deadline: float) -> Coroutine[list[str]]:
    """The garbage after the last node has left.

    Only names that are never used again: even a request that is applied too late does no harm.
    (At worst a leader of the next attempt publishes its status again, or another is elected.)
    """
    state, attempt = node.run.state, node.settings.attempt
    number = state.round if state is not None else 0
    ended = [f"{STORE}/{number}" for number in range(max(1, number - 2), number + 1)]
    if state is not None and node.closed() is not None:
        # Where the service has no leases, what is dead stays, and is not seen: in a folder of each attempt.
        pending = yield ReadAll(PENDING, deadline)
        ended += [LEADER_KEY, STATUS_KEY, f"{NODES}/{attempt}", f"{HEARTBEATS}/{attempt}"]
        return ended + leader.garbage(pending, state, state.round + 1)
    if state is None:
        return [*ended, STATUS_KEY, *(record.key for record in records)]
    if rules.has_ended(state, records, node.run.status, node.id):
        return ended + [record.key for record in records]
    # A member without a record may only be cut off, and go on with its round. What stays goes two rounds later.
    return []
