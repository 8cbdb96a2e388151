"""A service in virtual time: a level-2 backend that applies each call at one instant."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rdzv import (
    ABSENT,
    ANY,
    Capability,
    Entry,
    Expect,
    KeyValueBackend,
    Lease,
    Outcome,
    Put,
    RendezvousConnectionError,
    Snapshot,
    Token,
)

from .clock import Timeline

__all__ = ["SimulatedService", "Waiter", "under"]


def under(prefix: str, key: str) -> bool:
    """Whether `key` is at or under `prefix`."""
    return key == prefix or key.startswith(f"{prefix}/")


@dataclass(eq=False)
class Waiter:
    """Somebody who waits for a prefix to differ from what he has seen."""

    prefix: str
    since: Snapshot
    wake: Callable[[], None]


class SimulatedService(KeyValueBackend):
    """The service that all simulated nodes share. Delays and losses are the network's, not its own."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.WATCH, Capability.LEASE, Capability.DURABLE})
    lacking: ClassVar[Mapping[Capability, str]] = dict.fromkeys(
        (Capability.MULTI_ENDPOINT, Capability.TLS, Capability.AUTH), "it is simulated"
    )

    def __init__(self, timeline: Timeline, *, leases_sleep: bool) -> None:
        """Begin empty.

        Args:
            timeline: Virtual time.
            leases_sleep: Whether time stands still for leases while the service is down (etcd), or
                they run out meanwhile.
        """
        self._timeline = timeline
        self._leases_sleep = leases_sleep
        self._version = 0
        self._keys: dict[str, tuple[Entry, _SimulatedLease | None]] = {}
        self._leases: set[_SimulatedLease] = set()
        self._waiters: list[Waiter] = []
        self._down_since: float | None = None
        self.calls: dict[str, int] = {}
        self.watched: Callable[[str, bytes], None] = lambda key, value: None

    @property
    def name(self) -> str:
        """See `KeyValueBackend`."""
        return "simulated"

    @property
    def down(self) -> bool:
        """Whether nobody can reach it."""
        return self._down_since is not None

    def stop(self) -> None:
        """Go away."""
        if not self.down:
            self._down_since = self._timeline.now

    def start(self) -> None:
        """Come back with everything that was written."""
        if self._down_since is None:
            return
        gone, self._down_since = self._timeline.now - self._down_since, None
        for lease in self._leases:
            if self._leases_sleep:
                lease.until += gone
            self._expire_later(lease)
        self._wake("")

    def read(self, key: str, *, timeout: float) -> Entry | None:
        """See `KeyValueBackend`."""
        self._count("read")
        found = self._keys.get(key)
        return found[0] if found else None

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend`."""
        self._count("read_all")
        return self.snapshot(prefix)

    def snapshot(self, prefix: str) -> Snapshot:
        """What is at or under `prefix` now, uncounted."""
        return Snapshot({key: entry for key, (entry, _) in self._keys.items() if under(prefix, key)}, self._version)

    def put(self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float) -> Put:
        """See `KeyValueBackend`."""
        self._count("put")
        there = self._keys[key][0] if key in self._keys else None
        if lease is not None and (not isinstance(lease, _SimulatedLease) or lease not in self._leases):
            return Put(Outcome.LOST, there)
        if expect is not ANY and (ABSENT if there is None else there.token) != expect:
            return Put(Outcome.LOST, there)
        self._version += 1
        entry = Entry(value, self._version, self._version if there is None else there.order)
        self._keys[key] = (entry, lease if isinstance(lease, _SimulatedLease) else None)
        self._wake(key)
        self.watched(key, value)
        return Put(Outcome.WON, entry)

    def delete(self, prefix: str, *, timeout: float) -> None:
        """See `KeyValueBackend`."""
        self._count("delete")
        self._remove([key for key in self._keys if under(prefix, key)])

    def wait_later(self, waiter: Waiter) -> None:
        """Wake the waiter as soon as what it waits for is different from what it has seen."""
        self._count("wait")
        self._waiters.append(waiter)
        self._wake(waiter.prefix)

    def forget(self, waiter: Waiter) -> None:
        """Nobody waits any more."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        """See `KeyValueBackend`."""
        self._count("open_lease")
        lease = _SimulatedLease(self, ttl, self._timeline.now + ttl)
        self._leases.add(lease)
        self._expire_later(lease)
        return lease

    def close(self) -> None:
        """See `KeyValueBackend`."""

    def renew(self, lease: "_SimulatedLease") -> bool:
        """Start a lease's time anew; False if it has ended."""
        self._count("keep_alive")
        if lease not in self._leases:
            return False
        lease.until = self._timeline.now + lease.ttl
        self._expire_later(lease)
        return True

    def end(self, lease: "_SimulatedLease") -> None:
        """End a lease and remove its keys."""
        self._leases.discard(lease)
        self._remove([key for key, (_, owner) in self._keys.items() if owner is lease])

    def _expire_later(self, lease: "_SimulatedLease") -> None:
        def expire() -> None:
            if lease in self._leases and lease.until <= self._timeline.now and not self.down:
                self.end(lease)

        self._timeline.at(lease.until, expire)

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            self._version += 1
            del self._keys[key]
        for key in keys:
            self._wake(key)

    def _wake(self, key: str) -> None:
        if self.down:
            return
        for waiter in list(self._waiters):
            changed = not key or under(waiter.prefix, key)
            if changed and self.snapshot(waiter.prefix).entries != waiter.since.entries:
                self._waiters.remove(waiter)
                waiter.wake()

    def _count(self, kind: str) -> None:
        if self.down:
            raise RendezvousConnectionError("The service is down.")
        self.calls[kind] = self.calls.get(kind, 0) + 1


class _SimulatedLease(Lease):
    def __init__(self, service: SimulatedService, ttl: float, until: float) -> None:
        self._service = service
        self._ttl = ttl
        self.until = until

    @property
    def ttl(self) -> float:
        return self._ttl

    def keep_alive(self, timeout: float) -> bool:
        return self._service.renew(self)

    def revoke(self, timeout: float) -> None:
        self._service._count("revoke")
        self._service.end(self)
