"""The coroutines of a drain: it is announced, the other members get ready for it, and the node goes."""

from collections.abc import Callable, Collection
from dataclasses import replace

from .effects import Coroutine, Put
from .node import Node
from .notices import DrainNotice, drain_key, first_drain
from .records import NodeRecord
from .register import register, wait_for_writer


def announce(node: Node, notice: DrainNotice, deadline: float) -> Coroutine[None]:
    """Announce that this node goes. It does so in time, whether the service takes that or not."""
    node.countdown.announce(notice, node.clock())
    applied, there = yield Put(drain_key(node.id), notice.encode(), deadline, previous=None)
    while not applied and first_drain(notice, there) is notice:
        # An operator has asked for a later one before.
        applied, there = yield Put(drain_key(node.id), notice.encode(), deadline, previous=there)


def get_ready(node: Node, nodes: Collection[str], deadline: float) -> Coroutine[None]:
    """Say that this node can go on without these nodes, which drain, and without no others.

    While it waits it says nothing: its program in the next world will have work of its own.
    """
    ready = tuple(sorted(nodes))

    def wanted() -> NodeRecord | None:
        record = node.registration.record
        if record is None or record.ready == ready or not node.in_running_round():
            return None
        return replace(record, ready=ready)

    yield from _rewrite(node, wanted, deadline)


def go(node: Node) -> Coroutine[None]:
    """Say that this node goes, if its drain is over: then the others need not wait for its programs to end."""

    def wanted() -> NodeRecord | None:
        record = node.registration.record
        return None if record is None or record.goes or not node.is_drained() else replace(record, goes=True)

    yield from _rewrite(node, wanted, node.background_deadline())


def _rewrite(node: Node, wanted: Callable[[], NodeRecord | None], deadline: float) -> Coroutine[None]:
    """Replace this node's record; None: it is to stay as it is."""
    if wanted() is None:
        return
    # A registration that is on its way ends with the drain, which is no longer to be seen once the node goes.
    yield from wait_for_writer(node, deadline)
    mine, record = node.registration, wanted()
    if record is None:
        return
    before, mine.record = mine.record, record
    try:
        yield from register(node, deadline)
    except BaseException:
        # It is tried again.
        if mine.record is record:
            mine.record = before
        raise
