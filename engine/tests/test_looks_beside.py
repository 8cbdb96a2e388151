"""A look at heartbeats that runs beside the wait for news: what becomes of either."""

import threading
from concurrent.futures import Future

import pytest
from rdzv_core.backend import ABSENT, ANY, Entry, Lease, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv.engine.handler import look_beside
from rdzv.engine.heartbeats import HeartbeatLeases, Look, parse

from .memory import Fault, MemoryBackend
from .test_heartbeats import CALL, Watched, overwrite_first

TTL, INTERVAL, SCAN, PAUSE = 15.0, 5.0, 0.75, 0.1


class Far(Watched):
    """A look takes as long as the test says, or until a wait has.

    Attributes:
        under_way: The looks that have begun and not ended.
        begun: How many have begun.
        answers: Whether a look ends while the service is waited for.
        news: What is written meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[tuple[Look, Future[object]]] = []
        self.begun, self.answers, self.news = 0, False, b""

    def beside(self, look: Look) -> Future[object]:
        done: Future[object] = Future()
        self.under_way.append((look, done))
        self.begun += 1
        return done

    def end(self) -> None:
        """The oldest look is answered."""
        look, done = self.under_way.pop(0)
        try:
            done.set_result(look())
        except RendezvousConnectionError as error:
            done.set_exception(error)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        if self.answers and self.under_way:
            self.end()
        if self.news:
            self.put("nodes/news", b"\n" + self.news, expect=ANY, timeout=CALL)
            self.news, timeout = b"", 0.0
        return super().wait(prefix, since, timeout=timeout)


@pytest.fixture
def backend() -> Far:
    return Far()


@pytest.fixture
def leases(backend: Far) -> HeartbeatLeases:
    return HeartbeatLeases(backend, INTERVAL, lambda: backend.now, beside=backend.beside)


@pytest.fixture
def lease(leases: HeartbeatLeases) -> Lease:
    lease = leases.open_lease(TTL, timeout=CALL)
    leases.put("nodes/a", b"of a", expect=ABSENT, lease=lease, timeout=CALL)
    return lease


@pytest.fixture
def view(backend: Far, leases: HeartbeatLeases, lease: Lease) -> Snapshot:
    """What was read when a look has just become due."""
    assert lease.keep_alive(CALL)
    view = leases.read_all("nodes", timeout=CALL)
    backend.now += SCAN
    return view


def test_news_does_not_wait_for_a_look_under_way(backend: Far, leases: HeartbeatLeases, view: Snapshot) -> None:
    for news in (b"first", b"second"):
        backend.news, before = news, backend.now
        view = leases.wait("nodes", view, timeout=30.0)
        assert (view.entries["nodes/news"].value, backend.now, backend.begun) == (news, before, 1)


def test_a_look_beside_a_wait_holds_up_no_other_call(
    backend: Far, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    background, backend.answers = MemoryBackend(backend.service), True
    monkeypatch.setattr(backend, "background", lambda: background)
    leases = HeartbeatLeases(backend, INTERVAL, lambda: backend.now, beside=backend.beside)
    view = leases.wait("nodes", leases.read_all("nodes", timeout=CALL), timeout=SCAN)
    reads = backend.reads
    background.fail("read", Fault.REQUEST_LOST)
    assert leases.wait("nodes", view, timeout=SCAN) is view
    assert (backend.begun, backend.reads - reads, background.calls["read"]) == (1, 0, 2)


def test_a_look_that_never_ends_is_followed_by_another(backend: Far, leases: HeartbeatLeases, view: Snapshot) -> None:
    """As one that was under way at a fork, in the child."""
    assert leases.wait("nodes", view, timeout=3 * INTERVAL - SCAN / 2) is view
    assert backend.begun == 1
    assert leases.wait("nodes", view, timeout=2 * SCAN) is view
    assert backend.begun == 2


def test_each_look_begins_after_the_one_before(backend: Far, leases: HeartbeatLeases, view: Snapshot) -> None:
    backend.news = b"news"
    view = leases.wait("nodes", view, timeout=30.0)
    assert leases.wait("nodes", view, timeout=5.0) is view
    assert backend.begun == 1
    backend.answers = True
    assert leases.wait("nodes", view, timeout=5.0) is view
    # The first one has ended only now; from then on a look follows each pause.
    assert backend.begun == 1 + 5.0 // SCAN


def test_what_is_due_while_another_look_is_under_way_lives(
    backend: Far, leases: HeartbeatLeases, view: Snapshot
) -> None:
    other = leases.open_lease(TTL, timeout=CALL)
    leases.put("nodes/b", b"of b", expect=ABSENT, lease=other, timeout=CALL)
    both = leases.wait("nodes", view, timeout=30.0)
    assert both.entries.keys() == {"nodes/a", "nodes/b"}
    assert leases.wait("nodes", both, timeout=1.0) is both
    backend.end()
    assert leases.wait("nodes", both, timeout=1.0) is both


def test_an_end_that_a_look_has_found_is_news(backend: Far, leases: HeartbeatLeases, view: Snapshot) -> None:
    overwrite_first(backend, b"expired")
    backend.answers, before = True, backend.now
    assert not leases.wait("nodes", view, timeout=30.0).entries
    # The next look is due then.
    assert backend.now == pytest.approx(before + SCAN)


def test_what_a_look_raises_when_it_has_asked_twice_the_wait_does_once(
    backend: Far, leases: HeartbeatLeases, view: Snapshot
) -> None:
    for _ in range(2):
        backend.fail("read", Fault.REQUEST_LOST)
    backend.answers = True
    with pytest.raises(RendezvousConnectionError):
        leases.wait("nodes", view, timeout=30.0)
    assert leases.wait("nodes", view, timeout=5.0) is view


class Unheard:
    """Lets reads get no answer, or late ones.

    Attributes:
        lost: How many more get none: each takes all the time that it has.
        takes: Seconds until an answer.
        seconds: The time that those had which got none.
    """

    def __init__(self, backend: Far) -> None:
        self.lost, self.takes, self.seconds = 0, 0.0, list[float]()
        self._backend, self._read = backend, backend.read

    def read(self, key: str, *, timeout: float) -> Entry | None:
        if not self.lost and self.takes <= timeout:
            self._backend.now += self.takes
            return self._read(key, timeout=timeout)
        self.lost = max(self.lost - 1, 0)
        self.seconds.append(timeout)
        self._backend.now += timeout
        raise RendezvousConnectionError("No answer.")


@pytest.fixture
def unheard(backend: Far, view: Snapshot, monkeypatch: pytest.MonkeyPatch) -> Unheard:
    """Reads of the backend, once the view was read."""
    del view
    unheard = Unheard(backend)
    monkeypatch.setattr(backend, "read", unheard.read)
    backend.answers = True
    return unheard


@pytest.mark.parametrize("left", [TTL - SCAN, SCAN / 2])
@pytest.mark.parametrize("timeout", [0.1, 60.0])
def test_a_look_has_its_own_time_however_long_the_wait_is(
    backend: Far, leases: HeartbeatLeases, view: Snapshot, unheard: Unheard, left: float, timeout: float
) -> None:
    """Nothing looks again before it has ended, also where the lease may end."""
    leases.wait("nodes", view, timeout=TTL - SCAN - left)
    begun, unheard.lost = backend.begun, 100
    with pytest.raises(RendezvousConnectionError):
        until_it_ends(backend, leases, view, timeout)
    assert unheard.seconds == [pytest.approx(INTERVAL / 4), pytest.approx(INTERVAL)]
    assert backend.begun == begun + 1


def until_it_ends(backend: Far, leases: HeartbeatLeases, view: Snapshot, timeout: float) -> float:
    """Wait until no entry is left, by waits of so many seconds as a member's or a leader's; returns the moment."""
    before = backend.now
    while view.entries:
        assert backend.now < before + 4 * TTL
        view = leases.wait("nodes", view, timeout=timeout)
    return backend.now


WAITS = pytest.mark.parametrize("timeout", [1.0, INTERVAL, 60.0])


@WAITS
@pytest.mark.parametrize("waited", [0.0, SCAN, 8.0, TTL - 4 * SCAN, TTL - 2 * SCAN, TTL - SCAN])
def test_an_answer_that_is_lost_is_no_outage_and_delays_an_end_by_a_quarter_of_an_interval_at_most(
    backend: Far, leases: HeartbeatLeases, view: Snapshot, unheard: Unheard, waited: float, timeout: float
) -> None:
    died = backend.now - SCAN
    assert leases.wait("nodes", view, timeout=waited) is view
    unheard.lost = 1
    assert TTL < until_it_ends(backend, leases, view, timeout) - died <= TTL + INTERVAL / 4 + PAUSE
    assert unheard.seconds == [pytest.approx(INTERVAL / 4)]


@pytest.mark.parametrize(("takes", "patience"), [(0.01, INTERVAL / 4), (0.2, 1.6), (0.5, 4.0), (0.7, INTERVAL)])
def test_an_answer_has_eight_times_what_the_last_look_took(
    backend: Far, leases: HeartbeatLeases, view: Snapshot, unheard: Unheard, takes: float, patience: float
) -> None:
    unheard.takes = takes
    assert leases.wait("nodes", view, timeout=SCAN) is view
    for _ in range(2):
        # The time of an answer that was lost says nothing of the next one.
        unheard.lost = 1
        assert leases.wait("nodes", view, timeout=SCAN) is view
    assert unheard.seconds == [pytest.approx(patience)] * 2


@WAITS
@pytest.mark.parametrize("takes", [0.1, 0.3, 0.55, 0.7, 0.8, 0.95])
@pytest.mark.parametrize("both", [False, True])
def test_a_death_is_known_where_each_answer_takes_long(
    backend: Far, leases: HeartbeatLeases, view: Snapshot, unheard: Unheard, takes: float, both: bool, timeout: float
) -> None:
    """One after the other where there are two leases."""
    if both:
        lease = leases.open_lease(TTL, timeout=CALL)
        leases.put("nodes/b", b"", expect=ABSENT, lease=lease, timeout=CALL)
        view = leases.read_all("nodes", timeout=CALL)
    died, unheard.takes = backend.now, takes * INTERVAL / (1 + both)
    # The first look, which gives each lease its whole time again where both its answers take more than an interval, and
    # the one by whose end it is over.
    counted_from = (1 / 4 + takes) * INTERVAL if takes > 3 / 4 else 0.0
    most = counted_from + TTL + (1 / 4 + 2 * takes) * INTERVAL + SCAN
    assert until_it_ends(backend, leases, view, timeout) - died <= most
    assert len(unheard.seconds) <= 1


def test_a_refusal_is_asked_for_once(
    backend: Far, leases: HeartbeatLeases, view: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def refuse(key: str, *, timeout: float) -> Entry | None:
        asked.append(key)
        raise RendezvousDeniedError("Not you.")

    monkeypatch.setattr(backend, "read", refuse)
    backend.answers = True
    with pytest.raises(RendezvousDeniedError):
        leases.wait("nodes", view, timeout=30.0)
    assert len(asked) == 1


@pytest.mark.parametrize("is_read", [False, True])
def test_what_a_look_raises_later_the_next_wait_does_unless_all_was_read_anew(
    backend: Far, leases: HeartbeatLeases, view: Snapshot, is_read: bool
) -> None:
    backend.news = b"news"
    view = leases.wait("nodes", view, timeout=30.0)
    for _ in range(2):
        backend.fail("read", Fault.REQUEST_LOST)
    backend.end()
    if is_read:
        view = leases.read_all("nodes", timeout=CALL)
        assert leases.wait("nodes", view, timeout=SCAN / 2) is view
    else:
        with pytest.raises(RendezvousConnectionError):
            leases.wait("nodes", view, timeout=30.0)


def test_waits_for_other_prefixes_have_looks_of_their_own(
    backend: Far, leases: HeartbeatLeases, view: Snapshot
) -> None:
    lease = leases.open_lease(TTL, timeout=CALL)
    leases.put("control/leader", b"", expect=ABSENT, lease=lease, timeout=CALL)
    control = leases.read_all("control", timeout=CALL)
    assert leases.wait("nodes", view, timeout=1.0) is view
    assert leases.wait("control", control, timeout=1.0) is control
    assert backend.begun == 2


@pytest.mark.parametrize("interval", [0.25, 0.5, 5.0, 60.0])
def test_a_death_is_known_as_soon(interval: float) -> None:
    backend = Far()
    owner = HeartbeatLeases(backend, interval, lambda: backend.now)
    lease = owner.open_lease(3 * interval, timeout=CALL)
    owner.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    observer = HeartbeatLeases(backend, interval, lambda: backend.now, beside=backend.beside)
    backend.answers = True
    seen = observer.wait("nodes", observer.read_all("nodes", timeout=CALL), timeout=interval)
    assert lease.keep_alive(CALL)
    died = backend.now
    assert not observer.wait("nodes", seen, timeout=6 * interval + 10).entries
    assert 3 * interval < backend.now - died <= 3 * interval + 1.0
    assert backend.begun


class Answering(Far):
    """Each look is answered after so many seconds, which wakes no wait."""

    takes, ready_at = 0.0, 0.0

    def beside(self, look: Look) -> Future[object]:
        self.ready_at = self.now + self.takes
        return super().beside(look)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        until = self.now + timeout
        if self.under_way and self.ready_at <= until:
            self.now = self.ready_at
            self.end()
        return super().wait(prefix, since, timeout=until - self.now)


@WAITS
@pytest.mark.parametrize("takes", [0.0, 0.02, 0.3, 0.6])
def test_an_end_that_a_look_beside_a_wait_finds_is_known_half_as_long_again_later(takes: float, timeout: float) -> None:
    backend = Answering()
    leases = HeartbeatLeases(backend, INTERVAL, lambda: backend.now, beside=backend.beside)
    lease = leases.open_lease(TTL, timeout=CALL)
    leases.put("nodes/a", b"of a", expect=ABSENT, lease=lease, timeout=CALL)
    view = leases.read_all("nodes", timeout=CALL)
    backend.takes, died = takes, backend.now
    # The one that finds it may have begun just after it was over, when the one before was answered.
    assert TTL < until_it_ends(backend, leases, view, timeout) - died <= TTL + 2.5 * takes + PAUSE
    # A wait asks a few times what became of such a look.
    assert backend.waits <= 2 * TTL / SCAN + TTL / timeout + 24


def test_a_look_may_outlast_a_short_wait(backend: Far, leases: HeartbeatLeases, view: Snapshot) -> None:
    overwrite_first(backend, b"expired")
    assert leases.wait("nodes", view, timeout=PAUSE) is view
    backend.now += SCAN - 2 * PAUSE
    backend.end()
    assert not leases.wait("nodes", view, timeout=PAUSE).entries


def test_one_of_many_looks_for_the_first_time_beside_its_wait(backend: Far, lease: Lease) -> None:
    crowd = HeartbeatLeases(backend, INTERVAL, lambda: backend.now, observers=lambda: 64, beside=backend.beside)
    view = crowd.wait("nodes", Snapshot({}, parse(backend.read_all("nodes", timeout=CALL))), timeout=0.5)
    assert crowd.wait("nodes", view, timeout=10.0) is view
    assert (backend.begun, backend.looks) == (1, [])


def test_the_end_of_one_lease_comes_in_time_while_another_is_looked_at(backend: Far, leases: HeartbeatLeases) -> None:
    """They are looked at at moments of their own: the one that is dead just before the other is due."""
    backend.answers = True
    dead, lives = (leases.open_lease(TTL, timeout=CALL) for _ in range(2))
    leases.put("nodes/dead", b"", expect=ABSENT, lease=dead, timeout=CALL)
    view = leases.read_all("nodes", timeout=CALL)
    died = backend.now
    view = leases.wait("nodes", view, timeout=TTL - 1.25)
    leases.put("nodes/lives", b"", expect=ABSENT, lease=lives, timeout=CALL)
    both = leases.wait("nodes", view, timeout=0.01)
    assert both.entries.keys() == {"nodes/dead", "nodes/lives"}
    assert leases.wait("nodes", both, timeout=30.0).entries.keys() == {"nodes/lives"}
    assert backend.now <= died + TTL + PAUSE


class Renewing(Far):
    """Looks take 10 ms, waits 1 ms more than they should, and owners change their heartbeats once an interval."""

    def __init__(self, interval: float) -> None:
        super().__init__()
        self.owners, self._interval, self._renews_at = list[Lease](), interval, 0.0

    def end(self) -> None:
        self.now += 0.01
        super().end()

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        if self.now >= self._renews_at:
            self._renews_at = self.now + self._interval
            assert all(lease.keep_alive(CALL) for lease in self.owners)
        until = self.now + timeout + 0.001
        if self.under_way:
            self.end()
        return super().wait(prefix, since, timeout=until - self.now)


@pytest.mark.parametrize("phase", range(8))
@pytest.mark.parametrize(("interval", "attempts"), [(0.5, 6), (0.75, 3), (5.0, 3)])
def test_a_death_is_known_as_soon_where_leases_are_seen_at_moments_of_their_own(
    interval: float, attempts: int, phase: int
) -> None:
    backend, ttl = Renewing(interval), attempts * interval
    leases = HeartbeatLeases(backend, interval, lambda: backend.now, beside=backend.beside)
    view = leases.read_all("nodes", timeout=CALL)
    for name in "ab":
        backend.now += 0.4 * interval
        lease = leases.open_lease(ttl, timeout=CALL)
        backend.owners.append(lease)
        leases.put(f"nodes/{name}", b"", expect=ABSENT, lease=lease, timeout=CALL)
        view = leases.wait("nodes", view, timeout=0.01)
    assert leases.wait("nodes", view, timeout=6 * interval + 0.2 * phase) is view
    dead = backend.owners.pop()
    assert dead.keep_alive(CALL)
    died = backend.now
    assert leases.wait("nodes", view, timeout=3 * ttl).entries.keys() == {"nodes/a"}
    assert ttl < backend.now - died <= ttl + 1.0


def test_an_answer_that_comes_after_a_newer_one_tells_nothing(
    backend: Far, leases: HeartbeatLeases, lease: Lease, view: Snapshot
) -> None:
    """It has another version of the heartbeat, and would be taken for a newer one."""
    older = backend.read_all("heartbeats", timeout=CALL)
    assert lease.keep_alive(CALL)
    (name,) = (key.removeprefix("heartbeats/") for key in older.entries)
    assert leases.read_all("nodes", timeout=CALL).entries
    until = leases._observer._leases[name].until
    backend.now += 1.0
    found = {name: older.entries[f"heartbeats/{name}"]}
    living = leases._check_expiry(found, {name: TTL}, backend.now - 2.0, CALL)
    assert living == {name}
    assert leases._observer._leases[name].until == until


class Silent(MemoryBackend):
    """It answers no read of a heartbeat before it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.waits, self.closed = threading.Event(), threading.Event(), threading.Event()

    def read(self, key: str, *, timeout: float) -> Entry | None:
        self.asked.set()
        self.closed.wait(timeout)
        raise RendezvousConnectionError("The backend is closed.")

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        if self.asked.is_set():
            self.waits.set()
        return super().wait(prefix, since, timeout=timeout)

    def close(self) -> None:
        self.closed.set()


def test_what_looks_has_ended_once_the_backend_is_closed() -> None:
    backend = Silent()
    begun: list[Future[object]] = []

    def beside(look: Look) -> Future[object]:
        begun.append(look_beside(look))
        return begun[-1]

    leases = HeartbeatLeases(backend, SCAN, beside=beside)
    lease = leases.open_lease(60.0, timeout=CALL)
    leases.put("nodes/a", b"", expect=ABSENT, lease=lease, timeout=CALL)
    woken = Snapshot({}, parse(backend.read_all("nodes", timeout=CALL)))
    view = leases.wait("nodes", woken, timeout=60.0)
    waits = threading.Thread(target=leases.wait, args=("nodes", view), kwargs={"timeout": 60.0}, daemon=True)
    with pytest.MonkeyPatch.context() as quiet:
        # It ends by the error of what it asks.
        quiet.setattr(threading, "excepthook", lambda _: None)
        waits.start()
        # The look is under way, and the wait beside it.
        assert backend.waits.wait(30.0)
        leases.close()
        assert all(look.done() for look in begun)
        waits.join(30.0)
    assert not waits.is_alive()
