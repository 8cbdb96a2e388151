"""What happened, as one JSON line per event, written at once by the process that did it.

All moments are seconds of the one monotonic clock of this machine (``CLOCK_MONOTONIC``). Only the checker
compares those of different processes.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

What = Literal[
    # By an agent.
    "joins",  # it calls next_rendezvous()
    "returns",  # round, rank, size, nodes, address; offers: where it said it is, should it be rank 0
    "shares",  # round, mark: what stands in the round's store, where the first one to come wrote it
    "trusts",  # round, until: its lease certainly lives until then, and it takes the round for the current one
    "learns",  # kind, round, node, cause: an event of the handler
    "fails",  # its program does, so that it joins again
    "errs",  # chance, so_far: so many of its calls fail from now on, and so many have
    "is denied",  # calls: from now on the service refuses these
    "stumbles",  # error: what it got for that, or for what a stranger has written; it goes on
    "closes",  # reason
    "has closed",
    "hears",  # by, reason: the run is closed
    "refused",  # error, text, by, reason: next_rendezvous() raised; by and reason are None while the run is open
    "leaves",
    "has left",  # told: whether the service has confirmed it
    "broke",  # text: an error that no code of the agent expects
    # By the process that sends the faults, about an agent, a server or the run.
    "starts",  # attempt
    "is killed",
    "stands still",
    "is cut off",  # how
    "is slow",  # seconds: so much later it gets each answer
    "is not read",  # its standard error, which is full
    "is read",
    "goes on",
    "permits",  # since, until: the service had refused all renewals; leases that lived then count until a ttl from now
    "is corrupted",  # key, seconds: a stranger writes over it, and puts it back
    "quiet",  # nothing is wrong any more
    "settled",  # after: seconds since then
    "unsettled",  # text: what the agents do instead
]

INSIDE: Final = frozenset({"returns", "shares", "trusts"})
"""What an agent does in a world."""

OVER: Final = frozenset({"refused", "has left", "broke"})
"""After one of these, an agent takes part in nothing any more."""

_PLACES: Final = INSIDE | OVER | {"joins", "leaves"}


@dataclass(frozen=True)
class Record:
    """One event.

    Attributes:
        at: When, in seconds.
        who: The agent, the server or the run that it is about.
        what: What happened; the facts of each stand beside `What`.
        facts: What else is to be known of it.
    """

    at: float
    who: str
    what: What
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """One line."""
        return json.dumps({"at": self.at, "who": self.who, "what": self.what, **self.facts}).encode() + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> "Record":
        """Read a line.

        Raises:
            ValueError: It is not a line of a history.
        """
        facts = json.loads(line)
        if not isinstance(facts, dict) or not {"at", "who", "what"} <= facts.keys():
            raise ValueError(f"{line!r} is no record of a history.")
        at, who, what = (facts.pop(name) for name in ("at", "who", "what"))
        if what not in get_args(What):
            raise ValueError(f"{line!r} is a record of something unknown.")
        return cls(at, who, what, facts)


class EventLog:
    """One writer's file: what is written is there at once, whatever happens to the writer.

    Args:
        path: The file; created.
        who: Whose events they are, where `write` names none.
    """

    def __init__(self, path: Path, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._who = who

    def write(self, what: What, *, at: float | None = None, who: str | None = None, **facts: Any) -> None:
        """Add an event of this moment, or of the moment `at`."""
        record = Record(time.monotonic() if at is None else at, who or self._who, what, facts)
        os.write(self._file, record.to_json())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class History:
    """All files of a folder as one history that grows.

    Attributes:
        records: Every event so far that was not forgotten; each writer's in order.
        last: Where each agent is: the last event by which it has said so.
        rounds: Every round that was ever returned from, forgotten ones too.
    """

    def __init__(self, folder: Path) -> None:
        """Read ``*.jsonl`` in `folder`."""
        self.records: list[Record] = []
        self.last: dict[str, Record] = {}
        self.rounds: set[int] = set()
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._ended: set[Path] = set()

    def refresh(self) -> None:
        """Read what was written since."""
        for path in sorted(set(self._folder.glob("*.jsonl")) - self._ended):
            begin = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(begin)
                # A writer that was killed in the middle of a line has not written it.
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = begin + len(whole) + len(newline)
            for line in whole.splitlines():
                self._add(Record.from_json(line))

    def _add(self, record: Record) -> None:
        self.records.append(record)
        if record.what in _PLACES:
            self.last[record.who] = record
        if record.what == "returns":
            self.rounds.add(record.facts["round"])

    def end(self, who: str) -> None:
        """Read what `who` has written, and expect no more of it."""
        self.refresh()
        self._ended.add(self._folder / f"{who}.jsonl")

    def forget(self) -> None:
        """Forget the events so far."""
        self.records.clear()
        self.last.clear()


def tell(records: Iterable[Record], since: float = 0.0) -> str:
    """The events as a trace, in order, with seconds since the moment `since`."""
    ordered = sorted(records, key=lambda record: record.at)
    return "\n".join(f"{record.at - since:9.3f}  {record.who:<9} {record.what}{_facts(record)}" for record in ordered)


def _facts(record: Record) -> str:
    said = ", ".join(f"{name} {value}" for name, value in record.facts.items() if value is not None)
    return f": {said}" if said else ""
