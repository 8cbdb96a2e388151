"""The coroutine that watches a run, and its first look."""

from rdzv_core.backend import STATE_KEY
from rdzv_core.errors import RendezvousClosedError, again

from . import drain, leader, refusals
from .client import DecodedSnapshot
from .effects import Coroutine, Emit, ReadAll, Wait, WaitForChange
from .failures import WATCH
from .node import Node
from .records import CONTROL
from .register import page_in
from .supervisor import supervised

WATCH_TIMEOUT = 30.0
"""Seconds after which a watch without news is made again."""


def watch_loop(node: Node) -> Coroutine[None]:
    """Keep the node's snapshot of ``control`` fresh, until it stops."""

    def turn() -> Coroutine[None]:
        seen, known = node.run.snapshot, node.run.leader
        if seen is None or node.failures.count(WATCH):
            # What has failed is looked at again at once: a wait may be a long one.
            snapshot = yield ReadAll(CONTROL, node.background_deadline(), seen)
        else:
            snapshot = yield Wait(CONTROL, seen, _watch_until(node))
            if snapshot is seen and known is not None and not node.leading and node.run.shows_no_leader():
                # An answer has named it, before this wait: it may have come and gone between two looks of the watch.
                snapshot = yield ReadAll(CONTROL, node.background_deadline(), seen)
        # One without news may be older than what this node has read or written meanwhile.
        if snapshot is not seen or node.run.lacks_page():
            yield from _apply(node, snapshot)
        yield from drain.go(node)
        yield from leader.elect(node, node.background_deadline())

    return supervised(node, WATCH, turn)


def _watch_until(node: Node) -> float:
    """The moment at which a watch ends that has brought no news."""
    now, candidacy = node.clock(), node.candidacy
    until = candidacy.next_election(now) if candidacy.sees_no_leader() else now + WATCH_TIMEOUT
    return min(until, node.goes_at())


def _apply(node: Node, snapshot: DecodedSnapshot) -> Coroutine[None]:
    """Apply a snapshot of ``control``, with the page that belongs to it, and emit what has happened."""
    is_whole, page = yield from page_in(node, snapshot.get(STATE_KEY), node.background_deadline())
    if not is_whole:
        # The state may be gone like its page, and be older than this node's lease: look once more.
        snapshot = yield ReadAll(CONTROL, node.background_deadline(), snapshot)
        _, page = yield from page_in(node, snapshot.get(STATE_KEY), node.background_deadline())
    if events := node.apply_snapshot(snapshot, page):
        yield Emit(tuple(events))


def wait_until_connected(node: Node, deadline: float, since: float) -> Coroutine[None]:
    """Wait until the service has been seen once.

    Args:
        node: The node.
        deadline: Until when.
        since: Since when the caller waits, which is what the error tells.

    Raises:
        RendezvousConnectionError: It was not seen until the deadline.
        RendezvousError: What the service holds cannot be used.
    """
    while node.run.snapshot is None:
        node.failures.raise_lasting()
        if node.stopped:
            raise RendezvousClosedError(f"This node has left '{node.settings.run}' while it waited.")
        if node.clock() >= deadline:
            if node.connection.error is None and (error := node.failures.latest) is not None:
                raise again(error)
            raise refusals.unreachable(node, since)
        yield WaitForChange(deadline)
