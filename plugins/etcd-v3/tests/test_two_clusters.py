"""Endpoints that are members of two clusters, as after a mistaken repair: the one that answers first counts."""

import re
from collections.abc import Iterator

import pytest
from rdzv import RendezvousParameters
from rdzv.engine.handler import create_handler
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.proxy import FaultProxy
from rdzv_conformance.servers import EtcdServer
from rdzv_conformance.suite.calls import calls_of
from rdzv_core.backend import ABSENT, ANY, PutOutcome, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from .clients import CALL, Connect

ANOTHER = (
    r"127\.0\.0\.1:\d+: it belongs to another cluster \([0-9a-f]+\) than the one that answered first \([0-9a-f]+\)"
)


@pytest.fixture
def way(shared_etcd: EtcdServer) -> Iterator[FaultProxy]:
    """The way to the first cluster."""
    proxy = FaultProxy(shared_etcd.get_port())
    yield proxy
    proxy.close()


def test_another_cluster_is_refused_in_words_and_is_written_nothing(
    way: FaultProxy, etcd: EtcdServer, connect: Connect
) -> None:
    backend = connect(f"{way.endpoint},{etcd.get_endpoint()}")
    calls = calls_of(backend, Snapshot(), CALL)
    way.close()
    for call in calls.values():
        with pytest.raises(RendezvousConnectionError, match=ANOTHER) as refused:
            call()
        # A member that runs goes on: the first cluster may come back.
        assert not isinstance(refused.value, RendezvousDeniedError)
    assert etcd.calls().keys() <= {"Status"}


def test_another_cluster_is_named_while_the_first_is_silent(
    way: FaultProxy, etcd: EtcdServer, connect: Connect
) -> None:
    backend, gathering = (connect(f"{way.endpoint},{etcd.get_endpoint()}", request_timeout=0.3) for _ in range(2))
    gathering.read("silent", timeout=CALL)
    put = backend.put("silent", b"x", expect=ANY, timeout=CALL)
    way.partition()
    with pytest.raises(RendezvousConnectionError, match=rf"no answer within .*{ANOTHER}"):
        backend.read("silent", timeout=2)
    params = RendezvousParameters("etcd-v3", way.endpoint, "run", 1, 1, join_timeout=2)
    with create_handler(None, gathering, params) as node:

        def refusal() -> str:
            with pytest.raises(RendezvousConnectionError) as refused:
                node.next_rendezvous()
            return str(refused.value)

        # A connection that breaks in the last moment is what it names instead.
        eventually(lambda: re.search(ANOTHER, refusal()) is not None, "the other cluster to be named")
    way.heal()
    assert backend.put("silent", b"y", expect=put.entry and put.entry.token, timeout=CALL).outcome is PutOutcome.APPLIED


def test_a_restored_cluster_counts_for_a_new_node_and_by_the_option(
    way: FaultProxy, etcd: EtcdServer, connect: Connect
) -> None:
    endpoints = f"{way.endpoint},{etcd.get_endpoint()}"
    old, open_to_all = connect(endpoints), connect(endpoints, same_cluster=False)
    for backend in (old, open_to_all):
        backend.read("restored", timeout=CALL)
    way.close()
    with pytest.raises(RendezvousConnectionError, match="start this node again, or set same_cluster=false"):
        old.read("restored", timeout=CALL)
    assert open_to_all.put("restored", b"x", expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED
    assert connect(endpoints).read("restored", timeout=CALL) is not None
