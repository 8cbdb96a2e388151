"""When a node is quarantined, and until when. Pure functions of the notices of the run."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from .notices import MOST_SECONDS, Notices, Quarantine, name_of
from .records import NodeRecord

_LAST_DOUBLED: Final = 4
"""Each quarantine of a node takes twice as long as the one before, up to this one."""


def quarantine_of(node_id: str, served: int, notices: Notices) -> Quarantine | None:
    """The quarantine that a node is in, which has waited out the one of round `served`."""
    quarantine = notices.quarantines.get(name_of(node_id))
    return None if quarantine is None or quarantine.over or quarantine.round <= served else quarantine


def with_due(notices: Notices, number: int, after: int, cooldown: float) -> tuple[Notices, str | None]:
    """The notices, with the quarantine that is due, and the name of its node; None: none is.

    Args:
        notices: What stands in the service.
        number: The round that runs, or ran last.
        after: Consecutive rounds in which a node failed first that make it due; 0: none ever is.
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
    which = f"{after} consecutive rounds" if after > 1 else "a round"
    due = Quarantine(times, number, seconds, f"it failed first in {which}: {failures[-1].reason}")
    return replace(notices, quarantines={**notices.quarantines, name: due}), name


def is_suspect(notices: Notices, number: int, after: int) -> bool:
    """Whether a failure in this round, of which nothing is known yet, may make a quarantine due.

    Args:
        notices: What stands in the service, as far as it is known.
        number: The round that ran last.
        after: Consecutive rounds in which a node failed first that make it due; 0: none ever is.
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
