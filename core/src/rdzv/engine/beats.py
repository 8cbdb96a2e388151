"""Leases for services that have none: every owner counts, every observer times it by its own clock.

An owner changes its beat key once an interval. An observer that has seen no change for the lease's
time to live, on its own monotonic clock, buries the lease: a compare-and-set that only succeeds
if the owner has still not stirred, and after which the owner's next beat fails. So the end of a
lease is one event, the same for everyone, and no timestamp ever crosses the network.
"""

import json
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from ..backend import (
    ABSENT,
    Capability,
    Entry,
    Expect,
    KeyValueBackend,
    Lease,
    Outcome,
    Put,
    Snapshot,
    Token,
)
from ..deadline import time_left
from ..errors import RendezvousConnectionError
from .records import BEATS

__all__ = ["CountedBeats"]

_BURIED: Final = b"buried"
_LEASE: Final = re.compile(rb"(\w+/\w+)?")
_MANY: Final = 3
"""From so many leases on, one read of all beats is cheaper than one read for each."""
_LOOK: Final = 0.75
"""The most seconds between two looks: so late may the last beat of a node that dies be seen."""
_PAUSE: Final = 0.1
"""The fewest."""


@dataclass(frozen=True, slots=True)
class _Beat:
    """What an observer knows of a lease: its last beat, until when it lives without another, when that was read."""

    token: Token
    until: float
    read_at: float


class CountedBeats(KeyValueBackend):
    """A backend without leases, with leases.

    Every value gets one line in front that names the lease it hangs on, if any.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.LEASE})
    lacking: ClassVar[Mapping[Capability, str]] = {
        capability: "that is up to the service beneath" for capability in Capability if capability != Capability.LEASE
    }

    def __init__(
        self,
        inner: KeyValueBackend,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
        folder: str = "0",
    ) -> None:
        """Give `inner` leases.

        Args:
            inner: The backend beneath.
            interval: Seconds between two beats of an owner; observers look at least as often,
                so that a death is known within a second of the time to live.
            clock: This process's monotonic clock, in seconds.
            folder: Where the beats of the leases that are opened here stand under ``beats``; letters and digits.
        """
        self._inner = inner
        self._interval = interval
        self._clock = clock
        self._folder = folder
        self._look_every = min(interval, _LOOK)
        # Of the leases that are opened here. An observer, which opens none, buries none that it cannot read.
        self._ttl = math.inf
        self._lock = threading.Lock()
        self._seen: dict[str, _Beat] = {}
        self._looked = clock()

    @property
    def name(self) -> str:
        """See `KeyValueBackend`."""
        return self._inner.name

    @property
    def local_address(self) -> str:
        """See `KeyValueBackend`."""
        return self._inner.local_address

    def read(self, key: str, *, timeout: float) -> Entry | None:
        """See `KeyValueBackend`."""
        deadline = self._clock() + timeout
        return self._living(Snapshot(_one(key, self._inner.read(key, timeout=timeout))), deadline).entries.get(key)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend`."""
        deadline = self._clock() + timeout
        return self._living(self._inner.read_all(prefix, timeout=timeout), deadline)

    def put(self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float) -> Put:
        """See `KeyValueBackend`."""
        if isinstance(lease, _CountedLease) and lease.ended:
            return Put(Outcome.LOST, self.read(key, timeout=timeout))
        deadline = self._clock() + timeout
        owner = lease.id if isinstance(lease, _CountedLease) else ""
        framed = owner.encode() + b"\n" + value
        put = self._inner.put(key, framed, expect=expect, timeout=timeout)
        if put.outcome is Outcome.LOST and put.entry is not None:
            alive = self._living(Snapshot(_one(key, put.entry)), deadline).entries.get(key)
            if alive is None and expect is ABSENT:
                # What is there belongs to a buried lease: it counts as absent.
                put = self._inner.put(key, framed, expect=put.entry.token, timeout=self._left(deadline))
            else:
                return Put(Outcome.LOST, alive)
        return put if put.entry is None else replace(put, entry=_unframed(put.entry)[1])

    def delete(self, prefix: str, *, timeout: float) -> None:
        """See `KeyValueBackend`."""
        self._inner.delete(prefix, timeout=timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend`. The service beneath wakes us for changes, the clock for deaths."""
        deadline = self._clock() + timeout
        beneath = since.revision
        while (remaining := deadline - self._clock()) > 0:
            try:
                # A change wakes everybody: who has just seen that these leases live need not ask again.
                now = self._living(beneath, deadline, self._look_every)
            except RendezvousConnectionError:
                if remaining >= self._look_every:
                    raise
                # So little time proves nothing against the service; the next wait begins with this look.
                break
            if now.entries != since.entries:
                return now
            if (remaining := deadline - self._clock()) > 0:
                beneath = self._inner.wait(prefix, beneath, timeout=min(remaining, self._next_look(beneath)))
        return since

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        """See `KeyValueBackend`."""
        self._ttl = ttl
        lease = _CountedLease(self._inner, f"{self._folder}/{secrets.token_hex(8)}", ttl, self._clock)
        lease.keep_alive(timeout)
        return lease

    def close(self) -> None:
        """See `KeyValueBackend`."""
        self._inner.close()

    def _left(self, deadline: float) -> float:
        return time_left(deadline, self._clock())

    def _living(self, beneath: Snapshot, deadline: float, age: float = 0.0) -> Snapshot:
        """`beneath` without the frames, and without what hangs on a lease that has ended (see `_alive`)."""
        entries = {key: _unframed(entry) for key, entry in beneath.entries.items()}
        # In their order, so that a simulated run is the same each time.
        alive = self._alive(dict.fromkeys(lease for lease, _ in entries.values() if lease), deadline, age)
        living = {key: entry for key, (lease, entry) in entries.items() if not lease or lease in alive}
        return Snapshot(living, beneath)

    def _alive(self, leases: Collection[str], deadline: float, age: float) -> Set[str]:
        """Which of these leases live; one that did at most `age` seconds ago, and has time left, is taken to."""
        now = self._clock()
        with self._lock:
            trusted = {
                lease
                for lease in leases
                if (beat := self._seen.get(lease)) is not None and now - beat.read_at < age and now < beat.until
            }
        asked = [lease for lease in leases if lease not in trusted]
        if not asked:
            return trusted
        living = self._judge(self._beats_of(asked, deadline), deadline)
        with self._lock:
            for lease in asked:
                if lease not in living:
                    self._seen.pop(lease, None)
        return trusted | living

    def _beats_of(self, leases: Collection[str], deadline: float) -> dict[str, Entry]:
        if len(leases) >= _MANY:
            everyone = self._inner.read_all(BEATS, timeout=self._left(deadline)).entries
            return {lease: everyone[_beat_key(lease)] for lease in leases if _beat_key(lease) in everyone}
        beats = {lease: self._inner.read(_beat_key(lease), timeout=self._left(deadline)) for lease in leases}
        return {lease: beat for lease, beat in beats.items() if beat is not None}

    def _judge(self, beats: Mapping[str, Entry], deadline: float) -> frozenset[str]:
        """Which of these leases live; buries those that have been silent for too long."""
        now = self._clock()
        with self._lock:
            if now - self._looked > self._interval + self._look_every:
                # It is us who did not look: whoever is alive gets all the time again to show it.
                self._seen.clear()
            self._looked = now
            living = {lease: beat for lease, beat in beats.items() if beat.value != _BURIED}
            for lease, beat in living.items():
                before = self._seen.get(lease)
                self._seen[lease] = _Beat(beat.token, self._lives_until(beat, before, now), now)
            silent = {lease for lease in living if now > self._seen[lease].until}
        return frozenset(
            lease for lease, beat in living.items() if not (lease in silent and self._bury(lease, beat, deadline))
        )

    def _lives_until(self, beat: Entry, before: _Beat | None, now: float) -> float:
        """The moment at which a lease ends if this beat is its last one."""
        if before is not None and before.until == math.inf:
            before = None
        if before is not None and before.token == beat.token:
            return before.until
        if (ttl := _ttl_of(beat)) is not None:
            return now + ttl
        # Another client wrote it, and the owner writes over it with its next beat: it says nothing of life or death.
        return before.until if before is not None else now + self._ttl

    def _next_look(self, beneath: Snapshot) -> float:
        """Seconds after which a look at these leases may tell something: a life sign, or the end of one."""
        now = self._clock()
        with self._lock:
            beats = [self._seen[lease] for lease in _leases_in(beneath) if lease in self._seen]
        moments = [min(beat.until, beat.read_at + self._look_every) - now for beat in beats]
        # What is over is over, or was not buried just now; there is no hurry then.
        return max(_PAUSE, min([self._look_every, *(seconds for seconds in moments if seconds >= 0)]))

    def _bury(self, lease: str, beat: Entry, deadline: float) -> bool:
        key = _beat_key(lease)
        if self._inner.put(key, _BURIED, expect=beat.token, timeout=self._left(deadline)).outcome is not Outcome.WON:
            return False
        # No beat is as good as a buried one, and no lease has this name again.
        self._inner.delete(key, timeout=self._left(deadline))
        return True


class _CountedLease(Lease):
    """The owner's side: a key that changes."""

    def __init__(self, inner: KeyValueBackend, name: str, ttl: float, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._ttl = ttl
        self._clock = clock
        self._beat = 0
        self._token: Token | Expect = ABSENT
        self.id = name
        self.ended = False

    @property
    def ttl(self) -> float:
        return self._ttl

    def keep_alive(self, timeout: float) -> bool:
        deadline = self._clock() + timeout
        while not self.ended:
            left = time_left(deadline, self._clock())
            self._beat += 1
            value = json.dumps({"beat": self._beat, "ttl": self._ttl}).encode()
            put = self._inner.put(_beat_key(self.id), value, expect=self._token, timeout=left)
            if put.outcome is Outcome.UNKNOWN:
                raise RendezvousConnectionError("The reply to a beat was lost.")
            self.ended = put.entry is None or put.entry.value == _BURIED
            if put.entry is not None:
                self._token = put.entry.token
            if put.outcome is Outcome.WON:
                return True
            # Nobody else writes this key, but to bury it: anything else there is an earlier beat of ours whose
            # reply was lost. The others count from that one, so it says nothing of now.
        return False

    def revoke(self, timeout: float) -> None:
        # What hangs on it counts as absent from then on. It is not deleted by name: such a request may be
        # applied late, when the owner is back and has written the same key on another lease.
        self.ended = True
        self._inner.delete(_beat_key(self.id), timeout=timeout)


def _beat_key(lease: str) -> str:
    return f"{BEATS}/{lease}"


def _one(key: str, entry: Entry | None) -> dict[str, Entry]:
    return {} if entry is None else {key: entry}


def _leases_in(beneath: Snapshot) -> list[str]:
    """The leases that anything hangs on, each once."""
    return list(dict.fromkeys(lease for lease, _ in map(_unframed, beneath.entries.values()) if lease))


def _unframed(entry: Entry) -> tuple[str, Entry]:
    lease, newline, value = entry.value.partition(b"\n")
    if not newline or not _LEASE.fullmatch(lease):
        # For who reads this key to refuse, not for all who read others beside it. With nothing before its first newline
        # it is no envelope, whatever it was.
        return "", replace(entry, value=b"\n" + entry.value)
    return lease.decode("ascii", "replace"), Entry(value, entry.token, entry.order)


def _ttl_of(beat: Entry) -> float | None:
    """The lease's time to live, in seconds; None if this is no beat."""
    try:
        ttl = float(json.loads(beat.value)["ttl"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return ttl if 0 < ttl < math.inf else None
