"""What a watch makes of a member that freezes or loses the others; the rest is in the suite (`cluster`)."""

import time
from collections.abc import Iterator

import pytest
from rdzv.backend import ANY, Outcome
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.servers import EtcdCluster, EtcdServer, require_service

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
