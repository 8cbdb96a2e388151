"""Which nodes a new world should have: rather none that drains or is quarantined.

Pure functions of the nodes' records and of the notices of the run.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence

from ..admission import Limits
from ..outcome import Ending, Outcome
from .notices import Failure, Notices, Verdict
from .quarantine import quarantine_of
from .records import NodeRecord


def eligible(
    limits: Limits, nodes: Sequence[NodeRecord], previous: Sequence[str], notices: Notices
) -> Sequence[NodeRecord]:
    """The nodes of which the next world is formed.

    Those that neither drain nor are quarantined. Where these are too few for any world, as many of the others as one
    needs: first those that were quarantined least often, last those that drain.

    Args:
        limits: Which worlds the run takes.
        nodes: Those that wait, in arrival order.
        previous: The ids of the world before, in rank order.
        notices: What the run knows of them.
    """
    if not (notices.drains or notices.quarantines):
        return nodes
    preferred = sum(objection(node, notices) is None for node in nodes)
    ordered = sorted(nodes, key=lambda node: _burden(node, notices))
    counts = range(preferred, len(ordered))
    count = preferred + bisect_left(counts, True, key=lambda count: bool(limits.choose(ordered[:count], previous)))
    return sorted(ordered[:count], key=lambda node: node.order)


def pays(node_id: str, outcome: Outcome | None, failure: Failure | None) -> bool:
    """Whether a node has to count a failure of its own in a round.

    Args:
        node_id: Its id.
        outcome: How the round has ended on it.
        failure: The first failure of the round.
    """
    verdict = None if failure is None else failure.verdict
    if failure is not None and verdict is Verdict.BEHIND:
        return failure.node == node_id
    return verdict is not Verdict.EXPLAINED and outcome is not None and outcome.ending is not Ending.CHANGED


def is_out(node: NodeRecord, notices: Notices) -> bool:
    """Whether a node takes no further part: it has to pay a restart, and has none left."""
    outcome = node.outcome
    is_spent = outcome is not None and outcome.spent
    return is_spent and pays(node.id, outcome, notices.failures.get(node.last_round))


def objection(node: NodeRecord, notices: Notices) -> str | None:
    """Why a world should rather not have a node, in words; None: nothing speaks against it."""
    drains, times = _burden(node, notices)
    if drains:
        return "it drains"
    return "it is quarantined" if times else None


def _burden(node: NodeRecord, notices: Notices) -> tuple[bool, int]:
    """Whether a node drains, and how often it was quarantined if it is now."""
    quarantine = quarantine_of(node.id, node.served, notices)
    return node.id in notices.drains, 0 if quarantine is None else quarantine.times


def drained(inside: Collection[NodeRecord], notices: Notices) -> frozenset[str]:
    """The members that go now: their time is over, or every member in the round is ready for it.

    Args:
        inside: The members that are in the round.
        notices: What the run knows of them.
    """
    awaited = frozenset.intersection(*(frozenset(node.ready) for node in inside)) if inside else frozenset()
    return frozenset(node.id for node in inside if node.goes or (node.id in notices.drains and node.id in awaited))
