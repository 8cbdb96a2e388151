"""The store that the members of a round share, where a TCPStore is there: torch's own calls, without a detour.

Every key of the user is one key of the TCPStore. What torch has otherwise is settled here: errors are rdzv's, a host
that is silent is waited for no longer than asked, `close` ends every wait, and a counter holds a number.
"""

import json
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from rdzv.store import KeyValueStore
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousParameterError

from .backend import C10dRendezvousBackend
from .layout import queues_key, store_key
from .line import UnansweredError
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
_LEAST, _MOST = -(2**63), 2**63 - 1
_LARGEST: Final = 8 << 20
"""Bytes of a value that torch's server takes."""


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

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes, /) -> bytes:
        raw, old, new = self._path(key), self._payload(key, expected), self._payload(key, desired)
        self._counters.discard(raw)
        return self._call(lambda store: store.compare_set(raw, old, new), self._deadline(), repeatable=False)

    def append(self, key: str, value: str | bytes, /) -> None:
        raw, end = self._path(key), self._payload(key, value)
        self._counters.discard(raw)
        self._call(lambda store: store.append(raw, end), self._deadline(), repeatable=False)

    def delete_key(self, key: str, /) -> bool:
        raw = self._path(key)
        return self._call(lambda store: store.delete_key(raw), self._deadline(), repeatable=False)

    # What there is.

    def list_keys(self) -> list[str]:
        base = self._path("")
        there = self._call(lambda store: store.list_keys(), self._deadline())
        return [key.removeprefix(base) for key in there if key.startswith(base)]

    # Queues.

    def queue_push(self, key: str, value: str | bytes, /) -> None:
        raw, item, name = self._path(key), self._payload(key, value), f"{json.dumps(key)}\n".encode()
        deadline = self._deadline()
        if raw not in self._queues:
            # torch lists no queues; who removes the round finds them here.
            listed = queues_key(self._backend.root, self._prefix)
            self._call(lambda store: store.append(listed, name), deadline, repeatable=False)
            _know(self._queues, raw)
        self._call(lambda store: store.queue_push(raw, item), deadline, repeatable=False)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        raw, started = self._path(key), time.monotonic()
        deadline = started + (self._timeout.total_seconds() if block else 0.0)

        def look() -> bytes | None:
            return self._call(lambda store: pop(store, raw), deadline, repeatable=False)

        item = self._until_found(look, [raw], deadline)
        if item is None:
            raise self._no_item(key, started)
        return item

    def queue_len(self, key: str, /) -> int:
        raw = self._path(key)
        return self._call(lambda store: store.queue_len(raw), self._deadline())

    # How things are done.

    def _path(self, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"A key of the store is text, not {key!r}.")
        return store_key(self._backend.root, self._prefix, key)

    def _payload(self, key: str, value: str | bytes) -> bytes:
        payload = self._bytes(key, value)
        if len(payload) > _LARGEST:
            raise RendezvousParameterError(
                f"The value for '{key}' has {len(payload)} bytes; a TCPStore takes {_LARGEST}, and hangs up on more."
            )
        return payload

    def _write(self, keys: Sequence[str], payloads: Sequence[bytes], deadline: float) -> None:
        raws, values = [self._path(key) for key in keys], list(payloads)
        self._counters.difference_update(raws)
        if raws:
            self._call(lambda store: store.multi_set(raws, values), deadline)

    def _add(self, key: str, amount: int, deadline: float) -> int:
        raw = self._path(key)
        # torch adds to what begins like a number, and hangs up on who adds to anything else.
        value: bytes | None = None
        if raw not in self._counters or abs(amount) > _MOST // 2:
            value = self._call(lambda store: _present(store, [raw])[0], deadline)
            self._check_counter(key, value)
            _know(self._counters, raw)
        if _LEAST <= amount <= _MOST and _LEAST <= int(value or 0) + amount <= _MOST:
            total = self._call(lambda store: store.add(raw, amount), deadline, repeatable=False)
            if _LEAST <= total - amount <= _MOST:
                return total
            # It went beyond the end, and begins at the other one. Back in two steps: the least amount has no opposite.
            half, rest = amount // 2, amount - amount // 2
            self._call(lambda store: store.add(raw, -half), deadline, repeatable=False)
            self._call(lambda store: store.add(raw, -rest), deadline, repeatable=False)
        raise RendezvousParameterError(f"The sum in '{key}' with {amount} does not fit into 64 bits with a sign.")

    def _values(self, keys: Sequence[str], deadline: float) -> list[bytes]:
        raws, started = [self._path(key) for key in keys], time.monotonic()

        def look() -> list[bytes] | None:
            found = self._call(lambda store: _present(store, raws), deadline)
            return None if None in found else [value for value in found if value is not None]

        values = self._until_found(look, raws, deadline) if keys else []
        if values is None:
            # One may be there, and be a queue.
            raise self._lacks(self._missing(keys, deadline) or keys, started)
        return values

    def _are_present(self, keys: Sequence[str], deadline: float) -> bool:
        raws = [self._path(key) for key in keys]
        return self._call(lambda store: store.check(raws), deadline)

    def _missing(self, keys: Sequence[str], deadline: float) -> list[str]:
        return [key for key in dict.fromkeys(keys) if not self._are_present([key], deadline)]

    def _await_present(self, keys: Sequence[str], deadline: float) -> None:
        raws, started = [self._path(key) for key in keys], time.monotonic()
        while keys and not self._are_present(keys, deadline):
            if time.monotonic() >= deadline:
                raise self._lacks(self._missing(keys, deadline), started)
            self._await_raws(raws, deadline)

    def _call(self, work: Callable[[Store], _T], deadline: float, *, repeatable: bool = True) -> _T:
        """Ask the store, until a deadline or for a moment: it limits how long to wait for others, and may be over."""
        pause, deadline = _PAUSE, max(deadline, time.monotonic() + _CALL)
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

    def _until_found(self, look: Callable[[], _T | None], raws: list[str], deadline: float) -> _T | None:
        """What there is as soon as there is something; None: there was nothing until the deadline."""
        # A key may be there and not be what is looked for: a queue for a value, or what another has taken at once.
        pause = 0.0
        while (found := look()) is None and (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, remaining))
            self._await_raws(raws, deadline)
            pause = min(_PAUSE, max(_GLANCE, 2 * pause))
        return found

    def _await_raws(self, raws: list[str], deadline: float) -> None:
        """Return when all keys are there, as a value or a queue, or at the deadline; or a little later or earlier."""
        pause, soon = _GLANCE, min(deadline, time.monotonic() + _SOON)
        while (remaining := soon - time.monotonic()) > 0:
            time.sleep(min(pause, remaining))
            pause *= 2
            if self._call(lambda store: store.check(raws), deadline):
                return
        if time.monotonic() < deadline:
            try:
                self._backend.await_keys(raws, deadline)
            except RendezvousDeniedError:
                raise
            except RendezvousConnectionError:
                self._backend.check_open()
                time.sleep(max(0.0, min(_PAUSE, deadline - time.monotonic())))


def _present(store: Store, raws: list[str]) -> list[bytes | None]:
    """The values of keys; one is None while a key is missing, and of what is no value."""
    # All who wait for a key would wake if it were read before it is there (see `peek`).
    return [_value(store, raw) for raw in raws] if store.check(raws) else [None]


def _value(store: Store, raw: str) -> bytes | None:
    found = store.compare_set(raw, _NOTHING, _NOTHING)
    return None if found == _NOTHING else found


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
