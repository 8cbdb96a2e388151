"""How the engine itself behaves: its options, and the values they become."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Literal, Self

from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import Kind, Option, parse_options
from rdzv_core.parameters import RendezvousParameters, check_limits, run_id_text
from rdzv_core.text import printable, shown

from .admission import AdmissionRule, Limits, Policy

__all__ = ["HANDLER_OPTIONS", "ROUNDS_KEPT", "RendezvousSettings", "RendezvousTimeout"]

ROUNDS_KEPT: Final = 10
"""The last rounds whose first failures a run knows."""

_HIGHEST_PORT: Final = 65535

# These two are accepted, and a handler uses neither: they are listed last.
_CAS_BACKOFF: Final = Option(
    "cas_backoff_max_seconds",
    "seconds",
    0.0,
    "PyTorch's pause after a lost write; accepted, and used for nothing: only one node writes the state.",
    zero=True,
)

_TIMEOUT: Final = Option(
    "timeout", "seconds", None, "Torchrun adds it to every configuration; only its rdzv-etcd uses it, as join_timeout."
)


_OPTION: Final = "option"
"""Under this name a field's metadata has the arguments of its option."""


def _option(kind: Kind, default: Any, help: str, *, held: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """A field that an option sets. The option has the field's name if it is given no other.

    Args:
        kind: See `Option`. A field holds seconds as a `timedelta`.
        default: The option's default; the field's, too, without `held`.
        help: One sentence.
        held: The default of the field, and whether it is hashed, for `dataclasses.field`.
        more: More arguments of `Option`.
    """
    option = {"kind": kind, "default": default, "help": help, **more}
    return field(metadata={_OPTION: option}, **(held or {"default": _value(kind, default)}))


def _value(kind: Kind, parsed: Any) -> Any:
    """What a field holds for what its option was parsed to."""
    return timedelta(seconds=parsed) if kind == "seconds" else parsed


def _options(settings: type) -> Iterator[tuple[str, Option]]:
    """The fields that an option sets, and the options."""
    return (
        (each.name, Option(**{"name": each.name, **each.metadata[_OPTION]}))
        for each in fields(settings)
        if _OPTION in each.metadata
    )


def _given(settings: type, parsed: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields, but for those whose option is neither given nor has a default."""
    options = _options(settings)
    return {name: _value(option.kind, value) for name, option in options if (value := parsed[option.name]) is not None}


@dataclass(frozen=True, init=False)
class RendezvousTimeout:
    """How long the steps of a rendezvous may take. None, for any of them, means its default.

    `HANDLER_OPTIONS` says what each of them means: ``join`` is the value of ``join_timeout``, and so on.
    """

    join: timedelta = _option(
        "seconds", 600.0, "How long joining may take in all, connecting included.", name="join_timeout"
    )
    last_call: timedelta = _option(
        "seconds",
        30.0,
        "How long a world that has its minimum waits for more nodes; up to twice as long while they arrive.",
        name="last_call_timeout",
    )
    close: timedelta = _option("seconds", 30.0, "How long closing may take.", name="close_timeout")
    heartbeat: timedelta = _option("seconds", 5.0, "How long one keep-alive may take.", name="heartbeat_timeout")
    alone: timedelta = _option(
        "seconds",
        60.0,
        "How long a node waits for others once all others of its world have left and no other is there; "
        "as long as join_timeout: no wait ends early.",
        name="alone_timeout",
    )
    refused: timedelta = _option(
        "seconds",
        600.0,
        "How long a node that has been in goes on while the service refuses it (permission, login, certificate); "
        "before that it is 30 s at most.",
        name="refused_timeout",
    )

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
        alone: timedelta | None = None,
        refused: timedelta | None = None,
    ) -> None:
        """The order of the first four is PyTorch's.

        Raises:
            RendezvousParameterError: A timeout is not above zero.
        """
        timeouts = (join, last_call, close, heartbeat, alone, refused)
        for each, given in zip(fields(RendezvousTimeout), timeouts, strict=True):
            # The defaults are attributes of the class.
            timeout = getattr(self, each.name) if given is None else given
            if timeout <= timedelta(0):
                raise RendezvousParameterError(f"The {each.name} timeout ({timeout}) must be positive.")
            object.__setattr__(self, each.name, timeout)


@dataclass(frozen=True)
class RendezvousSettings:
    """The settings of a handler. Those after ``timeout`` are the values of the options of their names.

    `HANDLER_OPTIONS` says what these mean.

    Attributes:
        run_id: Which run.
        min_nodes: The smallest world.
        max_nodes: The largest world.
        timeout: How long the steps may take.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta = _option("seconds", 5.0, "The time between two keep-alives of a node.")
    keep_alive_max_attempt: int = _option("integer", 3, "How many intervals without a keep-alive make a node dead.")
    cas_backoff_max_seconds: float = _CAS_BACKOFF.default
    attempt: int = _option(
        "integer", 0, "The scheduler's restart count: a higher one supersedes the run's earlier attempts."
    )
    on_shutdown: Literal["auto", "close", "leave"] = _option(
        "text",
        "auto",
        "What shutdown() does: close ends the run for all, leave only removes this node, "
        "auto closes if this node is in the current round and leaves if not.",
        choices=("auto", "close", "leave"),
    )
    node_name: str | None = _option("text", None, "What this node is called in messages and in the order of ranks.")
    labels: Mapping[str, str] = _option(
        "pairs",
        None,
        "What else others may know of this node, as name=value;name=value.",
        held={"default_factory": dict, "hash": False},
    )
    node_unit: int = _option("integer", 1, "A world's number of nodes is a multiple of this.")
    sizes: tuple[int, ...] = _option(
        "numbers", None, "The only numbers of nodes that a world has, as 8/16/32.", held={"default": ()}
    )
    group_by: str | None = _option(
        "text", None, "The label that says to which group (an NVLink domain, a rack) a node belongs."
    )
    group_size: int | None = _option(
        "integer", None, "How many nodes of a group take part in a world: so many, or none."
    )
    wanted: int | None = _option(
        "integer", None, "The number of nodes for which a world waits longer than the last call."
    )
    wanted_timeout: timedelta = _option("seconds", 120.0, "How long it waits for them; then it takes what there is.")
    grow_delay: timedelta = _option(
        "seconds",
        0.0,
        "How long a world runs at least before it is asked to let more nodes in; a loss is never delayed.",
        zero=True,
    )
    quarantine_after: int = _option(
        "integer",
        3,
        "In how many consecutive rounds a node's program fails first until the node is quarantined; 0: it never is.",
    )
    quarantine_cooldown: timedelta = _option(
        "seconds", 60.0, "How long a first quarantine takes; each further one takes twice as long, up to eight times."
    )
    master_port: str | None = _option(
        "text",
        None,
        "The port, or the range of ports as 29500-29599, of which this node offers the first free one as MASTER_PORT; "
        "without it any.",
    )
    behind_nat: bool = _option(
        "boolean",
        False,
        "Whether local_addr may be no address of this machine, as where NAT or a host's port leads to it.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "run_id", run_id_text(self.run_id))
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
        if self.master_port is not None and not self.ports:
            raise RendezvousParameterError(
                f"The option 'master_port' cannot be {shown(self.master_port)}: a port or a range of them, from 1 to "
                f"{_HIGHEST_PORT}, is expected, such as 29500 or 29500-29599."
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
        policy = Policy(
            self.wanted_timeout.total_seconds(),
            self.grow_delay.total_seconds(),
            self.quarantine_after,
            self.quarantine_cooldown.total_seconds(),
        )
        return Limits(
            self.min_nodes,
            self.max_nodes,
            None if rule == AdmissionRule() else rule,
            None if policy == Policy() else policy,
        )

    @cached_property
    def ports(self) -> range:
        """The ports of which this node offers one; empty: it offers any."""
        found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", self.master_port or "")
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        return range(first, last + 1) if first > 0 and last <= _HIGHEST_PORT else range(0)

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
        return cls(
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            RendezvousTimeout(**_given(RendezvousTimeout, options)),
            cas_backoff_max_seconds=options[_CAS_BACKOFF.name],
            **_given(cls, options),
        )


HANDLER_OPTIONS: Final = (
    *(option for settings in (RendezvousTimeout, RendezvousSettings) for _, option in _options(settings)),
    _CAS_BACKOFF,
    _TIMEOUT,
)
"""The options that rdzv understands whatever the backend."""
