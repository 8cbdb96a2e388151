"""Heartbeat leases: leases for a service that has none."""

import contextlib
from collections.abc import Callable

import pytest

from rdzv.backend import ABSENT, ANY, Entry, Expect, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv.engine.heartbeats import HeartbeatLeases
from rdzv.errors import RendezvousConnectionError

from .memory import Fault, MemoryBackend

CALL = 1.0


def heartbeat(backend: MemoryBackend) -> bytes:
    """The only heartbeat that the service holds."""
    (entry,) = backend.read_all("heartbeats", timeout=CALL).entries.values()
    return entry.value


def overwrite_first(backend: MemoryBackend, value: bytes) -> None:
    """Write over the heartbeat of the lease that was opened first, as another client may."""
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


@pytest.mark.parametrize("interval", [0.5, 5.0, 60.0])
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
    backend.fail("delete", Fault.REPLY_LOST)
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
    owner, observer = (HeartbeatLeases(backend, 5.0, lambda: backend.now) for _ in range(2))
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


def test_a_heartbeat_that_is_always_lost_does_not_last_for_ever() -> None:
    class Refusing(Slow):
        def put(self, *args: object, **kwargs: object) -> PutResult:
            self.now += 0.1
            return PutResult(PutOutcome.CONFLICT, Entry(b'{"heartbeat": 0, "ttl": 15}', 1, 1))

    backend = Refusing()
    heartbeats, began = HeartbeatLeases(backend, 5.0, lambda: backend.now), backend.now
    with pytest.raises(RendezvousConnectionError):
        heartbeats.open_lease(15.0, timeout=CALL)
    assert backend.now - began < CALL + 0.2


@pytest.mark.parametrize(
    "corrupt",
    [
        b"",
        b"not ours",
        b"[]",
        b'"heartbeat"',
        b'{"heartbeat": 1}',
        b'{"ttl": null}',
        b'{"ttl": -1}',
        b'{"ttl": NaN}',
        b'{"ttl": 1e999}',
        b'{"ttl": 1' + 400 * b"0" + b"}",
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=lambda corrupt: repr(corrupt[:16]),
)
@pytest.mark.parametrize("owners", [2, 5])
@pytest.mark.parametrize("is_known", [True, False])
def test_an_unreadable_heartbeat_costs_at_most_its_owner(is_known: bool, owners: int, corrupt: bytes) -> None:
    backend = VirtualTime()
    owner, observer = (HeartbeatLeases(backend, 5.0, lambda: backend.now) for _ in range(2))
    leases = [owner.open_lease(15.0, timeout=CALL) for _ in range(owners)]
    names = {f"nodes/{number}" for number in range(owners)}
    for name, lease in zip(sorted(names), leases, strict=True):
        owner.put(name, b"", expect=ABSENT, lease=lease, timeout=CALL)
    if is_known:
        observer.read_all("nodes", timeout=CALL)
    overwrite_first(backend, corrupt)
    if not is_known:
        observer.open_lease(15.0, timeout=CALL)
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


def test_an_observer_without_a_lease_expires_none_that_it_cannot_read() -> None:
    """It does not know their time to live; its own interval may be far shorter."""
    backend = VirtualTime()
    owner = HeartbeatLeases(backend, 60.0, lambda: backend.now)
    lease = owner.open_lease(180.0, timeout=CALL)
    owner.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    overwrite_first(backend, b"not ours")
    observer = HeartbeatLeases(backend, 5.0, lambda: backend.now)
    view = observer.read_all("nodes", timeout=CALL)
    assert observer.wait("nodes", view, timeout=59.0) is view
    assert lease.keep_alive(CALL)
    # One that opens a lease later knows one: nodes of one run have the same.
    overwrite_first(backend, b"not ours")
    began = backend.now
    observer.read_all("nodes", timeout=CALL)
    observer.open_lease(180.0, timeout=CALL)
    while "nodes/a" in view.entries:
        assert backend.now <= began + 181.0
        view = observer.wait("nodes", view, timeout=1.0)


def test_an_owner_writes_over_what_another_has_made_of_its_heartbeat() -> None:
    backend = VirtualTime()
    heartbeats = HeartbeatLeases(backend, 5.0, lambda: backend.now)
    lease = heartbeats.open_lease(15.0, timeout=CALL)
    heartbeats.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    view = heartbeats.read_all("nodes", timeout=CALL)
    for _ in range(10):
        overwrite_first(backend, b"not ours")
        assert heartbeats.wait("nodes", view, timeout=5.0) is view
        assert lease.keep_alive(CALL)
        assert heartbeats.wait("nodes", view, timeout=5.0) is view
