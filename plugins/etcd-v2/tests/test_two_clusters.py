"""Endpoints that are members of two clusters, as after a mistaken repair: the one that answers first counts."""

import pytest
from rdzv_conformance.proxy import FaultProxy
from rdzv_conformance.servers import EtcdServer
from rdzv_conformance.suite.calls import calls_of
from rdzv_conformance.users import Create
from rdzv_core.backend import ABSENT, PutOutcome, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from .clients import CALL


def test_another_cluster_is_refused_in_words_and_is_written_nothing(
    shared_etcd: EtcdServer, etcd: EtcdServer, create: Create
) -> None:
    way = FaultProxy(shared_etcd.get_port())
    endpoints = f"{way.endpoint},{etcd.get_endpoint()}"
    backend, open_to_all = create(endpoints), create(endpoints, same_cluster="false")
    for one in (backend, open_to_all):
        one.read("key", timeout=CALL)
    way.close()
    before = etcd.calls()
    for call in calls_of(backend, Snapshot(), CALL, is_served=False).values():
        with pytest.raises(RendezvousConnectionError, match=r"another cluster .* set same_cluster=false") as refused:
            call()
        assert not isinstance(refused.value, RendezvousDeniedError)
    assert (etcd.calls() - before).keys() <= {"v2 GET"}
    assert open_to_all.put("key", b"x", expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED
