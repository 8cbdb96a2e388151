"""The coroutine by which a node reports that its program has failed."""

from dataclasses import replace

from .effects import Coroutine, Emit, Put
from .node import Node
from .notices import Failure, failure_key
from .records import read_record


def report_failure(node: Node, reason: str, progressed: bool, deadline: float) -> Coroutine[bool]:
    """Report that the program of this node has failed in the node's round; returns whether none failed there before.

    The first report is a creation, which succeeds for one node: no clocks are compared. A node that has heard of it
    reports no more.
    """
    state, number = node.run.state, node.round
    if state is None or state.round != number:
        # The round is over: why it ended was reported in time, if at all.
        return False
    failure = Failure(node.id, reason, progressed, node.settings.attempt)
    first = node.run.notices.failures.get(number)
    if first is None:
        _, there = yield Put(failure_key(number), failure.encode(), deadline, previous=None)
        first = read_record(Failure, there)
        if first is not None:
            notices = node.run.notices
            yield Emit(tuple(node.apply_notices(replace(notices, failures={**notices.failures, number: first}))))
    return first == failure
