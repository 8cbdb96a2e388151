"""What a node costs the others does not grow with their number: elections, looks at heartbeats, retries, news."""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from rdzv_core.backend import ABSENT, Entry, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv.engine.candidacy import CANDIDATES, CLAIM_PAUSE, FIRST_CANDIDATES, MORE_CANDIDATES, NO_LEADER_TIMEOUT
from rdzv.engine.client import longest_pause
from rdzv.engine.heartbeats import HeartbeatLeases
from rdzv.engine.node import Node
from rdzv.engine.records import NAMED, Departure, Phase, RunStatus, State
from rdzv.engine.refusals import timed_out

from .coroutines import Harness
from .memory import MemoryBackend
from .test_node import INTERVAL, Clock, claim, made, snapshot
from .test_rules import state

CALL = 1.0
TTL = 15.0
MOMENTS = 4
"""After so many all of a thousand nodes stand for election."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Chance(random.Random):
    """A source of chance that always gives the same."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


def in_crowd(clock: Clock, nodes: int, seed: int = 0) -> Node:
    """A node that knows of so many."""
    node = made(clock, 1)
    node.rng = random.Random(seed)
    node.run.status = RunStatus(1, Phase.RUNNING, nodes, 0)
    node.run.snapshot = snapshot()
    return node


class TestElection:
    @pytest.mark.parametrize(("nodes", "least", "most"), [(CANDIDATES, CANDIDATES, CANDIDATES), (1000, 1, 32)])
    def test_a_few_stand_first_when_the_leader_is_gone(self, clock: Clock, nodes: int, least: int, most: int) -> None:
        crowd = [in_crowd(clock, nodes, seed) for seed in range(nodes)]
        for node in crowd:
            node.apply_leader(claim("leader"))
            assert node.candidacy.may_lead(node.clock())
            node.apply_leader(None)
        at_once = sum(node.candidacy.may_lead(node.clock()) for node in crowd)
        clock.now += CLAIM_PAUSE
        assert at_once < least or at_once < most / 4
        assert least <= sum(node.candidacy.may_lead(node.clock()) for node in crowd) <= most
        for _ in range(MOMENTS):
            before = sum(node.candidacy.may_lead(node.clock()) for node in crowd)
            clock.now += NO_LEADER_TIMEOUT
            assert sum(node.candidacy.may_lead(node.clock()) for node in crowd) <= 2 * MORE_CANDIDATES * before
        assert all(node.candidacy.may_lead(node.clock()) for node in crowd)

    @pytest.mark.parametrize(("min_nodes", "least", "most"), [(2, 1000, 1000), (1000, 1, 32)])
    def test_of_many_that_come_together_a_few_stand_first(self, min_nodes: int, least: int, most: int) -> None:
        harness = Harness()
        crowd = [harness.registered(f"n{number}", low=min_nodes, high=1000) for number in range(1000)]
        for seed, node in enumerate(crowd):
            node.rng, node.candidacy.stands_from = random.Random(seed), -math.inf
            harness.show(node)
            node.draw_candidates()
        harness.now += CLAIM_PAUSE
        assert least <= sum(node.candidacy.may_lead(node.clock()) for node in crowd) <= most
        harness.now += MOMENTS * NO_LEADER_TIMEOUT
        for node in crowd:
            harness.show(node)
        assert all(node.candidacy.may_lead(node.clock()) for node in crowd)

    @pytest.mark.parametrize(
        ("nodes", "chance", "after"),
        [
            (2, 0.999, 0.0),
            (CANDIDATES, FIRST_CANDIDATES / CANDIDATES, 0.0),
            (CANDIDATES, FIRST_CANDIDATES / CANDIDATES + 0.001, CLAIM_PAUSE),
            (2 * CANDIDATES, 0.5, CLAIM_PAUSE),
            (2 * CANDIDATES, 0.501, NO_LEADER_TIMEOUT),
            (8 * CANDIDATES, 0.501, 2 * NO_LEADER_TIMEOUT),
        ],
    )
    def test_the_moment_from_which_a_node_stands(self, clock: Clock, nodes: int, chance: float, after: float) -> None:
        node = in_crowd(clock, nodes)
        node.rng = Chance(chance)
        node.draw_candidates()
        assert node.candidacy.stands_from == clock.now + after

    @pytest.mark.parametrize(
        ("stands", "looks"), [(0.0, 1.0), (0.05, 0.05), (0.999, 0.999), (1.0, 1.0), (2.0, 1.0), (-1.0, 1.0)]
    )
    def test_the_moment_at_which_a_node_without_a_leader_looks_again(
        self, clock: Clock, stands: float, looks: float
    ) -> None:
        node = in_crowd(clock, 2)
        node.candidacy.stands_from = clock.now + stands
        assert node.candidacy.next_election(clock.now) == clock.now + looks

    def test_a_leader_that_sees_an_old_snapshot_may_lead(self, clock: Clock) -> None:
        for seed in range(100):
            node = in_crowd(clock, 1000, seed)
            node.apply_leader(claim(node.id))
            node.candidacy.begin_term()
            node.apply_leader(None)
            assert node.candidacy.may_lead(node.clock())


@pytest.mark.parametrize(("nodes", "pause"), [(1, 1.0), (375, 1.0), (750, 2.0), (100_000, INTERVAL)])
def test_many_nodes_try_again_less_often(clock: Clock, nodes: int, pause: float) -> None:
    node = in_crowd(clock, nodes)
    assert longest_pause(node.nodes_known(), node.interval) == pause
    pauses = node.pauses()
    assert pause / 2 <= max(pauses.after(RendezvousConnectionError("away")) for _ in range(100)) <= pause


@pytest.mark.parametrize(
    ("nodes", "interval", "pause"), [(1, 1.0, 1.0), (1, 5.0, 5.0), (1, 60.0, 5.0), (7500, 60.0, 20.0)]
)
def test_what_a_service_refuses_is_asked_for_again_seldom(
    clock: Clock, nodes: int, interval: float, pause: float
) -> None:
    node = in_crowd(clock, nodes)
    node.interval = interval
    pauses = node.pauses()
    drawn = [pauses.after(RendezvousDeniedError("wrong password")) for _ in range(100)]
    # From the first on: each attempt may be a login.
    assert pause / 2 <= min(drawn) < max(drawn) <= pause
    # The last attempt has the time to be refused: a login that is cut short would look like silence.
    error = RendezvousDeniedError("wrong password")
    assert pauses.within(1.0, error) is None
    assert pauses.within(1.25, error) == 0.25
    assert pause / 2 <= (pauses.within(pause + 1.0, error) or 0.0) <= pause


def test_a_node_knows_of_those_in_its_world_and_of_those_that_are_present(clock: Clock) -> None:
    node = made(clock, 1)
    assert node.nodes_known() == node.settings.min_nodes == 2
    node.run.state = state("a", "b", "c")
    assert node.nodes_known() == 3
    node.run.status = RunStatus(1, Phase.RUNNING, 4, 0)
    assert node.nodes_known() == 4


def test_all_observe_their_leader_and_only_it_the_others(clock: Clock) -> None:
    node = in_crowd(clock, 1000)
    assert node.observers() == 1000
    node.candidacy.begin_term()
    assert node.observers() == 1


class Parked(RendezvousConnectionError):
    """An observer would wait so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class Service(MemoryBackend):
    """A service on the test's clock, where no wait takes time. It counts the looks at heartbeats."""

    now = 1000.0
    looks = 0

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        if (now := super().read_all(prefix, timeout=timeout)).entries != since.entries:
            return now
        raise Parked(timeout)

    def read(self, key: str, *, timeout: float) -> Entry | None:
        self.looks += key.startswith("heartbeats/")
        return super().read(key, timeout=timeout)


class Crowd:
    """Observers of one lease, each at its own moments."""

    def __init__(self, observers: int, service: Service, known: Callable[[], int] | None = None) -> None:
        self.service = service
        chance = random.Random(0)
        self.views: dict[HeartbeatLeases, Snapshot] = {}
        self.due: list[tuple[float, int, HeartbeatLeases]] = []
        for number in range(observers):
            leases = HeartbeatLeases(
                service, INTERVAL, lambda: service.now, "0", known or (lambda: observers), random.Random(number)
            )
            self.views[leases] = leases.read_all("leader", timeout=CALL)
            self.due.append((service.now + chance.uniform(0.0, 10.0), number, leases))
        heapq.heapify(self.due)

    def watch(self, until: float) -> float | None:
        """Let time pass; the moment at which the first has found that the lease is over."""
        while self.due[0][0] <= until:
            self.service.now, number, leases = heapq.heappop(self.due)
            try:
                leases.wait("leader", self.views[leases], timeout=60.0)
            except Parked as parked:
                heapq.heappush(self.due, (self.service.now + parked.seconds, number, leases))
            else:
                return self.service.now
        self.service.now = until
        return None


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_many_observers_look_seldom_and_find_a_death_as_soon(share: float) -> None:
    service, observers = Service(), 600
    owner = HeartbeatLeases(service, INTERVAL, lambda: service.now)
    lease = owner.open_lease(TTL, timeout=CALL)
    owner.put("leader", b"", expect=ABSENT, lease=lease, timeout=CALL)
    crowd = Crowd(observers, service)
    began = service.now
    for number in range(1, 61):
        if number == 20:
            service.looks = 0
        assert crowd.watch(began + number * INTERVAL) is None
        assert lease.keep_alive(CALL)
    assert service.looks <= 0.2 * 40 * INTERVAL * observers
    # It dies together with many of those that look.
    died = service.now
    crowd.due = crowd.due[: int(share * observers)]
    heapq.heapify(crowd.due)
    found = crowd.watch(died + 2 * TTL)
    assert found is not None
    assert TTL < found - died <= TTL + 1.0


@pytest.mark.parametrize("observers", [8, 16, 600])
def test_of_those_that_see_a_new_lease_none_looks_at_once_and_a_death_is_found_as_soon(observers: int) -> None:
    service = Service()
    crowd = Crowd(observers, service)
    owner = HeartbeatLeases(service, INTERVAL, lambda: service.now)
    lease = owner.open_lease(TTL, timeout=CALL)
    owner.put("leader", b"", expect=ABSENT, lease=lease, timeout=CALL)
    died = service.now
    for observer in crowd.views:
        crowd.views[observer] = observer.wait("leader", crowd.views[observer], timeout=60.0)
    assert not service.looks
    crowd.due = [(service.now, number, observer) for _, number, observer in crowd.due]
    heapq.heapify(crowd.due)
    found = crowd.watch(died + 2 * TTL)
    assert found is not None
    assert TTL < found - died <= TTL + 1.0


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("observers", [32, 256, 1000])
def test_a_death_is_found_as_soon_where_all_have_just_begun(observers: int, few: bool) -> None:
    service, known = Service(), [2 if few else observers]
    owner = HeartbeatLeases(service, INTERVAL, lambda: service.now)
    lease = owner.open_lease(TTL, timeout=CALL)
    owner.put("leader", b"", expect=ABSENT, lease=lease, timeout=CALL)
    crowd = Crowd(observers, service, lambda: known[0])
    crowd.due = [(service.now + number * 3.0 / observers, number, leases) for _, number, leases in crowd.due]
    heapq.heapify(crowd.due)
    began, service.looks = service.now, 0
    for number in range(1, 6):
        # At first a few were known; then they are in a world of many.
        assert crowd.watch(began + number * INTERVAL) is None
        assert lease.keep_alive(CALL)
        if number == 1:
            known[0] = observers
    assert few or service.looks <= 70 * 5 * INTERVAL
    died = service.now
    found = crowd.watch(died + 4 * TTL)
    assert found is not None
    assert TTL < found - died <= TTL + 1.0


def test_those_that_are_left_of_many_find_a_death_as_soon() -> None:
    service, known = Service(), [1000]
    owner = HeartbeatLeases(service, INTERVAL, lambda: service.now)
    lease = owner.open_lease(TTL, timeout=CALL)
    owner.put("leader", b"", expect=ABSENT, lease=lease, timeout=CALL)
    crowd = Crowd(2, service, lambda: known[0])
    assert crowd.watch(service.now + 0.5) is None
    died, known[0] = service.now, 2
    # The news of it wakes them.
    crowd.due = [(died, number, leases) for _, number, leases in crowd.due]
    found = crowd.watch(died + 4 * TTL)
    assert found is not None
    assert TTL < found - died <= TTL + 1.0


class TestStatus:
    def lost(self, *ranks: int) -> tuple[Departure, ...]:
        return tuple(Departure(f"n{rank}", rank, rank % 2 == 1, "why") for rank in ranks)

    def test_it_names_the_first_and_counts_the_others(self) -> None:
        whole = RunStatus(3, Phase.RE_FORMING, 700, 1, self.lost(*range(300)))
        short = whole.shortened(None)
        assert short.departures == whole.departures[:NAMED]
        assert (short.left, short.gone) == (whole.left, whole.gone) == (150, 300)
        assert (short.more_left, short.more_lost) == (134, 134)
        assert len(short.encode()) < 3_000

    def test_those_that_are_named_stay(self) -> None:
        before = RunStatus(3, Phase.RE_FORMING, 700, 1, self.lost(*range(100, 250))).shortened(None)
        now = RunStatus(3, Phase.RE_FORMING, 600, 1, self.lost(*range(250)))
        assert now.shortened(before).departures == before.departures
        earlier = RunStatus(2, Phase.RUNNING, 1, 0, before.departures)
        assert now.shortened(earlier).departures == self.lost(*range(NAMED))

    def test_it_names_the_first_of_those_that_are_awaited(self) -> None:
        names = tuple(f"n{rank}" for rank in range(300))
        assert RunStatus(3, Phase.RE_FORMING, 300, 1, awaited=names).shortened(None).awaited == names[:NAMED]

    def test_it_names_the_first_of_those_that_are_missing_and_counts_the_others(self) -> None:
        names = tuple(f"n{rank}" for rank in range(300))
        short = RunStatus(3, Phase.GATHERING, 1, 0, missing=names).shortened(None)
        assert (short.missing, short.more_missing, short.absent) == (names[:NAMED], 300 - NAMED, 300)
        small = RunStatus(3, Phase.GATHERING, 1, 0, missing=names[:NAMED])
        assert small.shortened(None) == small

    def test_a_small_one_stays_as_it_is(self) -> None:
        status = RunStatus(3, Phase.RE_FORMING, 1, 1, self.lost(2, 1))
        assert (status.shortened(None).gone, status.shortened(None).left) == (2, 1)
        assert set(status.shortened(None).departures) == set(status.departures)


def test_a_message_lists_twenty_nodes_and_counts_the_others() -> None:
    node = Harness().registered()
    record = node.registration.record
    assert record is not None
    error = timed_out(node, [record] * 50, None, 1.0, alone=False, reason=None)
    assert "a, a, and 30 more)" in str(error)
    assert str(error).count("a, ") == 20


class TestWhoIsMissing:
    """The sentence of a node that gives up."""

    def of(self, node: Node, live: list[str] | None, running: State | None = None) -> str:
        record = node.registration.record
        assert record is not None
        here = None if live is None else [replace(record, id=name) for name in live]
        return str(timed_out(node, here, running, 1.0, alone=False, reason=None))

    def test_of_a_list_those_are_named_that_have_not_come(self) -> None:
        node = Harness().registered()
        assert "Missing" not in self.of(node, ["a"])
        node.expected = ("a", "b", "c")
        assert " Missing: b, c." in self.of(node, ["a"])
        assert "Missing" not in self.of(node, ["a", "b", "c"])
        assert "Missing" not in self.of(node, ["a", "x"])
        node.expected = tuple(f"n{number}" for number in range(50))
        assert f" Missing: {', '.join(node.expected[1:21])}, and 29 more." in self.of(node, ["n0"])

    def test_without_one_those_of_the_world_before_are(self) -> None:
        node = Harness().registered()
        node.run.state = replace(state("a.1", "b.2", "c.3"), attempt=0)
        assert " Missing: b, c." in self.of(node, ["a.1"])
        # A world on pages was read.
        node.run.state = replace(node.run.state, world=())
        assert " Missing: c." in self.of(node, ["a.1"], state("a.1", "c.3"))
        # Of those that are gone stands there why.
        node.run.state = state("a.1", "b.2", "c.3")
        number, lost = node.run.state.round, Departure("b.2", 1, False, "why")
        node.run.status = RunStatus(number, Phase.RE_FORMING, 1, 0, (lost,))
        assert " Missing: c. Of round" in self.of(node, ["a.1"])
        # But the next attempt expects them.
        node.run.state = replace(node.run.state, attempt=node.settings.attempt - 1)
        assert " Missing: b, c. Of round" in self.of(node, ["a.1"])

    def test_a_node_of_another_attempt_has_not_come_to_this_one(self) -> None:
        node = Harness().registered()
        node.expected = ("a", "b")
        record = node.registration.record
        assert record is not None
        live = [record, replace(record, id="b.4", attempt=record.attempt + 1)]
        assert " Missing: b." in str(timed_out(node, live, None, 1.0, alone=False, reason=None))

    def test_those_that_give_up_together_name_who_was_missing_before(self) -> None:
        node = Harness().registered()
        node.expected = ("a", "b", "c", "d")
        node.run.status = RunStatus(0, Phase.GATHERING, 2, 0, missing=("c", "d"), more_missing=70)
        assert " Missing: c, d, and 70 more." in self.of(node, ["a"])
        assert " Missing: c, d, and 70 more." in self.of(node, None)
        assert " Missing: c, d." in self.of(node, ["a", "b"])
        node.run.status = RunStatus(0, Phase.GATHERING, 2, 0)
        assert "Missing" not in self.of(node, None)


def test_a_message_lists_twenty_that_are_gone_and_counts_the_others(clock: Clock) -> None:
    node = made(clock, 1)
    node.run.state = state("a", "b", "c")
    lost = tuple(Departure(f"n{rank}", rank, False, "why") for rank in range(30))
    node.run.status = RunStatus(node.run.state.round, Phase.RE_FORMING, 1, 0, lost, more_lost=50)
    assert "'n19' is gone: why; and 60 more" in str(timed_out(node, [], None, 1.0, alone=False, reason=None))
    node.run.status = RunStatus(node.run.state.round + 1, Phase.RE_FORMING, 1, 0, lost)
    message = str(timed_out(node, [], None, 1.0, alone=False, reason=None))
    assert "gone" not in message
    assert "more" not in message
