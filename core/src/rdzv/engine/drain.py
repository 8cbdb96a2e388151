"""The coroutines of a drain: it is announced, the other members get ready for it, and the node goes."""

from collections.abc import Collection
from dataclasses import replace

from .effects import Coroutine, Put
from .node import Node
from .notices import DrainNotice, drain_key
from .records import NodeRecord
from .register import register


def announce(node: Node, notice: DrainNotice, deadline: float) -> Coroutine[None]:
    """Announce that this node goes. It does so in time, whether the service takes that or not."""
    node.countdown.announce(notice, node.clock())
    applied, there = yield Put(drain_key(node.id), notice.encode(), deadline, previous=None)
    while not applied:
        # An operator has asked for it before.
        applied, there = yield Put(drain_key(node.id), notice.encode(), deadline, previous=there)


def get_ready(node: Node, nodes: Collection[str], deadline: float) -> Coroutine[None]:
    """Say that this node can go on without these nodes, which drain, and without no others.

    While it waits it says nothing: its program in the next world will have work of its own.
    """
    record, ready = node.registration.record, tuple(sorted(nodes))
    if record is not None and record.ready != ready and node.in_running_round():
        yield from _rewrite(node, replace(record, ready=ready), deadline)


def go(node: Node) -> Coroutine[None]:
    """Say that this node goes, if its drain is over: then the others need not wait for its programs to end."""
    record = node.registration.record
    if record is not None and not record.goes and node.is_drained():
        yield from _rewrite(node, replace(record, goes=True), node.background_deadline())


def _rewrite(node: Node, record: NodeRecord, deadline: float) -> Coroutine[None]:
    """Replace this node's record."""
    mine = node.registration
    before, mine.record = mine.record, record
    try:
        yield from register(node, deadline)
    except BaseException:
        # It is tried again.
        if mine.record is record:
            mine.record = before
        raise
