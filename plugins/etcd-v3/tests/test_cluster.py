"""What a watch makes of a member that freezes or loses the others; the rest is in the suite (`cluster`)."""

import time
from collections.abc import Iterator

import pytest
from rdzv.backend import ABSENT, ANY, Outcome
from rdzv.errors import RendezvousConnectionError
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.servers import EtcdCluster, EtcdServer, require_service

from .clients import CALL, Connect


@pytest.fixture(scope="module")
def members() -> Iterator[EtcdCluster]:
    require_service(EtcdServer)
    with EtcdCluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(members: EtcdCluster) -> Iterator[EtcdCluster]:
    """Three members that run, whatever the test before did to them."""
    yield members
    for member in members.members:
        member.resume()
        if not member.is_running():
            member.relaunch()
    for member in members.members:
        member.restart()


def _endpoints(first: EtcdServer, cluster: EtcdCluster) -> str:
    others = [member for member in cluster.members if member is not first]
    return ",".join(member.get_endpoint() for member in (first, *others))


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_the_leader_is_lost(cluster: EtcdCluster, connect: Connect, harm: str) -> None:
    leader = cluster.leader()
    waiter, writer = (connect(_endpoints(leader, cluster), request_timeout=1.0) for _ in range(2))
    waiter.put("key", b"before", expect=ANY, timeout=CALL)
    since = waiter.read_all("key", timeout=CALL)
    lease = writer.open_lease(10, timeout=CALL)
    with in_background(lambda: follow(waiter, "key", since, "key", harm.encode(), 30)) as followed:
        eventually(lambda: leader.calls()["Watch"] > 0, "the watch")
        getattr(leader, harm)()
        began = time.monotonic()
        put = writer.put("key", harm.encode(), expect=ANY, timeout=CALL)
        while put.outcome is Outcome.UNKNOWN:
            put = writer.put("key", harm.encode(), expect=ANY, timeout=CALL)
        assert time.monotonic() - began < 8
        assert lease.keep_alive(CALL)
        # A member that died is noticed at once; one that is frozen, when it has been silent for too long.
        followed.result(30)
    assert writer.read("key", timeout=CALL) == put.entry


def test_failing_calls_move_the_watches_as_well(cluster: EtcdCluster, connect: Connect) -> None:
    frozen = cluster.members[1]
    backend = connect(_endpoints(frozen, cluster), request_timeout=0.5)
    since = backend.read_all("moving", timeout=CALL)
    with in_background(lambda: follow(backend, "moving", since, "moving", b"x", 30)) as followed:
        eventually(lambda: frozen.calls()["Watch"] > 0, "the watch")
        frozen.pause()
        began = time.monotonic()
        backend.read("anything", timeout=CALL)
        assert backend.put("moving", b"x", expect=ABSENT, timeout=CALL).outcome is Outcome.WON
        followed.result(CALL)
        assert time.monotonic() - began < 5


def test_a_member_without_the_others_is_left(cluster: EtcdCluster, connect: Connect) -> None:
    """It goes on serving what it had; only by saying that it must have a leader does a watch learn of it."""
    alone, *others = cluster.members
    backend = connect(alone.get_endpoint())
    since = backend.read_all("alone", timeout=CALL)
    with in_background(lambda: backend.wait("alone", since, timeout=60)) as waited:
        eventually(lambda: alone.calls()["Watch"] > 0, "the watch")
        for other in others:
            other.kill()
        with pytest.raises(RendezvousConnectionError, match="no answer"):
            waited.result(30)
        with pytest.raises(RendezvousConnectionError):
            backend.read("alone", timeout=1)
