"""Heartbeat leases, for services without leases: owners count, observers time them by their own clocks.

An owner changes its heartbeat key once an interval, and makes it with the first heartbeat: until then what belongs to
the lease shows that it lives. An observer that has seen no change for the lease's time to live, on its own monotonic
clock, expires the lease: a compare-and-set that only succeeds if there was no heartbeat since, and after which the
owner's next heartbeat fails. So the end of a lease is one event, the same for all, and no timestamp ever crosses the
network. It stays in the key: no lease has the name of one that has ended, but what belonged to it is still there.
"""

import math
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Set
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from rdzv_core import ABSENT, Capability, Entry, Expect, KeyValueBackend, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.deadline import time_left
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError

from .lease_observer import LeaseObserver, LeaseState
from .records import HEARTBEATS

_EXPIRED: Final = b"expired"
_GONE: Final = b"gone"
"""What an owner leaves in place of what belonged to a lease that it has ended: a change, which wakes those that wait.
Of the end alone they learn when they look at the heartbeats next."""
_NONE_YET: Final = Entry(b"", ABSENT, 0)
"""Stands for the heartbeat of a lease that had none yet."""
_LEASE: Final = re.compile(rb"(\w+/\w+) (\d{1,9}\.\d{3})|")
"""What stands before a value: the name of its lease, and its time to live in seconds; nothing: it has none."""
_MANY: Final = 3
"""From so many leases on, one read of all heartbeats is cheaper than one read for each."""

_SOON: Final = 0.01
"""Seconds after which a wait asks for the first time what became of the look beside it that may end a lease."""
_ENDING: Final = 1.0
"""Seconds within which the calls of a backend end that is closed."""

Look = Callable[[], object]
"""Reads the heartbeats of some leases, and ends those that are over."""


def look_at_once(look: Look) -> Future[object]:
    """Look on the thread that waits, which has to wait for the answer."""
    done: Future[object] = Future()
    try:
        done.set_result(look())
    except RendezvousConnectionError as error:
        done.set_exception(error)
    return done


@dataclass(frozen=True, slots=True)
class _LookBeside:
    """A look beside a wait.

    Attributes:
        done: Its end, or its error.
        began: When it began.
        may_end: Whether it may end a lease, so that the wait asks often what became of it.
    """

    done: Future[object]
    began: float
    may_end: bool


@dataclass(frozen=True, slots=True)
class Parsed:
    """A snapshot of the service below, with the names of leases told apart from values: parsed once.

    Attributes:
        raw: The snapshot, from which the next wait below goes on.
        entries: By key.
        leases: By key, the lease on which it hangs, if any.
        ttls: By lease, its time to live in seconds; in their order, so that a simulated run is the same each time.
    """

    raw: Snapshot
    entries: Mapping[str, Entry]
    leases: Mapping[str, str]
    ttls: Mapping[str, float]


class HeartbeatLeases(KeyValueBackend):
    """A backend without leases, with leases.

    Every value gets one line in front that names the lease that it belongs to, if any.
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
        beside: Callable[[Look], Future[object]] = look_at_once,
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
            beside: Begins a look beside a wait; the look takes two intervals at most.
        """
        self._inner = inner
        self._background = inner.background()
        self.creates_at_once = inner.creates_at_once
        self._clock = clock
        self._interval = interval
        self._folder = folder
        self._lock = threading.Lock()
        self._observer = LeaseObserver(interval, observers, rng or random.Random())  # noqa: S311 - chance is no secret
        self._beside = beside
        self._looks: dict[str, _LookBeside] = {}
        """By prefix, the look beside the wait for it, until the wait has seen its end."""
        self._took = 0.0
        """Seconds that the last look beside a wait took, from when it asked last."""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def local_address(self) -> str:
        return self._inner.local_address

    def read(self, key: str, *, timeout: float) -> Entry | None:
        deadline = self._clock() + timeout
        return self._alive_entry(key, self._inner.read(key, timeout=timeout), deadline)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        deadline = self._clock() + timeout
        # The next wait goes on from here, and not from an earlier look.
        self._looks.pop(prefix, None)
        return self._alive_entries(parse(self._inner.read_all(prefix, timeout=timeout)), deadline)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        mine = lease if isinstance(lease, _HeartbeatLease) else None
        if mine is not None and mine.ended:
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=timeout))
        deadline = self._clock() + timeout
        prefixed = (b"" if mine is None else mine.use()) + b"\n" + value
        put = self._inner.put(key, prefixed, expect=expect, timeout=timeout)
        if mine is not None:
            mine.note(key, put, deadline)
        if put.outcome is PutOutcome.CONFLICT and put.entry is not None:
            alive = self._alive_entry(key, put.entry, deadline)
            if alive is not None or expect is not ABSENT:
                return PutResult(PutOutcome.CONFLICT, alive)
            # What is there belongs to an expired lease: it counts as absent.
            return self.put(key, value, expect=put.entry.token, lease=lease, timeout=self._left(deadline))
        return put if put.entry is None else replace(put, entry=_parse_entry(put.entry)[2])

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        # What belongs to an expired lease counts as there, and the caller puts the keys one by one.
        return self._inner.create_all({key: b"\n" + value for key, value in values.items()}, timeout=timeout)

    def delete(self, prefix: str, *, timeout: float) -> None:
        self._inner.delete(prefix, timeout=timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend`. The service wakes a waiter for changes, the clock for expired leases."""
        deadline = self._clock() + timeout
        seen: Parsed = since.revision
        # News does not wait for a look, nor for the error of one.
        while (now := self._unless_ended(seen)).entries == since.entries:
            if (look := self._looks.get(prefix)) is not None and look.done.done():
                self._looks.pop(prefix, None)
                look.done.result()
                continue
            if (remaining := deadline - self._clock()) <= 0:
                return since
            self._look_beside(prefix, seen.ttls)
            raw = self._inner.wait(prefix, seen.raw, timeout=min(remaining, self._rest(seen, prefix)))
            seen = seen if raw is seen.raw else parse(raw)
        return now

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        """See `KeyValueBackend`. It asks nothing: what is put on the lease tells of it."""
        del timeout
        return _HeartbeatLease(self._inner, f"{self._folder}/{secrets.token_hex(8)}", ttl, self._clock)

    def close(self) -> None:
        self._inner.close()
        wait([look.done for look in [*self._looks.values()]], _ENDING)

    def _left(self, deadline: float) -> float:
        return time_left(deadline, self._clock())

    def _alive_entries(self, parsed: Parsed, deadline: float) -> Snapshot:
        """All entries but those of a lease that has ended, by a look at all of them."""
        with self._lock:
            living = self._not_ended(parsed.ttls)
        if living:
            self._look(living, self._inner, self._clock(), deadline)
        return self._unless_ended(parsed)

    def _unless_ended(self, parsed: Parsed) -> Snapshot:
        """All entries but those of a lease of which it is known that it has ended."""
        with self._lock:
            self._observer.see(parsed.ttls, self._clock())
            living = self._not_ended(parsed.ttls)
        if len(living) == len(parsed.ttls):  # as nearly always
            return Snapshot(parsed.entries, parsed)
        ended = parsed.ttls.keys() - living.keys()
        leases = parsed.leases
        return Snapshot({key: entry for key, entry in parsed.entries.items() if leases.get(key) not in ended}, parsed)

    def _not_ended(self, ttls: Mapping[str, float]) -> dict[str, float]:
        """Those leases of which it is not known that they have ended; asked under the lock."""
        return {lease: ttl for lease, ttl in ttls.items() if self._observer.state(lease) is not LeaseState.ENDED}

    def _alive_entry(self, key: str, entry: Entry | None, deadline: float) -> Entry | None:
        return entry and self._alive_entries(parse(Snapshot({key: entry})), deadline).entries.get(key)

    def _look_beside(self, prefix: str, ttls: Mapping[str, float]) -> None:
        """Begin a look beside the wait for a prefix where one is due, unless one is under way. It is at all leases: one
        that is due while it is under way would have to wait for its end, and so come to be looked at half as often."""
        now, observer = self._clock(), self._observer
        # One that was under way at a fork never ends in the child; another takes two intervals at most.
        if (look := self._looks.get(prefix)) is not None and now < look.began + 3 * self._interval:
            return
        with self._lock:
            living = self._not_ended(ttls)
            is_due = any(moment <= now for moment in observer.next_looks(living).values())
            may_end = any(observer.may_end(lease, ttl, now, self._took) for lease, ttl in living.items())
        if is_due:
            # The wait may end before it: then the next one sees what becomes of it.
            self._looks[prefix] = _LookBeside(self._beside(lambda: self._look_twice(living)), now, may_end)

    def _look_twice(self, ttls: Mapping[str, float]) -> None:
        """Look beside a wait. One answer that is late, or lost, is no outage: it is asked for once more."""
        began = self._clock()
        # A quick second answer must come within the time of one look (see `LeaseObserver`). Eight times what the last
        # look took, because several endpoints share it; where answers are slow, up to the whole time of a look.
        late = began + min(self._interval, max(self._interval / 4, 8 * self._took))
        try:
            self._look(ttls, self._background, began, late)
        except RendezvousConnectionError as error:
            if isinstance(error, RendezvousDeniedError):
                raise
            began = self._clock()
            self._look(ttls, self._background, began, late + self._interval)
        finally:
            self._took = self._clock() - began

    def _look(self, ttls: Mapping[str, float], keys: KeyValueBackend, began: float, deadline: float) -> None:
        living = self._check_expiry(self._heartbeats_of(ttls, deadline, keys), ttls, began, deadline)
        with self._lock:
            for lease in ttls:
                if lease not in living:
                    self._observer.end(lease)

    def _heartbeats_of(self, leases: Collection[str], deadline: float, keys: KeyValueBackend) -> dict[str, Entry]:
        if len(leases) >= _MANY:
            found = keys.read_all(HEARTBEATS, timeout=self._left(deadline)).entries
            return {lease: found.get(_heartbeat_key(lease), _NONE_YET) for lease in leases}
        return {lease: keys.read(_heartbeat_key(lease), timeout=self._left(deadline)) or _NONE_YET for lease in leases}

    def _check_expiry(
        self, found: Mapping[str, Entry], ttls: Mapping[str, float], began: float, deadline: float
    ) -> Set[str]:
        """Which of these leases live; expires those without a heartbeat for a time to live."""
        now = self._clock()
        with self._lock:
            living = {lease: heartbeat for lease, heartbeat in found.items() if heartbeat.value != _EXPIRED}
            for lease, heartbeat in living.items():
                self._observer.observe(lease, heartbeat.token, ttls[lease], now, began)
            overdue = [lease for lease in living if self._observer.is_overdue(lease, living[lease].token, now)]
        return living.keys() - {lease for lease in overdue if self._expire(lease, living[lease], ttls[lease], deadline)}

    def _rest(self, parsed: Parsed, prefix: str) -> float:
        """Seconds after which a look at these leases may tell something, or the one beside the wait has."""
        if not parsed.ttls:
            return math.inf
        now, scan = self._clock(), self._observer.scan_interval
        if (look := self._looks.get(prefix)) is not None:
            # A wait does not hear of its end. Half as long again as it took is soon enough for one that may end a
            # lease; a shorter wait might get no answer where that takes long.
            return min(max(_SOON, (now - look.began) / 2), scan) if look.may_end else scan
        with self._lock:
            return self._observer.rest(parsed.ttls, now)

    def _expire(self, lease: str, heartbeat: Entry, ttl: float, deadline: float) -> bool:
        try:
            put = self._inner.put(_heartbeat_key(lease), _EXPIRED, expect=heartbeat.token, timeout=self._left(deadline))
        except RendezvousDeniedError:
            with self._lock:
                self._observer.spare(lease, ttl, self._clock())
            return False
        # Another observer may have been first.
        return put.outcome is PutOutcome.APPLIED or (put.entry is not None and put.entry.value == _EXPIRED)


class _HeartbeatLease(Lease):
    """The owner's side: a key that changes.

    Attributes:
        id: Its name.
        holds: The first key that was put on it; empty: none yet.
        version: That key's version; None: it is not known.
        created: That key's `Entry.order`, by which a key that was lost and is written anew is another; None: it is not
            known.
        ended: It has ended.
    """

    def __init__(self, inner: KeyValueBackend, name: str, ttl: float, clock: Callable[[], float]) -> None:
        super().__init__(ttl)
        self._inner = inner
        self._clock = clock
        self._heartbeat = 0
        self._token: Token | Expect = ABSENT
        self._is_used = False
        self._is_verified = False
        self._order: int | None = None
        self.id = name
        self.holds = ""
        self.version: Token | None = None
        self.created: int | None = None
        self.ended = False

    def use(self) -> bytes:
        """What stands before a value that is put on it; from then on others may know of it."""
        self._is_used = True
        return f"{self.id} {self.ttl:.3f}".encode()

    def note(self, key: str, put: PutResult, deadline: float) -> None:
        """Note what became of a put on it."""
        is_conflict = put.outcome is PutOutcome.CONFLICT
        self.holds = self.holds or ("" if is_conflict else key)
        if self.holds == key and (not is_conflict or self._is_there(put.entry)):
            # One that is there was written before, and the reply was lost.
            self.version = put.entry and put.entry.token
            self.created = self.created if put.entry is None else put.entry.order
        elif self.holds == key and (put.entry is None or self.created is not None):
            # The next heartbeat would be a new one, and the service would seem to have lost nothing. Where it is not
            # known that this key was put, there may be what was there before.
            self.end(deadline)

    def keep_alive(self, timeout: float) -> bool:
        deadline, is_done = self._clock() + timeout, False
        while not (is_done or self.ended):
            self._heartbeat += 1
            put = self._write(str(self._heartbeat).encode(), deadline)
            is_done = put.outcome is PutOutcome.APPLIED
            # Others write this key only to expire it: anything else there is an earlier heartbeat of this owner
            # whose reply was lost. The others count from that one, so it says nothing of now.
            self.ended = self.ended or not (is_done or _goes_on(put.entry))
        if self.holds and not (self._is_verified or self.ended):
            self._verify(deadline)
        return not self.ended

    def revoke(self, timeout: float) -> None:
        # What belongs to it counts as absent from then on. It is not deleted by name: such a request may be
        # applied late, when the owner is back and has written the same key on another lease.
        deadline = self._clock() + timeout
        self.end(deadline)
        if self.version is not None:
            # The lease is over, whatever becomes of this.
            with suppress(RendezvousError):
                self._inner.put(self.holds, _GONE, expect=self.version, timeout=time_left(deadline, self._clock()))

    def _write(self, value: bytes, deadline: float) -> PutResult:
        """Write its key if that holds what this owner knows; afterwards it knows the value of the key."""
        self._is_used = True
        left = time_left(deadline, self._clock())
        put = self._inner.put(_heartbeat_key(self.id), value, expect=self._token, timeout=left)
        if put.outcome is PutOutcome.UNKNOWN:
            raise RendezvousConnectionError("The reply to the write of a heartbeat was lost.")
        if put.entry is not None:
            # One that was created anew is the first heartbeat, applied after the service has lost everything.
            self._is_verified = self._is_verified and self._order in (None, put.entry.order)
            self._token, self._order = put.entry.token, put.entry.order
        return put

    def _verify(self, deadline: float) -> None:
        """Find out whether the service has lost what belongs to it before a heartbeat could be missed."""
        there = self._inner.read(self.holds, timeout=time_left(deadline, self._clock()))
        self._is_verified = True
        if not self._is_there(there):
            self.end(deadline)

    def _is_there(self, entry: Entry | None) -> bool:
        """Whether this is what the lease holds. Where the service has lost that, an earlier write of the owner, which
        comes late, may stand in its place: on another lease, or created anew. It may pass for what was lost where the
        service counts from the beginning again."""
        return entry is not None and self.created in (None, entry.order) and _parse_entry(entry)[0] == self.id

    def end(self, deadline: float) -> None:
        """End it, for all that may know of it."""
        self.ended, is_done = True, not self._is_used
        while not is_done:
            put = self._write(_EXPIRED, deadline)
            # An earlier heartbeat whose reply was lost may stand there.
            is_done = put.outcome is PutOutcome.APPLIED or not _goes_on(put.entry)


def _goes_on(heartbeat: Entry | None) -> bool:
    """Whether a lease that had a heartbeat lives, by what stands there now."""
    return heartbeat is not None and heartbeat.value != _EXPIRED


def _heartbeat_key(lease: str) -> str:
    return f"{HEARTBEATS}/{lease}"


def parse(raw: Snapshot) -> Parsed:
    """Tell the names of leases apart from values."""
    entries, leases, ttls = {}, {}, {}
    for key, entry in raw.entries.items():
        if entry.value == _GONE:
            continue
        lease, ttl, entries[key] = _parse_entry(entry)
        if lease:
            leases[key], ttls[lease] = lease, ttl
    return Parsed(raw, entries, leases, ttls)


def _parse_entry(entry: Entry) -> tuple[str, float, Entry]:
    """The name of the lease on which a value hangs, its time to live in seconds, and the value itself."""
    line, newline, value = entry.value.partition(b"\n")
    if not newline or not (lease := _LEASE.fullmatch(line)):
        # Only a read of this key refuses it; reads of its neighbours go on. With nothing before its first newline
        # it is no envelope, whatever it was.
        return "", 0.0, replace(entry, value=b"\n" + entry.value)
    name, ttl = lease.groups()
    return (name or b"").decode("ascii", "replace"), float(ttl or 0), Entry(value, entry.token, entry.order)
