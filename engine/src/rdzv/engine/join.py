"""The coroutine of a node that joins: it registers, waits for a world that includes it, or gives up."""

from dataclasses import replace

from rdzv_core.backend import STATE_KEY
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError

from ..outcome import Outcome
from . import leader, refusals, report
from .aside import node_logger
from .effects import Coroutine, Read, ReadAll, WaitForChange
from .failures import as_ours
from .node import Node
from .reckoning import Reckoning
from .records import NODES, VERSION, NodeRecord, State, nodes_in
from .register import apply_and_emit, deregister, open_lease_early, register, reregister
from .rules import MembershipState, is_loopback
from .watch import wait_until_connected
from .worlds import read_world

logger = node_logger(__name__)


def look_first(node: Node, deadline: float) -> Coroutine[None]:
    """Wait until the service has been seen once, and open the lease for the node's record meanwhile.

    Raises:
        RendezvousError: As `wait_until_connected`.
    """
    yield from open_lease_early(node, min(deadline, node.clock() + node.interval))
    yield from wait_until_connected(node, deadline, _began(node, deadline))


def join(
    node: Node, address: str, port: int, deadline: float, outcome: Outcome | None = None
) -> Coroutine[tuple[State, int]]:
    """Take part in the next round; returns the state whose world includes this node, and its rank there.

    Args:
        node: The node.
        address: Where it can be reached.
        port: A port that it keeps free.
        deadline: Until when.
        outcome: How the round before has ended on it; None: it has failed if it has reported that.

    Raises:
        RendezvousTimeoutError: There was no such world until the deadline.
        RendezvousConnectionError: The service could not be reached until then.
        RendezvousError: See `refusals.raise_if_cannot_join`.
    """
    started = _began(node, deadline)
    node.reckoning = Reckoning(outcome or node.reckoning.outcome)
    yield from wait_until_connected(node, deadline, started)
    while True:
        try:
            refusals.raise_if_cannot_join(node)
            yield from _announce(node, address, port, started, deadline)
            yield from _await_world(node, started, deadline)
            number = node.round
            state, rank = _enter(node)
            yield from report.learn_verdict(node, number, node.background_deadline(deadline))
            # It may have ended while a call was on its way: then there is nothing to begin in that world.
            refusals.raise_if_drained(node)
        except GeneratorExit:
            raise
        except BaseException:
            # Ctrl-C too: a node that does not wait any more must not be counted. One that is out is not, and its record
            # says why when it leaves.
            if not report.is_out(node):
                yield from deregister(node, node.clock() + node.interval / 2)
            raise
        _say_if_unreachable(address, state)
        if rank > 0 or (state.address, state.port) == (address, port):
            return state, rank
        # It was formed from the record of an earlier wait: the others would look for rank 0 where nothing is any more.


def _began(node: Node, deadline: float) -> float:
    """When the call with this deadline began; the threads of this node may have begun later."""
    return deadline - node.settings.timeout.join.total_seconds()


def _announce(node: Node, address: str, port: int, started: float, deadline: float) -> Coroutine[None]:
    """Write the record by which the others know that the node waits."""
    mine = node.settings
    node.registration.record = NodeRecord(
        node.id,
        mine.attempt,
        node.round,
        mine.min_nodes,
        mine.max_nodes,
        address,
        port,
        mine.labels,
        rule=mine.limits.rule,
        served=node.countdown.served,
        outcome=node.reckoning.outcome,
        policy=mine.limits.policy,
        version=VERSION,
    )
    node.countdown.alone_since = None
    yield from _register_to_join(node, started, deadline)
    if node.run.leader is None:
        # Those that start together register together.
        node.draw_candidates()


def _await_world(node: Node, started: float, deadline: float) -> Coroutine[None]:
    """Wait until the node is a member of a world, and certainly still is; see to it that a node leads meanwhile."""
    while not (node.membership() is MembershipState.MEMBER and node.has_valid_lease()):
        node.countdown.observe_alone(node.is_alone(), node.clock())
        refusals.raise_if_cannot_join(node)
        refusals.raise_if_out(node)
        alone_until = node.countdown.alone_until(node.settings.timeout.alone.total_seconds())
        patience = min(deadline, alone_until)
        yield from _serve_quarantine(node, deadline)
        if (now := node.clock()) >= patience:
            yield from _on_join_timeout(node, now - started, alone=now >= alone_until)
            return
        seen = _news(node)
        yield from _ensure_leader(node, min(deadline, node.goes_at()))
        # News that came during the call has woken no waiter: then look before waiting.
        if _news(node) == seen:
            until = min(patience, node.countdown.cooled_at, node.goes_at(), report.out_until(node))
            yield WaitForChange(
                min(until, node.candidacy.next_election(node.clock())) if node.run.leader is None else until
            )


def _news(node: Node) -> tuple[object, ...]:
    """What a node that waits for a world acts on: other coroutines of it write that."""
    failure = node.run.notices.failures.get(node.round)
    return node.run.version, node.failures.lasting, node.registration.record, failure


def _enter(node: Node) -> tuple[State, int]:
    """Take part in the world that has come: its state, and the node's rank there."""
    state, rank = node.run.state, node.run.rank
    assert state is not None  # noqa: S101 - a member has seen the state
    assert rank is not None  # noqa: S101 - and its rank
    node.round = state.round
    node.countdown.alone_since = None
    return state, rank


def _say_if_unreachable(address: str, state: State) -> None:
    if is_loopback(address) and not is_loopback(state.address):
        logger.warning(
            "this node tells the others that it is at %s, where each of them finds itself: it cannot be rank 0 among "
            "them. Give the address by which they reach it as local_addr (rdzv run, torchrun: --local-addr)",
            address,
        )


def _register_to_join(node: Node, started: float, deadline: float) -> Coroutine[None]:
    """Write the record of a node that joins."""
    try:
        yield from register(node, deadline)
    except RendezvousError as error:
        if isinstance(error, RendezvousDeniedError) or not isinstance(error, RendezvousConnectionError):
            raise
        refusals.raise_if_cannot_join(node)
        if node.connection.since_last_contact() > node.clock() - started:
            yield from _probe_service(node, started)
        raise refusals.unregistered(node, started, error) from error
    except Exception as error:
        refusals.raise_if_cannot_join(node)
        raise as_ours(error) from error


def _serve_quarantine(node: Node, deadline: float) -> Coroutine[None]:
    """Say that this node's quarantine is over, if it is."""
    record = node.registration.record
    if record is not None and node.countdown.serve(node.clock()):
        node.registration.record = replace(record, served=node.countdown.served)
        yield from _register_to_join(node, node.clock(), deadline)


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
        yield from leader.elect(node, node.background_deadline(deadline))
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
    reason: Exception | None = node.failures.latest
    # The deadline is over: what is left to do takes less than an interval in all.
    patience = node.clock() + node.interval / 2
    live: list[NodeRecord] | None = None
    running = node.run.running()
    reads = node.nodes_known() <= refusals.READERS or alone or node.run.status is None
    try:
        if reads:
            snapshot = yield ReadAll(NODES, node.clock() + node.interval / 4)
            live = [record for record in nodes_in(snapshot) if record.left is None]
            if running is not None:
                running = yield from read_world(running, node.clock() + node.interval / 4)
        yield from deregister(node, patience)
        yield from apply_and_emit(node, (yield Read(STATE_KEY, patience)), patience)
        if node.membership() is MembershipState.MEMBER:
            # It was published before the record was gone.
            node.registration.record = record
            yield from reregister(node, patience)
            if node.membership() is MembershipState.MEMBER:
                return
    except Exception as error:
        logger.debug("node '%s' gives up: %r", node.id, error)
        reason = error
    raise refusals.timed_out(node, live, running, waited, alone=alone, reason=reason) from reason
