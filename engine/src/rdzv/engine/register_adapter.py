"""Keys for services that have only a register: a register backend as a key-value backend.

All keys live in the one value, inside an envelope, and every write is a compare-and-set of all of it.
That is PyTorch's way, correct and for small worlds; a service that has keys should offer them.
"""

import base64
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from rdzv_core.backend import (
    ABSENT,
    ANY,
    Capability,
    Entry,
    Expect,
    KeyValueBackend,
    Lease,
    PutOutcome,
    PutResult,
    RendezvousBackend,
    Snapshot,
    Token,
)
from rdzv_core.deadline import pause_within, time_left
from rdzv_core.envelope import NONCE_HISTORY, Envelope, other_version
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError, RendezvousStateError
from rdzv_core.handler import default_source_address

from .client import backoff

_SCHEMA: Final = 1
_SLICE: Final = 0.5
"""The most seconds of one `wait_state`: a register has no close() that could end it."""
_MISTAKES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What Python raises when a program is wrong: the same call would raise it again."""

_Keys = dict[str, Entry]


@dataclass(frozen=True, slots=True)
class _Content:
    """What the register holds: the keys, the envelope that they were in (None: nothing is there), the token."""

    keys: _Keys = field(default_factory=dict)
    envelope: Envelope | None = None
    token: Token = None


class RegisterAdapter(KeyValueBackend):
    """A register backend as a key-value backend, without leases.

    A register takes no timeouts. No call to it begins after the deadline of its caller, or after `close`; but one
    that hangs is waited for, so a class for PyTorch's contract must have a timeout of its own.

    Errors that are not rdzv's become so: PyTorch's by their names; mistakes of the class (TypeError and the
    like) a `RendezvousError`, which is not retried; all others, the client library's and OSError and
    RuntimeError, a `RendezvousConnectionError`.
    """

    unsupported: ClassVar[Mapping[Capability, str]] = dict.fromkeys(Capability, "a register has no such thing")
    creates_at_once = 128

    def __init__(
        self,
        register: RendezvousBackend,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Keep keys in `register`; any class with PyTorch's two methods will do.

        Args:
            register: The register.
            clock: This process's monotonic clock, in seconds.
            sleep: Lets time pass on it.
            rng: Where jitter comes from.
        """
        self._register = register
        self._clock = clock
        self._sleep = sleep
        self._random = rng or random.Random()  # noqa: S311 - jitter is no secret
        self._closed = False

    @property
    def name(self) -> str:
        return self._register.name

    @property
    def local_address(self) -> str:
        """See `KeyValueBackend`; where the register's service is, is not known here."""
        return default_source_address()

    def read(self, key: str, *, timeout: float) -> Entry | None:
        return self._load(self._clock() + timeout).keys.get(key)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        there = self._load(self._clock() + timeout)
        return Snapshot(_under(prefix, there.keys), there.token)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:

        def write(keys: _Keys, version: int) -> PutResult:
            there = keys.get(key)
            token = ABSENT if there is None else there.token
            if expect is not ANY and token != expect:
                return PutResult(PutOutcome.CONFLICT, there)
            keys[key] = Entry(value, version, version if there is None else there.order)
            return PutResult(PutOutcome.APPLIED, keys[key])

        return self._change(write, timeout)

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:

        def write(keys: _Keys, version: int) -> PutResult:
            if values.keys() & keys.keys():
                return PutResult(PutOutcome.CONFLICT)
            keys.update({key: Entry(value, version, version) for key, value in values.items()})
            return PutResult(PutOutcome.APPLIED)

        return self._change(write, timeout).outcome

    def delete(self, prefix: str, *, timeout: float) -> None:

        def remove(keys: _Keys, version: int) -> PutResult:
            removed = _under(prefix, keys)
            for key in removed:
                del keys[key]
            return PutResult(PutOutcome.APPLIED if removed else PutOutcome.CONFLICT)

        if self._change(remove, timeout).outcome is PutOutcome.UNKNOWN:
            raise RendezvousConnectionError(f"The reply to deleting '{prefix}' was lost.")

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:

        def remove(keys: _Keys, version: int) -> PutResult:
            there = keys.get(key)
            if there is None or there.token != token:
                return PutResult(PutOutcome.CONFLICT)
            del keys[key]
            return PutResult(PutOutcome.APPLIED)

        return self._change(remove, timeout).outcome

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        deadline = self._clock() + timeout
        token = since.revision
        # A class written for PyTorch's contract has no way to wait: it is polled.
        wait_state = getattr(self._register, "wait_state", None) or RendezvousBackend.wait_state.__get__(self._register)
        while True:
            self._check_open()
            if (remaining := deadline - self._clock()) <= 0:
                return since
            with self._translating_errors():
                wait_state(token, min(remaining, _SLICE))
            if self._clock() < deadline:
                there = self._load(deadline)
                token = there.token
                if (now := _under(prefix, there.keys)) != since.entries:
                    return Snapshot(now, token)

    def close(self) -> None:
        """See `KeyValueBackend`. The register itself is its maker's."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise RendezvousConnectionError(f"The backend '{self.name}' is closed.")

    def _load(self, deadline: float) -> _Content:
        self._check_open()
        time_left(deadline, self._clock())
        with self._translating_errors():
            found = self._register.get_state()
            return _Content() if found is None else _Content(*_decode(found[0]), found[1])

    def _change(self, change: Callable[[_Keys, int], PutResult], timeout: float) -> PutResult:
        deadline = self._clock() + timeout
        pauses = backoff(self._random)
        while True:
            there = self._load(deadline)
            put = change(there.keys, there.envelope.epoch + 1 if there.envelope else 1)
            if put.outcome is PutOutcome.CONFLICT:
                return put
            mine = Envelope.wrap(_encode(there.keys), writer="register", previous=there.envelope)
            outcome = self._write(mine, there.token, deadline)
            if outcome is not PutOutcome.CONFLICT:
                return put if outcome is PutOutcome.APPLIED else PutResult(PutOutcome.UNKNOWN)
            if (paused := pause_within(deadline - self._clock(), next(pauses))) is None:
                raise RendezvousConnectionError(
                    f"The register of '{self.name}' was always changed by another within {timeout:.1f} s."
                )
            self._sleep(paused)

    def _write(self, mine: Envelope, token: Token, deadline: float) -> PutOutcome:
        self._check_open()
        time_left(deadline, self._clock())
        try:
            with self._translating_errors():
                answer = self._register.set_state(mine.pack(), token)
                if answer is not None:
                    return PutOutcome.APPLIED if answer[2] else PutOutcome.CONFLICT
        except RendezvousDeniedError:
            raise
        except RendezvousConnectionError:
            # A register cannot say whether the write was applied.
            return PutOutcome.UNKNOWN
        return self._find_out(mine, deadline)

    def _find_out(self, mine: Envelope, deadline: float) -> PutOutcome:
        """Look whether a write was applied. PyTorch goes on after None; there are classes that answer nothing else."""
        try:
            there = self._load(deadline).envelope
        except RendezvousConnectionError:
            return PutOutcome.UNKNOWN
        if there is None or mine.epoch > there.epoch:
            return PutOutcome.CONFLICT
        if not mine.supersedes(there):
            return PutOutcome.APPLIED
        return PutOutcome.CONFLICT if there.epoch - mine.epoch < NONCE_HISTORY else PutOutcome.UNKNOWN

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Around every call of the register: what leaves it is an error of rdzv's."""
        try:
            yield
        except RendezvousError:
            raise
        except Exception as error:
            if "RendezvousStateError" in [kind.__name__ for kind in type(error).__mro__]:
                raise RendezvousStateError(f"What the register of '{self.name}' holds is corrupt: {error}") from error
            if isinstance(error, _MISTAKES) and not isinstance(error, OSError):
                raise RendezvousError(
                    f"The class of the register '{self.name}' has a fault, so it is not tried again: {error!r}"
                ) from error
            raise RendezvousConnectionError(f"The register of '{self.name}' failed: {error!r}") from error


def _under(prefix: str, keys: Mapping[str, Entry]) -> _Keys:
    return {key: entry for key, entry in keys.items() if key == prefix or key.startswith(f"{prefix}/")}


def _encode(keys: Mapping[str, Entry]) -> bytes:
    table = {key: [base64.b64encode(entry.value).decode(), entry.token, entry.order] for key, entry in keys.items()}
    return json.dumps({"rdzv": _SCHEMA, "keys": table}, separators=(",", ":")).encode()


def _decode(data: bytes) -> tuple[_Keys, Envelope]:
    envelope = Envelope.unpack(data)
    try:
        value: Any = json.loads(envelope.payload)
        if type(schema := value["rdzv"]) is not int:
            raise TypeError("no table")
        if schema != _SCHEMA:
            raise other_version("The register", schema, _SCHEMA)
        keys = {str(key): _entry(there) for key, there in value["keys"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RendezvousStateError(f"The register holds what rdzv did not write: {data[:80]!r}") from error
    return keys, envelope


def _entry(there: Any) -> Entry:
    try:
        text, token, order = there
        return Entry(base64.b64decode(text, validate=True), int(token), int(order))
    except (ValueError, TypeError, OverflowError):
        # Only a read of this key refuses it; reads of its neighbours go on.
        return Entry(repr(there).encode(), 0, 0)
