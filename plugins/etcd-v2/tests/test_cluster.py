"""What a watch makes of a member that freezes or loses the others; the rest is in the suite (`cluster`)."""

import pytest
from rdzv.backend import ANY
from rdzv_conformance.fixtures import healed, served
from rdzv_conformance.meanwhile import follow, persist
from rdzv_conformance.servers import EtcdCluster, EtcdServer

from rdzv_etcd_v2 import watch

from .clients import CALL, Connect, watching

members = served(EtcdServer, EtcdCluster, 3, enable_v2=True, scope="module")
cluster = healed("members")


def test_the_leader_freezes(cluster: EtcdCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_SILENCE", 2.0)
    leader = cluster.leader()
    waiter, writer = (connect(cluster.get_endpoint(leader), read_timeout=1.0) for _ in range(2))
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
