"""The lanes by which a node looks after itself: it watches, enrolls, keeps its lease, joins and leaves.

A node writes its own record, its claim to lead, and the state in two cases, under conditions: a node that
comes back after losing its lease raises its epoch (the fence), and one that closes the run says so. What is
of no more use when it leaves, it removes.
"""

import logging
import math
from dataclasses import replace

from ..backend import Lease
from ..deadline import pause_within
from ..errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousTimeoutError,
)
from . import leader, rules
from .node import KEEP, LEAD, WATCH, Node, has_lasted, unexpected
from .records import (
    BEATS,
    CONTROL,
    INTENTS,
    LEADER_KEY,
    NODES,
    NOTICE_KEY,
    STATE_KEY,
    STORE,
    Closed,
    NodeRecord,
    Notice,
    State,
    decode,
    node_key,
    nodes_in,
)
from .rules import Standing
from .service import Held, View
from .steps import Changed, Delete, KeepAlive, Lane, OpenLease, Put, Read, ReadAll, Revoke, Sleep, Tell, Wait
from .supervisor import is_passing, supervised

__all__ = ["close", "first_look", "join", "keep", "leave", "watch"]

logger = logging.getLogger(__name__)

WATCH_SLICE = 30.0
"""Seconds after which a silent watch is asked anew."""

LEADERLESS = 1.0
"""The same while nobody leads: an election may have failed, and nobody else may try."""


def watch(node: Node) -> Lane[None]:
    """Keep the node's view of ``control`` fresh, until it closes."""

    def turn() -> Lane[None]:
        if node.view is None or node.failed(WATCH):
            # What has failed is looked at again at once: a wait may be a long one.
            view = yield ReadAll(CONTROL, node.soon(), node.view)
        else:
            patience = LEADERLESS if node.sees_no_leader() else WATCH_SLICE
            view = yield Wait(CONTROL, node.view, node.clock() + patience)
        if events := node.look(view):
            yield Tell(tuple(events))
        yield from leader.elect(node, node.soon())

    return supervised(node, WATCH, turn)


def first_look(node: Node, deadline: float) -> Lane[None]:
    """Wait until the service has been seen once.

    Raises:
        RendezvousConnectionError: It was not seen until the deadline.
        RendezvousError: What is there cannot be used.
    """
    started = node.clock()
    while node.view is None:
        node.raise_problem()
        if node.closing:
            raise RendezvousClosedError(f"This node has left '{node.settings.run}' while it waited.")
        if node.clock() >= deadline:
            if node.trouble is None:
                node.raise_problem(lasting=False)
            raise node.unreachable(started)
        yield Changed(deadline)


def keep(node: Node) -> Lane[None]:
    """Keep the lease alive, until the node closes; mend what is lost."""
    due = node.clock() + node.interval

    def turn() -> Lane[None]:
        nonlocal due
        yield Sleep(due)
        # Until it has gone well it is due: how long to pause after a failure is not decided here.
        due = sent = node.clock()
        if node.record is not None and not node.closing:
            yield from _renew(node, sent)
        due = sent + node.interval

    return supervised(node, KEEP, turn)


def _renew(node: Node, sent: float) -> Lane[None]:
    """Renew the lease; register again if it has ended, or if registering again has not succeeded yet."""
    lease = node.lease
    if lease is not None:
        alive = yield KeepAlive(lease, sent + node.interval)
        if node.lease is not lease:
            return
        if not alive:
            yield from _come_back(node, node.soon())
            return
        node.lease_until = sent + lease.ttl
        yield from _verify_state(node, lease)
    done = node.lease is not None and (node.settled or node.closed() is not None)
    if not done and not node.writing:
        yield from _enroll(node, node.soon())


def _verify_state(node: Node, lease: Lease) -> Lane[None]:
    """Find out whether the state is gone although our lease lives: then somebody removed the run."""
    # A lease that is not settled may be younger than the loss; its fence puts the state back.
    if not node.vanished or not node.settled:
        return
    held = yield Read(STATE_KEY, node.soon())
    if held is None and node.held is not None:
        # Asked once more: a service that has forgotten everything may have done so since the lease was renewed.
        alive = yield KeepAlive(lease, node.soon())
        if node.lease is not lease or not node.vanished:
            return
        if not alive:
            yield from _come_back(node, node.soon())
            return
        assert node.state is not None  # noqa: S101 - what is held was read
        # What an earlier attempt has left may be purged while this one begins.
        node.removed, node.held = node.state.attempt == node.settings.attempt, None
    yield from _tell_state(node, held)


def _lose_lease(node: Node) -> None:
    """Trust nothing that hung on the lease."""
    node.lease, node.lease_until = None, -math.inf
    node.heal(LEAD)
    if node.leading:
        node.step_down()


def _come_back(node: Node, deadline: float) -> Lane[None]:
    """Mend a lost lease.

    Raises:
        RendezvousError: It could not be mended until the deadline.
    """
    logger.warning("node '%s' has lost its lease in '%s' and comes back", node.id, node.settings.run)
    _lose_lease(node)
    # Where the service lost it, the others have lost theirs, too.
    node.distrust()
    yield from _enroll(node, deadline)


def _enroll(node: Node, deadline: float) -> Lane[None]:
    """See to it that the service holds this node's record, on a lease that lives.

    When an earlier lease was lost, in two steps: the record, then the fence. A leader that scanned
    while the record was missing thereby loses its pending write and scans again. No world is to
    be trusted before.

    Raises:
        RendezvousConnectionError: The service did not take the record until the deadline.
        RendezvousError: What is there cannot be used.
        Exception: The backend's own, if it lasts.
    """
    pauses = node.pauses()
    while node.writing and not node.closing:
        if node.clock() >= deadline:
            raise RendezvousConnectionError(f"it is being written: {node.trouble or 'its last call is not over'}")
        yield Changed(deadline)
    node.writing = True
    strange: list[float] = []
    try:
        while not node.closing:
            try:
                yield from _write_record(node, deadline)
                if not node.settled:
                    yield from _fence(node, deadline)
                    # A world of a closed attempt ends with the lease: whoever ends last removes its records.
                    node.settled = node.closed() is None
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
        node.writing = False


def _write_record(node: Node, deadline: float) -> Lane[None]:
    while (record := node.record) is not None and not node.closing:
        if node.clock() >= deadline:
            raise RendezvousConnectionError("each lease was over before the record was written")
        if node.lease is None:
            opened = node.clock()
            lease = yield OpenLease(node.ttl, min(deadline, node.soon()))
            node.lease, node.lease_until = lease, opened + lease.ttl
            node.settled = not node.known
            continue
        before, node.known = node.written, True
        # Conditional, although nobody else writes it: a request that hung in a dead connection may
        # be applied seconds later, and must not undo what was written since.
        until = min(deadline, node.soon())
        won, node.written = yield Put(record.key, record.encode(), until, after=before, lease=node.lease)
        if won and record == node.record:
            return
        if not won and _same(before, node.written):
            _lose_lease(node)


def _same(one: Held | None, other: Held | None) -> bool:
    return (one and one.token) == (other and other.token)


def _fence(node: Node, deadline: float) -> Lane[None]:
    """Make sure that no round is formed by somebody who has not seen our record.

    Usually a look is enough: a leader that forms a round without one of its members says so first
    and looks at the nodes after that. If somebody has said so, the epoch of the state is raised, and the
    pending write loses. Were it raised every time, a thousand nodes that come back together would
    write the state a thousand times, and each of them would read every one.
    """
    while not node.closing:
        control = yield ReadAll(CONTROL, min(deadline, node.soon()))
        held = control.get(STATE_KEY)
        if held is not None:
            yield from _tell_state(node, held)
            if not _is_pending(control, decode(State, held.payload).round):
                return
            payload = held.payload
        elif node.state is not None:
            # A service that forgot everything is told again what was the state: it is a value, and we have it.
            node.held = None
            payload = node.state.encode()
        else:
            return
        won, now = yield Put(STATE_KEY, payload, min(deadline, node.soon()), after=held)
        yield from _tell_state(node, now)
        if won:
            return


def _is_pending(control: View, number: int) -> bool:
    """Whether a leader is about to form a round after this one."""
    said = (key.removeprefix(f"{INTENTS}/") for key in control.names() if key.startswith(f"{INTENTS}/"))
    return any(not text.isdecimal() or int(text) > number for text in said)


def _tell_state(node: Node, held: Held | None) -> Lane[None]:
    events = node.look_at_state(held)
    if events:
        yield Tell(tuple(events))


def join(node: Node, address: str, port: int, deadline: float) -> Lane[State]:
    """Take part in the next round; returns the state whose world includes this node.

    Raises:
        RendezvousTimeoutError: There was no such world until the deadline.
        RendezvousConnectionError: The service could not be reached until then.
        RendezvousError: See `Node.refuse`.
    """
    started = deadline - node.settings.timeout.join.total_seconds()
    yield from first_look(node, deadline)
    node.refuse()
    mine = node.settings
    node.record = NodeRecord(
        node.id, mine.attempt, node.round, mine.min_nodes, mine.max_nodes, address, port, mine.labels
    )
    node.alone_since = None
    try:
        yield from _register(node, started, deadline)
        while not (node.standing() is Standing.MEMBER and node.may_trust_world()):
            node.refuse()
            if node.record is None:
                raise RendezvousClosedError(f"This node has left '{mine.run}' while it waited.")
            alone_until = node.alone_until()
            patience = min(deadline, alone_until)
            if (now := node.clock()) >= patience:
                yield from _give_up(node, now - started, alone=now >= alone_until)
                break
            heard = node.held, node.problem, node.record
            yield from _see_to_a_leader(node, deadline)
            # What came while we asked has woken nobody: then look before waiting.
            if heard == (node.held, node.problem, node.record):
                yield Changed(min(patience, node.clock() + LEADERLESS) if node.leader is None else patience)
    except GeneratorExit:
        raise
    except BaseException:
        # Ctrl-C too: whoever does not wait any more must not be counted.
        yield from _withdraw(node, node.clock() + node.interval / 2)
        raise
    assert node.state is not None  # noqa: S101 - a member has seen the state
    node.round = node.state.round
    if node.id == node.state.world[0] and (node.state.address, node.state.port) != (address, port):
        # It was formed from the record of an earlier wait: the others would look for rank 0 where nothing is any more.
        return (yield from join(node, address, port, deadline))
    return node.state


def _register(node: Node, started: float, deadline: float) -> Lane[None]:
    """Write the record of a node that joins."""
    try:
        yield from _enroll(node, deadline)
    except RendezvousError as error:
        if not is_passing(error):
            raise
        if node.silence() > node.clock() - started:
            yield from _ask_again(node, started)
        raise node.unregistered(started, error) from error
    except Exception as error:
        raise unexpected(error) from error


def _ask_again(node: Node, started: float) -> Lane[None]:
    """Find out whether the service refuses what we write, or is not there at all.

    Raises:
        RendezvousConnectionError: It does not answer.
    """
    try:
        yield Read(STATE_KEY, node.clock() + node.interval / 2)
    except RendezvousConnectionError as error:
        raise node.unreachable(started) from error


def _see_to_a_leader(node: Node, deadline: float) -> Lane[None]:
    try:
        yield from leader.elect(node, min(deadline, node.soon()))
    except RendezvousDeniedError:
        raise
    except Exception as error:
        # Another may win; if not, there is another time. What lasts, the watch meets, too.
        logger.debug("electing a leader of '%s': %r", node.settings.run, error)


def _give_up(node: Node, waited: float, *, alone: bool) -> Lane[None]:
    """Withdraw, unless a world was published meanwhile that includes this node.

    Args:
        node: Which gives up.
        waited: For how many seconds it has waited.
        alone: It ends because all others of its world are gone, and no other has come.

    Raises:
        RendezvousTimeoutError: There is no such world.
    """
    record = node.record
    reason: Exception | None = node.failure()
    # The deadline is over: what is left to do takes less than an interval in all.
    patience = node.clock() + node.interval / 2
    here: list[NodeRecord] = []
    count = ""
    try:
        view = yield ReadAll(NODES, node.clock() + node.interval / 4)
        here = [record for record in nodes_in(view) if record.left is None]
        if len(here) < node.settings.min_nodes:
            count = f": {len(here)} of at least {node.settings.min_nodes} nodes"
        yield from _withdraw(node, patience)
        yield from _tell_state(node, (yield Read(STATE_KEY, patience)))
        if node.standing() is Standing.MEMBER:
            # It was published before the record was gone.
            node.record = record
            yield from _come_back(node, patience)
            if node.standing() is Standing.MEMBER:
                return
    except Exception as error:
        logger.debug("node '%s' gives up: %r", node.id, error)
        reason = error
    because = f" The last error: {reason}" if reason else ""
    timeout = RendezvousTimeoutError(f"{_missing_nodes(node, here, waited, alone=alone)}{because}")
    timeout.summary = f"gave up after {waited:.1f} s{count}"
    raise timeout from reason


def _missing_nodes(node: Node, here: list[NodeRecord], waited: float, *, alone: bool) -> str:
    needed = node.settings.min_nodes
    missing = max(0, needed - len(here))
    state = node.running()
    inside = rules.in_round(state, here) if state is not None else []
    names = ", ".join(sorted(record.id for record in here)) or "none"
    message = (
        f"The rendezvous '{node.settings.run}' on backend '{node.backend}' did not complete within {waited:.1f} s: "
        f"{len(here)} of at least {needed} nodes {_are(len(here))} here ({names}), {missing} {_are(missing)} missing."
    )
    message += _what_runs(node, len(inside))
    if alone:
        seconds = node.settings.timeout.alone.total_seconds()
        message += (
            f" No other node has come for {seconds:g} s: look at why the others have left, then start the run again. "
            "Where a new node takes longer to come, give a longer alone_timeout (as long as join_timeout: no wait ends "
            "early)."
        )
    elif not missing and not inside:
        message += _what_lacks(node, waited)
    return message


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _what_runs(node: Node, inside: int) -> str:
    state, notice = node.running(), node.notice
    if state is None:
        return ""
    lost = notice.lost if notice is not None and notice.round == state.round else ()
    gone = "; ".join(f"'{loss.node}' {'has left' if loss.left else 'is gone'}: {loss.cause}" for loss in lost)
    if not inside:
        return f" Of round {state.round}, {gone}." if gone else ""
    nodes = f"{inside} node{'s' * (inside != 1)}"
    return f" Round {state.round} is running with {nodes}{f' ({gone})' if gone else ''}."


def _what_lacks(node: Node, waited: float) -> str:
    """Why there is no world although nodes enough are here."""
    seconds = node.settings.timeout.last_call.total_seconds()
    if waited > seconds + leader.NOTICE_INTERVAL and (node.notice is None or node.notice.phase != "last call"):
        return " No leader has published a world of them: the log of the node that leads says more."
    return (
        f" Up to {node.settings.max_nodes} are waited for during the last call of {seconds:g} s: "
        "give a longer join_timeout, or a shorter last_call_timeout."
    )


def _withdraw(node: Node, deadline: float) -> Lane[None]:
    """Take back the record, and the lead: with the lease both vanish, now or when it runs out."""
    lease, node.record = node.lease, None
    _lose_lease(node)
    if lease is None:
        return
    try:
        yield Revoke(lease, deadline)
    except Exception as error:
        # The lease runs out by itself.
        logger.debug("node '%s' withdraws: %r", node.id, error)


def close(node: Node, reason: str, done: bool, deadline: float) -> Lane[None]:
    """Close this node's attempt, unless it is closed already: the first reason stands."""
    while True:
        held = yield Read(STATE_KEY, deadline)
        state = decode(State, held.payload) if held else None
        closed = rules.close(state, Closed(node.id, reason, done), node.limits())
        if closed is None:
            yield from _tell_state(node, held)
            return
        won, held = yield Put(STATE_KEY, closed.encode(), deadline, after=held)
        yield from _tell_state(node, held)
        if won:
            return


def leave(node: Node, reason: str, deadline: float) -> Lane[None]:
    """Leave for good, saying why; the run goes on for the others."""
    record, lease = node.record, node.lease
    if record is not None and lease is not None and node.closed() is None:
        # The record stays until its lease runs out, so that the leader reads the reason.
        node.record = None
        yield from _sign_off(replace(record, left=reason), node.written, lease, deadline)
    else:
        yield from _withdraw(node, deadline)
    if not node.known:
        return
    # Also if it does not know that it leads: it may be elected by a write that was on its way.
    # On the lease that it had, also where a caller that waited has just given that up.
    leads = yield from leader.resign(node, deadline, lease)
    node.lease = None
    if node.standing() is Standing.SUPERSEDED:
        # The next attempt removes all but what this node has written since.
        yield Delete(node_key(node.settings.attempt, node.id), deadline)
    elif leads is None:
        yield from _clean_up(node, reason, deadline)


def _sign_off(record: NodeRecord, before: Held | None, lease: Lease, deadline: float) -> Lane[None]:
    """Replace the record by its last version, also one that was still on its way when this node decided to leave."""
    while True:
        won, now = yield Put(record.key, record.encode(), deadline, after=before, lease=lease)
        if won or _same(before, now):
            return
        before = now


def _clean_up(node: Node, reason: str, deadline: float) -> Lane[None]:
    """If this node is the last one out, say why the round fell apart, and remove the rest if no other may come back.

    Nobody leads: a leader looks here after it has resigned.
    """
    while True:
        # Before the look at the nodes, so that nothing is put over the news of a leader that comes after that. What
        # this node knew of the state is not enough: others may have had a round, or purged the run.
        control = yield ReadAll(CONTROL, deadline)
        yield from _tell_state(node, control.get(STATE_KEY))
        notice = control.raw(NOTICE_KEY)
        view = yield ReadAll(NODES, deadline)
        records = nodes_in(view)
        if any(record.left is None for record in records):
            return
        state = node.state
        if state is None or node.closed() is not None:
            break
        if control.get(STATE_KEY) is None:
            return
        known = decode(Notice, notice.payload) if notice is not None else None
        last = rules.last_notice(state, records, known, node.id, reason).encode()
        won, _ = yield Put(NOTICE_KEY, last, deadline, after=notice)
        if won:
            break
    for prefix in (yield from _ended(node, records, deadline)):
        yield Delete(prefix, deadline)


def _ended(node: Node, records: list[NodeRecord], deadline: float) -> Lane[list[str]]:
    """What nobody needs any more after the last one out.

    Only names that nobody will use again: even a request that is applied too late harms nobody.
    (At worst a leader of the next attempt posts its notice again, or another is elected.)
    """
    state, attempt = node.state, node.settings.attempt
    number = state.round if state is not None else 0
    ended = [f"{STORE}/{number}" for number in range(max(1, number - 2), number + 1)]
    if state is not None and node.closed() is not None:
        # Where the service has no leases, what is dead stays, and is not seen: in a folder of each attempt.
        intents = yield ReadAll(INTENTS, deadline)
        ended += [LEADER_KEY, NOTICE_KEY, f"{NODES}/{attempt}", f"{BEATS}/{attempt}"]
        return ended + leader.outdated(intents, state, state.round + 1)
    if state is None:
        return [*ended, NOTICE_KEY, *(record.key for record in records)]
    if rules.has_ended(state, records, node.notice, node.id):
        return ended + [record.key for record in records]
    # A member without a record may only be cut off, and go on with its round. What stays goes two rounds later.
    return []
