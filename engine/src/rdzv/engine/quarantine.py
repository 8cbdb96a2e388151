"""When a node is quarantined, and until when. Pure functions of the notices of the run."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from .notices import MOST_REASON, MOST_SECONDS, Notices, Quarantine, name_of
from .records import NodeRecord

_LAST_DOUBLED: Final = 4
"""Each quarantine of a node takes twice as long as the one before, up to this one."""


def shared_names(nodes: Collection[NodeRecord]) -> frozenset[str]:
    """The names that several live nodes have: they tell no node from another."""
    counts = Counter(name_of(node.id) for node in nodes if node.left is None)
    return frozenset(name for name, count in counts.items() if count > 1)


def quarantine_of(node_id: str, served: int, notices: Notices) -> Quarantine | None:
    """The quarantine that a node is in, by its id or its name, which has waited out the one of round `served`."""
    for quarantine in _of_node(node_id, notices):
        if not quarantine.over and quarantine.round > served:
            return quarantine
    return None


def _of_node(node_id: str, notices: Notices) -> list[Quarantine]:
    """The quarantines under the id and under the name of a node, over or not; the last one first."""
    keys = (node_id, name_of(node_id))
    found = [notices.quarantines[key] for key in keys if key in notices.quarantines]
    return sorted(found, key=lambda quarantine: -quarantine.round)


def with_due(
    notices: Notices, number: int, after: int, cooldown: float, shared: Collection[str] = ()
) -> tuple[Notices, str | None]:
    """The notices, with the quarantine that is due, and the name of its node, or its id; None: none is.

    Args:
        notices: What stands in the service.
        number: The round that runs, or ran last.
        after: Consecutive rounds in which a node failed first that make it due; 0: none ever is.
        cooldown: Seconds of a first quarantine.
        shared: The names that several live nodes have: each of these is quarantined by its id.
    """
    rounds = range(number - after + 1, number + 1)
    failures = [failure for each in rounds if (failure := notices.failures.get(each)) is not None and failure.counts]
    names = {name if (name := name_of(failure.node)) not in shared else failure.node for failure in failures}
    if not after or len(failures) < after or len(names) > 1:
        return notices, None
    name = names.pop()
    before = next(iter(_of_node(failures[-1].node, notices)), None)
    if before is not None and before.round >= rounds[0]:
        # No failure counts twice.
        return notices, None
    times = before.times + 1 if before else 1
    seconds = min(cooldown * 2 ** (min(times, _LAST_DOUBLED) - 1), MOST_SECONDS)
    which = f"{after} consecutive rounds" if after > 1 else "a round"
    how = " or ".join(sorted({failure.how for failure in failures}))
    due = Quarantine(times, number, seconds, f"it {how} in {which}: {failures[-1].reason[:MOST_REASON]}")
    return replace(notices, quarantines={**notices.quarantines, name: due}), name


def is_suspect(notices: Notices, number: int, after: int) -> bool:
    """Whether a failure in this round, of which nothing is known yet, may make a quarantine due.

    Args:
        notices: What stands in the service, as far as it is known.
        number: The round that ran last.
        after: Consecutive rounds in which a node failed first that make it due; 0: none ever is.
    """
    rounds = range(number - after + 1, number)
    before = [failure for each in rounds if (failure := notices.failures.get(each)) is not None and failure.counts]
    names = {name_of(failure.node) for failure in before}
    return number not in notices.failures and len(before) == after - 1 and len(names) < 2


def waited_out(nodes: Collection[NodeRecord], notices: Notices) -> Mapping[str, Quarantine]:
    """The quarantines that their nodes have waited out, by name or id, as they should be written now."""
    return {
        name: replace(quarantine, over=True)
        for name, quarantine in notices.quarantines.items()
        if not quarantine.over
        and any(name in (node.id, name_of(node.id)) and quarantine.round <= node.served for node in nodes)
    }


def lifted(shared: Collection[str], notices: Notices) -> Mapping[str, Quarantine]:
    """The quarantines of names that several nodes have, as they should be written now: they hold for no node."""
    return {
        name: replace(quarantine, over=True)
        for name, quarantine in notices.quarantines.items()
        if not quarantine.over and name in shared
    }
