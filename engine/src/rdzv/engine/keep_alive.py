"""The coroutine that keeps a node's lease alive, and finds out what became of the lease and of the state."""

from rdzv_core.backend import STATE_KEY, Lease
from rdzv_core.errors import RendezvousConnectionError

from .aside import node_logger
from .effects import Coroutine, KeepAlive, Read, Sleep
from .failures import KEEP
from .node import Node
from .register import apply_and_emit, register, reregister
from .registration import NodeState
from .run_view import Presence
from .supervisor import supervised

logger = node_logger(__name__)


def keep_alive_loop(node: Node) -> Coroutine[None]:
    """Keep the lease alive, until the node stops; register again when it is lost."""
    # Nodes that begin together do not ask together each time.
    first = node.interval * node.rng.uniform(0.5, 1.0)
    due = node.clock() + first
    ended: Lease | None = None

    def turn() -> Coroutine[None]:
        nonlocal due, ended
        yield Sleep(due)
        mine = node.registration
        is_new = mine.state is NodeState.REGISTERED and node.clock() < mine.lease_since + first
        if is_new and node.run.presence is Presence.THERE:
            due = mine.lease_since + first
            return
        # Until it has gone well it is due: how long to pause after a failure is not decided here.
        due = sent = node.clock()
        if mine.record is not None and not node.stopped:
            try:
                yield from _renew(node, sent)
            except RendezvousConnectionError as error:
                if mine.lease is not None and mine.lease is not ended and mine.lease_until <= node.clock():
                    ended = mine.lease
                    message = "the lease of node '%s' in '%s' was not renewed in time, so others may go on without it%s"
                    why = "" if node.connection.is_silence_told else f": {error}"
                    logger.warning(message, node.id, node.settings.run, why)
                raise
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
            yield from reregister(node, node.background_deadline())
            return
        mine.lease_until = sent + lease.ttl
        node.connection.on_renewal(sent)
        yield from _verify_state(node, lease)
    done = mine.state is NodeState.REGISTERED or (mine.lease is not None and node.closed() is not None)
    if not done and not mine.writing:
        yield from register(node, node.background_deadline())


def _verify_state(node: Node, lease: Lease) -> Coroutine[None]:
    """Find out whether the state is gone although our lease lives: then the run was removed."""
    # The record of a node that registers again may be younger than the loss; its fence puts the state back.
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
            yield from reregister(node, node.background_deadline())
            return
        assert run.state is not None  # noqa: S101 - what has a version was read
        if run.seen_at < mine.written_at and node.clock() < mine.written_at + node.ttl:
            # The service may have forgotten it before it had this node's record: then its members write it again. That
            # the lease is older says nothing: to open one may ask nothing.
            return
        run.version = None
        # What an earlier attempt has left may be purged while this one begins.
        if run.state.attempt == node.settings.attempt:
            run.presence = Presence.DELETED
    yield from apply_and_emit(node, versioned, node.background_deadline())
