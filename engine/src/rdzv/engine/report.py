"""The coroutine by which a node reports that its program has failed."""

from dataclasses import replace

from ..outcome import Ending, Outcome
from . import eligibility
from .aside import node_logger
from .effects import Coroutine, Emit, Put, Read
from .node import Node
from .notices import Failure, failure_key
from .records import read_record

logger = node_logger(__name__)


def report_failure(node: Node, reason: str, progressed: bool, deadline: float) -> Coroutine[bool]:
    """Report that the program of this node has failed in the node's round; returns whether none failed there before.

    The first report is a creation, which succeeds for one node: no clocks are compared. A node that has heard of it
    reports no more.
    """
    state, number = node.run.state, node.round
    if state is None or state.round != number:
        # The round is over: why it ended was reported in time, if at all.
        return False
    node.reckoning.outcome = Outcome()
    failure = Failure(node.id, reason, progressed, node.settings.attempt)
    first = node.run.notices.failures.get(number)
    if first is None:
        _, there = yield Put(failure_key(number), failure.encode(), deadline, previous=None)
        first = read_record(Failure, there)
        if first is not None:
            notices = node.run.notices
            yield Emit(tuple(node.apply_notices(replace(notices, failures={**notices.failures, number: first}))))
    return first == failure


def learn_verdict(node: Node, number: int, deadline: float) -> Coroutine[None]:
    """Learn whether this node has to pay for the failure that has ended that round: it is in the next one.

    The verdict stood before that was formed, but the watch may show it later.
    """
    mine, failure = node.reckoning, node.run.notices.failures.get(number)
    outcome, mine.outcome = mine.outcome, None
    has_failed = outcome is not None and outcome.ending is not Ending.CHANGED
    if (failure is None and has_failed) or (failure is not None and failure.verdict is None):
        try:
            failure = read_record(Failure, (yield Read(failure_key(number), deadline)))
        except Exception as error:
            # Then each failure is that of its node.
            logger.debug("whose failure ended round %d of '%s' is not known: %r", number, node.settings.run, error)
    if not mine.pays:
        # If it does, a world that it cannot enter has followed at once.
        mine.pays, mine.ended_by = eligibility.pays(node.id, outcome, failure), failure


def is_out(node: Node) -> bool:
    """Whether this node, which waits for a world, takes no further part, as far as it knows: it has to pay a restart,
    and has none left."""
    record = node.registration.record
    return record is not None and record.last_round == node.round and eligibility.is_out(record, node.run.notices)


def out_until(node: Node) -> float:
    """Until when this node waits to hear that it may take part after all; infinite: it may."""
    lease = node.registration.lease
    return node.reckoning.out_until(max(node.ttl, lease.ttl if lease is not None else 0.0))
