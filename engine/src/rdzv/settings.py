"""How the engine itself behaves: its options, and the values they become."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cached_property
from typing import Final, Literal, Self

from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import Option, parse_options
from rdzv_core.parameters import RendezvousParameters, check_limits
from rdzv_core.text import printable

from .admission import AdmissionRule, Limits

__all__ = ["HANDLER_OPTIONS", "ROUNDS_KEPT", "RendezvousSettings", "RendezvousTimeout"]

ROUNDS_KEPT: Final = 10
"""The last rounds whose first failures a run knows."""

HANDLER_OPTIONS: Final = (
    Option("join_timeout", "seconds", 600.0, "How long joining may take in all, connecting included."),
    Option(
        "last_call_timeout",
        "seconds",
        30.0,
        "How long a world that has its minimum waits for more nodes; up to twice as long while they arrive.",
    ),
    Option("close_timeout", "seconds", 30.0, "How long closing may take."),
    Option("heartbeat_timeout", "seconds", 5.0, "How long one keep-alive may take."),
    Option(
        "alone_timeout",
        "seconds",
        60.0,
        "How long a node waits for others once all others of its world have left and no other is there; "
        "as long as join_timeout: no wait ends early.",
    ),
    Option("keep_alive_interval", "seconds", 5.0, "The time between two keep-alives of a node."),
    Option("keep_alive_max_attempt", "integer", 3, "How many intervals without a keep-alive make a node dead."),
    Option(
        "attempt", "integer", 0, "The scheduler's restart count: a higher one supersedes the run's earlier attempts."
    ),
    Option(
        "on_shutdown",
        "text",
        "auto",
        "What shutdown() does: close ends the run for all, leave only removes this node, "
        "auto closes if this node is in the current round and leaves if not.",
        choices=("auto", "close", "leave"),
    ),
    Option("node_name", "text", None, "What this node is called in messages and in the order of ranks."),
    Option("labels", "pairs", None, "What else others may know of this node, as name=value;name=value."),
    Option("node_unit", "integer", 1, "A world's number of nodes is a multiple of this."),
    Option("sizes", "numbers", None, "The only numbers of nodes that a world has, as 8/16/32."),
    Option("group_by", "text", None, "The label that says to which group (an NVLink domain, a rack) a node belongs."),
    Option("group_size", "integer", None, "How many nodes of a group take part in a world: so many, or none."),
    Option("wanted", "integer", None, "The number of nodes for which a world waits longer than the last call."),
    Option("wanted_timeout", "seconds", 120.0, "How long it waits for them; then it takes what there is."),
    Option(
        "grow_delay",
        "seconds",
        0.0,
        "How long a world runs at least before it is asked to let more nodes in; a loss is never delayed.",
        zero=True,
    ),
    Option(
        "quarantine_after",
        "integer",
        3,
        "In how many consecutive rounds a node's program fails first until the node is quarantined; 0: it never is.",
    ),
    Option(
        "quarantine_cooldown",
        "seconds",
        60.0,
        "How long a first quarantine takes; each further one takes twice as long, up to eight times.",
    ),
    Option(
        "cas_backoff_max_seconds",
        "seconds",
        0.0,
        "PyTorch's pause after a lost write; accepted, and used for nothing: only one node writes the state.",
        zero=True,
    ),
    Option(
        "timeout",
        "seconds",
        None,
        "Torchrun adds it to every configuration; only its rdzv-etcd uses it, as join_timeout.",
    ),
)
"""The options that rdzv understands whatever the backend."""

_DEFAULTS: Final = {option.name: option.default for option in HANDLER_OPTIONS}


@dataclass(frozen=True, init=False)
class RendezvousTimeout:
    """How long the steps of a rendezvous may take. None, for any of them, means its default.

    Attributes:
        join: From calling ``next_rendezvous`` to holding a world, connecting included (600 s).
        last_call: How long a world that has its minimum waits for more nodes (30 s), up to twice as long while they
            arrive.
        close: For closing (30 s).
        heartbeat: For one keep-alive (5 s).
        alone: How long a member of a world waits for others once all the others have left (60 s).
    """

    join: timedelta
    last_call: timedelta
    close: timedelta
    heartbeat: timedelta
    alone: timedelta

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
        alone: timedelta | None = None,
    ) -> None:
        """See the attributes.

        Raises:
            RendezvousParameterError: A timeout is not above zero.
        """
        given = {"join": join, "last_call": last_call, "close": close, "heartbeat": heartbeat, "alone": alone}
        for name, timeout in given.items():
            if timeout is None:
                timeout = timedelta(seconds=_DEFAULTS[f"{name}_timeout"])
            if timeout <= timedelta(0):
                raise RendezvousParameterError(f"The {name} timeout ({timeout}) must be positive.")
            object.__setattr__(self, name, timeout)


@dataclass(frozen=True)
class RendezvousSettings:
    """The settings of a handler.

    Attributes:
        run_id: Which run.
        min_nodes: The smallest world.
        max_nodes: The largest world.
        timeout: How long the steps may take.
        keep_alive_interval: The time between two keep-alives of a node.
        keep_alive_max_attempt: How many intervals without one make a node dead.
        cas_backoff_max_seconds: PyTorch's; used for nothing.
        attempt: The scheduler's restart count of this run.
        on_shutdown: Whether ``shutdown`` closes the run, leaves it, or decides by itself.
        node_name: What this node is called; None leaves the choice to the handler.
        labels: What else others may know of this node.
        node_unit: A world's number of nodes is a multiple of this.
        sizes: The only numbers of nodes that a world has; empty: any.
        group_by: The label that says to which group a node belongs; None: there are no groups.
        group_size: How many nodes of a group take part: so many, or none.
        wanted: The number of nodes for which a world waits longer than the last call.
        wanted_timeout: How long it waits for them.
        grow_delay: How long a world runs at least before it is asked to let more nodes in.
        quarantine_after: In how many consecutive rounds a node fails first until it is quarantined; 0: it never is.
        quarantine_cooldown: How long a first quarantine takes.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    cas_backoff_max_seconds: float = 0.0
    attempt: int = 0
    on_shutdown: Literal["auto", "close", "leave"] = "auto"
    node_name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    node_unit: int = 1
    sizes: tuple[int, ...] = ()
    group_by: str | None = None
    group_size: int | None = None
    wanted: int | None = None
    wanted_timeout: timedelta = timedelta(seconds=_DEFAULTS["wanted_timeout"])
    grow_delay: timedelta = timedelta(0)
    quarantine_after: int = 3
    quarantine_cooldown: timedelta = timedelta(seconds=_DEFAULTS["quarantine_cooldown"])

    def __post_init__(self) -> None:
        if not self.run_id:
            raise RendezvousParameterError("The run id must be a non-empty string.")
        check_limits(self.min_nodes, self.max_nodes, "nodes")
        if self.keep_alive_interval <= timedelta(0):
            raise RendezvousParameterError(f"The keep_alive_interval ({self.keep_alive_interval}) must be positive.")
        if self.keep_alive_max_attempt < 1:
            raise RendezvousParameterError(
                f"The keep_alive_max_attempt ({self.keep_alive_max_attempt}) must be greater than zero."
            )
        if not 0 <= self.cas_backoff_max_seconds < math.inf:
            raise RendezvousParameterError(
                f"The cas_backoff_max_seconds ({self.cas_backoff_max_seconds}) must be finite and not negative."
            )
        if self.attempt < 0:
            raise RendezvousParameterError(f"The attempt ({self.attempt}) must not be negative.")
        if not 0 <= self.quarantine_after <= ROUNDS_KEPT or self.quarantine_cooldown <= timedelta(0):
            raise RendezvousParameterError(
                f"The quarantine_after ({self.quarantine_after}) must be from 0 to {ROUNDS_KEPT}, and the "
                f"quarantine_cooldown ({self.quarantine_cooldown}) must be positive."
            )
        self._check_rule()

    def _check_rule(self) -> None:
        if self.wanted_timeout <= timedelta(0) or self.grow_delay < timedelta(0):
            raise RendezvousParameterError(
                f"The wanted_timeout ({self.wanted_timeout}) must be positive, and the grow_delay ({self.grow_delay}) "
                "must not be negative."
            )
        numbers = {"node_unit": self.node_unit, "group_size": self.group_size, "wanted": self.wanted}
        for name, number in (*numbers.items(), *(("size", size) for size in self.sizes)):
            if number is not None and number < 1:
                raise RendezvousParameterError(f"The {name} ({number}) must be greater than zero.")
        if (self.group_by is None) != (self.group_size is None):
            raise RendezvousParameterError("group_by and group_size belong together: give both, or neither.")
        if self.group_by is not None and not self.labels.get(self.group_by):
            raise RendezvousParameterError(
                f"This node has no label '{self.group_by}', which says to which group it belongs: give one, as in "
                f"labels={self.group_by}=a."
            )
        self.limits.check()

    @cached_property
    def limits(self) -> Limits:
        """Which worlds this node accepts."""
        rule = AdmissionRule(self.node_unit, self.sizes, self.group_by or "", self.group_size or 1, self.wanted or 0)
        return Limits(self.min_nodes, self.max_nodes, None if rule == AdmissionRule() else rule)

    @property
    def run(self) -> str:
        """The run id as messages show it."""
        return printable(self.run_id)

    @classmethod
    def from_parameters(cls, params: RendezvousParameters) -> Self:
        """Read the options of the engine; those of a backend are left to it.

        Raises:
            RendezvousParameterError: An option has an impossible value.
        """
        options = parse_options(params.config, HANDLER_OPTIONS)
        steps = {
            each.name: timedelta(seconds=options.pop(f"{each.name}_timeout")) for each in fields(RendezvousTimeout)
        }
        # What torchrun adds is not a setting.
        del options["timeout"]
        return cls(
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            RendezvousTimeout(**steps),
            timedelta(seconds=options.pop("keep_alive_interval")),
            labels=options.pop("labels") or {},
            sizes=options.pop("sizes") or (),
            wanted_timeout=timedelta(seconds=options.pop("wanted_timeout")),
            grow_delay=timedelta(seconds=options.pop("grow_delay")),
            quarantine_cooldown=timedelta(seconds=options.pop("quarantine_cooldown")),
            **options,
        )
