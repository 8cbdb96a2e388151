"""What a watch makes of a member that freezes or loses the others; the rest is in the suite (`cluster`)."""

import time

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.fixtures import healed, served
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.servers import EtcdCluster, EtcdServer
from rdzv_core.backend import ANY, PutOutcome
from rdzv_core.errors import RendezvousConnectionError

from .clients import CALL, Connect

members = served(EtcdServer, EtcdCluster, 3, scope="module")
cluster = healed("members")


def test_the_leader_freezes(cluster: EtcdCluster, connect: Connect) -> None:
    leader = cluster.leader()
    waiter, writer = (connect(cluster.get_endpoint(leader), request_timeout=1.0) for _ in range(2))
    waiter.put("key", b"before", expect=ANY, timeout=CALL)
    since = waiter.read_all("key", timeout=CALL)
    lease = writer.open_lease(10, timeout=CALL)
    with in_background(lambda: follow(waiter, "key", since, "key", b"after", 30)) as followed:
        eventually(lambda: leader.calls()["Watch"] > 0, "the watch")
        leader.pause()
        began = time.monotonic()
        put = writer.put("key", b"after", expect=ANY, timeout=CALL)
        while put.outcome is PutOutcome.UNKNOWN:
            put = writer.put("key", b"after", expect=ANY, timeout=CALL)
        assert time.monotonic() - began < 8
        assert lease.keep_alive(CALL)
        # Nothing but silence tells the waiter, who makes no calls.
        followed.result(30)
    assert writer.read("key", timeout=CALL) == put.entry


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
