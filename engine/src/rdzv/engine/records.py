"""What is written down about a run: state, status, leader and node, each a small JSON record."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final, TypeVar, cast

from rdzv_core.envelope import OtherVersionError
from rdzv_core.errors import RendezvousStateError
from rdzv_core.text import shown

from ..admission import AdmissionRule, Limits, Policy
from ..outcome import Outcome
from .client import DecodedSnapshot, VersionedValue, present
from .codec import DIGITS, LATER, LOCAL, Name, Record, decode

VERSION: Final = version("rdzv")
"""The version of rdzv that this process runs, as its nodes' records name it."""

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
ROUNDS: Final = "rounds"
"""What belongs to one round, in a folder for each: its store, and its world if that is a large one."""

NAMED: Final = 32
"""Members that are gone of which a status tells who they were, and why; of more it tells how many."""

_CAUSE: Final = 1000
"""Characters of the cause of a departure in a status."""

_MOST: Final = 10_000_000
"""Members of which no world has more."""

_FOLDER: Final = re.compile(r"(?!\.)[\w.~=-]{1,99}(/(?!\.)[\w.~=-]{1,99}){0,9}", re.ASCII)

_R = TypeVar("_R", bound=Record)


def read_record(kind: type[_R], versioned: VersionedValue | None) -> _R | None:
    """The record that a key holds; None: the key is absent or deleted.

    Raises:
        RendezvousStateError: It holds something else.
    """
    hint: Any = kind
    there = present(versioned)
    return None if there is None else cast("_R", _decoded(hint, there.payload))


@lru_cache(maxsize=64)
def _decoded(kind: type[Record], payload: bytes) -> Record:
    """Decode what many parts of a process ask for, each time that something else has changed."""
    return decode(kind, payload)


def decode_state(payload: bytes) -> "State":
    """Read a state.

    Raises:
        RendezvousStateError: It is none.
    """
    return cast("State", _decoded(State, payload))


def pending_key(number: int) -> str:
    """Where a leader says that it is about to form this round; no round has the number of another."""
    return f"{PENDING}/{number}"


def numbered(snapshot: DecodedSnapshot, folder: str) -> Iterator[tuple[str, int | None]]:
    """The keys of a snapshot in a folder, each with the number that is its name; None: its name is not a number."""
    for key in snapshot.names():
        if key.startswith(f"{folder}/"):
            yield key, number_of(key.removeprefix(f"{folder}/"))


def number_of(name: str) -> int | None:
    """The number that a segment of a key is; None: it is not one that rdzv has written."""
    return int(name) if len(name) <= DIGITS and re.fullmatch(r"0|[1-9][0-9]*", name) else None


def round_folder(number: int) -> str:
    """What is removed some rounds later."""
    return f"{ROUNDS}/{number}"


def store_folder(number: int) -> str:
    """Where a round's store is, if it is one on the run's own keys."""
    return f"{round_folder(number)}/store"


def world_folder(number: int) -> str:
    """Where the pages of a round's world stand: those of each leader that has tried, in a folder of their own."""
    return f"{round_folder(number)}/world"


def node_key(attempt: int, node_id: str) -> str:
    """Where a node keeps its record; the id is one handler's, so no other ever uses this name."""
    return f"{NODES}/{attempt}/{node_id}"


@dataclass(frozen=True, slots=True)
class Closed:
    """Why an attempt is over.

    Attributes:
        by: The id of the node (or the command) that closed it.
        reason: In words; the first one is kept.
        done: The job finished: a node that was only waiting ends with a graceful exit.
        gave_up: The job made no progress in several consecutive rounds: to start it again is of no use.
    """

    by: str
    reason: str
    done: bool
    gave_up: bool = False


@dataclass(frozen=True, slots=True)
class Pages:
    """Where the members of a large world stand.

    Attributes:
        folder: The prefix of the pages, which are numbered from 0.
        count: How many pages there are.
        size: How many members.
        first: The id of rank 0.
    """

    folder: str
    count: int
    size: int
    first: Name

    def __post_init__(self) -> None:
        """Refuse what no leader writes: it is believed before the pages are read."""
        if not 1 <= self.count <= self.size <= _MOST:
            raise ValueError(f"no world of {self.size} members stands on {self.count} pages")
        if not _FOLDER.fullmatch(self.folder):
            raise ValueError(f"{shown(self.folder)} is no folder")

    @property
    def round(self) -> int:
        """The round for which they were written; 0: the folder does not belong to a round."""
        return number_of(self.folder.removeprefix(f"{ROUNDS}/").partition("/")[0]) or 0


@dataclass(frozen=True, slots=True)
class Page(Record):
    """Some members of a world, each with its rank."""

    ranks: Mapping[Name, int]


class _LimitedRecord(Record):
    """A record that says which worlds a run takes."""

    __slots__ = ()

    min_nodes: int
    max_nodes: int
    rule: AdmissionRule | None
    policy: Policy | None

    @property
    def limits(self) -> Limits:
        """The same in one value."""
        return Limits(self.min_nodes, self.max_nodes, self.rule, self.policy)


@dataclass(frozen=True, slots=True)
class State(_LimitedRecord):
    """The published state of a run: one value, replaced as a whole and never edited.

    Attributes:
        attempt: The scheduler's restart count that this state belongs to.
        round: The number of worlds published so far in this run; grows over attempts too.
        world: The node ids of this round in rank order; empty before the first round of an attempt, and if the world
            stands on pages. (An attempt that is closed before it has any world keeps that of the one before: some may
            still be in it.)
        address: Where rank 0 of this round can be reached.
        port: A port that rank 0 kept free for the job's own use.
        min_nodes: The smallest world of this attempt.
        max_nodes: The largest world of this attempt.
        closed: Set when the attempt is over.
        pages: Where the world stands, if it is a large one.
        rule: What else is asked of the worlds of this attempt.
        policy: How the node that leads decides.
    """

    attempt: int
    round: int
    world: tuple[Name, ...]
    address: Name
    port: int
    min_nodes: int
    max_nodes: int
    closed: Closed | None = None
    pages: Pages | None = None
    rule: AdmissionRule | None = None
    policy: Policy | None = field(default=None, metadata=LATER)

    @property
    def size(self) -> int:
        """How many members the world has; 0: there is none."""
        return len(self.world) if self.pages is None else self.pages.size

    @property
    def first(self) -> str:
        """The id of rank 0."""
        return self.world[0] if self.pages is None else self.pages.first


NO_STATE: Final = State(0, 0, (), "", 0, 0, 0)
"""Stands for the state where none is published."""


@dataclass(frozen=True, slots=True)
class NodeRecord(_LimitedRecord):
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
        rule: What else it asks of a world.
        ready: The ids of the draining nodes that it can go on without: its program has saved its work.
        goes: It drains, and its time is over: it leaves its round, whether the others are ready or not.
        served: The round of the last quarantine that it has waited out; 0: none.
        outcome: How the last round has ended on it: the one that it has left behind, or that it has left for good.
        policy: How it decides where it leads.
        version: The version of rdzv that it runs; None: one that did not write this. For people: no node acts on it.
        order: The service's creation order of the record: the arrival order. Not written.
    """

    id: Name
    attempt: int
    last_round: int
    min_nodes: int
    max_nodes: int
    address: Name
    port: int
    labels: Mapping[str, str] = field(default_factory=dict)
    left: str | None = None
    rule: AdmissionRule | None = None
    ready: tuple[Name, ...] = ()
    goes: bool = False
    served: int = 0
    outcome: Outcome | None = field(default=None, metadata=LATER)
    policy: Policy | None = field(default=None, metadata=LATER)
    version: str | None = field(default=None, metadata=LATER)
    order: int = field(default=0, metadata=LOCAL)

    @property
    def key(self) -> str:
        """Where the node keeps it."""
        return node_key(self.attempt, self.id)


@dataclass(frozen=True, slots=True)
class LeaderRecord(_LimitedRecord):
    """The node that leads, and with which limits: those of the first node hold for all."""

    node: Name
    attempt: int
    min_nodes: int
    max_nodes: int
    rule: AdmissionRule | None = None
    policy: Policy | None = field(default=None, metadata=LATER)


@dataclass(frozen=True, slots=True)
class Departure:
    """A member of the round that is gone.

    Attributes:
        node: Its id.
        rank: Its rank in the round.
        left: True if it left on purpose, False if it was lost.
        cause: In words.
    """

    node: Name
    rank: int
    left: bool
    cause: str


class Phase(StrEnum):
    """What a run is doing; the values are what users read."""

    UNKNOWN = "unknown"
    """No node is here, and none of those that came, if any, had a world. No leader says it."""
    GATHERING = "gathering"
    LAST_CALL = "last call"
    RUNNING = "running"
    RE_FORMING = "re-forming"
    ABANDONED = "abandoned"
    """No node is left of an open run that had a world."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class RunStatus(Record):
    """The status of a run: what members and waiting nodes need without reading everything.

    Attributes:
        round: The round that the news is about.
        phase: What the run is doing.
        present: How many live nodes there are.
        waiting: How many nodes wait for a new world that would differ from the running one.
        departures: The members of the round that are gone, as far as they are named.
        more_left: How many have left beside those that are named.
        more_lost: How many were lost beside those that are named.
        drained: The ids of the members that drain, and go now.
        awaited: The ids of the members for which the next round waits: each has to leave this one, or to be lost. At
            most `NAMED`; None: there are none, or the leader is of an older version.
        ends_in: Seconds until the last call is over, from this news on, unless another node comes; None: as `awaited`.
        missing: Who is expected besides and not here, by name; None: as `awaited`.
        more_missing: How many are missing beside those that are named.
    """

    round: int
    phase: Phase
    present: int
    waiting: int
    departures: tuple[Departure, ...] = ()
    more_left: int = 0
    more_lost: int = 0
    drained: tuple[Name, ...] = ()
    awaited: tuple[Name, ...] | None = field(default=None, metadata=LATER)
    ends_in: float | None = field(default=None, compare=False, metadata=LATER)
    missing: tuple[Name, ...] | None = field(default=None, metadata=LATER)
    more_missing: int | None = field(default=None, metadata=LATER)

    @property
    def absent(self) -> int:
        """How many are missing."""
        return len(self.missing or ()) + (self.more_missing or 0)

    @property
    def left(self) -> int:
        """How many members of the round have left on purpose."""
        return self.more_left + sum(departure.left for departure in self.departures)

    @property
    def gone(self) -> int:
        """How many members of the round are gone."""
        return self.more_left + self.more_lost + len(self.departures)

    def shortened(self, before: "RunStatus | None") -> "RunStatus":
        """The same with at most `NAMED` departures: those that the status before has named stay, then by rank. As many
        awaited members, the first by rank, and of those that are missing.

        The causes are short, too: a node may have left with any text.
        """
        named_before = named_departures(before, self.round)
        short = [replace(departure, cause=departure.cause[:_CAUSE]) for departure in self.departures]
        ordered = sorted(short, key=lambda departure: (departure not in named_before, departure.rank))
        named, more = ordered[:NAMED], ordered[NAMED:]
        left = sum(departure.left for departure in more)
        awaited = None if self.awaited is None else self.awaited[:NAMED]
        missing = None if self.missing is None else self.missing[:NAMED]
        status = replace(self, departures=tuple(named), more_left=left, more_lost=len(more) - left, awaited=awaited)
        return replace(status, missing=missing, more_missing=max(0, self.absent - NAMED) or None)


def named_departures(status: RunStatus | None, number: int) -> tuple[Departure, ...]:
    """The departures that a status names, if it is about this round."""
    return status.departures if status is not None and status.round == number else ()


ReadNodes = dict[str, tuple[VersionedValue, NodeRecord]]
"""Node records by their keys, with what they were read from."""


def read_nodes(snapshot: DecodedSnapshot, before: ReadNodes | None = None) -> ReadNodes:
    """The node records in a snapshot, in order of arrival. One that cannot be read is skipped, and logged.

    Args:
        snapshot: What stands under ``nodes``.
        before: What was read from an earlier one: a record that has not changed is not read again.
    """
    found: ReadNodes = {}
    for key, versioned in sorted(snapshot.valid_entries().items(), key=lambda item: item[1].order):
        known = before.get(key) if before else None
        if known is not None and known[0] is versioned:
            found[key] = known
            continue
        try:
            record = decode(NodeRecord, versioned.payload)
            if record.key != key:
                raise RendezvousStateError(f"It holds the record of another node, {shown(record.key)}.")
            found[key] = versioned, replace(record, order=versioned.order)
        except RendezvousStateError as error:
            snapshot.ignore(key, error)
    return found


def of_another_version(snapshot: DecodedSnapshot) -> dict[str, OtherVersionError]:
    """The ids of the nodes whose records another version of rdzv has written, and the errors that say so."""
    found = {}
    for key in snapshot.names():
        try:
            read_record(NodeRecord, snapshot.get(key))
        except OtherVersionError as error:
            found[key.rpartition("/")[2]] = error
        except RendezvousStateError:
            # It is no record at all.
            continue
    return found


def nodes_in(snapshot: DecodedSnapshot) -> list[NodeRecord]:
    """The node records in a snapshot, in order of arrival; see `read_nodes`."""
    return [record for _, record in read_nodes(snapshot).values()]
