"""The store that the members of a round share, where a TCPStore is there: torch's own calls, without a detour.

Every key of the user is one key of the TCPStore. What torch has otherwise is settled here: errors are rdzv's, a host
that is silent is waited for no longer than asked, `close` ends every wait, and a counter holds a number.
"""

import json
import operator
import re
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from rdzv.errors import (
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousParameterError,
    RendezvousTimeoutError,
)
from rdzv.store import KeyValueStore

from .backend import C10dRendezvousBackend
from .line import UnansweredError
from .run import queues_key, store_key
from .store import Store, stores

_T = TypeVar("_T")

_CALL: Final = 1.0
"""Seconds that the store gets to answer even if the timeout is shorter, which limits how long to wait for others."""
_PAUSE: Final = 0.05
"""Seconds before a call is tried again; each time twice as many, up to a second."""
_SOON: Final = 0.03
"""Seconds for which a key that is missing is looked for again and again; then a thread waits for it."""
_GLANCE: Final = 0.0005
"""Seconds until it is looked for again at first; each time twice as many."""
_KNOWN: Final = 10_000
"""Of how many counters and queues it is known that they are some."""

_NOTHING: Final = secrets.token_bytes(16)
"""A value that no key ever has."""
_NUMBER: Final = re.compile(rb"\s*[+-]?[0-9]{1,19}\s*")
_LEAST, _MOST = -(2**63), 2**63 - 1


def is_possible() -> bool:
    """Whether this version of torch has all that is needed: it lists keys, which are removed with their round."""
    return all(hasattr(stores().TCPStore, name) for name in ("list_keys", "queue_push", "multi_get"))


class RoundStore(KeyValueStore):
    """See above; the methods are described in `rdzv.Store`. Any number of threads may share it.

    A call whose connection breaks while it waits for the answer is tried again if that does no harm. If it does, as for
    `add`, `append`, `compare_set`, `delete_key` and queues, the caller gets `RendezvousConnectionError`: it may have
    been done or not. As torch's own, `set`, `multi_set`, `append` and `queue_push` do not wait for an answer; calls of
    one process take effect in their order.
    """

    def __init__(
        self,
        backend: C10dRendezvousBackend,
        prefix: str = "rounds",
        *,
        timeout: timedelta = timedelta(seconds=300),
    ) -> None:
        """Keep everything under `prefix`, in the TCPStore of `backend`; see `KeyValueStore`."""
        super().__init__(backend, prefix, timeout=timeout)
        self._backend = backend
        # Those that other objects of this process know are known to all.
        self._counters: set[str] = set()
        self._queues: set[str] = set()

    # Values.

    def set(self, key: str, value: str | bytes, /) -> None:
        raw, payload = self._raw(key), _bytes(key, value)
        self._call(lambda store: store.set(raw, payload))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes], /) -> None:
        if len(keys) != len(values):
            raise RendezvousParameterError(f"There are {len(keys)} keys but {len(values)} values; each key needs one.")
        raws, payloads = self._raws(keys), [_bytes(key, value) for key, value in zip(keys, values, strict=True)]
        if raws:
            self._call(lambda store: store.multi_set(raws, payloads))

    def get(self, key: str, /) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str], /) -> list[bytes]:
        raws, started = self._raws(keys), time.monotonic()
        deadline = started + self._timeout.total_seconds()
        while None in (found := self._peek(raws)):
            if time.monotonic() >= deadline:
                raise self._timed_out([key for key, value in zip(keys, found, strict=True) if value is None], started)
            self._await_raws(raws, deadline)
        return [value for value in found if value is not None]

    def add(self, key: str, amount: int, /) -> int:
        try:
            amount = operator.index(amount)
        except TypeError as error:
            raise TypeError(f"What is added to '{key}' is a whole number, not {amount!r}.") from error
        raw = self._raw(key)
        # torch adds to what begins like a number, and hangs up on who adds to anything else.
        if raw not in self._counters:
            (value,) = self._peek([raw])
            if value is not None and not _NUMBER.fullmatch(value):
                raise RendezvousParameterError(
                    f"'{key}' holds {value[:40]!r}, to which nothing can be added: a counter holds a whole number."
                )
            _know(self._counters, raw)
        total = amount
        if _LEAST <= amount <= _MOST:
            total = self._call(lambda store: store.add(raw, amount), repeatable=False)
            if _LEAST <= total - amount <= _MOST:
                return total
            # It went beyond the end, and begins at the other one.
            self._call(lambda store: store.add(raw, -amount), repeatable=False)
        raise RendezvousParameterError(f"The sum in '{key}' with {amount} does not fit into 64 bits with a sign.")

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes, /) -> bytes:
        raw, old, new = self._raw(key), _bytes(key, expected), _bytes(key, desired)
        return self._call(lambda store: store.compare_set(raw, old, new), repeatable=False)

    def append(self, key: str, value: str | bytes, /) -> None:
        raw, end = self._raw(key), _bytes(key, value)
        self._call(lambda store: store.append(raw, end), repeatable=False)

    def delete_key(self, key: str, /) -> bool:
        raw = self._raw(key)
        return self._call(lambda store: store.delete_key(raw), repeatable=False)

    # What there is.

    def check(self, keys: Sequence[str], /) -> bool:
        raws = self._raws(keys)
        return not raws or self._call(lambda store: store.check(raws))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None, /) -> None:
        raws, started = self._raws(keys), time.monotonic()
        deadline = started + (self._timeout if timeout is None else timeout).total_seconds()
        while raws and not self._call(lambda store: store.check(raws)):
            if time.monotonic() >= deadline:
                raise self._timed_out([key for key in dict.fromkeys(keys) if not self.check([key])], started)
            self._await_raws(raws, deadline)

    def list_keys(self) -> list[str]:
        base = self._raw("")
        return [key.removeprefix(base) for key in self._call(lambda store: store.list_keys()) if key.startswith(base)]

    # Queues.

    def queue_push(self, key: str, value: str | bytes, /) -> None:
        raw, item, name = self._raw(key), _bytes(key, value), f"{json.dumps(key)}\n".encode()
        if raw not in self._queues:
            # torch lists no queues; who removes the round finds them here.
            listed = queues_key(self._backend.root, self._prefix)
            self._call(lambda store: store.append(listed, name), repeatable=False)
            _know(self._queues, raw)
        self._call(lambda store: store.queue_push(raw, item), repeatable=False)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        raw, started = self._raw(key), time.monotonic()
        deadline = started + (self._timeout.total_seconds() if block else 0.0)
        while (item := self._call(lambda store: pop(store, raw), repeatable=False)) is None:
            if (now := time.monotonic()) >= deadline:
                raise RendezvousTimeoutError(
                    f"After {now - started:.1f} s the queue '{key}' {self._where} has no item."
                )
            self._await_raws([raw], deadline)
        return item

    def queue_len(self, key: str, /) -> int:
        raw = self._raw(key)
        return self._call(lambda store: store.queue_len(raw))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        limit = self._timeout if timeout is None else timeout
        # PyTorch's names.
        arrived = self.add(f"{key}/num_members", 1)
        if arrived >= world_size:
            self.set(f"{key}/last_member", b"1")
            return
        try:
            self.wait([f"{key}/last_member"], limit)
        except RendezvousTimeoutError as error:
            raise RendezvousTimeoutError(
                f"Not all {world_size} arrived at the barrier '{key}' {self._where} within "
                f"{limit.total_seconds():.1f} s; this was number {arrived}."
            ) from error

    # How things are done.

    def _raw(self, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"A key of the store is text, not {key!r}.")
        return store_key(self._backend.root, self._prefix, key)

    def _raws(self, keys: Sequence[str]) -> list[str]:
        if isinstance(keys, str):
            raise TypeError(f"A list of keys is expected, not the text {keys!r}.")
        try:
            return [self._raw(key) for key in keys]
        except TypeError as error:
            raise TypeError(f"A list of keys is expected, each of them text, not {keys!r}.") from error

    def _peek(self, raws: list[str]) -> list[bytes | None]:
        """What there is now. Unlike torch's own `get`, which waits first, this is one round trip for each."""
        found = self._call(lambda store: [store.compare_set(raw, _NOTHING, _NOTHING) for raw in raws])
        return [None if value == _NOTHING else value for value in found]

    def _call(self, work: Callable[[Store], _T], *, repeatable: bool = True) -> _T:
        deadline, pause = time.monotonic() + max(_CALL, self._timeout.total_seconds()), _PAUSE
        while True:
            try:
                return self._backend.call_in_order(work, deadline - time.monotonic())
            except RendezvousDeniedError:
                raise
            except RendezvousConnectionError as error:
                lost = isinstance(error, UnansweredError) and not repeatable
                if lost or time.monotonic() + pause >= deadline:
                    raise
            self._backend.check_open()
            time.sleep(pause)
            pause = min(1.0, 2 * pause)

    def _await_raws(self, raws: list[str], deadline: float) -> None:
        """Return when all keys are there, as a value or a queue, or at the deadline; or a little later or earlier."""
        pause, soon = _GLANCE, min(deadline, time.monotonic() + _SOON)
        while (remaining := soon - time.monotonic()) > 0:
            time.sleep(min(pause, remaining))
            pause *= 2
            if self._call(lambda store: store.check(raws)):
                # A queue is no value: who asks for that comes again and again.
                time.sleep(min(pause, 0.001))
                return
        if time.monotonic() < deadline:
            try:
                self._backend.await_keys(raws, deadline)
            except RendezvousDeniedError:
                raise
            except RendezvousConnectionError:
                self._backend.check_open()
                time.sleep(max(0.0, min(_PAUSE, deadline - time.monotonic())))

    def _timed_out(self, keys: list[str], started: float) -> RendezvousTimeoutError:
        more = f" and {len(keys) - 20} more" if len(keys) > 20 else ""
        listed = ", ".join(f"'{key}'" for key in keys[:20]) + more
        waited = time.monotonic() - started
        return RendezvousTimeoutError(f"After {waited:.1f} s '{self._prefix}' {self._where} still lacks: {listed}.")


def pop(store: Store, raw: str) -> bytes | None:
    """Take the first item out of a queue; None if there is none."""
    try:
        return store.queue_pop(raw, False)
    except stores().QueueEmptyError:
        return None


def _know(names: set[str], name: str) -> None:
    if len(names) >= _KNOWN:
        names.clear()
    names.add(name)


def _bytes(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"The value for '{key}' is of type {type(value).__name__}; text or bytes are expected.")
