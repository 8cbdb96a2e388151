"""The answers to processes that use one value at once: recorded here, judged by `linearizability`."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from rdzv_core.backend import ABSENT, ANY, Entry, KeyValueBackend, PutOutcome, RendezvousBackend
from rdzv_core.errors import RendezvousConnectionError

from ..linearizability import Answer, Kind, Operation

_WEIGHTS: Final = {Kind.READ: 5, Kind.PUT: 1, Kind.CREATE: 3, Kind.REPLACE: 5, Kind.DELETE: 1}
_ANSWERS: Final = {
    PutOutcome.APPLIED: Answer.DONE,
    PutOutcome.CONFLICT: Answer.CONFLICT,
    PutOutcome.UNKNOWN: Answer.UNKNOWN,
}

Found = tuple[str, Any] | None
"""A value and its token."""


class KeyValue:
    """One key of a key-value backend, which several processes use. Every other read is that of a prefix."""

    kinds: Sequence[Kind] = tuple(Kind)
    """What can be done with it."""

    def __init__(self, client: KeyValueBackend, key: str, timeout: float) -> None:
        self._client = client
        self._key = key
        self._timeout = timeout
        self._reads = 0

    def read(self) -> Found:
        """The present entry."""
        self._reads += 1
        if self._reads % 2:
            return _found(self._client.read(self._key, timeout=self._timeout))
        return _found(self._client.read_all(self._key, timeout=self._timeout).entries.get(self._key))

    def write(self, kind: Kind, value: str, expected: Found) -> tuple[Answer, Found]:
        """Put, create, replace or delete it."""
        if kind is Kind.DELETE:
            try:
                self._client.delete(self._key, timeout=self._timeout)
            except RendezvousConnectionError:
                return Answer.UNKNOWN, None  # the contract: call again
            return Answer.DONE, None
        condition = expected[1] if expected else ANY if kind is Kind.PUT else ABSENT
        put = self._client.put(self._key, value.encode(), expect=condition, timeout=self._timeout)
        return _ANSWERS[put.outcome], _found(put.entry)


class RegisterValue:
    """The register of a register backend, used in the same way."""

    kinds: Sequence[Kind] = (Kind.READ, Kind.CREATE, Kind.REPLACE)

    def __init__(self, register: RendezvousBackend) -> None:
        self._register = register

    def read(self) -> Found:
        """See `KeyValue`."""
        found = self._register.get_state()
        return found and (found[0].decode(), found[1])

    def write(self, kind: Kind, value: str, expected: Found) -> tuple[Answer, Found]:
        """See `KeyValue`."""
        there = self._register.set_state(value.encode(), expected[1] if expected else None)
        if there is None:
            return Answer.CONFLICT, None
        state, token, has_set = there
        return Answer.DONE if has_set else Answer.CONFLICT, (state.decode(), token)


def record(
    value: KeyValue | RegisterValue, process: int, go_on: Callable[[int], bool], *, healthy: bool = True
) -> list[dict[str, Any]]:
    """Use a value in all ways, in an order that is the same for the same process.

    Args:
        value: The value, which others use meanwhile.
        process: Which process this is; from 0.
        go_on: Whether to, before each turn.
        healthy: The service answers. If not, a write that raises is left out, since it was certainly not applied, and
            so is a read that raises, since it tells nothing.

    Returns:
        The answers, as JSON can hold them: see `operations`.
    """
    rng = random.Random(process)  # noqa: S311 - no secret
    known: Found = None
    history: list[dict[str, Any]] = []
    turn = 0
    while go_on(turn):
        (kind,) = rng.choices(value.kinds, [_WEIGHTS[kind] for kind in value.kinds])
        kind = Kind.READ if kind is Kind.REPLACE and known is None else kind
        expected = known if kind is Kind.REPLACE else None
        mine = f"{process}.{turn}"
        turn += 1
        began = time.monotonic_ns()
        try:
            answer, known = (Answer.DONE, value.read()) if kind is Kind.READ else value.write(kind, mine, expected)
        except RendezvousConnectionError:
            if healthy:
                raise
            time.sleep(0.01)
            continue
        assert answer is not Answer.UNKNOWN or not healthy, (
            "a write is of unknown outcome although the service is healthy"
        )
        ended = time.monotonic_ns()
        if kind is not Kind.READ:
            written = None if kind is Kind.DELETE else mine
            wish = Operation(process, began, ended, kind, answer, written, expected and expected[0])
            history.append(asdict(wish))
        if kind is Kind.READ or answer is Answer.CONFLICT:  # a conflict tells the present value
            look = Operation(process, began, ended, Kind.READ, found=known and known[0])
            history.append(asdict(look))
    return history


def operations(histories: Sequence[Sequence[dict[str, Any]]]) -> list[Operation]:
    """The histories of several processes as one."""
    return [
        Operation(**{**fields, "kind": Kind(fields["kind"]), "answer": Answer(fields["answer"])})
        for history in histories
        for fields in history
    ]


def _found(entry: Entry | None) -> Found:
    return None if entry is None else (entry.value.decode(), entry.token)
