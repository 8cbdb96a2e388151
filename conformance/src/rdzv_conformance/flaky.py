"""A backend whose calls fail at random, in every way in which a call can fail."""

import math
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from rdzv.backend import Entry, Expect, KeyValueBackend, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv.errors import RendezvousConnectionError

__all__ = ["FOREIGN", "Errors", "FlakyBackend", "flaky"]

_R = TypeVar("_R")

FOREIGN: Final[tuple[type[Exception], ...]] = (OSError, ValueError, RuntimeError)
"""What no backend may raise, and client libraries do."""


class Errors:
    """When calls fail.

    Attributes:
        chance: The probability that a call fails, from 0 to 1; it may be changed at any time, as may
        kinds: what they raise. A put that raises has not written, and one that may have written is unknown.
        count: How many calls have failed.
        last: When the last one did, on the monotonic clock, in seconds.
    """

    def __init__(self, rng: random.Random, chance: float = 0.0) -> None:
        """Begin with `chance`; all chance comes from `rng`."""
        self.chance = chance
        self.kinds: tuple[type[Exception], ...] = (RendezvousConnectionError, *FOREIGN)
        self.count = 0
        self.last = -math.inf
        self._rng = rng

    def should_fail(self) -> bool:
        """Whether this one fails."""
        return self._rng.random() < self.chance

    def error(self) -> Exception:
        """One of the errors."""
        self.count, self.last = self.count + 1, time.monotonic()
        return self._rng.choice(self.kinds)("raised at random")

    def call(self, work: Callable[[], _R]) -> _R:
        """Do some work that fails at random: before it is done, or after."""
        if not self.should_fail():
            return work()
        if self._rng.random() < 0.5:
            work()
        raise self.error()

    def put(self, work: Callable[[], PutResult]) -> PutResult:
        """The same for a put."""
        if not self.should_fail():
            return work()
        how = self._rng.random()
        if how < 0.5:
            raise self.error()
        self.count += 1
        if how < 0.75:
            work()
        return PutResult(PutOutcome.UNKNOWN)


def flaky(inner: KeyValueBackend, errors: Errors) -> "FlakyBackend":
    """`inner`, with everything that it declares, whose calls fail as `errors` says."""
    declared = {name: getattr(inner, name) for name in ("capabilities", "unsupported", "min_lease_ttl")}
    kind: type[FlakyBackend] = type(FlakyBackend.__name__, (FlakyBackend,), declared)
    return kind(inner, errors)


class FlakyBackend(KeyValueBackend):
    """See `flaky`."""

    def __init__(self, inner: KeyValueBackend, errors: Errors) -> None:
        """See `flaky`."""
        self._inner = inner
        self._errors = errors

    @property
    def name(self) -> str:
        """See `RendezvousBackend.name`."""
        return self._inner.name

    @property
    def local_address(self) -> str:
        """See `KeyValueBackend.local_address`."""
        return self._inner.local_address

    def read(self, key: str, *, timeout: float) -> Entry | None:
        """See `KeyValueBackend.read`."""
        return self._errors.call(lambda: self._inner.read(key, timeout=timeout))

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend.read_all`."""
        return self._errors.call(lambda: self._inner.read_all(prefix, timeout=timeout))

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        """See `KeyValueBackend.put`."""
        held = lease._inner if isinstance(lease, _FlakyLease) else lease
        return self._errors.put(lambda: self._inner.put(key, value, expect=expect, lease=held, timeout=timeout))

    def delete(self, prefix: str, *, timeout: float) -> None:
        """See `KeyValueBackend.delete`."""
        self._errors.call(lambda: self._inner.delete(prefix, timeout=timeout))

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        return self._errors.call(lambda: self._inner.wait(prefix, since, timeout=timeout))

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        """See `KeyValueBackend.open_lease`."""
        return _FlakyLease(self._errors.call(lambda: self._inner.open_lease(ttl, timeout=timeout)), self._errors)

    def close(self) -> None:
        """See `KeyValueBackend.close`."""
        self._inner.close()


class _FlakyLease(Lease):
    def __init__(self, inner: Lease, errors: Errors) -> None:
        self._inner = inner
        self._errors = errors

    @property
    def ttl(self) -> float:
        """See `Lease.ttl`."""
        return self._inner.ttl

    def keep_alive(self, timeout: float) -> bool:
        """See `Lease.keep_alive`."""
        return self._errors.call(lambda: self._inner.keep_alive(timeout))

    def revoke(self, timeout: float) -> None:
        """See `Lease.revoke`."""
        self._errors.call(lambda: self._inner.revoke(timeout))
