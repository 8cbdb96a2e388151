"""Whether the answers to the clients of one value can be explained by *one* order of their operations.

A history is linearizable if every operation can be given a moment between its call and its return, so that
the answers are those of a single value that is used by one client at a time (M. Herlihy and J. Wing, 1990). The
search is that of J. Wing and C. Gong ("Testing and Verifying Concurrent Objects", 1993) with the memory that
G. Lowe added ("Testing for linearizability", 2017). There are good checkers for Go (Porcupine) and
Clojure (Knossos), none for Python.

No two puts of a history may write the same value: the value stands for the version.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

_NEVER: Final = float("inf")


class Kind(StrEnum):
    """What a client asks for."""

    READ = "read"
    PUT = "put"
    """Write, whatever is there."""
    CREATE = "create"
    """Write if nothing is there."""
    REPLACE = "replace"
    """Write if a certain value is there."""
    DELETE = "delete"


class Answer(StrEnum):
    """The answer to it."""

    DONE = "done"
    CONFLICT = "conflict"
    """The condition did not hold, and nothing was changed. (An answer that tells the present value is a read, too:
    most services cannot do both at one moment.)"""
    UNKNOWN = "unknown"
    """Nothing: it may have been done at any time after the call, or never."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call and its answer. All fields are such that JSON can hold them.

    Attributes:
        process: Whose it is.
        began: When it was called, in nanoseconds of a clock that all processes share.
        ended: When the answer came; of no meaning if it is unknown.
        kind: What was asked for.
        answer: How it ended.
        value: What a put, create or replace was to write.
        expected: What a replace was to find.
        found: What a read returned; None: nothing.
    """

    process: int
    began: int
    ended: int
    kind: Kind
    answer: Answer = Answer.DONE
    value: str | None = None
    expected: str | None = None
    found: str | None = None

    def fits(self, there: str | None) -> bool:
        """Whether it can have happened, with this answer, to what was there."""
        if self.kind is Kind.READ:
            return there == self.found
        if self.kind in (Kind.PUT, Kind.DELETE):
            return True
        holds = there == self.expected  # of a create that is None: nothing
        return holds != (self.answer is Answer.CONFLICT)

    def after(self, there: str | None) -> str | None:
        """The value when it has happened."""
        return there if self.only_looks else self.value

    @property
    def end(self) -> float:
        """When it was over, at the latest."""
        return _NEVER if self.answer is Answer.UNKNOWN else self.ended

    @property
    def only_looks(self) -> bool:
        """Whether it changes nothing."""
        return self.kind is Kind.READ or self.answer is Answer.CONFLICT

    @property
    def touches(self) -> set[str | None]:
        """The value that it knows of without having written it, if any; None: that nothing is there."""
        if self.kind is Kind.READ:
            return {self.found}
        return {self.expected} if self.kind in (Kind.CREATE, Kind.REPLACE) else set()

    def __str__(self) -> str:
        """Say it in words."""
        match self.kind:
            case Kind.READ:
                return f"read -> {self.found or 'nothing'}"
            case Kind.DELETE:
                asked = "delete"
            case Kind.PUT:
                asked = f"put {self.value}"
            case Kind.CREATE:
                asked = f"put {self.value} if nothing is there"
            case Kind.REPLACE:
                asked = f"put {self.value} if {self.expected} is there"
        return f"{asked} -> {self.answer}"


def is_linearizable(history: Sequence[Operation]) -> bool:
    """Whether some order of the operations explains every answer. In the beginning nothing is there."""
    calls = sorted(history, key=lambda operation: operation.began)
    answered = sum(1 << index for index, call in enumerate(calls) if call.answer is not Answer.UNKNOWN)
    # A place in the search: which operations have happened (as bits), and the value after them.
    places: list[tuple[int, str | None]] = [(0, None)]
    seen = set(places)
    while places:
        happened, there = places.pop()
        if happened & answered == answered:
            return True
        for index in _next(calls, happened, there):
            place = happened | 1 << index, calls[index].after(there)
            if place not in seen:
                seen.add(place)
                places.append(place)
    return False


def _next(calls: Sequence[Operation], happened: int, there: str | None) -> list[int]:
    """What may happen next: whatever fits, and began before every answer that has yet to be given came.

    The most promising comes last.
    """
    open_calls = []
    horizon = _NEVER
    index = (~happened & happened + 1).bit_length() - 1
    while index < len(calls) and calls[index].began <= horizon:
        if not happened >> index & 1:
            open_calls.append(index)
            horizon = min(horizon, calls[index].end)
        index += 1
    open_calls = [index for index in open_calls if calls[index].began <= horizon]
    fitting = [index for index in open_calls if calls[index].fits(there)]
    for index in fitting:
        if calls[index].only_looks:
            return [index]  # it changes nothing, so what can happen instead can as well happen after it
    # An operation without an answer matters only if it makes something fit at once.
    misfits = [calls[index] for index in open_calls if not calls[index].fits(there)]

    def is_needed(call: Operation) -> bool:
        return call.answer is not Answer.UNKNOWN or any(misfit.fits(call.value) for misfit in misfits)

    return [index for index in reversed(fitting) if is_needed(calls[index])]


def shortest(history: Sequence[Operation]) -> list[Operation]:
    """As few operations as possible that show what is wrong with a history that is not linearizable.

    What is left out makes nothing wrong that was right: an operation that writes a value goes together with
    those that know the value, and a condition is left out by making the write an unconditional one.
    """
    left = sorted(history, key=lambda operation: operation.began)
    done = False
    while not done:
        done = True
        for operation in reversed(left[:]):
            for smaller in _smaller(left, operation):
                if not is_linearizable(smaller):
                    left, done = smaller, False
                    break
    return left


def _smaller(history: list[Operation], operation: Operation) -> Iterator[list[Operation]]:
    """The history without an operation, or without its condition."""
    if operation not in history:
        return
    yield _without(history, operation)
    if operation.kind in (Kind.CREATE, Kind.REPLACE) and operation.answer is Answer.DONE:
        free = replace(operation, kind=Kind.PUT, expected=None)
        yield [free if other is operation else other for other in history]


def _without(history: list[Operation], operation: Operation) -> list[Operation]:
    gone, doomed = {operation}, [operation]
    while doomed:
        writer = doomed.pop()
        if not writer.only_looks:
            due = _due_to(writer, history) - gone
            gone |= due
            doomed += due
    return [other for other in history if other not in gone]


def _due_to(writer: Operation, history: list[Operation]) -> set[Operation]:
    """Whose answer may be due to this very write, and to no other."""
    later = min((one.end for one in history if not one.only_looks and writer.end < one.began), default=_NEVER)
    around = {one for one in history if writer.began <= one.end and one.began <= later}
    knowing = {one for one in history if writer.value in one.touches}
    lost = {one for one in around if one.answer is Answer.CONFLICT and one.expected != writer.value}
    return lost | (knowing & around if writer.kind is Kind.DELETE else knowing)


def explain(history: Sequence[Operation]) -> str:
    """Say what is wrong with a history that is not linearizable, and show its shortest part that proves it."""
    proof = shortest(history)
    start = min(operation.began for operation in proof)

    def line(operation: Operation) -> str:
        until = "ever" if operation.answer is Answer.UNKNOWN else f"{(operation.ended - start) / 1e6:.3f}"
        return f"{(operation.began - start) / 1e6:10.3f} to {until:>8}   process {operation.process}: {operation}"

    return "\n".join(
        [
            f"Not linearizable: {_name(proof)}.",
            f"No order of these {len(proof)} of {len(history)} operations explains their answers (times in ms; "
            "conditions that do not matter are left out):",
            *map(line, proof),
        ]
    )


def _name(proof: Sequence[Operation]) -> str:
    replaced = Counter(one.expected for one in proof if one.kind is Kind.REPLACE and one.answer is Answer.DONE)
    written = {None, *(operation.value for operation in proof)}
    if any(count > 1 for count in replaced.values()):
        return "lost update: the same value was replaced twice"
    if not all(operation.touches <= written for operation in proof):
        return "a value was there that no client has written"
    if any(operation.kind is Kind.READ for operation in proof):
        return "stale: an old value was returned after a new one was there"
    if any(operation.answer is Answer.CONFLICT for operation in proof):
        return "a write was refused although its condition held"
    return "lost update: a write was done although its condition did not hold"


def assert_linearizable(history: Sequence[Operation]) -> None:
    """Fail, with the shortest proof, if no order explains the history."""
    if not is_linearizable(history):
        raise AssertionError(explain(history))
