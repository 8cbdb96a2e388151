"""Notices: what a run knows of its nodes beside their own records.

A node drains; the program of a node failed first in a round; a node is quarantined. Each is a small record under
``control``, which every node watches.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Final, TypeVar

from rdzv_core.errors import RendezvousParameterError, RendezvousStateError
from rdzv_core.keys import escape

from .client import DecodedSnapshot, VersionedValue
from .codec import LATER, Name, Record
from .records import CONTROL, number_of, read_record

DRAINS: Final = f"{CONTROL}/drains"
"""One key for each node that drains: its id."""
FAILURES: Final = f"{CONTROL}/failures"
"""One key for each round in which a program failed. The first node to write it has failed first; over
that a leader writes whose failure it was, once the round is over."""
QUARANTINES: Final = f"{CONTROL}/quarantines"
"""One key for each node that is or was quarantined: its name, or its id where others have its name."""

MOST_SECONDS: Final = 1e9
"""No drain and no quarantine is longer: locks and sockets overflow somewhere above this."""

MOST_REASON: Final = 1000
"""Characters of the reason of a drain: every process of the run gets all of them."""

_LONGEST_NAME: Final = 32
"""Characters of a node's name in its id: ids stand in every page of a world."""

_R = TypeVar("_R", bound=Record)


def _check_seconds(seconds: float) -> None:
    if not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"{seconds} is no number of seconds")


@dataclass(frozen=True, slots=True)
class DrainNotice(Record):
    """A node is about to go.

    Attributes:
        seconds: After so long it goes, counted by each node from the moment at which it first saw this.
        reason: In words.
    """

    seconds: float
    reason: str

    def __post_init__(self) -> None:
        """Refuse what no clock counts."""
        _check_seconds(self.seconds)


class Verdict(StrEnum):
    """Whose failure it was that ended a round."""

    FIRST = "that of the node that reported it first"
    BEHIND = "that of the node that was behind when others hung"
    EXPLAINED = "of none: a member was lost, or left"
    UNCLEAR = "not to be told: nodes hung at the same step, or less is known"


@dataclass(frozen=True, slots=True)
class Failure(Record):
    """The failure of a program, of which no other came first in its round.

    Attributes:
        node: The id of its node.
        reason: In words.
        progressed: Whether the programs of that node had made progress in that round.
        attempt: The attempt that the round belongs to.
        verdict: Whose failure it was, as a leader has said once the round was over; None: that is not known yet.
        because: What the verdict is made of, in words.
    """

    node: Name
    reason: str
    progressed: bool
    attempt: int = 0
    verdict: Verdict | None = field(default=None, metadata=LATER)
    because: str | None = field(default=None, metadata=LATER)

    @property
    def counts(self) -> bool:
        """Whether it counts as a failure of its node."""
        return self.verdict in (Verdict.FIRST, Verdict.BEHIND)

    @property
    def how(self) -> str:
        """What its node has done, in words."""
        return "was behind" if self.verdict is Verdict.BEHIND else "failed first"


@dataclass(frozen=True, slots=True)
class Quarantine(Record):
    """A node takes no part for a while.

    Attributes:
        times: How often it was quarantined; 0: it is pardoned.
        round: The last round whose failure counts for this one.
        cooldown: Seconds that it waits, by its own clock.
        reason: In words.
        over: It was waited out, or lifted: a handler that the node starts later begins it no more.
    """

    times: int
    round: int
    cooldown: float
    reason: str
    over: bool = False

    def __post_init__(self) -> None:
        """Refuse what no clock counts."""
        _check_seconds(self.cooldown)


@dataclass(frozen=True, slots=True)
class Notices:
    """All notices of a run.

    Attributes:
        drains: By the id of the node.
        failures: By the number of the round.
        quarantines: By the name of the node, or its id where others have its name.
    """

    drains: Mapping[str, DrainNotice] = field(default_factory=dict)
    failures: Mapping[int, Failure] = field(default_factory=dict)
    quarantines: Mapping[str, Quarantine] = field(default_factory=dict)


NONE: Final = Notices()


def drain_notice(seconds: float, reason: str) -> DrainNotice:
    """The notice of a drain that a caller asks for.

    Raises:
        RendezvousParameterError: No clock counts so many seconds, or the reason is too long.
    """
    if len(reason) > MOST_REASON:
        raise RendezvousParameterError(
            f"The reason of a drain has at most {MOST_REASON:,} characters, and this one {len(reason):,}."
        )
    if not 0 <= seconds <= MOST_SECONDS:
        raise RendezvousParameterError(
            f"A node drains for a number of seconds from 0 to {MOST_SECONDS:.0f}, not {seconds}."
        )
    return DrainNotice(float(seconds), reason)


def first_drain(mine: DrainNotice, there: VersionedValue | None) -> DrainNotice:
    """Which announcement of a node's drain counts: `mine`, which is the later one, or what is there.

    No clock is common to who announces them. One that comes later and takes as long, or longer, ends later.
    """
    try:
        known = read_record(DrainNotice, there)
    except RendezvousStateError:
        return mine
    return mine if known is None or mine.seconds < known.seconds else known


def pardon(number: int, by: str) -> Quarantine:
    """What lifts a quarantine: the failures of rounds up to that one count for none any more."""
    return Quarantine(0, number, 0.0, f"pardoned by {by}", over=True)


def drain_key(node_id: str) -> str:
    """Where it stands that a node drains."""
    return f"{DRAINS}/{node_id}"


def failure_key(number: int) -> str:
    """Where the first failure of a round stands."""
    return f"{FAILURES}/{number}"


def quarantine_key(name: str) -> str:
    """Where the quarantine of a node stands."""
    return f"{QUARANTINES}/{name}"


def name_of(node_id: str) -> str:
    """What stands before the random part of a node's id: another handler on the same machine has the same."""
    return node_id.rpartition(".")[0] or node_id


def notice_keys(control: DecodedSnapshot, *folders: str) -> list[str]:
    """The keys of a snapshot of ``control`` that stand in one of these folders."""
    inside = tuple(f"{folder}/" for folder in folders)
    return [key for key in control.names() if key.startswith(inside)]


def name_in_id(name: str) -> str:
    """What stands for a node's name in its id: the name itself, or of a long one its beginning, the number at its end,
    by which ranks are ordered, and a hash."""
    escaped = escape(name)
    if len(escaped) <= _LONGEST_NAME:
        return escaped
    digest = blake2b(escaped.encode(), digest_size=4).hexdigest()
    begin, number, _ = re.split(r"([^0-9]?[0-9]{0,9})\Z", name, maxsplit=1)
    # What is cut sorts behind what is whole: a name with a longer number is cut sooner.
    shorter = [f"{escape(f'{begin[:length]}~{number}')}-{digest}" for length in range(len(begin))]
    return [short for short in shorter if len(short) <= _LONGEST_NAME][-1]


def nodes_that_drain(control: DecodedSnapshot) -> frozenset[str]:
    """The ids of the nodes of which it stands there that they drain, whether the rest can be read or not."""
    return frozenset(key.removeprefix(f"{DRAINS}/") for key in notice_keys(control, DRAINS))


def read_notices(control: DecodedSnapshot) -> Notices:
    """The notices in a snapshot of ``control``. What cannot be read is left out, and logged."""
    drains = dict(_read(DrainNotice, control, DRAINS))
    first = _read(Failure, control, FAILURES)
    failures = {number: one for name, one in first if (number := number_of(name)) is not None}
    quarantines = dict(_read(Quarantine, control, QUARANTINES))
    return Notices(drains, failures, quarantines)


def _read(kind: type[_R], control: DecodedSnapshot, folder: str) -> Iterator[tuple[str, _R]]:
    for key in notice_keys(control, folder):
        try:
            record = read_record(kind, control.get(key))
            if record is not None:
                yield key.removeprefix(f"{folder}/"), record
        except RendezvousStateError as error:
            control.ignore(key, error)
