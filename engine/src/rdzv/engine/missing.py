"""Who is missing of those that are expected: a pure function of names.

A platform lists its machines by names that need not be those of the nodes: with or without a domain, or by addresses.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from .codec import as_name
from .notices import name_in_id, name_of
from .records import NodeRecord, State


def missing(expected: Sequence[str], here: Iterable[NodeRecord], gone: Iterable[str] = ()) -> tuple[str, ...]:
    """The names of those that are expected and not here, in their order.

    Args:
        expected: The names of machines, or of the nodes of a world before.
        here: The nodes that are here.
        gone: The ids of those that are known to be gone, or awaited: they are named anyway.

    Returns:
        None of them, too, if a node that is here is not expected: then one of them may be that node.
    """
    machines = _by_name(tuple(expected))
    found: set[str | None] = set()
    for node in here:
        if (machine := _machine(machines, name_of(node.id), node.address)) is None:
            return ()
        found.add(machine)
    found |= {_machine(machines, name_of(node)) for node in gone}
    return tuple(as_name(name) for name in dict.fromkeys(expected) if name not in found)


def missing_in_attempt(
    attempt: int, before: State, expected: Sequence[str], live: Iterable[NodeRecord], gone: Iterable[str]
) -> tuple[str, ...]:
    """The names of those that are expected in an attempt and not here: by the platform, or else by the world before.

    Args:
        attempt: The attempt.
        before: The last state that there was, with all members.
        expected: As for `missing`; none: the platform lists no machines.
        live: Every node record in the service.
        gone: As for `missing`, in that state's world.
    """
    here = [node for node in live if node.attempt == attempt]
    # Those of an earlier attempt may be gone, and are expected in this one.
    known = gone if before.attempt == attempt else ()
    return missing(expected or [*map(name_of, before.world)], here, known)


def _machine(machines: Mapping[str, str], *names: str) -> str | None:
    """The machine that has one of these names; None: none has."""
    named = next((machines[name] for name in names if name in machines), None)
    # Only then: a leader asks for every node, at every change, and most have one of their own names.
    return named if named is not None else machines.get(_label(names[0]))


@lru_cache(maxsize=2)
def _by_name(expected: tuple[str, ...]) -> Mapping[str, str]:
    """The machines by all that nodes on them may be called. Where several have one first label, it names none."""
    labels = Counter(map(_label, dict.fromkeys(expected)))
    short = {_label(name): name for name in expected if labels[_label(name)] == 1}
    return {**short, **{name_in_id(name): name for name in expected}, **{name: name for name in expected}}


def _label(name: str) -> str:
    """What stands before the first dot; of an address all."""
    return name if re.fullmatch(r"[0-9.]+", name) else name.partition(".")[0]
