"""What a watch makes of a member that freezes or loses the others; the rest is in the suite (`cluster`)."""

from collections.abc import Iterator

import pytest
from rdzv.backend import ABSENT, ANY, Outcome
from rdzv.errors import RendezvousConnectionError
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.servers import ZooKeeperCluster, ZooKeeperServer, require_service

from .clients import CALL, Connect, patiently, watching


@pytest.fixture(scope="module")
def members() -> Iterator[ZooKeeperCluster]:
    require_service(ZooKeeperServer)
    with ZooKeeperCluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(members: ZooKeeperCluster) -> Iterator[ZooKeeperCluster]:
    """Three members that run, whatever the test before did to them."""
    yield members
    for member in members.members:
        member.resume()
        if not member.is_running():
            member.relaunch()
    for member in members.members:
        eventually(member._is_ready, "a member to come back", 30)


def _endpoints(first: ZooKeeperServer, cluster: ZooKeeperCluster) -> str:
    others = [member for member in cluster.members if member is not first]
    return ",".join(member.get_endpoint() for member in (first, *others))


@pytest.mark.parametrize(("who", "harm"), [("leader", "kill"), ("leader", "pause"), ("follower", "kill")])
def test_the_member_that_serves_us_is_lost(cluster: ZooKeeperCluster, connect: Connect, harm: str, who: str) -> None:
    leader = cluster.leader()
    lost = leader if who == "leader" else next(one for one in cluster.members if one is not leader)
    run_id = f"{harm} {who}"
    waiter, writer = (connect(_endpoints(lost, cluster), run_id=run_id, request_timeout=1.0) for _ in range(2))
    waiter.put("key", b"before", expect=ANY, timeout=CALL)
    lease = writer.open_lease(15, timeout=CALL)
    leased = writer.put("leased", b"x", expect=ABSENT, lease=lease, timeout=CALL)
    since = waiter.read_all("key", timeout=CALL)
    with in_background(lambda: follow(waiter, "key", since, "key", b"after", 30)) as followed:
        eventually(watching(lost), "the watch")
        getattr(lost, harm)()

        def write() -> None:
            put = writer.put("key", b"after", expect=ANY, timeout=CALL)
            if put.outcome is Outcome.UNKNOWN:
                raise RendezvousConnectionError("unknown")

        patiently(write)
        followed.result(30)
        assert patiently(lambda: lease.keep_alive(CALL))
        assert writer.read("leased", timeout=CALL) == leased.entry
    assert lease.ttl == 15


def test_a_member_without_the_others_is_left(cluster: ZooKeeperCluster, connect: Connect) -> None:
    alone, *others = cluster.members
    backend = connect(alone.get_endpoint())
    since = backend.read_all("alone", timeout=CALL)
    with in_background(lambda: backend.wait("alone", since, timeout=60)) as waited:
        for other in others:
            other.kill()
        with pytest.raises(RendezvousConnectionError, match="leader"):
            waited.result(30)
        with pytest.raises(RendezvousConnectionError, match="leader"):
            backend.read("alone", timeout=1)
