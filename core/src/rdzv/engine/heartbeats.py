"""Heartbeat leases, for services without leases: owners count, observers time them by their own clocks.

An owner changes its heartbeat key once an interval. An observer that has seen no change for the lease's
time to live, on its own monotonic clock, expires the lease: a compare-and-set that only succeeds
if there was no heartbeat since, and after which the owner's next heartbeat fails. So the end of a
lease is one event, the same for all, and no timestamp ever crosses the network.
"""

import json
import math
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from ..backend import ABSENT, Capability, Entry, Expect, KeyValueBackend, Lease, PutOutcome, PutResult, Snapshot, Token
from ..deadline import time_left
from ..errors import RendezvousConnectionError
from .records import HEARTBEATS

_EXPIRED: Final = b"expired"
_LEASE: Final = re.compile(rb"(\w+/\w+)?")
_MANY: Final = 3
"""From so many leases on, one read of all heartbeats is cheaper than one read for each."""
_SCAN: Final = 0.75
"""The most seconds between two looks of all observers together: so late may the last heartbeat of a node that dies be
seen."""
_PAUSE: Final = 0.1
"""The fewest seconds between two looks of one observer."""
_OBSERVERS: Final = 16
"""Of many that observe the same leases, so many look within these seconds, by chance: if some die, others look."""


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """What an observer knows of a lease.

    Attributes:
        token: The version of its last heartbeat; None: it was not read yet.
        until: The moment until which it lives without another; infinite where nothing tells.
        ttl: Its time to live, in seconds; infinite where nothing tells.
        read_at: When that was read.
        next_look: The moment from which on it is worth reading again.
    """

    token: Token | None
    until: float
    ttl: float
    read_at: float
    next_look: float


class HeartbeatLeases(KeyValueBackend):
    """A backend without leases, with leases.

    Every value gets one line in front that names the lease it hangs on, if any.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.LEASE})
    unsupported: ClassVar[Mapping[Capability, str]] = {
        capability: "that is up to the service below" for capability in Capability if capability != Capability.LEASE
    }

    def __init__(
        self,
        inner: KeyValueBackend,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
        folder: str = "0",
        observers: Callable[[], int] = lambda: 1,
        rng: random.Random | None = None,
    ) -> None:
        """Give `inner` leases.

        Args:
            inner: The backend below.
            interval: Seconds between two heartbeats of an owner.
            clock: This process's monotonic clock, in seconds.
            folder: Where the heartbeats of the leases that are opened here stand under ``heartbeats``; letters and
                digits.
            observers: How many clients observe the same leases as this one, about. The more, the less often each looks;
                all together so often that a death is known within a second of the time to live.
            rng: Where the moments of these looks come from.
        """
        self._inner = inner
        self._interval = interval
        self._clock = clock
        self._folder = folder
        self._observers = observers
        self._rng = rng or random.Random()  # noqa: S311 - chance is no secret
        self._scan_interval = min(interval, _SCAN)
        # Of the leases that are opened here. An observer, which opens none, expires none that it cannot read.
        self._ttl = math.inf
        self._lock = threading.Lock()
        self._heartbeats: dict[str, _Heartbeat] = {}
        # No lease has the name of one that has ended. What hangs on it may stay, and would be taken for new each time.
        self._ended: set[str] = set()

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def local_address(self) -> str:
        return self._inner.local_address

    def read(self, key: str, *, timeout: float) -> Entry | None:
        deadline = self._clock() + timeout
        return self._alive_entries(Snapshot(_one(key, self._inner.read(key, timeout=timeout))), deadline).entries.get(
            key
        )

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        deadline = self._clock() + timeout
        return self._alive_entries(self._inner.read_all(prefix, timeout=timeout), deadline)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        if isinstance(lease, _HeartbeatLease) and lease.ended:
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=timeout))
        deadline = self._clock() + timeout
        owner = lease.id if isinstance(lease, _HeartbeatLease) else ""
        prefixed = owner.encode() + b"\n" + value
        put = self._inner.put(key, prefixed, expect=expect, timeout=timeout)
        if put.outcome is PutOutcome.CONFLICT and put.entry is not None:
            alive = self._alive_entries(Snapshot(_one(key, put.entry)), deadline).entries.get(key)
            if alive is None and expect is ABSENT:
                # What is there belongs to an expired lease: it counts as absent.
                put = self._inner.put(key, prefixed, expect=put.entry.token, timeout=self._left(deadline))
            else:
                return PutResult(PutOutcome.CONFLICT, alive)
        return put if put.entry is None else replace(put, entry=_strip_lease(put.entry)[1])

    def delete(self, prefix: str, *, timeout: float) -> None:
        self._inner.delete(prefix, timeout=timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend`. The service wakes a waiter for changes, the clock for expired leases."""
        deadline = self._clock() + timeout
        raw = since.revision
        while (remaining := deadline - self._clock()) > 0:
            try:
                # A change wakes every waiter: one that has just seen that these leases live need not ask again.
                now = self._alive_entries(raw, deadline, fresh=False)
            except RendezvousConnectionError:
                if remaining >= self._scan_interval:
                    raise
                # So little time proves nothing against the service; the next wait begins with this look.
                break
            if now.entries != since.entries:
                return now
            if (remaining := deadline - self._clock()) > 0:
                raw = self._inner.wait(prefix, raw, timeout=min(remaining, self._next_scan(raw)))
        return since

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        self._ttl = ttl
        lease = _HeartbeatLease(self._inner, f"{self._folder}/{secrets.token_hex(8)}", ttl, self._clock)
        lease.keep_alive(timeout)
        return lease

    def close(self) -> None:
        self._inner.close()

    def _left(self, deadline: float) -> float:
        return time_left(deadline, self._clock())

    def _alive_entries(self, raw: Snapshot, deadline: float, *, fresh: bool = True) -> Snapshot:
        """`raw` without the names of leases, and without what hangs on a lease that has ended (see `_alive`)."""
        entries = {key: _strip_lease(entry) for key, entry in raw.entries.items()}
        # In their order, so that a simulated run is the same each time.
        alive = self._alive(dict.fromkeys(lease for lease, _ in entries.values() if lease), deadline, fresh)
        living = {key: entry for key, (lease, entry) in entries.items() if not lease or lease in alive}
        return Snapshot(living, raw)

    def _alive(self, leases: Collection[str], deadline: float, fresh: bool) -> Set[str]:
        """Which of these leases live; unless it is to be a fresh look, one that is not due for a look is taken to."""
        now = self._clock()
        with self._lock:
            known = [lease for lease in leases if lease not in self._ended]
            trusted = {lease for lease in known if not fresh and now < self._next_look(lease, now)}
        asked = [lease for lease in known if lease not in trusted]
        if not asked:
            return trusted
        living = self._check_expiry(self._heartbeats_of(asked, deadline), deadline)
        with self._lock:
            for lease in asked:
                if lease not in living:
                    self._heartbeats.pop(lease, None)
                    self._ended.add(lease)
        return trusted | living

    def _next_look(self, lease: str, now: float) -> float:
        """The moment from which on a lease is worth a look; at one that is new a few of many observers look at once."""
        heartbeat = self._heartbeats.get(lease)
        if heartbeat is None:
            if not (mean := self._mean_pause()):
                return now
            later = now + mean * self._rng.random()
            heartbeat = self._heartbeats[lease] = _Heartbeat(None, math.inf, math.inf, now, later)
        return heartbeat.next_look

    def _mean_pause(self) -> float:
        """Seconds between two looks of one of many observers, on average; 0: they are few, and each looks in time."""
        share = self._observers() / _OBSERVERS
        return self._scan_interval * share if share > 1 else 0.0

    def _heartbeats_of(self, leases: Collection[str], deadline: float) -> dict[str, Entry]:
        if len(leases) >= _MANY:
            found = self._inner.read_all(HEARTBEATS, timeout=self._left(deadline)).entries
            return {lease: found[_heartbeat_key(lease)] for lease in leases if _heartbeat_key(lease) in found}
        heartbeats = {lease: self._inner.read(_heartbeat_key(lease), timeout=self._left(deadline)) for lease in leases}
        return {lease: heartbeat for lease, heartbeat in heartbeats.items() if heartbeat is not None}

    def _check_expiry(self, heartbeats: Mapping[str, Entry], deadline: float) -> frozenset[str]:
        """Which of these leases live; expires those without a heartbeat for a time to live."""
        now = self._clock()
        with self._lock:
            living = {lease: heartbeat for lease, heartbeat in heartbeats.items() if heartbeat.value != _EXPIRED}
            for lease, heartbeat in living.items():
                self._heartbeats[lease] = self._observed(heartbeat, self._heartbeats.get(lease), now)
            silent = {lease for lease in living if now > self._heartbeats[lease].until}
        return frozenset(
            lease
            for lease, heartbeat in living.items()
            if not (lease in silent and self._expire(lease, heartbeat, deadline))
        )

    def _observed(self, heartbeat: Entry, before: _Heartbeat | None, now: float) -> _Heartbeat:
        if before is not None and (
            before.until == math.inf or now - before.read_at > self._interval + self._scan_interval
        ):
            # This observer did not look: a live owner gets the whole time to live again.
            before = None
        # One that cannot be read, which another client wrote, may hide one of the owner's.
        ttl = _ttl_of(heartbeat) or (self._ttl if before is None else before.ttl)
        seen = before if before is not None and before.token == heartbeat.token else None
        until = now + ttl if seen is None else seen.until
        mean = self._mean_pause()
        if seen is not None or not mean:
            return _Heartbeat(heartbeat.token, until, ttl, now, min(until, now + self._scan_interval))
        # What was seen for the first time may be the last heartbeat: the time for the next one will tell. If it has
        # come, the other observers look for a while.
        rest = self._interval if before is None else mean * self._rng.uniform(0.5, 1.5)
        return _Heartbeat(heartbeat.token, until, ttl, now, now + rest)

    def _next_scan(self, raw: Snapshot) -> float:
        """Seconds after which a look at these leases may tell something: a heartbeat, or an expired lease."""
        now = self._clock()
        with self._lock:
            if not (leases := _leases_of(raw)):
                return math.inf
            heartbeats = [self._heartbeats[lease] for lease in leases if lease in self._heartbeats]
        moments = [heartbeat.next_look - now for heartbeat in heartbeats]
        # What is over is over, or could not be expired just now; there is no hurry then.
        return max(_PAUSE, min((seconds for seconds in moments if seconds >= 0), default=self._scan_interval))

    def _expire(self, lease: str, heartbeat: Entry, deadline: float) -> bool:
        key = _heartbeat_key(lease)
        if (
            self._inner.put(key, _EXPIRED, expect=heartbeat.token, timeout=self._left(deadline)).outcome
            is not PutOutcome.APPLIED
        ):
            return False
        # A missing heartbeat counts as expired, and no lease has this name again.
        self._inner.delete(key, timeout=self._left(deadline))
        return True


class _HeartbeatLease(Lease):
    """The owner's side: a key that changes."""

    def __init__(self, inner: KeyValueBackend, name: str, ttl: float, clock: Callable[[], float]) -> None:
        super().__init__(ttl)
        self._inner = inner
        self._clock = clock
        self._heartbeat = 0
        self._token: Token | Expect = ABSENT
        self.id = name
        self.ended = False

    def keep_alive(self, timeout: float) -> bool:
        deadline = self._clock() + timeout
        while not self.ended:
            left = time_left(deadline, self._clock())
            self._heartbeat += 1
            value = json.dumps({"heartbeat": self._heartbeat, "ttl": self.ttl}).encode()
            put = self._inner.put(_heartbeat_key(self.id), value, expect=self._token, timeout=left)
            if put.outcome is PutOutcome.UNKNOWN:
                raise RendezvousConnectionError("The reply to a heartbeat was lost.")
            self.ended = put.entry is None or put.entry.value == _EXPIRED
            if put.entry is not None:
                self._token = put.entry.token
            if put.outcome is PutOutcome.APPLIED:
                return True
            # Others write this key only to expire it: anything else there is an earlier heartbeat of this owner
            # whose reply was lost. The others count from that one, so it says nothing of now.
        return False

    def revoke(self, timeout: float) -> None:
        # What hangs on it counts as absent from then on. It is not deleted by name: such a request may be
        # applied late, when the owner is back and has written the same key on another lease.
        self.ended = True
        self._inner.delete(_heartbeat_key(self.id), timeout=timeout)


def _heartbeat_key(lease: str) -> str:
    return f"{HEARTBEATS}/{lease}"


def _one(key: str, entry: Entry | None) -> dict[str, Entry]:
    return {} if entry is None else {key: entry}


def _leases_of(raw: Snapshot) -> list[str]:
    """The leases that anything hangs on, each once."""
    return list(dict.fromkeys(lease for lease, _ in map(_strip_lease, raw.entries.values()) if lease))


def _strip_lease(entry: Entry) -> tuple[str, Entry]:
    lease, newline, value = entry.value.partition(b"\n")
    if not newline or not _LEASE.fullmatch(lease):
        # Only a read of this key refuses it; reads of its neighbours go on. With nothing before its first newline
        # it is no envelope, whatever it was.
        return "", replace(entry, value=b"\n" + entry.value)
    return lease.decode("ascii", "replace"), Entry(value, entry.token, entry.order)


def _ttl_of(heartbeat: Entry) -> float | None:
    """The lease's time to live, in seconds; None if this is no heartbeat."""
    try:
        ttl = float(json.loads(heartbeat.value)["ttl"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return ttl if 0 < ttl < math.inf else None
