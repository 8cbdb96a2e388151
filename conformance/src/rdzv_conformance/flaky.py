"""A backend whose calls fail at random, in every way in which a call can fail."""

import math
import random
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rdzv_core.backend import KeyValueBackend, PutOutcome, PutResult
from rdzv_core.errors import RendezvousConnectionError

from .intercept import intercepted

_T = TypeVar("_T")

FOREIGN: Final[tuple[type[Exception], ...]] = (OSError, ValueError, RuntimeError)
"""What no backend may raise, and client libraries do."""


class Errors:
    """When calls fail.

    Attributes:
        chance: The probability that a call fails, from 0 to 1; it may be changed at any time, as may
        kinds: what they raise. A put that raises has not written, and one that may have written is unknown. So it is
            with a delete on a condition, and with keys that are made at once.
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

    def around(self, name: str, work: Callable[[], Any], _arguments: tuple[Any, ...]) -> Any:
        """Do some work that fails at random: before it is done, or after. See `intercept.Around`."""
        if name == "put":
            return self._write(work, PutResult(PutOutcome.UNKNOWN))
        if name in ("delete_version", "create_all"):
            return self._write(work, PutOutcome.UNKNOWN)
        if not self.should_fail():
            return work()
        if self._rng.random() < 0.5:
            work()
        raise self.error()

    def _write(self, work: Callable[[], _T], unknown: _T) -> _T:
        if not self.should_fail():
            return work()
        how = self._rng.random()
        if how < 0.5:
            raise self.error()
        self.count += 1
        if how < 0.75:
            work()
        return unknown


def flaky(inner: KeyValueBackend, errors: Errors) -> KeyValueBackend:
    """`inner`, with everything that it declares, whose calls fail as `errors` says."""
    return intercepted(inner, errors.around)
