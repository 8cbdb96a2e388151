"""Several servers that serve together: calls, waits and whole runs go on when one dies, freezes or loses the others."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

import pytest
from rdzv_core.backend import ABSENT, ANY, Capability, KeyValueBackend, Lease, PutOutcome
from rdzv_core.errors import RendezvousConnectionError

from ..deadlines import eventually
from ..meanwhile import follow, holds, in_background, persist, with_retries
from ..processes import Processes
from ..servers import free_ports
from .base import CALL, CLUSTER, KEY, ROOT, entry_of, lacks, refusal, remove_keys, requires
from .calls import result_of
from .nodes import FORM, Nodes, assert_calm, gather
from .server import ConnectTo, Server, ServerConformance, ServerHarness, check_endpoint_is_taken

_T = TypeVar("_T")

_QUICK: Final = 2.0
"""Seconds that endpoints may cost at which no server listens; one that is silent would cost a whole timeout."""
_LOSS: Final = 30.0
"""Seconds within which all goes on when a member was lost, the election of another leader included."""
_MOVED: Final = 5.0
"""Seconds within which a wait has found another member, once a call of the same client has."""
_TURNS: Final = 60
_SLOW: Final = 0.4
"""Seconds until an answer comes from an endpoint that is slow."""
_SLOW_PUTS: Final = 5
_SHORT_WAIT: Final = 0.75
"""Seconds of the waits of a node that looks at heartbeats; one of two endpoints has half of them, less than `_SLOW`."""

_SHORT: Final = 1.0
_LEASES: Final = 20
"""How many leases are kept alive in turn, in the second in which they are about to end."""

_harms = pytest.mark.parametrize(("who", "harm"), [("leader", "kill"), ("leader", "pause"), ("follower", "kill")])


class Cluster(Protocol):
    """What the fixture ``cluster`` gives: servers of one service, of which one may be lost.

    All clusters of `rdzv_conformance.servers` have these methods. Tests heal it, and remove their keys, so one
    cluster may serve a whole class (``@pytest.fixture(scope="class")``).
    """

    @property
    def members(self) -> Sequence[Server]:
        """The servers, three at least."""

    def leader(self) -> Server:
        """The one whose loss is the worst; waits for an election that is under way. Any, if all are equal."""

    def heal(self) -> None:
        """Have every member run again, and return when all serve."""


class ClusterConformance(ServerConformance):
    """Several endpoints. Without the fixture ``cluster`` most of this is not tried."""

    @pytest.fixture
    def ensemble(self, request: pytest.FixtureRequest) -> Iterator[Cluster]:
        """The cluster, healed in the end."""
        connect: ConnectTo = request.getfixturevalue("connect")
        cluster: Cluster = request.getfixturevalue(CLUSTER)
        check_endpoint_is_taken(self, connect, CLUSTER)
        yield cluster
        cluster.heal()

    @pytest.fixture
    def to(self, connect: ConnectTo, ensemble: Cluster, run_id: str) -> Iterator[Callable[..., KeyValueBackend]]:
        """Makes clients that use this member first, closed in the end, and the others unless they are to do without."""
        with contextlib.ExitStack() as opened:

            def client(first: Server, *, alone: bool = False) -> KeyValueBackend:
                others = [] if alone else [member for member in ensemble.members if member is not first]
                backend = connect(run_id, ",".join(member.get_endpoint() for member in (first, *others)))
                opened.callback(backend.close)
                return backend

            yield client
        ensemble.heal()
        with_retries(lambda: remove_keys(connect(run_id, _all(ensemble))), _LOSS)

    @requires(Capability.MULTI_ENDPOINT)
    def test_endpoints_without_a_server_cost_nothing(self, harness: ServerHarness) -> None:
        """Where no server listens, the next endpoint is used at once; and the own address is known all the same."""
        dead = [f"127.0.0.1:{port}" for port in free_ports(2)]
        client = harness.client(",".join([*dead, harness.endpoint]))
        began = time.monotonic()
        put = client.put(KEY, b"x", expect=ABSENT, timeout=CALL)
        took = time.monotonic() - began
        assert put.outcome is PutOutcome.APPLIED, f"the third of three endpoints serves, and a put answered {put}"
        assert client.local_address
        assert took < _QUICK, f"two endpoints at which no server listens cost {took:.1f} s"

    @requires(Capability.MULTI_ENDPOINT)
    def test_every_endpoint_that_fails_is_named(self, harness: ServerHarness) -> None:
        """The error of a client that can reach none of several endpoints names each."""
        dead = [f"127.0.0.1:{port}" for port in free_ports(2)]
        client = harness.client(",".join(dead))
        error = refusal(lambda: client.read(KEY, timeout=CALL), RendezvousConnectionError)
        assert all(one in str(error) for one in dead), f"of {dead} the error does not name each: {error}"

    @requires(Capability.MULTI_ENDPOINT)
    def test_calls_with_too_little_time_take_nothing_from_the_others(self, harness: ServerHarness) -> None:
        """Each endpoint is slow, and healthy: calls that ask each of them for too short a time fail, and no others."""
        proxies = [harness.proxy() for _ in range(3)]
        client = harness.client(",".join(proxy.endpoint for proxy in proxies))
        client.put(KEY, b"before", expect=ANY, timeout=CALL)
        for proxy in proxies:
            # It knows by an answer that this one is slow. The short call leaves this one too little time: the next one
            # answers it, or it fails where none is left; this one is asked last from then on.
            proxy.slow(_SLOW)
            assert client.read(KEY, timeout=CALL)
            with contextlib.suppress(RendezvousConnectionError):
                client.read(KEY, timeout=2 * _SLOW)
        keys = [f"{ROOT}/slow-{number}" for number in range(_SLOW_PUTS)]
        puts = lambda: [client.put(key, b"x", expect=ABSENT, timeout=CALL).outcome for key in keys]  # noqa: E731
        with in_background(puts) as patient:
            while not patient.done():
                refusal(lambda: client.read(KEY, timeout=_SLOW / 2), RendezvousConnectionError)
            outcomes = result_of(patient, "put", CALL)
        assert outcomes == [PutOutcome.APPLIED] * _SLOW_PUTS, f"calls that were given up took others along: {outcomes}"

    @requires(Capability.MULTI_ENDPOINT)
    @lacks(Capability.LEASE)
    def test_short_waits_go_on_at_another_endpoint(self, harness: ServerHarness) -> None:
        """Where leases are heartbeats a node's waits are short, and their share of an endpoint may be less than an
        answer needs: what one has begun, the next goes on with, once calls have found the other endpoint."""
        frozen, slow = harness.proxy(), harness.proxy()
        client, writer = harness.client(f"{frozen.endpoint},{slow.endpoint}"), harness.client()
        since = client.wait(ROOT, client.read_all(ROOT, timeout=CALL), timeout=_SHORT_WAIT)
        slow.slow(_SLOW)
        frozen.partition()
        writer.put(KEY, b"after", expect=ANY, timeout=CALL)
        with in_background(lambda: persist(lambda: client.background().read(KEY, timeout=CALL), _LOSS)) as found:
            deadline = time.monotonic() + _LOSS
            while not holds(KEY, b"after")(since):
                assert time.monotonic() < deadline, f"waits of {_SHORT_WAIT} s heard of no change for {_LOSS:.0f} s"
                with contextlib.suppress(RendezvousConnectionError):
                    since = client.wait(ROOT, since, timeout=_SHORT_WAIT)
            result_of(found, "read", _LOSS)

    @requires(Capability.MULTI_ENDPOINT)
    @requires(Capability.LEASE)
    def test_a_lease_that_was_kept_alive_at_the_last_moment_lives_for_its_time(
        self, ensemble: Cluster, to: Callable[..., KeyValueBackend]
    ) -> None:
        """What a follower answers is true of the whole service: a lease that it has kept alive does not end before its
        time to live is over, also if it was about to end."""
        leader = ensemble.leader()
        client = to(next(member for member in ensemble.members if member is not leader), alone=True)
        deadline = time.monotonic() + _LOSS
        # On a busy machine all may be asked for too late.
        while not (until := _kept_alive_late(client)):
            assert time.monotonic() < deadline, (
                "no lease was kept alive, though each was asked for about when its time to live was over"
            )
        seen = client.read_all(ROOT, timeout=CALL)
        while until := {key: moment for key, moment in until.items() if moment > time.monotonic()}:
            missing = until.keys() - seen.entries.keys()
            assert not missing, f"{missing} ended though a keep-alive said yes less than a time to live ago"
            seen = client.wait(ROOT, seen, timeout=min(until.values()) - time.monotonic())

    @requires(Capability.MULTI_ENDPOINT)
    @_harms
    def test_all_goes_on_when_a_member_is_lost(
        self, ensemble: Cluster, to: Callable[..., KeyValueBackend], who: str, harm: str
    ) -> None:
        """Calls find another member, what was written is there, a lease lives on, and a waiter learns what is new."""
        lost = _member(ensemble, who)
        waiter, writer = to(lost), to(lost)
        waiter.put(KEY, b"before", expect=ANY, timeout=CALL)
        lease = writer.open_lease(2 * CALL, timeout=CALL) if Capability.LEASE in writer.capabilities else None
        leased = writer.put("suite/leased", b"x", expect=ABSENT, lease=lease, timeout=CALL)
        since = waiter.read_all(KEY, timeout=CALL)
        with in_background(lambda: follow(waiter, KEY, since, KEY, b"after", 2 * _LOSS)) as followed:
            getattr(lost, harm)()
            persist(lambda: writer.put(KEY, b"after", expect=ANY, timeout=CALL).entry, _LOSS)
            if harm == "pause":
                # A client that makes no calls may take long to notice a silence.
                persist(lambda: waiter.read(KEY, timeout=CALL), _LOSS)
            result_of(followed, "wait", 3 * _LOSS)
        assert lease is None or with_retries(lambda: lease.keep_alive(CALL), _LOSS), "a lease went with the leader"
        there = persist(lambda: writer.read("suite/leased", timeout=CALL), _LOSS)
        assert there == leased.entry, "what was written before the leader was lost is not what is there now"

    @requires(Capability.MULTI_ENDPOINT)
    def test_calls_that_find_another_member_take_the_waits_along(
        self, ensemble: Cluster, to: Callable[..., KeyValueBackend]
    ) -> None:
        """A member that does not lead freezes, and wakes no waiter; a call of the same client finds it out for all."""
        frozen = _member(ensemble, "follower")
        client = to(frozen)
        client.put(KEY, b"before", expect=ANY, timeout=CALL)
        since = client.read_all(KEY, timeout=CALL)
        with in_background(lambda: follow(client, KEY, since, KEY, b"after", _LOSS + _MOVED)) as followed:
            time.sleep(0.2)  # whether it waits by now or not
            frozen.pause()
            persist(lambda: client.read(KEY, timeout=CALL), _LOSS)
            put = persist(lambda: client.put(KEY, b"after", expect=ANY, timeout=CALL).entry, _LOSS)
            try:
                now = followed.result(_MOVED)
            except TimeoutError:
                ensemble.heal()
                pytest.fail(f"{_MOVED:g} s after a call had found another member, a wait was still at the frozen one")
            assert entry_of(now, KEY) == put, "a waiter learned of something that was not written"

    @requires(Capability.MULTI_ENDPOINT)
    def test_member_without_the_others_serves_nothing(
        self, ensemble: Cluster, to: Callable[..., KeyValueBackend]
    ) -> None:
        """It must not go on with what it had: reads are linearizable, and what it takes may be lost."""
        alone, *others = ensemble.members
        client = to(alone, alone=True)
        client.put(KEY, b"x", expect=ANY, timeout=CALL)
        for other in others:
            other.kill()
        refusal(lambda: client.read(KEY, timeout=1), RendezvousConnectionError)
        try:
            put = client.put(KEY, b"y", expect=ANY, timeout=1)
        except RendezvousConnectionError:
            return
        assert put.outcome is PutOutcome.UNKNOWN, f"a member without the others answered a put by {put}"

    @requires(Capability.MULTI_ENDPOINT)
    def test_reads_see_what_was_written_through_another_member(
        self, ensemble: Cluster, to: Callable[..., KeyValueBackend]
    ) -> None:
        """A member may lag behind; it must not be believed before it has caught up."""
        clients = [to(member, alone=True) for member in ensemble.members]
        for number in range(_TURNS):
            writer, reader, lister = (clients[(number + shift) % len(clients)] for shift in range(3))
            put = writer.put(KEY, b"%d" % number, expect=ANY, timeout=CALL)
            assert reader.read(KEY, timeout=CALL) == put.entry, "a stale value was read at another member"
            listed = lister.read_all(KEY, timeout=CALL).entries
            assert listed == {KEY: put.entry}, "a stale list was read at another member"

    @requires(Capability.MULTI_ENDPOINT)
    def test_loss_of_leaders_does_not_disturb_the_run(
        self, ensemble: Cluster, connect: ConnectTo, run_id: str, to: object, processes: Processes
    ) -> None:
        """Invariants 4 and 10: while its nodes gather, and while they run, no node is lost and no round is formed."""
        nodes = Nodes(processes, lambda: connect(run_id, _all(ensemble)), run_id)
        three = nodes(3, 3, 3, join=3 * FORM)
        for node in three[:2]:
            node.tell("join")
        eventually(lambda: three[2].ask("nodes") == 2, "two nodes to wait", FORM)
        ensemble.leader().kill()
        three[2].tell("join")
        first = [node.world() for node in three]
        assert [world["size"] for world in first] == [3, 3, 3], f"a leader lost while gathering: {first}"
        ensemble.heal()
        ensemble.leader().kill()
        assert_calm(three, 1.5 * nodes.ttl, "a leader that was lost cost a member its place")
        ranks = [world["rank"] for world in gather(three)]
        assert ranks == [world["rank"] for world in first], "ranks changed hands"


def _kept_alive_late(client: KeyValueBackend) -> dict[str, float]:
    """Keep leases alive about when they end: until when those live that were, by the key that belongs to each."""
    opened: dict[str, tuple[float, Lease]] = {}
    for _ in range(_LEASES):
        moment, lease = time.monotonic(), client.open_lease(_SHORT, timeout=CALL)
        key = f"{ROOT}/{secrets.token_hex(4)}"
        assert client.put(key, b"", expect=ABSENT, lease=lease, timeout=CALL).outcome is PutOutcome.APPLIED
        opened[key] = moment, lease
    until = {}
    for number, (key, (moment, lease)) in enumerate(opened.items()):
        time.sleep(max(0.0, moment + lease.ttl * 0.95 + number / _LEASES - time.monotonic()))
        asked = time.monotonic()
        # One that is not answered promises nothing.
        with contextlib.suppress(RendezvousConnectionError):
            if lease.keep_alive(CALL):
                until[key] = asked + lease.ttl
    return until


def _all(cluster: Cluster) -> str:
    return ",".join(member.get_endpoint() for member in cluster.members)


def _member(cluster: Cluster, who: str) -> Server:
    """The leader, or one that does not lead."""
    leader = cluster.leader()
    return leader if who == "leader" else next(member for member in cluster.members if member is not leader)
