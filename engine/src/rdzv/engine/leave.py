"""The coroutines of a node that leaves or closes the run.

The last one to leave says why the round ended, and removes what no node will need again.
"""

from dataclasses import replace
from typing import Final

from rdzv_core.backend import STATE_KEY, Lease

from . import garbage, leader, records, rules
from .client import VersionedValue, same_version
from .effects import Coroutine, Delete, Put, Read, ReadAll
from .node import Node
from .notices import drain_key
from .records import Closed, NodeRecord, RunStatus, State, nodes_in, read_record
from .register import apply_and_emit, deregister
from .registration import NodeState, Trigger
from .rules import MembershipState
from .worlds import read_world

PATIENCE: Final = 5.0
"""Seconds that a node takes to leave, at least, where the interval is short: a machine may be busy."""


def end(node: Node, reason: str, closes: bool) -> Coroutine[None]:
    """Leave for good, and close the run before if it `closes`, within the close timeout.

    Leaving takes an interval, or `PATIENCE` if that is longer, but never longer than the close timeout. If the service
    cannot be reached, all takes an interval.

    Raises:
        Exception: As `leave`.
    """
    most = node.settings.timeout.close.total_seconds()
    reachable = node.connection_error is None
    if closes:
        yield from close(node, "the job is done", True, node.clock() + (most if reachable else node.interval))
    # That has shown whether the service answers.
    reachable = node.connection_error is None
    patience = min(most, max(node.interval, PATIENCE)) if reachable else node.interval
    yield from leave(node, reason, node.clock() + patience)


def close(node: Node, reason: str, done: bool, deadline: float, *, gave_up: bool = False) -> Coroutine[None]:
    """Close this node's attempt, unless it is closed already: the first reason stands."""
    while True:
        versioned = yield Read(STATE_KEY, deadline)
        state = read_record(State, versioned)
        closed = rules.close(state, Closed(node.id, reason, done, gave_up), node.limits())
        if closed is None:
            yield from apply_and_emit(node, versioned, deadline)
            return
        applied, versioned = yield Put(STATE_KEY, closed.encode(), deadline, previous=versioned)
        yield from apply_and_emit(node, versioned, deadline)
        if applied:
            return


def leave(node: Node, reason: str, deadline: float) -> Coroutine[None]:
    """Leave for good, saying why; the run goes on for the others.

    Raises:
        Exception: What is there of the node could not be taken back; its lease runs out by itself.
    """
    record, lease, state = node.registration.record, node.registration.lease, node.registration.state
    # A call that joins meanwhile must not announce a node that has gone.
    node.registration.on(Trigger.LEFT)
    if record is not None and lease is not None and node.closed() is None:
        # The record stays until its lease runs out, so that the leader reads the reason.
        node.registration.withdraw()
        # In a world that it has not entered yet its program has not failed.
        is_new = node.membership() is MembershipState.MEMBER
        last = replace(record, left=reason, outcome=None if is_new else node.reckoning.outcome)
        unfinished = yield from _write_leave_record(last, node.registration.version, lease, deadline)
    else:
        unfinished = yield from deregister(node, deadline)
    if node.id in node.countdown.drains:
        yield Delete(drain_key(node.id), deadline)
    if state is not NodeState.NEW:
        yield from _hand_over(node, reason, lease, deadline)
    if unfinished is not None:
        raise unfinished


def _hand_over(node: Node, reason: str, lease: Lease | None, deadline: float) -> Coroutine[None]:
    """Resign, and remove what no other node needs.

    Args:
        node: Which leaves.
        reason: Why.
        lease: The lease that it had, also where a caller that waited has just given that up.
        deadline: Until when to try.
    """
    # Also if it does not know that it leads: it may be elected by a write that was on its way.
    leads = yield from leader.resign(node, deadline, lease)
    node.registration.lease = None
    if leads is None:
        yield from _collect_garbage(node, reason, deadline)
    # It may have learned of that only now. The next attempt has removed the rest, or will: others may need that yet.
    if node.membership() is MembershipState.SUPERSEDED:
        yield Delete(records.node_key(node.settings.attempt, node.id), deadline)


def _write_leave_record(
    record: NodeRecord, before: VersionedValue | None, lease: Lease, deadline: float
) -> Coroutine[Exception | None]:
    """Replace the record by its last version, also one that was still on its way when this node decided to leave.

    Returns:
        Why the service has not confirmed it; None: it has.
    """
    try:
        while True:
            applied, now = yield Put(record.key, record.encode(), deadline, previous=before, lease=lease)
            if applied or same_version(before, now):
                return None
            before = now
    except Exception as error:
        return error


def _collect_garbage(node: Node, reason: str, deadline: float) -> Coroutine[None]:
    """If this node is the last one, say why the round ended, and collect the garbage if no other may come back.

    No node leads: a leader looks here after it has resigned. What is garbage follows from what was seen when no node
    was there, whatever is published later: by then others may have come.
    """
    while True:
        # Before the look at the nodes, so that nothing is put over the news of a leader that comes after that. What
        # this node knew of the state is not enough: others may have had a round, or purged the run.
        control = yield ReadAll(records.CONTROL, deadline)
        yield from apply_and_emit(node, control.get(STATE_KEY), deadline)
        status = control.raw(records.STATUS_KEY)
        snapshot = yield ReadAll(records.NODES, deadline)
        nodes = nodes_in(snapshot)
        state, version, is_closed = node.run.state, node.run.version, node.closed() is not None
        if any(record.left is None for record in nodes):
            return
        if node.membership() is MembershipState.SUPERSEDED and not (state and state.closed):
            return
        if state is None or is_closed:
            break
        if control.get(STATE_KEY) is None:
            return
        known = read_record(RunStatus, status)
        whole = yield from read_world(state, deadline)
        last = rules.last_status(whole, nodes, known, node.id, reason).encode()
        # A node that has just gone may have closed the run before, and removed its status.
        yield from apply_and_emit(node, (yield Read(STATE_KEY, deadline)), deadline)
        if not same_version(node.run.version, version):
            continue
        applied, _ = yield Put(records.STATUS_KEY, last, deadline, previous=status)
        if applied:
            break
    if is_closed and state is not None:
        prefixes = yield from _after_closing(node, state, deadline)
        prefixes += garbage.of_closed_notices(control)
    else:
        prefixes = yield from _after_last_round(node, state, nodes, deadline)
    for prefix in prefixes:
        yield Delete(prefix, deadline)


def _after_closing(node: Node, state: State, deadline: float) -> Coroutine[list[str]]:
    """The garbage of a closed attempt after the last node has left."""
    pending = yield ReadAll(records.PENDING, deadline)
    pages = []
    for number in garbage.unpublished_rounds(state, pending):
        written = yield ReadAll(records.world_folder(number), deadline)
        pages += garbage.unpublished_pages(state, number, written)
    return garbage.of_closed_attempt(state, node.settings.attempt, pending, pages)


def _after_last_round(
    node: Node, state: State | None, nodes: list[NodeRecord], deadline: float
) -> Coroutine[list[str]]:
    """The garbage of an open run after the last node has left."""
    if state is None:
        return [records.STATUS_KEY]
    whole = yield from read_world(state, deadline)
    # A member without a record may only be cut off, and go on with its round. What stays goes two rounds later.
    ended = rules.has_ended(whole, nodes, node.run.status, node.id)
    return garbage.of_ended_round(state) if ended else []
