"""Which nodes a new world should have: rather none that drains or is quarantined.

Pure functions of the nodes' records and of the notices of the run.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..admission import Limits
from .notices import MOST_SECONDS, Failure, Notices, Quarantine, name_of
from .records import NodeRecord

_LAST_DOUBLED: Final = 4
"""Each quarantine of a node takes twice as long as the one before, up to this one."""


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
    fit = sum(is_fit(node, notices) for node in nodes)
    ordered = sorted(nodes, key=lambda node: _burden(node, notices))
    counts = range(fit, len(ordered))
    count = fit + bisect_left(counts, True, key=lambda count: bool(limits.choose(ordered[:count], previous)))
    return sorted(ordered[:count], key=lambda node: node.order)


def is_fit(node: NodeRecord, notices: Notices) -> bool:
    """Whether a node neither drains nor is quarantined."""
    return not any(_burden(node, notices))


def _burden(node: NodeRecord, notices: Notices) -> tuple[bool, int]:
    quarantine = notices.quarantines.get(name_of(node.id))
    times = 0 if quarantine is None or quarantine.over or quarantine.round <= node.served else quarantine.times
    return node.id in notices.drains, times


def drained(inside: Collection[NodeRecord], notices: Notices) -> frozenset[str]:
    """The members that go now: their time is over, or every member in the round is ready for it.

    Args:
        inside: The members that are in the round.
        notices: What the run knows of them.
    """
    awaited = frozenset.intersection(*(frozenset(node.ready) for node in inside)) if inside else frozenset()
    return frozenset(node.id for node in inside if node.goes or (node.id in notices.drains and node.id in awaited))


def with_due(notices: Notices, number: int, after: int, cooldown: float) -> tuple[Notices, str | None]:
    """The notices, with the quarantine that is due, and the name of its node; None: none is.

    Args:
        notices: What stands in the service.
        number: The round that runs, or ran last.
        after: Rounds, one after the other, in which a node failed first, that make it due; 0: none ever is.
        cooldown: Seconds of a first quarantine.
    """
    rounds = range(number - after + 1, number + 1)
    failures = [notices.failures[each] for each in rounds if each in notices.failures]
    names = {name_of(failure.node) for failure in failures}
    if not after or len(failures) < after or len(names) > 1:
        return notices, None
    name = names.pop()
    before = notices.quarantines.get(name)
    if before is not None and before.round >= rounds[0]:
        # No failure counts twice.
        return notices, None
    times = before.times + 1 if before else 1
    seconds = min(cooldown * 2 ** (min(times, _LAST_DOUBLED) - 1), MOST_SECONDS)
    running = f"{after} rounds running" if after > 1 else "a round"
    due = Quarantine(times, number, seconds, f"it failed first in {running}: {failures[-1].reason}")
    return replace(notices, quarantines={**notices.quarantines, name: due}), name


def is_suspect(notices: Notices, number: int, after: int) -> bool:
    """Whether a failure in this round, of which nothing is known yet, may make a quarantine due.

    Args:
        notices: What stands in the service, as far as it is known.
        number: The round that ran last.
        after: Rounds, one after the other, in which a node failed first, that make it due; 0: none ever is.
    """
    before = [notices.failures.get(each) for each in range(number - after + 1, number)]
    names = {name_of(failure.node) for failure in before if failure is not None}
    return after > 0 and number not in notices.failures and None not in before and len(names) < 2


def waited_out(nodes: Collection[NodeRecord], notices: Notices) -> Mapping[str, Quarantine]:
    """The quarantines that their nodes have waited out, by name, as they should be written now."""
    return {
        name: replace(quarantine, over=True)
        for name, quarantine in notices.quarantines.items()
        if not quarantine.over and any(name_of(node.id) == name and quarantine.round <= node.served for node in nodes)
    }


def without_progress(failures: Mapping[int, Failure], attempt: int, number: int) -> Sequence[tuple[int, Failure]]:
    """The rounds of an attempt without progress, one after the other, each with its first failure.

    Args:
        failures: By the number of the round.
        attempt: The attempt.
        number: The last round.
    """
    found: list[tuple[int, Failure]] = []
    while (failure := failures.get(number)) is not None and failure.attempt == attempt and not failure.progressed:
        found.append((number, failure))
        number -= 1
    return found[::-1]
