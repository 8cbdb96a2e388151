"""Heartbeat leases: leases for a service that has none."""

import contextlib
import random
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from rdzv_core.backend import ABSENT, ANY, Entry, Expect, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv.engine.heartbeats import HeartbeatLeases, _HeartbeatLease, parse

from .memory import Fault, MemoryBackend

CALL = 1.0


def heartbeat(backend: MemoryBackend) -> bytes:
    """The only heartbeat that the service holds."""
    (entry,) = backend.read_all("heartbeats", timeout=CALL).entries.values()
    return entry.value


def overwrite_first(backend: MemoryBackend, value: bytes) -> None:
    """Write over the heartbeat of the lease that had one first, as another client may."""
    backend.put(next(iter(backend.read_all("heartbeats", timeout=CALL).entries)), value, expect=ANY, timeout=CALL)


class VirtualTime(MemoryBackend):
    """Nothing takes time but waiting, and that only on the test's clock."""

    now = 1000.0
    waits = 0
    reads = 0

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        self.now += timeout
        self.waits += 1
        return self.read_all(prefix, timeout=CALL)

    def read(self, key: str, *, timeout: float) -> Entry | None:
        self.reads += 1
        return super().read(key, timeout=timeout)


def test_where_writes_are_refused_no_lease_ends_and_then_each_gets_its_whole_time() -> None:
    backend, interval, ttl = VirtualTime(), 5.0, 15.0
    owner, observer = (HeartbeatLeases(backend, interval, lambda: backend.now) for _ in range(2))
    lease = owner.open_lease(ttl, timeout=CALL)
    owner.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    seen = observer.read_all("nodes", timeout=CALL)
    # To the owner, to the observer, to all.
    backend.refuse(RendezvousDeniedError("you may only read"), "put")
    assert observer.wait("nodes", seen, timeout=ttl + 2 * interval) is seen
    backend.accept()
    assert observer.wait("nodes", seen, timeout=interval) is seen
    assert lease.keep_alive(CALL)
    died = backend.now
    assert not observer.wait("nodes", seen, timeout=2 * ttl).entries
    assert ttl < backend.now - died <= ttl + 1.0


@pytest.mark.parametrize("interval", [0.25, 0.5, 5.0, 60.0])
def test_a_death_is_known_within_a_second_of_the_time_to_live(interval: float) -> None:
    backend, ttl = VirtualTime(), 3 * interval
    owner = HeartbeatLeases(backend, interval, lambda: backend.now)
    lease = owner.open_lease(ttl, timeout=CALL)
    owner.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    observer = HeartbeatLeases(backend, interval, lambda: backend.now)
    seen = observer.wait("nodes", observer.read_all("nodes", timeout=CALL), timeout=interval)
    # The observer has just looked, so it sees the last heartbeat as late as can be.
    assert lease.keep_alive(CALL)
    died = backend.now
    assert not observer.wait("nodes", seen, timeout=2 * ttl + 10).entries
    assert ttl < backend.now - died <= ttl + 1.0


def test_the_dead_are_not_looked_at_more_often_than_the_living() -> None:
    backend = VirtualTime()
    heartbeats = HeartbeatLeases(backend, 5.0, lambda: backend.now)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    dead = heartbeats.wait("nodes", heartbeats.read_all("nodes", timeout=CALL), timeout=30.0)
    assert not dead.entries
    before = backend.waits
    heartbeats.wait("nodes", dead, timeout=30.0)
    assert backend.waits - before <= 30.0 / 0.75 + 1


class Busy(VirtualTime):
    """Something changes, now and then."""

    pause = 0.0

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        self.put("nodes/busy", b"\n" + str(self.now).encode(), expect=ANY, timeout=CALL)
        return super().wait(prefix, since, timeout=min(timeout, self.pause))


def test_news_does_not_wait_for_a_look_that_is_due() -> None:
    class Late(Busy):
        def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
            self.now += 1.0
            return super().wait(prefix, since, timeout=timeout)

    backend = Late()
    heartbeats = HeartbeatLeases(backend, 5.0, lambda: backend.now)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    view, before = heartbeats.read_all("nodes", timeout=CALL), backend.reads
    view = heartbeats.wait("nodes", view, timeout=10.0)
    assert (set(view.entries), backend.reads) == ({"nodes/a", "nodes/busy"}, before)
    heartbeats.wait("nodes", view, timeout=10.0)
    assert backend.reads == before + 1, "the next wait does not begin with it"


@pytest.mark.parametrize(("pause", "looks"), [(0.01, 1), (0.2, 11)])
def test_changes_do_not_make_an_observer_scan_more_often(pause: float, looks: int) -> None:
    backend = Busy()
    heartbeats = HeartbeatLeases(backend, 5.0, lambda: backend.now)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    view = heartbeats.read_all("nodes", timeout=CALL)
    before, backend.pause = backend.reads, pause
    for _ in range(40):
        view = heartbeats.wait("nodes", view, timeout=10.0)
    # 0.4 s and 8 s: a look each 0.75 s.
    assert backend.reads - before <= looks
    backend.now += 15.0
    assert "nodes/a" in heartbeats.wait("nodes", view, timeout=10.0).entries, "it is us who did not look"
    died = backend.now
    while "nodes/a" in (view := heartbeats.wait("nodes", view, timeout=10.0)).entries:
        assert backend.now <= died + 16.0


def test_a_heartbeat_whose_reply_was_lost_is_followed_by_another() -> None:
    # Observers count from the heartbeat that they saw, so it must not pass for a keep-alive at a later time.
    backend = MemoryBackend()
    lease = HeartbeatLeases(backend, 1.0).open_lease(3.0, timeout=CALL)
    lease.keep_alive(CALL)
    backend.fail("put", Fault.REPLY_LOST)
    with pytest.raises(RendezvousConnectionError):
        lease.keep_alive(CALL)
    unacknowledged = heartbeat(backend)
    assert lease.keep_alive(CALL)
    assert heartbeat(backend) != unacknowledged


def test_a_revoked_lease_takes_no_later_write_with_it() -> None:
    backend = MemoryBackend()
    heartbeats = HeartbeatLeases(backend, 1.0)
    first = heartbeats.open_lease(3.0, timeout=CALL)
    heartbeats.put("nodes/a", b"before", expect=ABSENT, lease=first, timeout=CALL)
    # The reply is lost, so the owner will ask again; by then it is back.
    backend.fail("put", Fault.REPLY_LOST)
    with pytest.raises(RendezvousConnectionError):
        first.revoke(CALL)
    assert heartbeats.read("nodes/a", timeout=CALL) is None
    second = heartbeats.open_lease(3.0, timeout=CALL)
    assert heartbeats.put("nodes/a", b"after", expect=ABSENT, lease=second, timeout=CALL).outcome is PutOutcome.APPLIED
    first.revoke(CALL)
    entry = heartbeats.read("nodes/a", timeout=CALL)
    assert entry is not None
    assert entry.value == b"after"


class Slow(MemoryBackend):
    """Each call takes most of the time that it is given, on the test's clock.

    Attributes:
        share: So much of it.
    """

    now = 1000.0
    share = 0.0

    def read(self, key: str, *, timeout: float) -> Entry | None:
        self.now += self.share * timeout
        return super().read(key, timeout=timeout)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        self.now += self.share * timeout
        return super().read_all(prefix, timeout=timeout)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        self.now += self.share * timeout
        return super().put(key, value, expect=expect, lease=lease, timeout=timeout)

    def delete(self, prefix: str, *, timeout: float) -> None:
        self.now += self.share * timeout
        super().delete(prefix, timeout=timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        assert timeout > 0
        self.now += timeout
        return self.read_all(prefix, timeout=0.0)


Call = Callable[[HeartbeatLeases, Lease, Snapshot], object]

CALLS: dict[str, Call] = {
    "put": lambda heartbeats, lease, since: heartbeats.put("nodes/0", b"", expect=ABSENT, timeout=CALL),
    "put with a lease": lambda heartbeats, lease, since: heartbeats.put(
        "nodes/0", b"", expect=ABSENT, lease=lease, timeout=CALL
    ),
    "read": lambda heartbeats, lease, since: heartbeats.read("nodes/0", timeout=CALL),
    "read_all": lambda heartbeats, lease, since: heartbeats.read_all("nodes", timeout=CALL),
    "wait": lambda heartbeats, lease, since: heartbeats.wait("nodes", since, timeout=CALL),
    "short wait": lambda heartbeats, lease, since: heartbeats.wait("nodes", since, timeout=CALL / 10),
    "delete": lambda heartbeats, lease, since: heartbeats.delete("nodes", timeout=CALL),
    "open_lease": lambda heartbeats, lease, since: heartbeats.open_lease(15.0, timeout=CALL),
    "keep_alive": lambda heartbeats, lease, since: lease.keep_alive(CALL),
    "revoke": lambda heartbeats, lease, since: lease.revoke(CALL),
}


@pytest.mark.parametrize("share", [0.4, 0.9, 1.0])
@pytest.mark.parametrize("owners", [1, 2, 5])
@pytest.mark.parametrize("is_revoked", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_ends_in_time_however_many_are_made_for_it(
    call: str, is_revoked: bool, owners: int, share: float
) -> None:
    backend = Slow()
    # A look is no part of the call that waits beside it, and may take longer.
    owner, observer = (
        HeartbeatLeases(backend, 5.0, lambda: backend.now, beside=lambda _: Future[object]()) for _ in range(2)
    )
    leases = [owner.open_lease(15.0, timeout=CALL) for _ in range(owners)]
    for number, lease in enumerate(leases):
        owner.put(f"nodes/{number}", b"", expect=ABSENT, lease=lease, timeout=CALL)
    since = observer.read_all("nodes", timeout=CALL)
    for _ in range(3):
        # The observer looks all the time, and at the end the heartbeats are too old: each lease expires.
        observer.read_all("nodes", timeout=CALL)
        backend.now += 5.1
    # The reply to a heartbeat is lost, so its owner has to learn of it, and to write another.
    backend.fail("put", Fault.REPLY_LOST)
    with pytest.raises(RendezvousConnectionError):
        leases[-1].keep_alive(CALL)
    if is_revoked:
        leases[-1].revoke(CALL)
    backend.share, began = share, backend.now
    with contextlib.suppress(RendezvousConnectionError):
        CALLS[call](observer, leases[-1], since)
    timeout = CALL / 10 if call == "short wait" else CALL
    assert backend.now - began <= timeout * (1 + 1e-9)


def test_who_waits_for_a_moment_each_time_sees_deaths_too() -> None:
    backend = Slow()
    heartbeats = HeartbeatLeases(backend, 5.0, lambda: backend.now)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    view, died = heartbeats.read_all("nodes", timeout=CALL), backend.now
    while view.entries:
        assert backend.now <= died + 16.0
        view = heartbeats.wait("nodes", view, timeout=0.1)
    assert backend.now >= died + 15.0


@pytest.mark.parametrize("interval", [0.02, 0.1, 0.4, 5.0])
@pytest.mark.parametrize("waits", [1, 1000])
def test_a_short_interval_leaves_no_look_so_late_that_none_ends_a_lease(interval: float, waits: int) -> None:
    class Far(VirtualTime):
        def read(self, key: str, *, timeout: float) -> Entry | None:
            self.now += interval / 10
            return super().read(key, timeout=timeout)

    backend, ttl = Far(), 20 * interval
    heartbeats = HeartbeatLeases(backend, interval, lambda: backend.now)
    lease = heartbeats.open_lease(ttl, timeout=CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    view, died = heartbeats.read_all("nodes", timeout=CALL), backend.now
    # A leader waits for an interval each time. The look that such a wait begins with takes longer than what it does
    # between two waits, so the next look is due a moment after the next wait has begun.
    while view.entries:
        assert backend.now <= died + 2 * ttl
        view = heartbeats.wait("nodes", view, timeout=waits * interval)
        backend.now += interval / 100
    assert backend.now >= died + ttl


def test_a_heartbeat_that_is_always_lost_does_not_last_for_ever() -> None:
    class Refusing(Slow):
        def put(self, *args: object, **kwargs: object) -> PutResult:
            self.now += 0.1
            return PutResult(PutOutcome.CONFLICT, Entry(b"0", 1, 1))

    backend = Refusing()
    heartbeats, began = HeartbeatLeases(backend, 5.0, lambda: backend.now), backend.now
    with pytest.raises(RendezvousConnectionError):
        heartbeats.open_lease(15.0, timeout=CALL).keep_alive(CALL)
    assert backend.now - began < CALL + 0.2


@pytest.mark.parametrize("corrupt", [b"", b"not ours", b"\xff\xfe"])
@pytest.mark.parametrize("owners", [2, 5])
@pytest.mark.parametrize("is_known", [True, False])
def test_what_another_writes_into_a_heartbeat_counts_as_one_once(is_known: bool, owners: int, corrupt: bytes) -> None:
    backend = VirtualTime()
    owner, observer = (HeartbeatLeases(backend, 5.0, lambda: backend.now) for _ in range(2))
    leases = [owner.open_lease(15.0, timeout=CALL) for _ in range(owners)]
    names = {f"nodes/{number}" for number in range(owners)}
    for name, lease in zip(sorted(names), leases, strict=True):
        owner.put(name, b"", expect=ABSENT, lease=lease, timeout=CALL)
        assert lease.keep_alive(CALL)
    if is_known:
        observer.read_all("nodes", timeout=CALL)
    overwrite_first(backend, corrupt)
    view = observer.read_all("nodes", timeout=CALL)
    assert view.entries.keys() == names, "its owner may still live"
    died = backend.now
    while view.entries.keys() == names:
        assert backend.now <= died + 16.0
        assert all(lease.keep_alive(CALL) for lease in leases[1:])
        view = observer.wait("nodes", view, timeout=1.0)
    assert backend.now >= died + 15.0
    assert view.entries.keys() == names - {"nodes/0"}
    assert not leases[0].keep_alive(CALL), "it is expired, like any other that has ended"


def test_what_belongs_to_a_lease_tells_its_time_to_live() -> None:
    """The observer's own interval may be far shorter."""
    backend = VirtualTime()
    owner = HeartbeatLeases(backend, 60.0, lambda: backend.now)
    observer = HeartbeatLeases(backend, 5.0, lambda: backend.now)
    lease = owner.open_lease(180.0, timeout=CALL)
    owner.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    view, began = observer.read_all("nodes", timeout=CALL), backend.now
    while "nodes/a" in view.entries:
        assert backend.now <= began + 181.0
        view = observer.wait("nodes", view, timeout=1.0)
    assert backend.now >= began + 180.0
    assert not lease.keep_alive(CALL)


def test_before_its_first_heartbeat_a_lease_costs_nothing() -> None:
    backend = MemoryBackend()
    heartbeats = HeartbeatLeases(backend, 5.0)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    assert not backend.calls
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    assert backend.calls == {"put": 1}
    assert heartbeats.read("nodes/a", timeout=CALL) is not None


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("is_lost", [True, False])
def test_what_a_service_has_lost_before_the_first_heartbeat_is_missed(number: int, is_lost: bool) -> None:
    backend = MemoryBackend()
    heartbeats = HeartbeatLeases(backend, 5.0)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    for _ in range(number):
        assert lease.keep_alive(CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    heartbeats.put("nodes/b", b"", expect=ABSENT, lease=lease, timeout=CALL)
    if is_lost:
        for top in ("nodes", "heartbeats"):
            backend.delete(top, timeout=CALL)
    else:
        backend.delete("nodes/b", timeout=CALL)
    assert lease.keep_alive(CALL) is not is_lost
    if is_lost and not number:
        assert heartbeat(backend) == b"expired", "it is over for all"
    if not is_lost:
        # Later the heartbeat itself tells.
        backend.delete("nodes", timeout=CALL)
        assert lease.keep_alive(CALL)
        backend.delete("heartbeats", timeout=CALL)
        assert not lease.keep_alive(CALL)


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_written_over_something_that_is_lost_ends_the_lease(number: int) -> None:
    backend = MemoryBackend()
    heartbeats = HeartbeatLeases(backend, 5.0)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    there = heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL).entry
    assert there is not None
    other = heartbeats.put("nodes/b", b"", expect=ABSENT, lease=lease, timeout=CALL).entry
    assert other is not None
    for _ in range(number):
        assert lease.keep_alive(CALL)
    backend.delete("nodes", timeout=CALL)
    # A claim that another has removed says nothing.
    put = heartbeats.put("nodes/b", b"", expect=other.token, lease=lease, timeout=CALL)
    assert put == PutResult(PutOutcome.CONFLICT)
    again = heartbeats.put("nodes/b", b"", expect=ABSENT, lease=lease, timeout=CALL)
    assert again.outcome is PutOutcome.APPLIED
    put = heartbeats.put("nodes/a", b"", expect=there.token, lease=lease, timeout=CALL)
    assert put == PutResult(PutOutcome.CONFLICT)
    assert heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL) == PutResult(PutOutcome.CONFLICT)
    assert not lease.keep_alive(CALL)
    assert heartbeats.read("nodes/b", timeout=CALL) is None
    assert heartbeat(backend) == b"expired", "it is over for all"


@pytest.mark.parametrize("number", [0, 1])
def test_an_earlier_write_of_its_owner_that_comes_late_does_not_hide_what_is_lost(number: int) -> None:
    backend = MemoryBackend()
    heartbeats = HeartbeatLeases(backend, 5.0)
    earlier, lease = (heartbeats.open_lease(15.0, timeout=CALL) for _ in range(2))
    there = heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL).entry
    assert there is not None
    for _ in range(number):
        assert lease.keep_alive(CALL)
    backend.delete("nodes", timeout=CALL)
    late = heartbeats.put("nodes/a", b"late", expect=ABSENT, lease=earlier, timeout=CALL).entry
    assert late is not None
    put = heartbeats.put("nodes/a", b"", expect=there.token, lease=lease, timeout=CALL)
    assert put == PutResult(PutOutcome.CONFLICT, late)
    assert heartbeats.put("nodes/a", b"", expect=late.token, lease=lease, timeout=CALL) == put
    assert not lease.keep_alive(CALL)
    assert heartbeat(backend) == b"expired", "it is over for all"
    assert heartbeats.read("nodes/a", timeout=CALL) == late


@pytest.mark.parametrize("record_comes_late", [False, True])
@pytest.mark.parametrize("reply_is_lost", [False, True])
def test_a_first_heartbeat_that_comes_late_does_not_hide_what_is_lost(
    record_comes_late: bool, reply_is_lost: bool
) -> None:
    backend = MemoryBackend()
    heartbeats = HeartbeatLeases(backend, 5.0)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    if record_comes_late:
        # It creates the record anew, on the same lease.
        backend.fail("put", Fault.DELAYED)
        heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    if reply_is_lost:
        # What the next one finds there tells when it was created.
        backend.fail("put", Fault.REPLY_LOST)
        heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    backend.fail("put", Fault.DELAYED)
    with pytest.raises(RendezvousConnectionError):
        lease.keep_alive(CALL)
    assert lease.keep_alive(CALL)
    for top in ("nodes", "heartbeats"):
        backend.delete(top, timeout=CALL)
    backend.deliver()
    assert heartbeat(backend) == b"1"
    assert (heartbeats.read("nodes/a", timeout=CALL) is not None) is record_comes_late
    assert not lease.keep_alive(CALL)
    assert heartbeat(backend) == b"expired", "it is over for all"


def test_a_lost_request_over_what_an_expired_lease_has_left_does_not_end_the_lease() -> None:
    backend = MemoryBackend()
    heartbeats = HeartbeatLeases(backend, 5.0)
    expired, lease = (heartbeats.open_lease(15.0, timeout=CALL) for _ in range(2))
    assert isinstance(expired, _HeartbeatLease)
    heartbeats.put("nodes/a", b"left", expect=ABSENT, lease=expired, timeout=CALL)
    assert expired.keep_alive(CALL)
    overwrite_first(backend, b"expired")
    backend.fail("put", Fault.DELAYED)
    assert heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL).outcome is PutOutcome.UNKNOWN
    assert heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL).outcome is PutOutcome.APPLIED
    assert lease.keep_alive(CALL)
    # It is known what it holds, and so it is missed.
    backend.delete("nodes", timeout=CALL)
    backend.put("nodes/a", f"{expired.id} 15.000\nlate".encode(), expect=ABSENT, timeout=CALL)
    assert heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL) == PutResult(PutOutcome.CONFLICT)
    assert not lease.keep_alive(CALL)


def test_a_write_whose_reply_was_lost_goes_with_the_lease_once_it_was_found() -> None:
    backend = MemoryBackend()
    heartbeats = HeartbeatLeases(backend, 5.0)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    backend.fail("put", Fault.REPLY_LOST)
    for outcome in (PutOutcome.UNKNOWN, PutOutcome.CONFLICT):
        assert heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL).outcome is outcome
    lease.revoke(CALL)
    assert [entry.value for entry in backend.read_all("nodes", timeout=CALL).entries.values()] == [b"gone"]


def test_a_write_whose_reply_was_lost_belongs_to_the_lease_as_well() -> None:
    backend = MemoryBackend()
    heartbeats = HeartbeatLeases(backend, 5.0)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    backend.fail("put", Fault.REPLY_LOST)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    assert heartbeats.read("nodes/a", timeout=CALL) is not None
    backend.delete("nodes", timeout=CALL)
    assert not lease.keep_alive(CALL)


def test_a_lease_on_which_nothing_hung_leaves_nothing() -> None:
    backend = MemoryBackend()
    lease = HeartbeatLeases(backend, 5.0).open_lease(15.0, timeout=CALL)
    lease.revoke(CALL)
    assert not backend.calls
    assert not lease.keep_alive(CALL)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_has_ended_stays_so_for_all_whenever_they_come(number: int) -> None:
    backend = VirtualTime()
    owner, other = (HeartbeatLeases(backend, 5.0, lambda: backend.now) for _ in range(2))
    lease = owner.open_lease(15.0, timeout=CALL)
    owner.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    for _ in range(number):
        assert lease.keep_alive(CALL)
    lease.revoke(CALL)
    assert other.read("nodes/a", timeout=CALL) is None
    assert not lease.keep_alive(CALL)
    # Twice is fine, also where the whole run was removed meanwhile.
    lease.revoke(CALL)
    backend.delete("heartbeats", timeout=CALL)
    lease.revoke(CALL)
    assert not backend.read_all("heartbeats", timeout=CALL).entries


def test_a_heartbeat_that_comes_amid_a_revocation_does_not_outlive_it(backend: "Watched") -> None:
    heartbeats = HeartbeatLeases(backend, 5.0, lambda: backend.now)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    (there,) = backend.read_all("nodes", timeout=CALL).entries.values()
    name = there.value.split(b" ")[0].decode()
    backend.interfere = lambda: MemoryBackend.put(backend, f"heartbeats/{name}", b"1", expect=ABSENT, timeout=CALL)
    lease.revoke(CALL)
    assert heartbeat(backend) == b"expired"


def test_an_owner_writes_over_what_another_has_made_of_its_heartbeat() -> None:
    backend = VirtualTime()
    heartbeats = HeartbeatLeases(backend, 5.0, lambda: backend.now)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    assert lease.keep_alive(CALL)
    view = heartbeats.read_all("nodes", timeout=CALL)
    for _ in range(10):
        overwrite_first(backend, b"not ours")
        assert heartbeats.wait("nodes", view, timeout=5.0) is view
        assert lease.keep_alive(CALL)
        assert heartbeats.wait("nodes", view, timeout=5.0) is view


class Watched(VirtualTime):
    """It remembers who has read which heartbeat, and when.

    Attributes:
        looks: The moments, and the names of the heartbeats.
        interfere: Called before a lease is expired.
        refuses: Whether no lease can be expired.
    """

    refuses = False

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[tuple[float, str]] = []
        self.interfere: Callable[[], object] = lambda: None

    def read(self, key: str, *, timeout: float) -> Entry | None:
        if key.startswith("heartbeats/"):
            self.looks.append((self.now, key))
        return super().read(key, timeout=timeout)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        if value == b"expired":
            if self.refuses:
                return PutResult(PutOutcome.CONFLICT, super().read(key, timeout=timeout))
            self.interfere()
        return super().put(key, value, expect=expect, lease=lease, timeout=timeout)

    @property
    def moments(self) -> list[float]:
        """When the heartbeats were read."""
        return [moment for moment, _ in self.looks]


def woken(backend: MemoryBackend) -> Snapshot:
    """What an observer knows that the service has woken for all nodes."""
    return Snapshot({}, parse(backend.read_all("nodes", timeout=CALL)))


class Middle(random.Random):
    """No chance: always the middle."""

    def random(self) -> float:
        return 0.5


@pytest.fixture
def backend() -> Watched:
    return Watched()


@pytest.fixture
def leases(backend: Watched) -> HeartbeatLeases:
    """What a client with an interval of 5 s has; other clients have their own."""
    return HeartbeatLeases(backend, 5.0, lambda: backend.now)


@pytest.fixture
def lease(leases: HeartbeatLeases) -> Lease:
    """A lease of 15 s, with ``nodes/a`` on it."""
    lease = leases.open_lease(15.0, timeout=CALL)
    leases.put("nodes/a", b"of a", expect=ABSENT, lease=lease, timeout=CALL)
    return lease


class TestPut:
    def test_it_says_what_it_has_written(self, leases: HeartbeatLeases, lease: Lease) -> None:
        put = leases.put("nodes/b", b"of b", expect=ABSENT, lease=lease, timeout=CALL)
        assert put.outcome is PutOutcome.APPLIED
        assert put.entry is not None
        assert put.entry.value == b"of b"

    def test_what_belongs_to_a_lease_that_lives_is_there(self, leases: HeartbeatLeases, lease: Lease) -> None:
        put = leases.put("nodes/a", b"new", expect=ABSENT, timeout=CALL)
        assert put.outcome is PutOutcome.CONFLICT
        assert put.entry is not None
        assert put.entry.value == b"of a"
        assert leases.read("nodes/a", timeout=CALL) == put.entry

    def test_what_belongs_to_one_that_has_ended_counts_as_absent(self, leases: HeartbeatLeases, lease: Lease) -> None:
        lease.revoke(CALL)
        put = leases.put("nodes/a", b"new", expect=ABSENT, timeout=CALL)
        assert put.outcome is PutOutcome.APPLIED
        assert put.entry is not None
        assert put.entry.value == b"new"

    def test_who_expects_a_version_does_not_get_the_place_of_what_has_ended(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease
    ) -> None:
        lease.revoke(CALL)
        before = backend.read("nodes/a", timeout=CALL)
        put = leases.put("nodes/a", b"new", expect=12345, timeout=CALL)
        assert (put.outcome, put.entry) == (PutOutcome.CONFLICT, None)
        assert backend.read("nodes/a", timeout=CALL) == before

    def test_nothing_is_written_on_a_lease_that_has_ended(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease
    ) -> None:
        leases.put("nodes/b", b"of b", expect=ABSENT, timeout=CALL)
        lease.revoke(CALL)
        put = leases.put("nodes/b", b"new", expect=ANY, lease=lease, timeout=CALL)
        assert put.outcome is PutOutcome.CONFLICT
        assert put.entry == leases.read("nodes/b", timeout=CALL)
        assert put.entry is not None
        assert put.entry.value == b"of b"

    def test_one_whose_reply_was_lost_may_be_applied(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease
    ) -> None:
        backend.fail("put", Fault.REPLY_LOST)
        put = leases.put("nodes/b", b"of b", expect=ABSENT, lease=lease, timeout=CALL)
        assert (put.outcome, put.entry) == (PutOutcome.UNKNOWN, None)

    def test_a_conflict_with_what_is_gone_again_is_one(self, leases: HeartbeatLeases) -> None:
        class Vanishing(MemoryBackend):
            def put(self, *args: object, **kwargs: object) -> PutResult:
                return PutResult(PutOutcome.CONFLICT)

        put = HeartbeatLeases(Vanishing(), 5.0).put("nodes/a", b"new", expect=ABSENT, timeout=CALL)
        assert (put.outcome, put.entry) == (PutOutcome.CONFLICT, None)


class TestRead:
    def test_what_belongs_to_no_lease_costs_no_look(self, backend: Watched, leases: HeartbeatLeases) -> None:
        leases.put("nodes/a", b"of a", expect=ABSENT, timeout=CALL)
        entry = leases.read("nodes/a", timeout=CALL)
        assert entry is not None
        assert entry.value == b"of a"
        assert backend.looks == []

    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b"0/abc",
            b"not ours",
            b"not ours\nat all",
            b"0/abc\nb",
            b"../a 15.000\nb",
            b"0/abc 1e3\nb",
        ],
    )
    def test_what_others_have_written_is_no_value_on_a_lease(
        self, backend: Watched, leases: HeartbeatLeases, value: bytes
    ) -> None:
        backend.put("nodes/a", value, expect=ABSENT, timeout=CALL)
        entry = leases.read("nodes/a", timeout=CALL)
        assert entry is not None
        assert entry.value == b"\n" + value

    @pytest.mark.parametrize(("owners", "reads", "lists"), [(2, 2, 1), (3, 0, 2)])
    def test_many_heartbeats_are_read_by_one_call(
        self, backend: Watched, leases: HeartbeatLeases, owners: int, reads: int, lists: int
    ) -> None:
        for number in range(owners):
            lease = leases.open_lease(15.0, timeout=CALL)
            leases.put(f"nodes/{number}", b"", expect=ABSENT, lease=lease, timeout=CALL)
        backend.calls.clear()
        assert len(leases.read_all("nodes", timeout=CALL).entries) == owners
        assert (backend.calls["read"], backend.calls["read_all"]) == (reads, lists)

    def test_it_is_a_fresh_look_and_what_waits_learns_of_it(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease
    ) -> None:
        assert leases.read("nodes/a", timeout=CALL) is not None
        lease.revoke(CALL)
        gone = leases.read_all("nodes", timeout=CALL)
        assert not gone.entries
        assert leases.wait("nodes", gone, timeout=0.5) is gone

    def test_a_lease_that_is_marked_as_expired_is_over(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease
    ) -> None:
        assert lease.keep_alive(CALL)
        overwrite_first(backend, b"expired")
        assert leases.read("nodes/a", timeout=CALL) is None
        assert not lease.keep_alive(CALL)
        assert heartbeat(backend) == b"expired"

    @pytest.mark.parametrize(("pause", "is_there"), [(5.75, False), (6.0, True)])
    def test_who_looks_too_seldom_expires_nothing(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease, pause: float, is_there: bool
    ) -> None:
        for _ in range(5):
            there = leases.read("nodes/a", timeout=CALL)
            backend.now += pause
        assert (there is not None) == is_there


class TestWait:
    @pytest.mark.parametrize(("interval", "pause"), [(0.5, 0.5), (5.0, 0.75)])
    def test_one_of_few_observers_looks_at_these_moments(self, backend: Watched, interval: float, pause: float) -> None:
        leases = HeartbeatLeases(backend, interval, lambda: backend.now)
        lease = leases.open_lease(3 * interval, timeout=CALL)
        leases.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
        began = backend.now
        view = leases.read_all("nodes", timeout=CALL)
        for _ in range(4):
            assert leases.wait("nodes", view, timeout=interval) is view
            assert lease.keep_alive(CALL)
        assert backend.moments == [began + pause * number for number in range(len(backend.looks))]
        assert backend.now - pause <= backend.moments[-1] < backend.now

    @pytest.mark.parametrize(
        ("observers", "first", "pauses"), [(64, 1.5, [5.0, 3.0, 3.0, 3.0]), (256, 6.0, [5.0, 12.0, 5.0, 12.0])]
    )
    def test_one_of_many_rests_for_an_interval_first_and_then_for_longer(
        self, backend: Watched, lease: Lease, observers: int, first: float, pauses: list[float]
    ) -> None:
        crowd = HeartbeatLeases(backend, 5.0, lambda: backend.now, observers=lambda: observers, rng=Middle())
        view = crowd.wait("nodes", woken(backend), timeout=0.5)
        seen = backend.now
        while len(backend.looks) < len(pauses) + 1:
            assert lease.keep_alive(CALL)
            assert crowd.wait("nodes", view, timeout=0.5) is view
        expected = [seen + first + sum(pauses[:number]) for number in range(len(pauses) + 1)]
        assert backend.moments == expected

    def test_one_of_many_that_misses_a_heartbeat_looks_as_often_as_one_of_few(
        self, backend: Watched, lease: Lease
    ) -> None:
        crowd = HeartbeatLeases(backend, 5.0, lambda: backend.now, observers=lambda: 64, rng=Middle())
        view = crowd.wait("nodes", woken(backend), timeout=0.5)
        seen = backend.now
        assert not crowd.wait("nodes", view, timeout=60.0).entries
        first = seen + 1.5
        looks = [first, *(first + 5.0 + 0.75 * number for number in range(14)), first + 15.0]
        assert backend.moments[: len(looks)] == looks
        assert backend.now == pytest.approx(first + 15.0, abs=0.05)

    def test_one_of_many_takes_no_lease_for_new_that_it_has_seen_end(self, backend: Watched, lease: Lease) -> None:
        crowd = HeartbeatLeases(backend, 5.0, lambda: backend.now, observers=lambda: 64, rng=Middle())
        view = crowd.wait("nodes", woken(backend), timeout=0.5)
        lease.revoke(CALL)
        view = crowd.wait("nodes", view, timeout=60.0)
        assert not view.entries
        looks = len(backend.looks)
        # What belonged to it still exists, and wakes no observer.
        assert crowd.wait("nodes", view, timeout=60.0) is view
        assert not crowd.read_all("nodes", timeout=CALL).entries
        assert len(backend.looks) == looks

    def test_one_of_many_needs_no_source_of_chance(self, backend: Watched, lease: Lease) -> None:
        crowd = HeartbeatLeases(backend, 5.0, lambda: backend.now, observers=lambda: 64)
        assert crowd.wait("nodes", woken(backend), timeout=0.5).entries

    def test_a_lease_is_over_when_its_time_to_live_is(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease
    ) -> None:
        view, died = leases.read_all("nodes", timeout=CALL), backend.now
        assert not leases.wait("nodes", view, timeout=30.0).entries
        # Not at 15.0: the last moment is one of its life.
        assert 15.0 < backend.now - died <= 15.0 + 0.05

    def test_a_heartbeat_in_the_last_moment_keeps_a_lease(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease
    ) -> None:
        backend.interfere = lambda: lease.keep_alive(CALL)
        view = leases.read_all("nodes", timeout=CALL)
        assert leases.wait("nodes", view, timeout=15.5) is view
        assert lease.keep_alive(CALL)

    def test_what_cannot_be_expired_is_not_looked_at_more_often(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease
    ) -> None:
        backend.refuses = True
        view = leases.read_all("nodes", timeout=CALL)
        assert leases.wait("nodes", view, timeout=45.0) is view
        assert len(backend.looks) <= 45.0 / 0.75 + 2

    def test_a_look_is_at_all_heartbeats_once_one_is_due(
        self, backend: Watched, leases: HeartbeatLeases, lease: Lease
    ) -> None:
        view = leases.read_all("nodes", timeout=CALL)
        ((began, a),) = backend.looks
        other = leases.open_lease(15.0, timeout=CALL)
        leases.put("nodes/b", b"", expect=ABSENT, lease=other, timeout=CALL)
        backend.now += 0.5
        # The service has woken it for what is new.
        view = leases.wait("nodes", Snapshot(view.entries, parse(backend.read_all("nodes", timeout=CALL))), timeout=1.0)
        assert view.entries.keys() == {"nodes/a", "nodes/b"}, "what has just come lives"
        assert not backend.looks[1:]
        assert leases.wait("nodes", view, timeout=0.5) is view
        assert [moment for moment, _ in backend.looks[1:]] == [began + 0.75] * 2
        assert {name for _, name in backend.looks[1:]} > {a}

    def test_a_new_one_that_has_ended_lives_until_it_is_looked_at(
        self, backend: Watched, leases: HeartbeatLeases
    ) -> None:
        view, began = leases.read_all("nodes", timeout=CALL), backend.now
        ended = leases.open_lease(15.0, timeout=CALL)
        leases.put("nodes/a", b"", expect=ABSENT, lease=ended, timeout=CALL)
        assert ended.keep_alive(CALL)
        overwrite_first(backend, b"expired")
        assert not leases.read_all("nodes", timeout=CALL).entries, "a fresh look sees the end at once"
        other = HeartbeatLeases(backend, 5.0, lambda: backend.now)
        view = other.wait("nodes", Snapshot(view.entries, parse(backend.read_all("nodes", timeout=CALL))), timeout=5.0)
        assert view.entries
        assert not other.wait("nodes", view, timeout=5.0).entries
        # The look was then, and the wait sees its end when the next one is due.
        assert backend.now == began + 2 * 0.75

    def test_what_an_owner_gives_up_is_gone_for_those_that_wait_without_a_look(
        self, backend: Watched, leases: HeartbeatLeases
    ) -> None:
        lease = leases.open_lease(15.0, timeout=CALL)
        leases.put("nodes/a", b"first", expect=ABSENT, lease=lease, timeout=CALL)
        there = leases.read("nodes/a", timeout=CALL)
        assert there is not None
        leases.put("nodes/a", b"second", expect=there.token, lease=lease, timeout=CALL)
        other = HeartbeatLeases(backend, 5.0, lambda: backend.now)
        view = other.read_all("nodes", timeout=CALL)
        assert view.entries
        lease.revoke(CALL)
        looks = len(backend.looks)
        assert not other.wait("nodes", view, timeout=5.0).entries
        assert len(backend.looks) == looks
        assert other.read("nodes/a", timeout=CALL) is None
        again = other.open_lease(15.0, timeout=CALL)
        put = other.put("nodes/a", b"third", expect=ABSENT, lease=again, timeout=CALL)
        assert put.outcome is PutOutcome.APPLIED, "its place is taken"

    def test_a_lease_is_over_although_nothing_says_so_to_those_that_wait(
        self, backend: Watched, leases: HeartbeatLeases
    ) -> None:
        lease = leases.open_lease(15.0, timeout=CALL)
        leases.put("nodes/a", b"mine", expect=ABSENT, lease=lease, timeout=CALL)
        # Another's, or a later one of this owner: it is no more what hung on the lease.
        backend.put("nodes/a", b"\nanother", expect=ANY, timeout=CALL)
        lease.revoke(CALL)
        there = leases.read("nodes/a", timeout=CALL)
        assert there is not None
        assert there.value == b"another"

    def test_without_leases_nothing_is_looked_at(self, backend: Watched, leases: HeartbeatLeases) -> None:
        leases.put("nodes/a", b"", expect=ABSENT, timeout=CALL)
        view = leases.read_all("nodes", timeout=CALL)
        assert leases.wait("nodes", view, timeout=30.0) is view
        assert backend.waits == 1
