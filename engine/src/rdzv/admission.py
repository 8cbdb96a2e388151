"""Admission: which worlds a run takes, and which of the nodes that are here form the next one.

Pure functions of the rule, which all nodes of a run have in common, and of what nodes say of themselves.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Protocol, TypeVar

from rdzv_core.errors import RendezvousParameterError

__all__ = ["AdmissionRule", "Limits", "Policy"]

_LISTED = 6
"""Sizes that a message lists; of more it says how they are made."""


class _Node(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def order(self) -> int: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


_N = TypeVar("_N", bound=_Node)


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """What a run asks of a world besides its least and its most nodes.

    Attributes:
        node_unit: A world's size is a multiple of this.
        sizes: The only sizes that a world has; empty: any.
        group_by: The label that says to which group a node belongs; empty: there are no groups.
        group_size: How many nodes of a group take part: so many, or none.
        wanted: The size for which a world waits longer than for any other; 0: there is none.
    """

    node_unit: int = 1
    sizes: tuple[int, ...] = ()
    group_by: str = ""
    group_size: int = 1
    wanted: int = 0

    def __post_init__(self) -> None:
        """Refuse what no settings allow: a rule that is read from the service may be anything."""
        if not (self.node_unit and self.group_size):
            raise ValueError("no world is a multiple of 0 nodes")

    def groups(self) -> list[str]:
        """Which groups a world is made of, in words; empty: there are none."""
        return [f"in groups of {self.group_size} with the same label '{self.group_by}'"] if self.group_by else []


_ANY = AdmissionRule()


@dataclass(frozen=True, slots=True)
class Policy:
    """How the node that leads decides: for what it waits, and which nodes it puts out. Any node may lead.

    Attributes:
        wanted_timeout: Seconds for which a world waits for the size that is wanted.
        grow_delay: Seconds that a world runs at least before it is asked to let more nodes in.
        quarantine_after: Consecutive rounds in which a node fails first until it is quarantined; 0: it never is.
        quarantine_cooldown: Seconds of a first quarantine.
    """

    wanted_timeout: float = 120.0
    grow_delay: float = 0.0
    quarantine_after: int = 3
    quarantine_cooldown: float = 60.0


_USUAL = Policy()


@dataclass(frozen=True, slots=True)
class Limits:
    """Which worlds a run takes.

    Attributes:
        min_nodes: The smallest.
        max_nodes: The largest.
        rule: What else is asked of them; None: nothing.
        policy: How the node that leads decides; None: as it does where no option says otherwise.
    """

    min_nodes: int
    max_nodes: int
    rule: AdmissionRule | None = None
    policy: Policy | None = None

    def __str__(self) -> str:
        """Such as ``8 to 32 nodes, a multiple of 4``."""
        if self.rule is None:
            return self._range()
        wanted = [f"{self.rule.wanted} wanted"] if self.rule.wanted else []
        return ", ".join([self._range(), *self._asked(), *wanted])

    def beside(self, other: "Limits") -> str:
        """The same in words, with what of the policy is not as in `other`."""
        mine, theirs = self.policy or _USUAL, other.policy or _USUAL
        values = ((field.name, getattr(mine, field.name), getattr(theirs, field.name)) for field in fields(Policy))
        return ", ".join([str(self), *(f"{name}={value:.12g}" for name, value, another in values if value != another)])

    def largest(self, count: int) -> int:
        """The size of the largest world of at most `count` nodes; 0: they are too few for any."""
        return next(self._sizes(min(count, self.max_nodes)), 0)

    def choose(self, nodes: Sequence[_N], previous: Sequence[str]) -> list[_N]:
        """Who of these nodes forms the next world; empty: there can be none.

        Who was in the world before comes first, by rank, then who came first. A group takes part whole.

        Args:
            nodes: Those that want to be in it.
            previous: The ids of the world before, in rank order.
        """
        ranks = {node: rank for rank, node in enumerate(previous)}
        ordered = sorted(nodes, key=lambda node: (ranks.get(node.id, len(ranks)), node.order))
        rule = self.rule or _ANY
        if not rule.group_by:
            return ordered[: self.largest(len(ordered))]
        groups: dict[str, list[_N]] = {}
        for node in ordered:
            groups.setdefault(node.labels.get(rule.group_by, ""), []).append(node)
        whole = [group[: rule.group_size] for group in groups.values() if len(group) >= rule.group_size]
        size = self.largest(len(whole) * rule.group_size)
        return [node for group in whole for node in group][:size]

    def check(self) -> None:
        """Refuse what no world can be.

        Raises:
            RendezvousParameterError: No size is possible, or the one that is wanted is not.
        """
        rule = self.rule or _ANY
        if not self.largest(self.max_nodes):
            raise RendezvousParameterError(
                f"No world of {self._range()} is {' and '.join(self._asked())}: change nnodes, or "
                "the options node_unit, sizes and group_size."
            )
        if self.largest(rule.wanted) != rule.wanted:
            raise RendezvousParameterError(f"{rule.wanted} nodes, as wanted asks for, are no world: {self.takes()}.")

    def takes(self) -> str:
        """Which sizes a world has, in words: ``a world takes 8 or 16 nodes``."""
        sizes = list(islice(self._sizes(self.max_nodes), _LISTED + 1))
        if self.rule is None or not 0 < len(sizes) <= _LISTED:
            return f"a world takes {', '.join([self._range(), *self._asked()])}"
        last, *others = sizes
        others.reverse()
        listed = f"{', '.join(map(str, others))} or {last} nodes" if others else _count(last)
        return ", ".join([f"a world takes {listed}", *self.rule.groups()])

    def _range(self) -> str:
        low, high = self.min_nodes, self.max_nodes
        return f"{low} to {high} nodes" if high > low else _count(low)

    def _sizes(self, most: int) -> Iterator[int]:
        """The sizes up to one that a world may have, the largest first."""
        rule = self.rule or _ANY
        step = math.lcm(rule.node_unit, rule.group_size)
        candidates = sorted(rule.sizes, reverse=True) or range(most - most % step, 0, -step)
        for size in candidates:
            if size < self.min_nodes:
                return
            if size <= most and size % step == 0:
                yield size

    def _asked(self) -> list[str]:
        """What is asked of a size, in words."""
        rule = self.rule or _ANY
        asked = []
        if rule.node_unit > 1:
            asked.append(f"a multiple of {rule.node_unit}")
        if rule.sizes:
            asked.append(f"one of {', '.join(map(str, rule.sizes))}")
        return [*asked, *rule.groups()]


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' * (nodes > 1)}"
