"""The key-value store that the members of a round share: PyTorch's `Store` over any service with keys.

Every key of the user is one key of the backend. Every change of it (`set` too) is a loop of conditional
writes, so it takes effect exactly once, whichever others write and whichever replies are lost: a request that
hangs somewhere and is applied much later finds its condition broken. The first write is tried as if the key
were new; so a new key costs one call, and one that is there another, which comes after what the first has found.
"""

import copy
import itertools
import operator
import random
import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from rdzv_core.backend import MAX_KEY, MAX_PAYLOAD, KeyValueBackend, check_payload
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError, RendezvousTimeoutError
from rdzv_core.keys import escape, unescape
from rdzv_core.store import Store
from rdzv_core.text import listed, printable

from .engine.client import DecodedSnapshot, RetryingClient, VersionedValue, backoff
from .engine.removable import RemovableKeys

__all__ = ["KeyValueStore", "PrefixStore"]

_CALL: Final = 1.0
"""Seconds that the service gets to answer even if the store's timeout is shorter: that one limits how
long to wait for the other members, and may well be zero."""

_EMPTY: Final = "="
_QUEUE: Final = "=queue"
_ITEMS: Final = "=items"
"""Segments that `escape` never makes: the key ``""``, a queue (below the key that names it), and the
items of all queues."""

_ITEM: Final = 8
"""Bytes of an item's id. A queue is the row of them, in the order in which they were pushed."""

_LONGEST: Final = 1e8
"""Seconds, three years: a lock of the system's takes no more than its clock does."""

_NUMBER: Final = re.compile(rb"\s*[+-]?[0-9]{1,19}\s*")


class KeyValueStore(Store):
    """A `Store` over any backend with keys, whose methods are described there. Any number of threads may share it.

    It answers as PyTorch's TCPStore does, except that it refuses what that one gets wrong: adding to
    what merely begins like a number, a sum beyond 64 bits, and reading a queue as if it were a value.
    """

    def __init__(
        self,
        backend: KeyValueBackend,
        prefix: str = "rounds",
        *,
        timeout: timedelta = timedelta(seconds=300),
        writer: str | None = None,
    ) -> None:
        """Keep everything under `prefix`, which is a key of the backend.

        Args:
            backend: Where.
            prefix: One or more segments, escaped.
            timeout: How long to wait for other members and for the service, and to try a write that others overtake.
            writer: The id under which to write; None: one of its own.
        """
        self._client = RetryingClient(backend, writer or f"store-{secrets.token_hex(4)}")
        self._removable = RemovableKeys(self._client)
        self._prefix = prefix
        self._random = random.Random()  # noqa: S311 - jitter is no secret
        self.set_timeout(timeout)

    def scoped(self, name: str) -> "KeyValueStore":
        """The store `name` within this one: neither sees the other's keys.

        Args:
            name: Any text but the empty one.
        """
        return self._at(f"{self._prefix}/{escape(name)}")

    def clone(self) -> "KeyValueStore":
        return self._at(self._prefix)

    def close(self) -> None:
        """End every wait of this store, of what it was scoped from and of its clones, and close the backend."""
        self._client.close()

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta, /) -> None:
        _seconds(timeout)
        self._timeout = timeout

    def has_extended_api(self) -> bool:
        return True

    # Values.

    def set(self, key: str, value: str | bytes, /) -> None:
        self.multi_set([key], [value])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes], /) -> None:
        if len(keys) != len(values):
            raise RendezvousParameterError(f"There are {len(keys)} keys but {len(values)} values; each key needs one.")
        payloads = [self._payload(key, value) for key, value in zip(keys, values, strict=True)]
        self._write(_names(keys), payloads, self._deadline())

    def get(self, key: str, /) -> bytes:
        return self.multi_get([_name(key)])[0]

    def multi_get(self, keys: Sequence[str], /) -> list[bytes]:
        return self._values(_names(keys), time.monotonic() + _seconds(self._timeout))

    def add(self, key: str, amount: int, /) -> int:
        try:
            amount = operator.index(amount)
        except TypeError as error:
            raise TypeError(f"What is added to '{key}' is a whole number, not {amount!r}.") from error
        return self._add(_name(key), amount, self._deadline())

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes, /) -> bytes:
        path, old, new = self._path(key), self._payload(key, expected), self._payload(key, desired)
        deadline = self._deadline()
        # Expecting nothing is what a first attempt does anyway, without having looked.
        previous = self._client.read(path, deadline) if old else None
        versioned = self._update(path, lambda value: new if (value or b"") == old else None, deadline, previous)
        return old if versioned is None else versioned

    def append(self, key: str, value: str | bytes, /) -> None:
        end = self._payload(key, value)
        self._update(self._path(key), lambda value: self._payload(key, (value or b"") + end), self._deadline())

    def delete_key(self, key: str, /) -> bool:
        path, deadline = self._path(key), self._deadline()
        if self._removable.remove(path, deadline):
            return True
        previous = self._client.read(path, deadline)
        return self._update(path, lambda value: value and b"", deadline, previous, deleted=True) is not None

    # What there is.

    def check(self, keys: Sequence[str], /) -> bool:
        keys = _names(keys)
        return not keys or self._are_present(keys, self._deadline())

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None, /) -> None:
        limit = self._timeout if timeout is None else timeout
        self._await_present(_names(keys), time.monotonic() + _seconds(limit))

    def num_keys(self) -> int:
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        snapshot = self._client.read_all(self._prefix, self._deadline())
        return [key for path in snapshot.valid_entries() if (key := self._key(path)) is not None]

    # Queues. Items are keys of their own, since all of them together may exceed what one value holds.

    def queue_push(self, key: str, value: str | bytes, /) -> None:
        """Put an item at the end of a queue; see `Store.queue_push`.

        Raises:
            RendezvousParameterError: The queue is full: it holds `MAX_PAYLOAD` / 8 items.
        """
        queue, payload, item = self._queue(key), self._payload(key, value), secrets.token_bytes(_ITEM)

        def longer(versioned: bytes | None) -> bytes:
            if len(versioned or b"") + _ITEM > MAX_PAYLOAD:
                raise RendezvousParameterError(
                    f"The queue '{key}' is full: it has {MAX_PAYLOAD // _ITEM} items. Take some out, or use another."
                )
            return (versioned or b"") + item

        deadline = self._deadline()
        self._client.put(self._item(item), payload, deadline, previous=None)
        try:
            self._update(queue, longer, deadline)
        except RendezvousParameterError:
            self._client.delete(self._item(item), deadline)
            raise

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        path, started = self._queue(key), time.monotonic()
        deadline = started + (_seconds(self._timeout) if block else 0.0)
        while True:
            versioned = self._await(path, lambda snapshot: _non_empty(snapshot.get(path)), deadline)
            item = None if versioned is None else self._take(key, versioned, _for_calls(deadline))
            if item is not None:
                return item
            if time.monotonic() >= deadline:
                raise self._no_item(key, started)

    def queue_len(self, key: str, /) -> int:
        versioned = self._client.read(self._queue(key), self._deadline())
        return 0 if versioned is None else len(versioned.payload) // _ITEM

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        limit = _seconds(self._timeout if timeout is None else timeout)
        deadline = time.monotonic() + limit
        # PyTorch's names.
        counter, opened = f"{_name(key)}/num_members", f"{key}/last_member"
        calls = _for_calls(deadline)
        arrived = self._add(counter, 1, calls)
        if arrived >= world_size:
            self._write([opened], [b"1"], calls)
            return
        try:
            self._await_present([opened], deadline)
        except RendezvousTimeoutError as error:
            raise RendezvousTimeoutError(
                f"Not all {world_size} arrived at the barrier '{key}' {self._where} within {limit:.1f} s; "
                f"this was number {arrived}."
            ) from error

    # Where things are.

    @property
    def _where(self) -> str:
        """For messages."""
        return f"on backend '{self._client.backend.name}'"

    def _at(self, prefix: str) -> "KeyValueStore":
        # One service for all: closing it ends the waits of every part of the store.
        other = copy.copy(self)
        other._prefix = prefix
        return other

    def _path(self, key: str) -> str:
        name = _name(key)
        return _checked(f"{self._prefix}/{escape(name) if name else _EMPTY}", name)

    def _queue(self, key: str) -> str:
        return f"{self._path(key)}/{_QUEUE}"

    def _item(self, item: bytes) -> str:
        return f"{self._prefix}/{_ITEMS}/{item.hex()}"

    def _key(self, path: str) -> str | None:
        segment = path.removeprefix(f"{self._prefix}/")
        key = "" if segment == _EMPTY else unescape(segment)
        # What belongs to a queue or to a store within this one has another path than any key.
        return key if self._path(key) == path else None

    def _payload(self, key: str, value: str | bytes) -> bytes:
        """What is stored for a value."""
        payload = self._bytes(key, value)
        check_payload(payload, key)
        return payload

    @staticmethod
    def _bytes(key: str, value: str | bytes) -> bytes:
        if not isinstance(value, str | bytes | bytearray | memoryview):
            raise TypeError(f"The value for '{key}' is of type {type(value).__name__}; text or bytes are expected.")
        return value.encode() if isinstance(value, str) else bytes(value)

    @staticmethod
    def _check_counter(key: str, value: bytes | None) -> None:
        if value is not None and not _NUMBER.fullmatch(value):
            raise RendezvousParameterError(
                f"'{key}' holds {value[:40]!r}, to which nothing can be added: a counter holds a whole number."
            )

    def _value(self, key: str, snapshot: DecodedSnapshot) -> VersionedValue | None:
        return snapshot.get(self._path(key))

    def _presence(self, key: str, snapshot: DecodedSnapshot) -> VersionedValue | None:
        return self._value(key, snapshot) or _non_empty(snapshot.get(self._queue(key)))

    # How things are done.

    def _deadline(self) -> float:
        return _for_calls(time.monotonic() + _seconds(self._timeout))

    def _write(self, keys: Sequence[str], payloads: Sequence[bytes], deadline: float) -> None:
        for key, payload in zip(keys, payloads, strict=True):
            self._overwrite(self._path(key), payload, deadline)

    def _values(self, keys: Sequence[str], deadline: float) -> list[bytes]:
        """The values of all keys; waits until they exist."""
        found = self._find(keys, self._value, deadline)
        return [found[key].payload for key in keys]

    def _are_present(self, keys: Sequence[str], deadline: float) -> bool:
        path = self._path(keys[0]) if len(set(keys)) == 1 else self._prefix
        snapshot = self._client.read_all(path, deadline)
        return all(self._presence(key, snapshot) is not None for key in keys)

    def _await_present(self, keys: Sequence[str], deadline: float) -> None:
        self._find(keys, self._presence, deadline)

    def _lacks(self, keys: Sequence[str], started: float) -> RendezvousTimeoutError:
        """The error for keys that did not exist in time."""
        names, waited = listed([f"'{key}'" for key in keys]), time.monotonic() - started
        return RendezvousTimeoutError(f"After {waited:.1f} s '{self._prefix}' {self._where} still lacks: {names}.")

    def _no_item(self, key: str, started: float) -> RendezvousTimeoutError:
        """The error for a queue that got no item in time."""
        waited = time.monotonic() - started
        return RendezvousTimeoutError(f"After {waited:.1f} s the queue '{key}' {self._where} has no item.")

    def _find(
        self, keys: Sequence[str], find: Callable[[str, DecodedSnapshot], VersionedValue | None], deadline: float
    ) -> dict[str, VersionedValue]:
        """Find every key, waiting for one after the other; but first look at all of them, in one call."""
        keys, started = list(dict.fromkeys(keys)), time.monotonic()

        def look() -> dict[str, VersionedValue]:
            snapshot = self._client.read_all(self._prefix, _for_calls(deadline))
            return {key: versioned for key in keys if (versioned := find(key, snapshot)) is not None}

        found = look() if len(keys) > 1 else {}
        for key in [key for key in keys if key not in found]:
            versioned = self._await(self._path(key), partial(find, key), deadline)
            if versioned is None:
                # Time is up, and others may have come while this one did not.
                found = look() if len(keys) > 1 else {}
                break
            found[key] = versioned
        if missing := [key for key in keys if key not in found]:
            raise self._lacks(missing, started)
        return found

    def _await(
        self, path: str, find: Callable[[DecodedSnapshot], VersionedValue | None], deadline: float
    ) -> VersionedValue | None:
        """Wait until something is found at or under a path; None when time is up."""
        snapshot = self._client.read_all(path, _for_calls(deadline))
        return find(self._client.wait_for(lambda now: find(now) is not None, path, snapshot, deadline, _CALL))

    def _add(self, key: str, amount: int, deadline: float) -> int:
        def add(value: bytes | None) -> bytes:
            self._check_counter(key, value)
            total = int(value or 0) + amount
            if not -(2**63) <= total < 2**63:
                raise RendezvousParameterError(f"The sum {total} in '{key}' does not fit into 64 bits with a sign.")
            return b"%d" % total

        return int(self._update(self._path(key), add, deadline) or 0)

    def _overwrite(self, path: str, payload: bytes, deadline: float) -> None:
        """Replace whatever a key holds; no request that comes late does so again."""
        self._update(path, lambda _: payload, deadline)

    def _update(
        self,
        path: str,
        change: Callable[[bytes | None], bytes | None],
        deadline: float,
        previous: VersionedValue | None = None,
        *,
        deleted: bool = False,
    ) -> bytes | None:
        """Replace what a key holds by what `change` makes of it, also while other clients do the same.

        Args:
            path: Where.
            change: Takes and gives a value. Takes None if there is none; gives None to change nothing.
            deadline: Until when to try.
            previous: What the key is known to hold; None: nothing is known, so that the first attempt
                finds out (it costs no more than a read).
            deleted: Leave a tombstone.

        Returns:
            The new value; or the old one if it was not changed, None if there is none.

        Raises:
            RendezvousTimeoutError: Others changed it before each attempt, and no time for two more is left.
        """
        pauses = backoff(self._random)
        started = tried = time.monotonic()
        for attempt in itertools.count(1):
            old = None if previous is None or previous.envelope.deleted else previous.payload
            new = change(old)
            if new is None:
                return old
            applied, previous = self._removable.put(path, new, deadline, previous=previous, deleted=deleted)
            if applied:
                return new
            # After a pause the first attempt is likely to lose, but learns what to come after. The second is at once.
            if attempt % 2 == 0:
                now = time.monotonic()
                # Two more attempts take as long as these two did. Pauses shorten as the deadline comes nearer, so
                # that a call that has lost for long tries more often than one that has just begun.
                left = deadline - now - (now - tried)
                if left <= 0:
                    raise RendezvousTimeoutError(
                        f"Others changed '{path}' {self._where} before each of {attempt} attempts to do so, "
                        f"for {now - started:.1f} s. Allow a longer timeout, or let fewer write the same key at a time."
                    )
                time.sleep(min(next(pauses), left / 10))
                tried = time.monotonic()
        raise AssertionError("count() never ends")

    def _take(self, key: str, versioned: VersionedValue, deadline: float) -> bytes | None:
        """Take the first item of a queue that was seen as `versioned`; None if there is none any more."""
        taken = b""

        def rest(queue: bytes | None) -> bytes | None:
            nonlocal taken
            taken = (queue or b"")[:_ITEM]
            return queue[_ITEM:] if queue else None

        self._update(self._queue(key), rest, deadline, versioned)
        if not taken:
            return None
        # Read after it was taken: a call between an attempt's read and its write would lose most attempts.
        path = self._item(taken)
        item = self._client.read(path, deadline)
        with suppress(RendezvousConnectionError):
            # What stays behind is never seen again, and goes with the store.
            self._client.delete(path, time.monotonic() + _CALL)
        return None if item is None else item.payload


class PrefixStore(Store):
    """A store within another one, as PyTorch's: the key ``k`` is the other's key ``<prefix>/k``."""

    def __init__(self, prefix: str, store: Store) -> None:
        """Put `prefix` and a slash before every key of `store`, which may be one of PyTorch's."""
        self._prefix = prefix
        self._store = store

    @property
    def underlying_store(self) -> Store:
        """The other store."""
        return self._store

    @property
    def timeout(self) -> timedelta:
        """The other store's."""
        return self._store.timeout

    def set_timeout(self, timeout: timedelta, /) -> None:
        """Change the other store's."""
        self._store.set_timeout(timeout)

    def set(self, key: str, value: str | bytes, /) -> None:
        self._store.set(self._key(key), value)

    def get(self, key: str, /) -> bytes:
        return self._store.get(self._key(key))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes], /) -> None:
        self._store.multi_set(self._keys(keys), values)

    def multi_get(self, keys: Sequence[str], /) -> list[bytes]:
        return self._store.multi_get(self._keys(keys))

    def add(self, key: str, amount: int, /) -> int:
        return self._store.add(self._key(key), amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes, /) -> bytes:
        return self._store.compare_set(self._key(key), expected, desired)

    def append(self, key: str, value: str | bytes, /) -> None:
        self._store.append(self._key(key), value)

    def delete_key(self, key: str, /) -> bool:
        return self._store.delete_key(self._key(key))

    def check(self, keys: Sequence[str], /) -> bool:
        return self._store.check(self._keys(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None, /) -> None:
        # PyTorch's own take no None.
        self._store.wait(self._keys(keys), *(() if timeout is None else (timeout,)))

    def num_keys(self) -> int:
        """How many keys the other store has: so PyTorch's counts."""
        return self._store.num_keys()

    def list_keys(self) -> list[str]:
        """The keys of this store, without the prefix."""
        prefix = self._key("")
        return [key.removeprefix(prefix) for key in self._store.list_keys() if key.startswith(prefix)]

    def queue_push(self, key: str, value: str | bytes, /) -> None:
        self._store.queue_push(self._key(key), value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._store.queue_pop(self._key(key), block)

    def queue_len(self, key: str, /) -> int:
        return self._store.queue_len(self._key(key))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        self._store.barrier(self._key(key), world_size, timeout)

    def clone(self) -> "PrefixStore":
        return PrefixStore(self._prefix, self._store.clone())

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{_name(key)}"

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in _names(keys)]


def _names(keys: Sequence[str]) -> Sequence[str]:
    # A text is a sequence of texts, too.
    if isinstance(keys, str):
        raise TypeError(f"A list of keys is expected, not the text {keys!r}.")
    try:
        return [_name(key) for key in keys]
    except TypeError as error:
        raise TypeError(f"A list of keys is expected, each of them text, not {keys!r}.") from error


def _name(key: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"A key of the store is text, not {key!r}.")
    return key


def _checked(path: str, name: str) -> str:
    """Refuse a key that some service would refuse, before anything is sent: its queue would have a longer one still."""
    if (length := len(path) + len(_QUEUE) + 1) > MAX_KEY:
        raise RendezvousParameterError(
            f"The key '{printable(name)}' is stored under {length} characters; at most {MAX_KEY} make a key. Use a "
            "shorter one, or its digest. A character other than A-Z a-z 0-9 - _ . ~ counts for three or more."
        )
    return path


def _seconds(timeout: timedelta) -> float:
    if not isinstance(timeout, timedelta):
        raise TypeError(f"A timeout is a datetime.timedelta, not {timeout!r}.")
    return min(timeout.total_seconds(), _LONGEST)


def _for_calls(deadline: float) -> float:
    return max(deadline, time.monotonic() + _CALL)


def _non_empty(queue: VersionedValue | None) -> VersionedValue | None:
    return queue if queue and queue.payload else None
