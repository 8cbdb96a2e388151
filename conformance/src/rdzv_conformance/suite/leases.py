"""Leases: what an owner has put vanishes with it, and not before."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from rdzv_core.backend import ABSENT, ANY, Capability, KeyValueBackend, PutOutcome, PutResult
from rdzv_core.errors import RendezvousUnsupportedError

from ..deadlines import eventually
from ..meanwhile import wait_for
from ..processes import Link, Processes
from .base import CALL, KEY, ROOT, Clients, Conformance, lacks, refusal, requires
from .calls import has_own

_ASKED: Final = 1.0
"""The time to live that the tests ask for, in seconds; they go by what is granted."""
_SHORT_AND_LONG: Final = (1.0, 4.0)
"""A service that adds a part of the time to live, or a multiple, is late for the long one."""
_PROMISED: Final = 1.0
"""So many seconds after its time a lease is over, and every client can see it."""
_STALL: Final = 0.2
"""A machine on which a thread oversleeps by so many seconds proves nothing about a service that was late."""
_TRIES: Final = 5


class LeasesConformance(Conformance):
    """`KeyValueBackend.open_lease`, and what belongs to a lease."""

    @lacks(Capability.LEASE)
    def test_service_without_leases_says_so(self, client: KeyValueBackend) -> None:
        """`open_lease` refuses at once, with the declared reason."""
        error = refusal(lambda: client.open_lease(_ASKED, timeout=CALL), RendezvousUnsupportedError)
        assert client.unsupported[Capability.LEASE] in str(error), "the refusal does not tell the declared reason"

    @requires(Capability.LEASE)
    def test_lease_lasts_as_long_as_asked(self, client: KeyValueBackend) -> None:
        """The granted time to live is never less than what was asked for, nor than the declared shortest."""
        for asked in (0.1, 1.0, 2.9, 30.0):
            lease = client.open_lease(asked, timeout=CALL)
            assert lease.ttl >= max(asked, client.min_lease_ttl), f"asked for {asked} s, granted {lease.ttl} s"
            lease.revoke(CALL)

    @requires(Capability.LEASE)
    def test_lease_ends_in_time_and_not_before(self, clients: Clients) -> None:
        """Keys of a lease that is not kept alive go, all of them, after the time to live; other keys stay."""
        client = clients()
        client.put("suite/other", b"x", expect=ANY, timeout=CALL)
        began = time.monotonic()
        lease = client.open_lease(_ASKED, timeout=CALL)
        for name in ("suite/a", "suite/b"):
            client.put(name, b"x", expect=ABSENT, lease=lease, timeout=CALL)
        while len(found := _names(client)) == 3:
            assert time.monotonic() - began < self._patience(lease.ttl), "a lease that is not kept alive does not end"
            time.sleep(0.05)
        assert time.monotonic() - began >= lease.ttl, "a lease ended before its time"
        assert "suite/other" in found, "the end of a lease removed a key that was not its own"
        eventually(lambda: _names(client) == {"suite/other"}, "the lease's other key to go")
        assert not lease.keep_alive(CALL), "`keep_alive` says that an ended lease lives"
        assert _names(client) == {"suite/other"}, "an ended lease came back"

    @requires(Capability.LEASE)
    @pytest.mark.parametrize("look", ["read", "wait"])
    def test_lease_ends_within_a_second_of_its_time(self, clients: Clients, look: str) -> None:
        """When the time to live is over, counted from the last keep-alive, the keys go within a second."""
        allowed = _PROMISED + (self.lease_delay[0] if self.lease_delay else 0.0)
        owner, observer = clients(), clients()
        delays = _delays_for_waiters if look == "wait" else _delays_for_readers
        for _ in range(_TRIES):
            with _longest_stall() as longest:
                late = delays(owner, observer, allowed)
            if max(late.values()) <= allowed:
                return
            if longest() < _STALL:
                break
        ends = ", ".join(f"one of {ttl:g} s {delay:.1f} s after its time" for ttl, delay in sorted(late.items()))
        pytest.fail(
            f"leases end too late for who {look}s: {ends} or later; allowed are {allowed:g} s. If the service is as "
            "slow as that by nature, say so in `lease_delay`, with the reason."
        )

    @requires(Capability.LEASE)
    def test_kept_lease_lives_on(self, client: KeyValueBackend) -> None:
        """A lease that is kept alive in time outlives its time to live."""
        # On a machine so busy that this very test is late, the lease rightly ends: then try a longer one.
        for asked in (_ASKED, 5 * _ASKED, 25 * _ASKED):
            if _outlives_its_time(client, asked):
                return
        pytest.fail("this machine is too busy: the test itself was late to keep every lease alive")

    @requires(Capability.LEASE)
    def test_keep_alive_is_of_one_lease(self, client: KeyValueBackend) -> None:
        """A lease of the same client, and one of the same time to live, ends while another is kept alive."""
        kept, left = client.open_lease(_ASKED, timeout=CALL), client.open_lease(_ASKED, timeout=CALL)
        client.put(KEY, b"x", expect=ANY, lease=left, timeout=CALL)
        deadline = time.monotonic() + self._patience(left.ttl)
        while _names(client):
            assert time.monotonic() < deadline, "a lease lives on for as long as another is kept alive"
            kept.keep_alive(CALL)
            time.sleep(0.05)

    @requires(Capability.LEASE)
    def test_revoked_lease_ends_at_once(self, client: KeyValueBackend) -> None:
        """After `revoke` the keys are gone, and the lease is ended for good; revoking twice is fine."""
        mine, other = client.open_lease(30, timeout=CALL), client.open_lease(30, timeout=CALL)
        client.put("suite/mine", b"x", expect=ANY, lease=mine, timeout=CALL)
        client.put("suite/other", b"x", expect=ANY, lease=other, timeout=CALL)
        mine.revoke(CALL)
        assert _names(client) == {"suite/other"}, "`revoke` removes its own keys, all of them and no others"
        mine.revoke(CALL)
        assert not mine.keep_alive(CALL), "`keep_alive` says that a revoked lease lives"
        assert other.keep_alive(CALL), "the end of one lease ended another"
        other.revoke(CALL)

    @requires(Capability.LEASE)
    @pytest.mark.parametrize("there", [None, b"old"], ids=["missing", "existing"])
    def test_put_with_an_ended_lease_loses(self, client: KeyValueBackend, there: bytes | None) -> None:
        """No key can belong to a lease that has ended: such a put changes nothing, whatever it expects."""
        ended = client.open_lease(30, timeout=CALL)
        ended.revoke(CALL)
        before = None if there is None else client.put(KEY, there, expect=ANY, timeout=CALL).entry
        for expect in (ANY, ABSENT, *([] if before is None else [before.token])):
            put = client.put(KEY, b"x", expect=expect, lease=ended, timeout=CALL)
            assert put == PutResult(PutOutcome.CONFLICT, before), (
                f"expecting {expect}: a put with an ended lease answered {put}"
            )
            assert client.read(KEY, timeout=CALL) == before, "a put with an ended lease changed something"

    @requires(Capability.LEASE)
    def test_leased_key_is_a_key(self, client: KeyValueBackend) -> None:
        """Conditions hold for leased keys as for all others."""
        lease = client.open_lease(30, timeout=CALL)
        first = client.put(KEY, b"1", expect=ABSENT, lease=lease, timeout=CALL).entry
        assert first is not None
        assert client.put(KEY, b"2", expect=ABSENT, lease=lease, timeout=CALL) == PutResult(PutOutcome.CONFLICT, first)
        second = client.put(KEY, b"3", expect=first.token, lease=lease, timeout=CALL).entry
        assert second is not None
        assert (second.value, second.order) == (b"3", first.order)
        assert client.read(KEY, timeout=CALL) == second
        assert client.put(KEY, b"4", expect=first.token, lease=lease, timeout=CALL) == PutResult(
            PutOutcome.CONFLICT, second
        )
        client.delete(KEY, timeout=CALL)
        assert lease.keep_alive(CALL), "deleting a key ended its lease"
        lease.revoke(CALL)

    @requires(Capability.LEASE)
    def test_last_put_decides_on_which_lease_a_key_hangs(self, client: KeyValueBackend) -> None:
        """A put without a lease takes the key off its lease; one with another lease hangs it there. A key that was
        deleted, in either way, and is made anew has nothing to do with the lease of the one before.
        """
        first, second = client.open_lease(30, timeout=CALL), client.open_lease(30, timeout=CALL)
        free = {"suite/free", "suite/anew", "suite/removed"}
        old = {name: client.put(name, b"x", expect=ANY, lease=first, timeout=CALL) for name in {*free, "suite/moved"}}
        client.delete("suite/anew", timeout=CALL)
        if has_own(client, "delete_version") and (there := old["suite/removed"].entry):
            client.delete_version("suite/removed", there.token, timeout=CALL)
        for name in free:
            client.put(name, b"y", expect=ANY, timeout=CALL)
        client.put("suite/moved", b"y", expect=ANY, lease=second, timeout=CALL)
        first.revoke(CALL)
        assert _names(client) == {*free, "suite/moved"}, "a key went with a lease that it no longer hung on"
        second.revoke(CALL)
        assert _names(client) == free, "a key does not hang on the lease of its last put"

    @requires(Capability.LEASE)
    def test_lease_belongs_to_no_connection(self, clients: Clients) -> None:
        """Closing a client removes no key: a lease ends by its time or by `revoke`, nothing else."""
        owner, other = clients(), clients()
        lease = owner.open_lease(30, timeout=CALL)
        owner.put(KEY, b"x", expect=ANY, lease=lease, timeout=CALL)
        owner.close()
        assert _names(other) == {KEY}, "closing a client ended its lease"

    @requires(Capability.LEASE)
    def test_waiter_learns_of_an_ended_lease(self, clients: Clients) -> None:
        """The end of a lease is a change like any other: it ends a wait."""
        owner, waiter = clients(), clients()
        lease = owner.open_lease(_ASKED, timeout=CALL)
        owner.put(KEY, b"x", expect=ANY, lease=lease, timeout=CALL)
        since = waiter.read_all(ROOT, timeout=CALL)
        wait_for(
            waiter,
            ROOT,
            since,
            lambda now: KEY not in now.entries,
            "the key to go with its lease",
            self._patience(lease.ttl),
        )

    @requires(Capability.LEASE)
    def test_keys_of_a_killed_owner_go(self, clients: Clients, processes: Processes) -> None:
        """An owner that is killed with -9 while it keeps its lease alive loses its keys within the time to live."""

        def own(link: Link) -> None:
            client = clients()
            lease = client.open_lease(_ASKED, timeout=CALL)
            assert client.put(KEY, b"x", expect=ANY, lease=lease, timeout=CALL).outcome is PutOutcome.APPLIED
            lease.keep_alive(CALL)
            link.send(lease.ttl)
            while lease.keep_alive(CALL):
                time.sleep(lease.ttl / 4)

        owner = processes.fork(own)
        ttl = owner.receive()
        client = clients()
        owner.kill()
        eventually(lambda: not _names(client), "the keys of a killed owner to go", self._patience(ttl))

    @requires(Capability.LEASE)
    def test_owner_that_slept_too_long_learns_it(self, clients: Clients, processes: Processes) -> None:
        """An owner that is frozen for longer than its time to live finds its lease ended when it goes on."""

        def own(link: Link) -> list[object]:
            client = clients()
            lease = client.open_lease(_ASKED, timeout=CALL)
            client.put(KEY, b"x", expect=ANY, lease=lease, timeout=CALL)
            link.send(lease.ttl)
            link.receive()
            kept = lease.keep_alive(CALL)
            return [kept, client.put(KEY, b"y", expect=ANY, lease=lease, timeout=CALL).outcome.value]

        owner = processes.fork(own)
        ttl = owner.receive()
        owner.pause()
        client = clients()
        eventually(lambda: not _names(client), "the keys of a frozen owner to go", self._patience(ttl))
        owner.resume()
        owner.send()
        assert owner.result() == [False, "conflict"], (
            "an owner that slept too long did not learn that its lease has ended"
        )
        assert not _names(client), "an ended lease came back"

    def _patience(self, ttl: float) -> float:
        """How long a test that is not about time waits for the end of a lease on a busy machine."""
        return ttl + _PROMISED + (self.lease_delay[0] if self.lease_delay else 0.0) + CALL / 2


def _delays_for_readers(owner: KeyValueBackend, observer: KeyValueBackend, allowed: float) -> dict[float, float]:
    """How long after its time each lease's key was read, at least, by time to live; they are not kept alive."""
    due = _leave_leases(owner)
    seen = dict.fromkeys(due, 0.0)
    while (asked := time.monotonic()) < max(due.values()) + allowed + _PROMISED:
        # A read that begins now and shows the key proves that the key is there now or later.
        there = _names(observer)
        seen |= {name: asked for name in due if name in there}
        if not there:
            break
        time.sleep(0.02)
    return {_ttl_in(name): seen[name] - due[name] for name in due}


def _delays_for_waiters(owner: KeyValueBackend, observer: KeyValueBackend, allowed: float) -> dict[float, float]:
    """How long after its time each lease's key went, for a client that waits, by time to live."""
    due = _leave_leases(owner)
    gone: dict[str, float] = {}
    now, end = observer.read_all(ROOT, timeout=CALL), max(due.values()) + allowed + _PROMISED
    while len(gone) < len(due):
        learned = time.monotonic()
        gone |= {name: learned for name in due if name not in now.entries and name not in gone}
        if learned > end:
            break
        now = observer.wait(ROOT, now, timeout=max(0.1, end - learned))
    return {_ttl_in(name): gone.get(name, end) - due[name] for name in due}


def _leave_leases(owner: KeyValueBackend) -> dict[str, float]:
    """Open leases, show one keep-alive and no more; returns by key when each is over at the latest."""
    due = {}
    for asked in _SHORT_AND_LONG:
        lease = owner.open_lease(asked, timeout=CALL)
        name = f"suite/{lease.ttl!r}"
        owner.put(name, b"x", expect=ANY, lease=lease, timeout=CALL)
        assert lease.keep_alive(CALL), "a lease ended before its time"
        due[name] = time.monotonic() + lease.ttl
    return due


def _ttl_in(name: str) -> float:
    return float(name.rpartition("/")[2])


@contextmanager
def _longest_stall() -> Iterator[Callable[[], float]]:
    """Watch how this machine keeps time meanwhile; gives the longest that a thread has overslept, in seconds."""
    over, stalls = threading.Event(), [0.0]

    def watch() -> None:
        before = time.monotonic()
        while not over.wait(0.02):
            now = time.monotonic()
            stalls.append(now - before - 0.02)
            before = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: max(stalls)
    finally:
        over.set()
        thread.join()


def _outlives_its_time(client: KeyValueBackend, asked: float) -> bool:
    """Keep a lease alive for longer than its time to live; False if we were late to do so."""
    kept = time.monotonic()
    lease = client.open_lease(asked, timeout=CALL)
    client.put(KEY, b"x", expect=ANY, lease=lease, timeout=CALL)
    end = time.monotonic() + 1.5 * lease.ttl
    while (asking := time.monotonic()) < end:
        alive, entry = lease.keep_alive(CALL), client.read(KEY, timeout=CALL)
        if time.monotonic() - kept >= lease.ttl:
            return False
        assert alive, "a lease ended although it was kept alive"
        assert entry is not None, "a key went although its lease was kept alive"
        kept = asking
        time.sleep(lease.ttl / 4)
    lease.revoke(CALL)
    return True


def _names(client: KeyValueBackend) -> set[str]:
    return set(client.read_all(ROOT, timeout=CALL).entries)
