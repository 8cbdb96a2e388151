"""Whether a history keeps the invariants. Pure: events in, findings out.

The numbers are those of docs/guarantees.md, and the words those of the simulator. What they mean for events that
were seen from outside, and only by those who took part:

1. All who return from a round return the same nodes in the same order, the address that its rank 0 offered for
   it and the rank that follows, and find the same mark in its store; each one's rounds rise.
2. A node that *trusts* its round until the moment *t* has a lease that certainly lives until then: the
   service has confirmed it less than a time to live ago. As long as it has not gone back to
   ``next_rendezvous``, left or been killed, no node returns from a later round before *t*. Being paused, cut off
   or without a service does not matter: it takes away the next confirmation, not the last one.
3. Every world has min to max nodes, each once.
4. After the last fault, all who live get into one world, as far as there is room, within a bound.
6. Once an agent knows that an attempt is closed, a node that joins is refused; all receive the same reason.
7. No agent gets an error unless it had orders to leave, or an agent had orders to close the run.
10. As 2, for a node whose lease lived when the service began to refuse all renewals: when that is over, it has another
    time to live to come back.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from .history import INSIDE, Record

_ENDS_A_STAY: Final = frozenset({"joins", "leaves", "is killed"})
"""After one of these, a node is in its round no more."""

_CLOSED: Final = frozenset({"hears", "refused"})


@dataclass(frozen=True, order=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        at: The moment, in seconds of the history's clock, at which it was seen.
        number: Which; 0: the code itself breaks.
        what: What was seen.
    """

    at: float
    number: int
    what: str

    def __str__(self) -> str:
        return f"invariant {self.number}: {self.what}"


def check(history: Iterable[Record], low: int, high: int) -> list[Violation]:
    """Everything that is wrong in a history, in the order of time.

    Args:
        history: The events; those of one writer in order.
        low: The smallest world allowed.
        high: The largest.
    """
    records = sorted(history, key=lambda record: record.at)
    returns = [record for record in records if record.what == "returns"]
    attempts = {record.who: int(record.facts["attempt"]) for record in records if record.what == "starts"}
    return sorted(
        [
            *_agreement(returns),
            *_stores(records),
            *_exclusivity(records, returns),
            *_size(returns, low, high),
            *_progress(records),
            *_closing(records, attempts),
            *_errors(records, attempts),
        ]
    )


def is_settled(last: Mapping[str, Record], alive: Collection[str], high: int) -> bool:
    """Whether all who live are in one world together, but for those that it has no room for, who wait.

    Args:
        last: The last event of each agent.
        alive: The agents that live.
        high: The largest world allowed.
    """
    found = [last[who] for who in alive if who in last]
    inside = [record for record in found if record.what in INSIDE]
    waiting = [record for record in found if record.what == "joins"]
    rounds = {(record.facts["round"], record.facts["size"]) for record in inside}
    all_are_here = len(inside) + len(waiting) == len(alive)
    return all_are_here and len(inside) == min(len(alive), high) and len(rounds) == 1 and rounds.pop()[1] == len(inside)


# 1


def _agreement(returns: Sequence[Record]) -> Iterator[Violation]:
    first: dict[int, Record] = {}
    before: dict[str, int] = {}
    for record in returns:
        facts, number = record.facts, record.facts["round"]
        other = first.setdefault(number, record)
        for what in ("nodes", "address"):
            if facts[what] != other.facts[what]:
                mine, theirs = facts[what], other.facts[what]
                said = f"{record.who} got {mine} as the {what} of round {number}, and {other.who} got {theirs}"
                yield Violation(record.at, 1, said)
        if facts["size"] != len(facts["nodes"]) or _agent_at(facts) != record.who:
            said = f"{record.who} is rank {facts['rank']} of {facts['size']} in round {number}: {facts['nodes']}"
            yield Violation(record.at, 1, said)
        if facts["rank"] == 0 and facts["offers"] not in (None, facts["address"]):
            said = f"{record.who} is rank 0 of round {number} at {facts['offers']}, and got {facts['address']}"
            yield Violation(record.at, 1, said)
        if number <= before.get(record.who, 0):
            yield Violation(record.at, 1, f"{record.who} got round {number} after round {before[record.who]}")
        before[record.who] = number


def _agent_at(facts: Mapping[str, Any]) -> str | None:
    nodes, rank = facts["nodes"], facts["rank"]
    return _agent(nodes[rank]) if 0 <= rank < len(nodes) else None


def _agent(node: str) -> str:
    """The agent whose node this is: a node's id begins with the name that it was given."""
    return node.partition(".")[0]


def _stores(records: Sequence[Record]) -> Iterator[Violation]:
    first: dict[int, Record] = {}
    for record in records:
        if record.what == "shares":
            other = first.setdefault(record.facts["round"], record)
            if record.facts["mark"] != other.facts["mark"]:
                number = record.facts["round"]
                yield Violation(record.at, 1, f"{record.who} and {other.who} do not share one store in round {number}")


# 2 and 10


def _exclusivity(records: Sequence[Record], returns: Sequence[Record]) -> Iterator[Violation]:
    found: set[tuple[str, int]] = set()
    rounds, first = _first_returns(returns)
    for trust, until in _trusts(records):
        number = trust.facts["round"]
        after = bisect_right(rounds, number)
        if after < len(rounds) and first[after].at < until and (trust.who, number) not in found:
            found.add((trust.who, number))
            other = first[after]
            seen = max(other.at, trust.at)
            there = f"round {other.facts['round']} exists: {', '.join(other.facts['nodes'])}"
            lives = seen < trust.facts["until"]
            why = "its lease lives" if lives else "may come back from a refusal"
            said = f"{trust.who} is in round {number}, {why} for another {until - seen:.2f} s, while {there}"
            yield Violation(seen, 2 if lives else 10, said)


def _first_returns(returns: Sequence[Record]) -> tuple[list[int], list[Record]]:
    """The rounds in order, and for each the first return from it or from any later one."""
    first: dict[int, Record] = {}
    for record in returns:
        first.setdefault(record.facts["round"], record)
    rounds = sorted(first)
    for before, number in pairwise(reversed(rounds)):
        first[number] = min(first[number], first[before], key=lambda record: record.at)
    return rounds, [first[number] for number in rounds]


def _trusts(records: Sequence[Record]) -> Iterator[tuple[Record, float]]:
    """Every *trusts*, with the moment until which the node is in that round on a lease that lives, or counts as if."""
    open_trusts: dict[str, list[Record]] = {}
    refusals = [record for record in records if record.what == "permits"]
    for record in records:
        if record.what == "trusts":
            open_trusts.setdefault(record.who, []).append(record)
        elif record.what in _ENDS_A_STAY:
            for trust in open_trusts.pop(record.who, []):
                yield trust, min(_counts_until(trust, refusals), record.at)
    for left in open_trusts.values():
        for trust in left:
            yield trust, _counts_until(trust, refusals)


def _counts_until(trust: Record, refusals: Sequence[Record]) -> float:
    until: float = trust.facts["until"]
    for refusal in refusals:
        if trust.at < refusal.at and refusal.facts["since"] < until:
            until = max(until, refusal.facts["until"])
    return until


# 3


def _size(returns: Sequence[Record], low: int, high: int) -> Iterator[Violation]:
    seen: set[int] = set()
    for record in returns:
        nodes, number = record.facts["nodes"], record.facts["round"]
        if number not in seen and (not low <= len(nodes) <= high or len(set(nodes)) != len(nodes)):
            yield Violation(record.at, 3, f"a world of {nodes} in round {number} for {low} to {high} nodes")
        seen.add(number)


# 4


def _progress(records: Sequence[Record]) -> Iterator[Violation]:
    for record in records:
        if record.what == "unsettled":
            yield Violation(record.at, 4, record.facts["text"])


# 6


def _closing(records: Sequence[Record], attempts: Mapping[str, int]) -> Iterator[Violation]:
    for attempt in sorted(set(attempts.values())):
        mine = [record for record in records if attempts.get(record.who) == attempt]
        yield from _first_reason(mine)
        yield from _refusals(mine)


def _first_reason(records: Sequence[Record]) -> Iterator[Violation]:
    heard = [record for record in records if _says_closed(record) and not _superseded(record)]
    for first, other in pairwise(heard):
        if (first.facts["by"], first.facts["reason"]) != (other.facts["by"], other.facts["reason"]):
            said = " and ".join(f"{one.who} hears '{one.facts['reason']}'" for one in (first, other))
            yield Violation(other.at, 6, f"the attempt is closed for two reasons: {said}")


def _refusals(records: Sequence[Record]) -> Iterator[Violation]:
    known = (record.at for record in records if record.what == "has closed" or _says_closed(record))
    closed = next(known, math.inf)
    joined: dict[str, Record] = {}
    for record in records:
        if record.what == "joins":
            joined[record.who] = record
        elif record.what == "returns" and record.who in joined and joined[record.who].at > closed:
            number = record.facts["round"]
            late = joined[record.who].at - closed
            yield Violation(
                record.at, 6, f"{record.who} got round {number} of a run that was closed {late:.3f} s before"
            )


def _says_closed(record: Record) -> bool:
    return record.what in _CLOSED and record.facts["by"] is not None


def _superseded(record: Record) -> bool:
    return str(record.facts["reason"]).startswith("superseded by attempt ")


# 7


def _errors(records: Sequence[Record], attempts: Mapping[str, int]) -> Iterator[Violation]:
    closers: dict[int, set[str]] = {}
    leaving: set[str] = set()
    for record in records:
        attempt = attempts.get(record.who, 0)
        if record.what == "closes":
            closers.setdefault(attempt, set()).add(record.who)
        elif record.what == "leaves":
            leaving.add(record.who)
        elif record.what == "broke":
            yield Violation(record.at, 0, f"{record.who} broke: {record.facts['text']}")
        elif _says_closed(record):
            followed = any(other > attempt for other in attempts.values())
            if _agent(record.facts["by"]) not in closers.get(attempt, ()) and not (_superseded(record) and followed):
                said = f"by '{record.facts['by']}': {record.facts['reason']}"
                yield Violation(
                    record.at, 7, f"no node has closed the run, but {record.who} hears that it is closed {said}"
                )
        elif record.what == "refused" and record.who not in leaving:
            text = f"{record.facts['error']}: {record.facts['text']}"
            yield Violation(record.at, 7, f"{record.who} gets an error for no fault of its own: {text}")
