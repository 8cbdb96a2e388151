"""What a watch makes of a member that freezes or loses the others; the rest is in the suite (`cluster`)."""

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.fixtures import healed, served
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.servers import ZooKeeperCluster, ZooKeeperServer
from rdzv_core.backend import ABSENT, ANY, PutOutcome
from rdzv_core.errors import RendezvousConnectionError

from .clients import CALL, Connect, watching, with_retries

members = served(ZooKeeperServer, ZooKeeperCluster, 3, scope="module")
cluster = healed("members")


def test_the_leader_freezes(cluster: ZooKeeperCluster, connect: Connect) -> None:
    lost, run_id = cluster.leader(), "frozen"
    waiter, writer = (connect(cluster.get_endpoint(lost), run_id=run_id, request_timeout=1.0) for _ in range(2))
    waiter.put("key", b"before", expect=ANY, timeout=CALL)
    lease = writer.open_lease(15, timeout=CALL)
    leased = writer.put("leased", b"x", expect=ABSENT, lease=lease, timeout=CALL)
    since = waiter.read_all("key", timeout=CALL)
    with in_background(lambda: follow(waiter, "key", since, "key", b"after", 30)) as followed:
        eventually(watching(lost), "the watch")
        lost.pause()

        def write() -> None:
            put = writer.put("key", b"after", expect=ANY, timeout=CALL)
            if put.outcome is PutOutcome.UNKNOWN:
                raise RendezvousConnectionError("unknown")

        with_retries(write)
        followed.result(30)
        assert with_retries(lambda: lease.keep_alive(CALL))
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
