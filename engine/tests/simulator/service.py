"""A service in virtual time: a key-value backend that applies each call at one instant."""

import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final

from rdzv_core import ABSENT, ANY, Capability, Entry, Expect, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.backend import MAX_PAYLOAD
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv import KeyValueBackend

from .clock import Timeline

__all__ = ["Refusal", "SimulatedService", "Waiter"]


CREATES: Final = 128
"""How many keys it makes in one step, as etcd does by default."""


class Refusal(Enum):
    """What a service refuses to a client: the kinds of calls, as `SimulatedService.calls` names them."""

    NOTHING = frozenset[str]()
    KEYS = frozenset({"put", "create_all", "delete"})
    WRITES = frozenset({"put", "create_all", "delete", "open_lease", "keep_alive", "revoke"})
    ALL = WRITES | {"read", "read_all", "wait"}


@dataclass(eq=False)
class Waiter:
    """A client that waits for a prefix to differ from what it has seen.

    Attributes:
        prefix: What is watched: a first segment of keys.
        since: What was seen.
        changed: Called once when it differs, with what it holds now.
        broke: Called instead when the service goes away.
    """

    prefix: str
    since: Snapshot
    changed: Callable[[Snapshot], None]
    broke: Callable[[], None]


@dataclass
class _Folder:
    """All keys with the same first segment."""

    keys: dict[str, Entry] = field(default_factory=dict)
    waiters: dict[Waiter, None] = field(default_factory=dict)
    versions: list[int] = field(default_factory=lambda: [0])
    bytes_until: list[int] = field(default_factory=lambda: [0])
    snapshot: Snapshot | None = None

    def note(self, version: int, size: int) -> None:
        """Something has changed."""
        self.snapshot = None
        self.versions.append(version)
        self.bytes_until.append(self.bytes_until[-1] + size)

    def read(self) -> Snapshot:
        """Everything, as one value that all readers share until something changes."""
        if self.snapshot is None:
            self.snapshot = Snapshot(dict(self.keys), self.versions[-1])
        return self.snapshot

    def bytes_since(self, version: int) -> int:
        """The size of all changes after a version, as a watch brings them."""
        return self.bytes_until[-1] - self.bytes_until[bisect(self.versions, version) - 1]


class SimulatedService(KeyValueBackend):
    """The service that all simulated nodes share. Delays and losses are the network's, not its own.

    Attributes:
        calls: How many calls of each kind it has answered.
        bytes: How many bytes of keys and values went in and out.
        wrote: Called after each write.
        lost: Called with the keys that vanish with their lease, and with whether it has run out.
        forgot_at: When it forgot everything last.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.WATCH, Capability.LEASE, Capability.DURABLE})
    unsupported: ClassVar[Mapping[Capability, str]] = dict.fromkeys(
        (Capability.MULTI_ENDPOINT, Capability.TLS, Capability.AUTH), "it is simulated"
    )

    def __init__(
        self, timeline: Timeline, *, leases_sleep: bool = True, lag: float = 0.0, creates_at_once: int = CREATES
    ) -> None:
        """Begin empty.

        Args:
            timeline: Virtual time.
            leases_sleep: Whether time stands still for leases while the service is down (etcd), or
                they run out meanwhile.
            lag: Seconds between the end of a lease and its keys' vanishing.
            creates_at_once: See `KeyValueBackend`.
        """
        self._timeline = timeline
        self._leases_sleep = leases_sleep
        self._lag = lag
        self._version = 0
        self._folders: dict[str, _Folder] = {}
        self._leases: dict[_SimulatedLease, None] = {}
        self._owners: dict[str, _SimulatedLease] = {}
        self._down_since: float | None = None
        self._frozen = False
        self._refused = Refusal.NOTHING.value
        self.calls: Counter[str] = Counter()
        self.bytes = 0
        self.forgot_at = -math.inf
        self.creates_at_once = creates_at_once
        self.wrote: Callable[[str, bytes], None] = lambda key, value: None
        self.lost: Callable[[list[str], bool], None] = lambda keys, has_run_out: None

    @property
    def name(self) -> str:
        """See `KeyValueBackend`."""
        return "simulated"

    @property
    def down(self) -> bool:
        """Whether it is out of reach."""
        return self._down_since is not None

    @property
    def breaks_watches(self) -> bool:
        """Whether it is away and not only frozen; there a wait goes on with the stream that it has."""
        return self.down and not self._frozen

    # What happens to it.

    @contextmanager
    def refusing(self, kinds: frozenset[str]) -> Iterator[None]:
        """Within this, refuse such calls: they are of one client."""
        self._refused = kinds
        try:
            yield
        finally:
            self._refused = Refusal.NOTHING.value

    def stop(self, *, frozen: bool = False) -> None:
        """Go away; every watch breaks. One that is frozen keeps them, and tells them what has happened afterwards."""
        if self.down:
            return
        self._down_since, self._frozen = self._timeline.now, frozen
        if frozen:
            return
        for folder in self._folders.values():
            waiters, folder.waiters = folder.waiters, {}
            for waiter in waiters:
                waiter.broke()

    def start(self) -> None:
        """Come back with everything that was written."""
        if self._down_since is None:
            return
        gone, self._down_since = self._timeline.now - self._down_since, None
        for lease in list(self._leases):
            if self._leases_sleep:
                lease.until += gone
            if not lease.awaited:
                self._look_at(lease)

    def forget(self) -> None:
        """Lose every key and every lease, as a service without a disk does."""
        self.forgot_at = self._timeline.now
        self._leases.clear()
        self._remove(self.everything())

    def overwrite(self, key: str, value: bytes) -> bytes | None:
        """Let another client write over a key; returns what was there, None if there is no such key."""
        folder = self._folder(key)
        there = folder.keys.get(key)
        if there is None:
            return None
        self._version += 1
        folder.keys[key] = Entry(value, self._version, there.order)
        self._changed(folder, len(key) + len(value))
        return there.value

    def everything(self) -> Mapping[str, bytes]:
        """What it holds."""
        return {key: entry.value for folder in self._folders.values() for key, entry in folder.keys.items()}

    def holds(self, key: str) -> bool:
        """Whether a key is there, on a lease that has ended or not."""
        return key in self._folder(key).keys

    # What clients call.

    def read(self, key: str, *, timeout: float) -> Entry | None:
        """See `KeyValueBackend`."""
        self.count("read", len(key))
        found = self._folder(key).keys.get(key)
        self.bytes += len(found.value) if found else 0
        return found

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend`."""
        self.count("read_all", len(prefix))
        everything = self._folder(prefix).read()
        found = {key: entry for key, entry in everything.entries.items() if _under(prefix, key)}
        self.bytes += sum(len(key) + len(entry.value) for key, entry in found.items())
        return everything if "/" not in prefix else Snapshot(found, everything.revision)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        """See `KeyValueBackend`."""
        self.count("put", len(key) + len(value))
        folder = self._folder(key)
        there = folder.keys.get(key)
        lost = lease is not None and lease not in self._leases
        if lost or (expect is not ANY and (ABSENT if there is None else there.token) != expect):
            self.bytes += len(there.value) if there else 0
            return PutResult(PutOutcome.CONFLICT, there)
        self._version += 1
        entry = Entry(value, self._version, self._version if there is None else there.order)
        folder.keys[key] = entry
        self._hang(key, lease)
        self._changed(folder, len(key) + len(value))
        self.wrote(key, value)
        return PutResult(PutOutcome.APPLIED, entry)

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        """See `KeyValueBackend`."""
        assert len(values) <= self.creates_at_once
        assert sum(map(len, values.values())) <= MAX_PAYLOAD + 1024 * len(values)
        self.count("create_all", sum(len(key) + len(value) for key, value in values.items()))
        if any(self.holds(key) for key in values):
            return PutOutcome.CONFLICT
        self._version += 1
        for key, value in values.items():
            folder = self._folder(key)
            folder.keys[key] = Entry(value, self._version, self._version)
            self._changed(folder, len(key) + len(value))
            self.wrote(key, value)
        return PutOutcome.APPLIED

    def delete(self, prefix: str, *, timeout: float) -> None:
        """See `KeyValueBackend`."""
        self.count("delete", len(prefix))
        self._remove([key for key in self._folder(prefix).keys if _under(prefix, key)])

    def watch(self, waiter: Waiter) -> None:
        """Wake the waiter as soon as what it waits for is different from what it has seen."""
        if not self.down:
            self.count("wait", len(waiter.prefix))
        folder = self._folder(waiter.prefix)
        if folder.versions[-1] > waiter.since.revision:
            self._wake(folder, waiter)
        else:
            folder.waiters[waiter] = None

    def unwatch(self, waiter: Waiter) -> None:
        """The wait is over."""
        self._folder(waiter.prefix).waiters.pop(waiter, None)

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        """See `KeyValueBackend`."""
        self.count("open_lease", 8)
        lease = _SimulatedLease(self, ttl, self._timeline.now + ttl)
        self._leases[lease] = None
        self._look_at(lease)
        return lease

    def renew(self, lease: "_SimulatedLease") -> bool:
        """Start a lease's time anew; False if it has ended."""
        self.count("keep_alive", 8)
        lease.until = self._timeline.now + lease.ttl
        return lease in self._leases

    def revoke(self, lease: "_SimulatedLease") -> None:
        """End a lease, because its owner wants it."""
        self.count("revoke", 8)
        self._end(lease)

    def close(self) -> None:
        """See `KeyValueBackend`."""

    def count(self, kind: str, size: int) -> None:
        """Note a call, unless the service is away."""
        if self.down:
            raise RendezvousConnectionError("The service is down.")
        if kind in self._refused:
            raise RendezvousDeniedError(f"The service refuses a {kind}.")
        self.calls[kind] += 1
        self.bytes += size

    # How it works.

    def _folder(self, key: str) -> _Folder:
        return self._folders.setdefault(key.partition("/")[0], _Folder())

    def _hang(self, key: str, lease: Lease | None) -> None:
        before = self._owners.pop(key, None)
        if before is not None:
            before.keys.pop(key)
        if isinstance(lease, _SimulatedLease):
            self._owners[key] = lease
            lease.keys[key] = None

    def _changed(self, folder: _Folder, size: int) -> None:
        folder.note(self._version, size)
        waiters, folder.waiters = folder.waiters, {}
        for waiter in waiters:
            self._wake(folder, waiter)

    def _wake(self, folder: _Folder, waiter: Waiter) -> None:
        self.bytes += folder.bytes_since(waiter.since.revision)
        waiter.changed(folder.read())

    def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._version += 1
            folder = self._folder(key)
            del folder.keys[key]
            self._hang(key, None)
            self._changed(folder, len(key))

    def _look_at(self, lease: "_SimulatedLease") -> None:
        """End a lease whose time is over; else look again when it will be."""
        lease.awaited = False
        if lease not in self._leases or self.down:
            return
        if lease.until + self._lag > self._timeline.now:
            lease.awaited = True
            self._timeline.at(lease.until + self._lag, self._look_at, lease)
        else:
            self._end(lease, has_run_out=True)

    def _end(self, lease: "_SimulatedLease", *, has_run_out: bool = False) -> None:
        self._leases.pop(lease, None)
        self.lost(list(lease.keys), has_run_out)
        self._remove(list(lease.keys))


class _SimulatedLease(Lease):
    def __init__(self, service: SimulatedService, ttl: float, until: float) -> None:
        super().__init__(ttl)
        self._service = service
        self.until = until
        self.awaited = False
        self.keys: dict[str, None] = {}

    def keep_alive(self, timeout: float) -> bool:
        return self._service.renew(self)

    def revoke(self, timeout: float) -> None:
        self._service.revoke(self)


def _under(prefix: str, key: str) -> bool:
    return key == prefix or key.startswith(f"{prefix}/")
