"""Several members: calls, waits and whole runs go on when one dies, freezes, or loses the others."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import rdzv
from rdzv.backend import ANY, Outcome, Snapshot
from rdzv.errors import RendezvousConnectionError
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.servers import EtcdCluster, EtcdServer, free_ports, require_service

from rdzv_etcd_v2 import watch

from .clients import CALL, Connect, persist, watching


@pytest.fixture(scope="module")
def members() -> Iterator[EtcdCluster]:
    require_service(EtcdServer)
    with EtcdCluster(3, enable_v2=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(members: EtcdCluster) -> Iterator[EtcdCluster]:
    """Three members that run, whatever the test before did to them."""
    yield members
    members.heal()


def _endpoints(first: EtcdServer, cluster: EtcdCluster) -> str:
    others = [member for member in cluster.members if member is not first]
    return ",".join(member.get_endpoint() for member in (first, *others))


def test_dead_endpoints_cost_nothing(shared_etcd: EtcdServer, connect: Connect) -> None:
    dead = [f"127.0.0.1:{port}" for port in free_ports(2)]
    backend = connect(",".join([*dead, shared_etcd.get_endpoint()]))
    began = time.monotonic()
    assert backend.put("dead/endpoints", b"x", expect=ANY, timeout=CALL).outcome is Outcome.WON
    assert backend.local_address == "127.0.0.1"
    assert time.monotonic() - began < 1


def test_all_endpoints_dead_names_each(connect: Connect) -> None:
    one, two = free_ports(2)
    with pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{one}.*refused.*127.0.0.1:{two}.*refused"):
        connect(f"127.0.0.1:{one},127.0.0.1:{two}").read("key", timeout=CALL)


def test_the_leader_freezes(cluster: EtcdCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_SILENCE", 2.0)
    leader = cluster.leader()
    waiter, writer = (connect(_endpoints(leader, cluster), read_timeout=1.0) for _ in range(2))
    waiter.put("key", b"before", expect=ANY, timeout=CALL)
    since = waiter.read_all("key", timeout=CALL)
    with watching(leader, lambda: follow(waiter, "key", since, "key", b"after", 30)) as followed:
        leader.pause()
        persist(lambda: writer.put("key", b"after", expect=ANY, timeout=CALL).entry)
        # Nothing but silence tells the waiter, who makes no calls.
        followed.result(30)
    # A put whose outcome was unknown may have been applied after the one that was answered.
    entry = persist(lambda: writer.read("key", timeout=CALL))
    assert entry.value == b"after"


def test_failing_calls_move_the_waits_as_well(cluster: EtcdCluster, connect: Connect) -> None:
    frozen = next(member for member in cluster.members if member is not cluster.leader())
    backend = connect(_endpoints(frozen, cluster), read_timeout=0.5)
    backend.put("moving", b"", expect=ANY, timeout=CALL)
    since = backend.read_all("moving", timeout=CALL)
    with in_background(lambda: backend.wait("moving", since, timeout=60)) as waited:
        # Whether its poll has arrived by now or not.
        time.sleep(0.2)
        frozen.pause()
        backend.read("anything", timeout=CALL)
        assert backend.put("moving", b"x", expect=ANY, timeout=CALL).outcome is Outcome.WON
        assert waited.result(5).entries["moving"].value == b"x"


def test_a_member_without_the_others_serves_nothing(cluster: EtcdCluster, connect: Connect) -> None:
    """It must not go on with what it had: reads are linearizable."""
    alone, *others = cluster.members
    backend = connect(alone.get_endpoint())
    backend.put("alone", b"x", expect=ANY, timeout=CALL)
    for other in others:
        other.kill()
    with pytest.raises(RendezvousConnectionError):
        backend.read("alone", timeout=1)
    with pytest.raises(RendezvousConnectionError):
        backend.wait("alone", Snapshot(), timeout=CALL)
    assert backend.put("alone", b"y", expect=ANY, timeout=1).outcome is Outcome.UNKNOWN


def test_a_run_loses_the_leader_and_does_not_notice(cluster: EtcdCluster) -> None:
    """While its nodes gather, and while they run: nobody is lost, and no round is formed that nobody asked for."""
    with _run(cluster) as run, ThreadPoolExecutor(3) as pool:
        first = [pool.submit(run.join, number) for number in range(2)]
        eventually(lambda: run.count(rdzv.EventKind.NODE_ARRIVED) == 2, "two nodes to arrive", 30)
        cluster.leader().kill()
        worlds = [future.result(60) for future in (*first, pool.submit(run.join, 2))]
        assert sorted(worlds) == [(1, 3, rank) for rank in range(3)]
        cluster.heal()
        cluster.leader().kill()
        cluster.leader()
        # Longer than a silent node is thought to be alive.
        time.sleep(2)
        assert [handler.num_nodes_waiting() for handler in run.handlers] == [0, 0, 0]
        # The same ranks: the round before was still everybody's.
        assert list(pool.map(run.join, range(3))) == [(2, 3, rank) for _, _, rank in worlds]
        assert not run.count(rdzv.EventKind.NODE_LOST)
        assert not run.count(rdzv.EventKind.EVICTED)


class _Run:
    """Three nodes of one run, and what they tell.

    Attributes:
        handlers: Theirs.
    """

    def __init__(self, cluster: EtcdCluster) -> None:
        self._events: set[tuple[rdzv.EventKind, str]] = set()
        params = rdzv.RendezvousParameters("etcd-v2", cluster.get_endpoint(), "outlives", 3, 3)
        params.config |= {"keep_alive_interval": 0.4, "join_timeout": 60, "read_timeout": 0.5}
        self.handlers = [rdzv.get_rendezvous_handler(params) for _ in range(3)]

    @rdzv.hookimpl
    def rdzv_event(self, event: rdzv.Event) -> None:
        """Note it."""
        self._events.add((event.kind, event.node))

    def count(self, kind: rdzv.EventKind) -> int:
        """Of how many nodes this was told."""
        return sum(one is kind for one, _ in list(self._events))

    def join(self, number: int) -> tuple[int, int, int]:
        """Have a node join; returns round, size and rank."""
        info = self.handlers[number].next_rendezvous()
        return info.round, info.world_size, info.rank


@contextmanager
def _run(cluster: EtcdCluster) -> Iterator[_Run]:
    run = _Run(cluster)
    rdzv.register_hooks(run)
    try:
        yield run
    finally:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda handler: handler.shutdown(), run.handlers))
        rdzv.unregister_hooks(run)
