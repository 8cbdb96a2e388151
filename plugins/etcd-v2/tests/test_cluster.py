"""What a watch makes of a member that freezes or loses the others; the rest is in the suite (`cluster`)."""

import pytest
from rdzv_conformance.fixtures import healed, served
from rdzv_conformance.freezes import check_frozen_leader_is_left
from rdzv_conformance.servers import EtcdCluster, EtcdServer

from rdzv_etcd_v2 import events

from .clients import Connect, watching

members = served(EtcdServer, EtcdCluster, 3, enable_v2=True, scope="module")
cluster = healed("members")


def test_the_leader_freezes(cluster: EtcdCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_SILENCE", 2.0)
    leader = cluster.leader()
    waiter, writer = (connect(cluster.get_endpoint(leader), read_timeout=1.0) for _ in range(2))
    check_frozen_leader_is_left(leader, waiter, writer, watching)
