"""How a node has its record in the service: it registers, registers again after its lease was lost, and deregisters.

A node that comes back after losing its lease raises the epoch of the state, under a condition, if a leader is about to
form a round without it (the fence).
"""

from rdzv_core.backend import STATE_KEY, Lease
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError

from .aside import node_logger
from .client import DecodedSnapshot, VersionedValue, same_version
from .effects import Coroutine, Emit, OpenLease, Put, ReadAll, Revoke, Sleep, WaitForChange
from .failures import LEAD, REGISTER, Failures
from .node import Node
from .records import CONTROL, PENDING, Page, decode_state, numbered
from .registration import NodeState, Trigger
from .supervisor import note_passing, note_success
from .worlds import read_page, restore_page

logger = node_logger(__name__)


def register(node: Node, deadline: float) -> Coroutine[None]:
    """See to it that the service holds this node's record, on a lease that lives.

    A node that drains goes in time: it may be asked to while it registers.

    After a lost lease in two steps: the record, then the fence. So a leader that read the nodes while the record was
    missing fails to publish, and reads them again. No world is to be trusted before.

    Raises:
        RendezvousConnectionError: The service did not take the record until the deadline.
        RendezvousError: What the service holds cannot be used.
        Exception: The backend's own, if it lasts.
    """
    yield from wait_for_writer(node, deadline)
    node.registration.writing = True
    try:
        yield from _write_in_time(node, deadline)
    finally:
        node.registration.writing = False
        # Who has called it gets the error.
        node.failures.clear(REGISTER)


def open_lease_early(node: Node, deadline: float) -> Coroutine[None]:
    """Open the lease for a record that is not written yet, while the first look at the run is on its way.

    It is not kept alive: one that ends unused costs a second one. What goes wrong, the write of the record meets, too.
    """
    mine = node.registration
    if mine.lease is not None or node.run.snapshot is not None or node.ttl < 2 * node.interval:
        return
    try:
        yield from _open_lease(node, deadline)
    except Exception as error:
        logger.debug("opening a lease of node '%s' early: %r", node.id, error)


def _open_lease(node: Node, until: float) -> Coroutine[Lease]:
    mine, opened = node.registration, node.clock()
    lease: Lease = yield OpenLease(node.ttl, until)
    mine.lease, mine.lease_since, mine.lease_until = lease, node.clock(), opened + lease.ttl
    return lease


def _write_in_time(node: Node, deadline: float) -> Coroutine[None]:
    """Write the record, and fence it, again and again until that succeeds, trying is of no use, or time is over."""
    pauses, unexpected = node.pauses(), Failures(node.clock)
    while not node.stopped:
        began = node.clock()
        try:
            yield from _write_and_fence(node, deadline)
            note_success(node, REGISTER)
            return
        except Exception as error:
            if isinstance(error, RendezvousConnectionError):
                note_passing(node, REGISTER, error, began)
            if _is_final(node, error, unexpected):
                raise
            now = node.clock()
            pause = pauses.within(_until(node, deadline) - now, error)
            if pause is None:
                if node.goes_at() < deadline:
                    # It goes, whatever the error was: its caller is to find the drain over.
                    yield Sleep(node.goes_at())
                raise
            yield Sleep(now + pause)


def _is_final(node: Node, error: Exception, unexpected: Failures) -> bool:
    """Whether trying again is of no use: the service refuses for too long, or an error that none expects comes again
    and again."""
    if isinstance(error, RendezvousConnectionError):
        return isinstance(error, RendezvousDeniedError) and isinstance(node.failures.lasting, RendezvousDeniedError)
    if isinstance(error, RendezvousError):
        return True
    unexpected.add("register", error)
    return unexpected.lasting is not None


def _write_and_fence(node: Node, deadline: float) -> Coroutine[None]:
    mine = node.registration
    yield from _write_record(node, deadline)
    mine.on(Trigger.WRITTEN)
    if mine.state is NodeState.REREGISTERING:
        yield from _fence(node, deadline)
        # A world of a closed attempt ends with the lease: the last node that ends removes its records.
        if node.closed() is None:
            mine.on(Trigger.FENCED)


def wait_for_writer(node: Node, deadline: float) -> Coroutine[None]:
    """Wait until no coroutine writes this node's record.

    Raises:
        RendezvousConnectionError: One writes it still at the deadline.
    """
    while node.registration.writing and not node.stopped:
        if node.clock() >= deadline:
            raise RendezvousConnectionError(
                f"it is being written: {node.connection.error or 'its last call is not over'}"
            )
        yield WaitForChange(deadline)


def reregister(node: Node, deadline: float) -> Coroutine[None]:
    """Register again after a lost lease.

    Raises:
        RendezvousError: It could not register again until the deadline.
    """
    logger.warning("node '%s' has lost its lease in '%s' and registers again", node.id, node.settings.run)
    _lose_all_on_lease(node)
    # Where the service lost it, the others have lost theirs, too.
    node.connection.reset_grace_period()
    yield from register(node, deadline)


def _write_record(node: Node, deadline: float) -> Coroutine[None]:
    mine = node.registration
    if mine.state is NodeState.NEW and node.clock() >= mine.lease_until - 1.5 * node.interval:
        # It was opened too early: it might end before the first keep-alive, up to an interval after the record.
        early = mine.lease if node.clock() < mine.lease_until else None
        mine.lose_lease()
        if early is not None:
            yield from _revoke(node, early, node.background_deadline(_until(node, deadline)))
    while (record := mine.record) is not None and not mine.has_left:
        until = node.background_deadline(_until(node, deadline))
        if node.clock() >= until:
            raise RendezvousConnectionError("each lease was over before the record was written")
        if mine.lease is None:
            lease = yield from _open_lease(node, until)
            if mine.record is None:
                # The node has withdrawn meanwhile.
                mine.lose_lease()
                yield Revoke(lease, node.background_deadline(deadline))
                return
            continue
        before, sent = mine.version, node.clock()
        mine.on(Trigger.SENT)
        # Conditional, although no other node writes it: a request that hung in a dead connection may
        # be applied seconds later, and must not undo what was written since.
        applied, mine.version = yield Put(record.key, record.encode(), until, previous=before, lease=mine.lease)
        if applied:
            node.connection.on_renewal(sent)
            mine.written_at = mine.written_at if mine.state is NodeState.REGISTERED else node.clock()
        if applied and record == mine.record:
            return
        if not applied and same_version(before, mine.version):
            _lose_all_on_lease(node)


def _until(node: Node, deadline: float) -> float:
    """The deadline, or the end of this node's drain, which may be announced at any time."""
    return min(deadline, node.goes_at())


def _fence(node: Node, deadline: float) -> Coroutine[None]:
    """Make sure that no round is formed by a leader that has not seen this node's record.

    Usually a look is enough: a leader that forms a round without one of its members says so first
    and looks at the nodes after that. If a leader has said so, or this node's page had to be written again,
    the epoch of the state is raised, and the pending write loses. Were it raised every time, a thousand
    nodes that come back together would write the state a thousand times, and each would read every one.
    """
    while not node.stopped:
        until = node.background_deadline(_until(node, deadline))
        control = yield ReadAll(CONTROL, until)
        versioned = control.get(STATE_KEY)
        if versioned is not None:
            yield from apply_and_emit(node, versioned, deadline)
            restored = yield from restore_page(
                node.run.state, node.run.page, node.id, node.background_deadline(deadline)
            )
            if not restored and not _is_round_pending(control, decode_state(versioned.payload).round):
                return
            payload = versioned.payload
        elif node.run.state is not None:
            # The service has lost its data: write the last known state again.
            yield from restore_page(node.run.state, node.run.page, node.id, node.background_deadline(deadline))
            node.run.version = None
            payload = node.run.state.encode()
        else:
            return
        applied, now = yield Put(STATE_KEY, payload, until, previous=versioned)
        yield from apply_and_emit(node, now, deadline)
        if applied:
            return


def _is_round_pending(control: DecodedSnapshot, number: int) -> bool:
    """Whether a leader is about to form a round after this one."""
    return any(pending is None or pending > number for _, pending in numbered(control, PENDING))


def deregister(node: Node, deadline: float) -> Coroutine[Exception | None]:
    """Deregister: with the lease the record and the lead vanish, now or when it runs out.

    Returns:
        Why the service has not confirmed it: the lease runs out by itself; None: it has.
    """
    mine = node.registration
    lease = mine.lease or mine.unrevoked
    mine.withdraw()
    _lose_all_on_lease(node)
    mine.unrevoked = lease
    if lease is not None:
        if (error := (yield from _revoke(node, lease, deadline))) is not None:
            return error
        mine.unrevoked = None
    return None


def _revoke(node: Node, lease: Lease, deadline: float) -> Coroutine[Exception | None]:
    """End a lease; returns why the service has not confirmed it: then it runs out by itself."""
    try:
        yield Revoke(lease, deadline)
    except Exception as error:
        logger.debug("the lease of node '%s' could not be revoked: %r", node.id, error)
        return error
    return None


def _lose_all_on_lease(node: Node) -> None:
    """Trust nothing that belonged to the lease."""
    node.registration.lose_lease()
    node.failures.clear(LEAD)
    node.candidacy.step_down()


def apply_and_emit(node: Node, versioned: VersionedValue | None, deadline: float) -> Coroutine[None]:
    """Apply the state that was just read or written, and emit what has happened by that."""
    _, page = yield from page_in(node, versioned, deadline)
    if events := node.apply_state(versioned, page):
        yield Emit(tuple(events))


def page_in(node: Node, versioned: VersionedValue | None, deadline: float) -> Coroutine[tuple[bool, Page | None]]:
    """Whether all of a state that is to be applied is there; and the page on which this node stands, if its world
    stands on pages."""
    if versioned is None:
        return True, None
    # Reading the page may take long, and says nothing of the state.
    node.run.seen_at = node.clock()
    if not (node.run.is_news(versioned) or node.run.lacks_page()):
        return True, None
    state, known = decode_state(versioned.payload), node.run.state
    if known is not None and known.pages == state.pages and node.run.page is not None:
        return True, node.run.page
    page = yield from read_page(state, node.id, node.background_deadline(deadline))
    return state.pages is None or page is not None, page
