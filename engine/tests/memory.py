"""A coordination service in this process's memory, for tests of what stands above a backend.

It is right in every respect and wakes waiters at once. What goes wrong is up to the test: one call at a
time (`MemoryBackend.fail`), or all of them until `connect` (`MemoryBackend.disconnect`).
"""

import itertools
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from typing import ClassVar

from rdzv_core import ABSENT, ANY, Capability, Entry, Expect, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.keys import escape

from rdzv import KeyValueBackend


class Fault(Enum):
    """How a call fails."""

    REQUEST_LOST = auto()
    """The service never hears of it."""
    REPLY_LOST = auto()
    """The service does it, and the caller does not learn so."""
    DELAYED = auto()
    """The request hangs somewhere: the caller learns nothing, and the service does it when it is delivered."""


class MemoryService:
    """What is stored. Every access holds `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.entries: dict[str, Entry] = {}
        self.leases: set[MemoryLease] = set()
        self.hanging: dict[str, MemoryLease] = {}
        self._versions = itertools.count(1)

    def under(self, prefix: str) -> dict[str, Entry]:
        """The entries at or under a key."""
        with self.changed:
            return {key: entry for key, entry in self.entries.items() if key == prefix or key.startswith(f"{prefix}/")}

    def write(self, key: str, value: bytes, lease: "MemoryLease | None") -> None:
        """Store a new version."""
        version, there = next(self._versions), self.entries.get(key)
        self.entries[key] = Entry(value, version, there.order if there else version)
        self.hanging.pop(key, None)
        if lease is not None:
            self.hanging[key] = lease
        self.changed.notify_all()

    def remove(self, prefix: str) -> None:
        """Forget every key at or under one."""
        for key in self.under(prefix):
            self.remove_one(key)
        self.changed.notify_all()

    def remove_one(self, key: str) -> None:
        """Forget this key, and none under it."""
        del self.entries[key]
        self.hanging.pop(key, None)
        self.changed.notify_all()

    def end(self, lease: "MemoryLease") -> None:
        """End a lease, and with it its keys."""
        self.leases.discard(lease)
        for key in [key for key, holder in self.hanging.items() if holder is lease]:
            self.remove(key)

    def expire(self) -> None:
        """End the leases that were not kept alive."""
        for lease in [lease for lease in self.leases if lease.ends <= time.monotonic()]:
            self.end(lease)


class MemoryBackend(KeyValueBackend):
    """One client's access to a `MemoryService`.

    Attributes:
        calls: How often each method of the contract was called, leases' included.
    """

    capabilities = frozenset({Capability.WATCH, Capability.LEASE})
    unsupported: ClassVar[Mapping[Capability, str]] = dict.fromkeys(
        set(Capability) - {Capability.WATCH, Capability.LEASE}, "it lives in this process"
    )

    creates_at_once = 8

    def __init__(self, service: MemoryService | None = None, run_id: str = "run") -> None:
        self.service = service or MemoryService()
        self.calls: Counter[str] = Counter()
        self._root = f"{escape(run_id)}/"
        self._faults: defaultdict[str, deque[Fault | None]] = defaultdict(deque)
        self._delayed: list[Callable[[], object]] = []
        self._cut = ""
        self._refused: dict[str, Exception] = {}

    @property
    def name(self) -> str:
        return "memory"

    def refuse(self, error: Exception, *methods: str) -> None:
        """Raise `error` from every call of these methods, until `accept`; what waits already goes on."""
        with self.service.changed:
            self._refused |= dict.fromkeys(methods, error)

    def accept(self) -> None:
        """End what `refuse` began."""
        with self.service.changed:
            self._refused.clear()

    def fail(self, method: str, *faults: Fault | None) -> None:
        """Let the next calls of `method` fail, each in its way; None: that one goes well."""
        with self.service.changed:
            self._faults[method].extend(faults)

    def deliver(self) -> None:
        """Let the writes that were delayed reach the service."""
        delayed, self._delayed = self._delayed, []
        faults, self._faults = self._faults, defaultdict(deque)
        for write in delayed:
            write()
        self._faults = faults

    def disconnect(self, why: str = "the service is away") -> None:
        """End every call with an error, also those that wait, until `reconnect`."""
        with self.service.changed:
            self._cut = why
            self.service.changed.notify_all()

    def reconnect(self) -> None:
        """End what `disconnect` began."""
        with self.service.changed:
            self._cut = ""

    def read(self, key: str, *, timeout: float) -> Entry | None:
        with self.call("read"):
            return self.service.entries.get(self._root + key)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        with self.call("read_all"):
            return self._snapshot(prefix)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        name, key = key, self._root + key
        entries = self.service.entries
        try:
            with self.call("put"):
                there = entries.get(key)
                matches = expect is ANY or (there is None if expect is ABSENT else there and there.token == expect)
                if not matches or (lease is not None and lease not in self.service.leases):
                    return PutResult(PutOutcome.CONFLICT, there)
                self.service.write(key, value, lease if isinstance(lease, MemoryLease) else None)
                return PutResult(PutOutcome.APPLIED, entries[key])
        except _DelayedError:
            again = partial(MemoryBackend.put, self, name, value, expect=expect, lease=lease, timeout=timeout)
            self._delayed.append(again)
            return PutResult(PutOutcome.UNKNOWN)
        except _ReplyLostError:
            return PutResult(PutOutcome.UNKNOWN)

    def delete(self, prefix: str, *, timeout: float) -> None:
        with self.call("delete"):
            self.service.remove(self._root + prefix)

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        try:
            with self.call("delete_version"):
                there = self.service.entries.get(self._root + key)
                if there is None or there.token != token:
                    return PutOutcome.CONFLICT
                self.service.remove_one(self._root + key)
                return PutOutcome.APPLIED
        except _DelayedError:
            self._delayed.append(partial(MemoryBackend.delete_version, self, key, token, timeout=timeout))
        except _ReplyLostError:
            pass
        return PutOutcome.UNKNOWN

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        try:
            with self.call("create_all"):
                if any(self._root + key in self.service.entries for key in values):
                    return PutOutcome.CONFLICT
                for key, value in values.items():
                    self.service.write(self._root + key, value, None)
                return PutOutcome.APPLIED
        except _DelayedError:
            self._delayed.append(partial(MemoryBackend.create_all, self, values, timeout=timeout))
        except _ReplyLostError:
            pass
        return PutOutcome.UNKNOWN

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        deadline = time.monotonic() + timeout
        with self.call("wait"):
            while (now := self._snapshot(prefix)).entries == since.entries:
                next_event = min([deadline, *(lease.ends for lease in self.service.leases)])
                if not self.service.changed.wait(next_event - time.monotonic()) and time.monotonic() >= deadline:
                    return since
                self._check_connection()
                self.service.expire()
            return now

    def open_lease(self, ttl: float, *, timeout: float) -> "MemoryLease":
        with self.call("open_lease"):
            lease = MemoryLease(self, ttl)
            self.service.leases.add(lease)
            return lease

    def close(self) -> None:
        self.disconnect("this client is closed")

    @contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Do something to the service, under its lock and with the faults that are due."""
        with self.service.changed:
            self.calls[method] += 1
            self._check_connection()
            if method in self._refused:
                raise self._refused[method]
            fault = self._faults[method].popleft() if self._faults[method] else None
            if fault is Fault.REQUEST_LOST:
                raise RendezvousConnectionError(f"{method}: the request was lost")
            if fault is Fault.DELAYED:
                raise _DelayedError(f"{method}: the request hangs")
            self.service.expire()
            yield
            if fault is Fault.REPLY_LOST:
                raise _ReplyLostError(f"{method}: the reply was lost")

    def _snapshot(self, prefix: str) -> Snapshot:
        under = self.service.under(self._root + prefix)
        return Snapshot({key.removeprefix(self._root): entry for key, entry in under.items()})

    def _check_connection(self) -> None:
        if self._cut:
            raise RendezvousConnectionError(self._cut)


class SlowBackend(MemoryBackend):
    """Each call takes its time on the test's clock, which is the one of the store and of what it stands on.

    Attributes:
        takes: Seconds of a call.
        latest: Until when the caller was ready to wait.
    """

    takes = 0.8
    latest = 0.0

    def __init__(self, service: MemoryService) -> None:
        super().__init__(service)
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _pass(self, timeout: float) -> None:
        self.latest = max(self.latest, self.now + timeout)
        self.now += min(self.takes, timeout)

    def read(self, key: str, *, timeout: float) -> Entry | None:
        self._pass(timeout)
        return super().read(key, timeout=timeout)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        self._pass(timeout)
        return super().read_all(prefix, timeout=timeout)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        self._pass(timeout)
        return super().put(key, value, expect=expect, lease=lease, timeout=timeout)

    def delete(self, prefix: str, *, timeout: float) -> None:
        self._pass(timeout)
        super().delete(prefix, timeout=timeout)

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        self._pass(timeout)
        return super().create_all(values, timeout=timeout)

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        self._pass(timeout)
        return super().delete_version(key, token, timeout=timeout)


class MemoryLease(Lease):
    """A lease by this process's monotonic clock."""

    def __init__(self, backend: MemoryBackend, ttl: float) -> None:
        super().__init__(ttl)
        self.ends = time.monotonic() + ttl
        self._backend = backend

    def keep_alive(self, timeout: float) -> bool:
        with self._backend.call("keep_alive"):
            self.ends = time.monotonic() + self._ttl
            return self in self._backend.service.leases

    def revoke(self, timeout: float) -> None:
        with self._backend.call("revoke"):
            self._backend.service.end(self)


class _ReplyLostError(RendezvousConnectionError):
    pass


class _DelayedError(RendezvousConnectionError):
    pass
