"""What is written down about a run: state, status, leader and node, each a small JSON record.

Nothing that is read is ever executed, and nothing is believed before its types were checked:
whatever does not fit is a `RendezvousStateError`.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ..backend import STATE_KEY
from ..errors import RendezvousStateError
from .client import DecodedSnapshot

__all__ = [
    "CONTROL",
    "HEARTBEATS",
    "LEADER_KEY",
    "NODES",
    "PENDING",
    "STATE_KEY",
    "STATUS_KEY",
    "STORE",
    "Closed",
    "Departure",
    "LeaderRecord",
    "NodeRecord",
    "RunStatus",
    "State",
    "decode",
    "node_key",
    "nodes_in",
    "pending_key",
]

logger = logging.getLogger(__name__)

CONTROL: Final = "control"
"""What every node watches: the state, the status and the leader."""
STATUS_KEY: Final = "control/status"
LEADER_KEY: Final = "control/leader"
PENDING: Final = "control/pending"
"""One key for each round that a leader is about to form without some member of the one before."""
NODES: Final = "nodes"
"""What only the leader watches: one record for each live node, in a folder for each attempt."""
HEARTBEATS: Final = "heartbeats"
"""The same for their heartbeats, where a service has no leases."""
STORE: Final = "store"

_SCHEMA: Final = 1


def pending_key(number: int) -> str:
    """Where a leader says that it is about to form this round; no round has the number of another."""
    return f"{PENDING}/{number}"


def node_key(attempt: int, node_id: str) -> str:
    """Where a node keeps its record; the id is one handler's, so nobody else ever uses this name."""
    return f"{NODES}/{attempt}/{node_id}"


@dataclass(frozen=True, slots=True)
class Closed:
    """Why an attempt is over.

    Attributes:
        by: The id of the node (or the command) that closed it.
        reason: In words; the first one is kept.
        done: The job finished: a node that was only waiting ends with a graceful exit.
    """

    by: str
    reason: str
    done: bool


@dataclass(frozen=True, slots=True)
class State:
    """The published state of a run: one value, replaced as a whole and never edited.

    Attributes:
        attempt: The scheduler's restart count that this state belongs to.
        round: The number of worlds published so far in this run; grows over attempts too.
        world: The node ids of this round in rank order; empty before the first round of an attempt. (An
            attempt that is closed before it has any keeps that of the one before: some may still be in it.)
        address: Where rank 0 of this round can be reached.
        port: A port that rank 0 kept free for the job's own use.
        min_nodes: The smallest world of this attempt.
        max_nodes: The largest world of this attempt.
        closed: Set when the attempt is over.
    """

    attempt: int
    round: int
    world: tuple[str, ...]
    address: str
    port: int
    min_nodes: int
    max_nodes: int
    closed: Closed | None = None

    def encode(self) -> bytes:
        """The JSON for the service."""
        closed = self.closed and {"by": self.closed.by, "reason": self.closed.reason, "done": self.closed.done}
        return _encode(
            attempt=self.attempt,
            round=self.round,
            world=self.world,
            address=self.address,
            port=self.port,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            closed=closed,
        )

    @classmethod
    def parse(cls, fields: "_Fields") -> "State":
        """Build it from checked JSON."""
        closed = fields.record("closed")
        return cls(
            fields.number("attempt"),
            fields.number("round"),
            fields.texts("world"),
            fields.text("address"),
            fields.number("port"),
            fields.number("min_nodes"),
            fields.number("max_nodes"),
            Closed(closed.text("by"), closed.text("reason"), closed.flag("done")) if closed else None,
        )


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What a node says of itself: "here I am, the last round I took part in is k".

    Attributes:
        id: Random, one for each handler, with the machine's label in front to be readable.
        attempt: The scheduler's restart count that the node was started with.
        last_round: The last round that it has *left behind*; 0 for a new node. While this is
            smaller than the running round, a member is in it.
        min_nodes: The smallest world that it accepts.
        max_nodes: The largest.
        address: Where it can be reached.
        port: A port that it keeps free, should it become rank 0.
        labels: Whatever the user wants rank assignment and status to know.
        left: Why it left, once it did so on purpose.
        order: The service's creation order of the record: the arrival order. Not written.
    """

    id: str
    attempt: int
    last_round: int
    min_nodes: int
    max_nodes: int
    address: str
    port: int
    labels: Mapping[str, str] = field(default_factory=dict)
    left: str | None = None
    order: int = 0

    @property
    def key(self) -> str:
        """Where the node keeps it."""
        return node_key(self.attempt, self.id)

    def encode(self) -> bytes:
        """The JSON for the service."""
        return _encode(
            id=self.id,
            attempt=self.attempt,
            last_round=self.last_round,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            address=self.address,
            port=self.port,
            labels=dict(self.labels),
            left=self.left,
        )

    @classmethod
    def parse(cls, fields: "_Fields") -> "NodeRecord":
        """Build it from checked JSON."""
        return cls(
            fields.text("id"),
            fields.number("attempt"),
            fields.number("last_round"),
            fields.number("min_nodes"),
            fields.number("max_nodes"),
            fields.text("address"),
            fields.number("port"),
            fields.mapping("labels"),
            fields.optional_text("left"),
        )


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who leads, and with which limits: those of the first node hold for all."""

    node: str
    attempt: int
    min_nodes: int
    max_nodes: int

    def encode(self) -> bytes:
        """The JSON for the service."""
        return _encode(node=self.node, attempt=self.attempt, min_nodes=self.min_nodes, max_nodes=self.max_nodes)

    @classmethod
    def parse(cls, fields: "_Fields") -> "LeaderRecord":
        """Build it from checked JSON."""
        return cls(
            fields.text("node"), fields.number("attempt"), fields.number("min_nodes"), fields.number("max_nodes")
        )


@dataclass(frozen=True, slots=True)
class Departure:
    """A member of the round that is gone.

    Attributes:
        node: Its id.
        rank: Its rank in the round.
        left: True if it left on purpose, False if it was lost.
        cause: In words.
    """

    node: str
    rank: int
    left: bool
    cause: str


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run: what members and waiting nodes need without reading everything.

    Attributes:
        round: The round that the news is about.
        phase: ``gathering``, ``last call``, ``running``, ``re-forming``, ``abandoned`` or ``closed``.
        present: How many live nodes there are.
        waiting: How many nodes wait for a new world that would differ from the running one.
        lost: The members of the round that are gone.
    """

    round: int
    phase: str
    present: int
    waiting: int
    departures: tuple[Departure, ...] = ()

    def encode(self) -> bytes:
        """The JSON for the service."""
        departures = [
            {"node": one.node, "rank": one.rank, "left": one.left, "cause": one.cause} for one in self.departures
        ]
        return _encode(
            round=self.round, phase=self.phase, present=self.present, waiting=self.waiting, departures=departures
        )

    @classmethod
    def parse(cls, fields: "_Fields") -> "RunStatus":
        """Build it from checked JSON."""
        return cls(
            fields.number("round"),
            fields.text("phase"),
            fields.number("present"),
            fields.number("waiting"),
            tuple(
                Departure(one.text("node"), one.number("rank"), one.flag("left"), one.text("cause"))
                for one in fields.records("departures")
            ),
        )


_R = TypeVar("_R", State, NodeRecord, LeaderRecord, RunStatus)


def decode(kind: type[_R], payload: bytes) -> _R:
    """Read a record.

    Raises:
        RendezvousStateError: The bytes are not such a record.
    """
    try:
        value = json.loads(payload)
        fields = _Fields(value)
        if fields.number("schema") != _SCHEMA:
            raise ValueError(f"its schema is {fields.number('schema')}")
        return kind.parse(fields)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(
            f"The service holds a {kind.__name__.lower()} that this version cannot read ({error!r}): {payload[:80]!r}"
        ) from error


def nodes_in(snapshot: DecodedSnapshot) -> list["NodeRecord"]:
    """The node records in a view, in order of arrival. One that cannot be read is skipped, and logged."""
    found = []
    for key, versioned in sorted(snapshot.valid_entries().items(), key=lambda item: item[1].order):
        try:
            found.append(decode(NodeRecord, versioned.payload))
        except RendezvousStateError as error:
            logger.warning("ignoring '%s': %s", key, error)
    return found


def _encode(**fields: Any) -> bytes:
    return json.dumps({"schema": _SCHEMA, **fields}, separators=(",", ":")).encode()


class _Fields:
    """A JSON object whose fields are asked for by type."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise TypeError("not an object")
        self._value: dict[str, Any] = value

    def _get(self, name: str, kind: type[Any]) -> Any:
        value = self._value[name]
        # bool is an int in Python, but not in a record.
        if type(value) is not kind:
            raise TypeError(f"{name} is {value!r}")
        return value

    def text(self, name: str) -> str:
        return str(self._get(name, str))

    def number(self, name: str) -> int:
        number = int(self._get(name, int))
        if number < 0:
            raise ValueError(f"{name} is {number}")
        return number

    def flag(self, name: str) -> bool:
        return bool(self._get(name, bool))

    def optional_text(self, name: str) -> str | None:
        return None if self._value[name] is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._get(name, list)
        if not all(type(value) is str for value in values):
            raise TypeError(f"{name} is {values!r}")
        return tuple(values)

    def mapping(self, name: str) -> dict[str, str]:
        value: dict[str, Any] = self._get(name, dict)
        if not all(type(item) is str for item in value.values()):
            raise TypeError(f"{name} is {value!r}")
        return value

    def record(self, name: str) -> "_Fields | None":
        return None if self._value[name] is None else _Fields(self._value[name])

    def records(self, name: str) -> list["_Fields"]:
        return [_Fields(value) for value in self._get(name, list)]
