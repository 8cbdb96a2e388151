"""Keys for services that have only a register: level 1 lifted to level 2.

All keys live in the one value, and every write is a compare-and-set of all of it. That is
PyTorch's way, correct and for small worlds; whoever can should offer keys.
"""

import base64
import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from ..backend import (
    ABSENT,
    ANY,
    Capability,
    Entry,
    Expect,
    KeyValueBackend,
    Lease,
    Outcome,
    Put,
    RendezvousBackend,
    Snapshot,
    Token,
)
from ..errors import RendezvousConnectionError, RendezvousStateError
from ..handler import address_outwards
from ..service import backoff

__all__ = ["RegisterKeys"]

_SCHEMA: Final = 1
_Keys = dict[str, Entry]


class RegisterKeys(KeyValueBackend):
    """A level-1 backend as a level-2 one, without leases."""

    lacking: ClassVar[Mapping[Capability, str]] = dict.fromkeys(Capability, "a register has no such thing")

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
        """See `KeyValueBackend`."""
        return self._register.name

    @property
    def local_address(self) -> str:
        """See `KeyValueBackend`; where the register's service is, nobody knows here."""
        return address_outwards()

    def read(self, key: str, *, timeout: float) -> Entry | None:
        """See `KeyValueBackend`."""
        return self._load()[0].get(key)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend`."""
        keys, _, token = self._load()
        return Snapshot(_under(prefix, keys), token)

    def put(self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float) -> Put:
        """See `KeyValueBackend`."""

        def write(keys: _Keys, version: int) -> Put:
            there = keys.get(key)
            token = ABSENT if there is None else there.token
            if expect is not ANY and token != expect:
                return Put(Outcome.LOST, there)
            keys[key] = Entry(value, version, version if there is None else there.order)
            return Put(Outcome.WON, keys[key])

        return self._change(write, timeout)

    def delete(self, prefix: str, *, timeout: float) -> None:
        """See `KeyValueBackend`."""

        def remove(keys: _Keys, version: int) -> Put:
            doomed = _under(prefix, keys)
            for key in doomed:
                del keys[key]
            return Put(Outcome.WON if doomed else Outcome.LOST)

        if self._change(remove, timeout).outcome is Outcome.UNKNOWN:
            raise RendezvousConnectionError(f"The reply to deleting '{prefix}' was lost.")

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend`."""
        deadline = self._clock() + timeout
        token = since.revision
        # A class written for PyTorch's contract has no way to wait: it is polled.
        wait_state = getattr(self._register, "wait_state", None) or RendezvousBackend.wait_state.__get__(self._register)
        while (remaining := deadline - self._clock()) > 0 and not self._closed:
            # In slices, since a register has no close() that could end the wait.
            wait_state(token, min(remaining, 0.5))
            keys, _, token = self._load()
            if (now := _under(prefix, keys)) != since.entries:
                return Snapshot(now, token)
        return since

    def close(self) -> None:
        """See `KeyValueBackend`. The register itself is its maker's."""
        self._closed = True

    def _load(self) -> tuple[_Keys, int, Token]:
        if self._closed:
            raise RendezvousConnectionError(f"The backend '{self.name}' is closed.")
        found = self._register.get_state()
        return ({}, 0, None) if found is None else (*_decode(found[0]), found[1])

    def _change(self, change: Callable[[_Keys, int], Put], timeout: float) -> Put:
        deadline = self._clock() + timeout
        for pause in backoff(self._random):
            keys, version, token = self._load()
            put = change(keys, version + 1)
            if put.outcome is Outcome.LOST:
                return put
            try:
                answer = self._register.set_state(_encode(keys, version + 1), token)
            except RendezvousConnectionError:
                # A register cannot say whether the write was applied.
                return Put(Outcome.UNKNOWN)
            if answer is not None and answer[2]:
                return put
            if self._clock() + pause >= deadline:
                raise RendezvousConnectionError(
                    f"The register of '{self.name}' was always changed by another within {timeout:.1f} s."
                )
            self._sleep(pause)
        raise AssertionError("backoff() never ends")


def _under(prefix: str, keys: Mapping[str, Entry]) -> _Keys:
    return {key: entry for key, entry in keys.items() if key == prefix or key.startswith(f"{prefix}/")}


def _encode(keys: Mapping[str, Entry], version: int) -> bytes:
    table = {key: [base64.b64encode(entry.value).decode(), entry.token, entry.order] for key, entry in keys.items()}
    return json.dumps({"rdzv": _SCHEMA, "version": version, "keys": table}, separators=(",", ":")).encode()


def _decode(data: bytes) -> tuple[_Keys, int]:
    try:
        value: Any = json.loads(data)
        if value["rdzv"] != _SCHEMA or type(value["version"]) is not int:
            raise ValueError("another schema")
        keys = {
            str(key): Entry(base64.b64decode(text, validate=True), int(token), int(order))
            for key, (text, token, order) in value["keys"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RendezvousStateError(f"The register holds what rdzv did not write ({error!r}): {data[:80]!r}") from error
    return keys, value["version"]
