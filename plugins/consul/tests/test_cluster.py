"""What a watch makes of a member that freezes or loses the others; the rest is in the suite (`cluster`)."""

import pytest
from rdzv_conformance.fixtures import healed, served
from rdzv_conformance.freezes import check_frozen_leader_is_left
from rdzv_conformance.servers import ConsulCluster, ConsulServer

from rdzv_consul import kv

from .clients import Connect, watching

members = served(ConsulServer, ConsulCluster, 3, scope="module")
cluster = healed("members")


def test_the_leader_freezes(cluster: ConsulCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "_HELD", 2.0)
    leader = cluster.leader()
    waiter, writer = (connect(cluster.get_endpoint(leader), request_timeout=1.0) for _ in range(2))
    check_frozen_leader_is_left(leader, waiter, writer, watching)
