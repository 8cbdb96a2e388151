"""What an exhaustive search looks at: everything within these bounds, and nothing beyond."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rdzv.admission import AdmissionRule

from ..plan import Plan

__all__ = ["TTL", "Bounds"]

TTL: Final = 2.0
"""Seconds after which a silent node is dead: as short as can be, which is twice the interval between keep-alives."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of one search.

    Attributes:
        nodes: How many nodes come, all at the beginning.
        min_nodes: The smallest world.
        max_nodes: The largest.
        rounds: How many rounds are looked at: a run is over when the last one has settled, or one more is published.
        faults: How often each fault may happen in one run, by its name in `happenings.HAPPENINGS`.
        most: How many faults may happen in one run, of all kinds together.
        programs: How often programs do something in one run, by its name in the same table.
        rule: What else is asked of a world.
        quarantine_after: Rounds running in which a node fails first until it is quarantined, for two seconds.
        steps: How many steps a run has, each a call that is answered, a moment that passes or something that happens;
            None: as many as it takes.
        begins_together: Whether a run begins with a first round that has formed, in one way; else with nodes that come.
    """

    nodes: int = 3
    min_nodes: int = 2
    max_nodes: int = 3
    rounds: int = 2
    faults: Mapping[str, int] = field(default_factory=dict)
    most: int = 1
    programs: Mapping[str, int] = field(default_factory=dict)
    rule: AdmissionRule | None = None
    quarantine_after: int = 3
    steps: int | None = None
    begins_together: bool = False

    @property
    def plan(self) -> Plan:
        """What the machines of the simulator go by."""
        return Plan(
            "",
            self.min_nodes,
            self.max_nodes,
            ttl=TTL,
            last_call=1.0,
            rule=self.rule,
            cooldown=2.0,
            quarantine_after=self.quarantine_after,
        )

    def __str__(self) -> str:
        kinds = ", ".join(self.faults)
        programs = "".join(f", programs {name}" for name in self.programs)
        failures = "" if self.quarantine_after == 3 else f", quarantined after {self.quarantine_after} of them"
        begins = " from a first round on" if self.begins_together else ""
        ends = "" if self.steps is None else f", up to {self.steps} steps"
        faults = f"at most {self.most} of these faults: {kinds}" if self.faults else "no faults"
        worlds = f"{self.nodes} nodes, worlds of {self.plan.limits}, {self.rounds} rounds{begins}"
        return f"{worlds}{programs}{failures}, {faults}{ends}"
