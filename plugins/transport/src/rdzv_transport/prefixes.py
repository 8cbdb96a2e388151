"""What a client knows of each prefix: shared by those who ask for it, and kept for a while when no call does."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

_T = TypeVar("_T")


def contains(prefix: str, key: str) -> bool:
    """Whether `key` is at or under `prefix`."""
    return key == prefix or key.startswith(f"{prefix}/")


class _Kept(Generic[_T]):
    """What is known of one prefix."""

    def __init__(self, thing: _T) -> None:
        self.thing = thing
        self.users = 0
        self.used_at = 0.0


class Prefixes(Generic[_T]):
    """See above.

    Args:
        make: Makes it for a prefix.
        retire: Ends it, since no call uses it. It is called under a lock, so that what is made anew comes after.
        idle: How many are kept though no call uses them now: those that were used last.
    """

    def __init__(self, make: Callable[[str], _T], retire: Callable[[_T], None], *, idle: int) -> None:
        self._make = make
        self._retire = retire
        self._idle = idle
        self._lock = threading.Lock()
        self._by_prefix: dict[str, _Kept[_T]] = {}

    @contextmanager
    def using(self, prefix: str) -> Iterator[_T]:
        """What is known of `prefix`, which is kept meanwhile."""
        now = time.monotonic()
        used: _Kept[_T] | None = None
        try:
            with self._lock:
                kept = self._by_prefix.get(prefix) or _Kept(self._make(prefix))
                # From here to `used`, no call that an interrupt can follow: it must not leave a prefix in use. And
                # it is never taken out in between: news comes at any moment.
                self._by_prefix[prefix] = kept
                kept.used_at = now
                kept.users += 1
                used = kept
                self._drop_idle()
            yield kept.thing
        finally:
            with self._lock:
                if used:
                    used.users -= 1
                if not self._idle:
                    self._drop_idle()

    def all(self) -> list[_T]:
        """What is known of all that are kept."""
        return [kept.thing for kept in list(self._by_prefix.values())]

    def close(self) -> None:
        """Keep none any more that is not in use."""
        with self._lock:
            self._idle = 0
            self._drop_idle()

    def _drop_idle(self) -> None:
        idle = sorted((kept.used_at, prefix) for prefix, kept in self._by_prefix.items() if not kept.users)
        for _, prefix in idle[: max(0, len(idle) - self._idle)]:
            self._retire(self._by_prefix.pop(prefix).thing)
