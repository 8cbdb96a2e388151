"""etcd v3 does what every backend must do, in the open and behind locks."""

from collections.abc import Iterator

import pytest
from rdzv.endpoints import parse_endpoints
from rdzv_conformance import BackendConformance, Connect, ConnectTo
from rdzv_conformance.servers import EtcdCluster, EtcdServer, require_service
from rdzv_conformance.suite.fork import ForkConformance
from rdzv_conformance.suite.lifecycle import LifecycleConformance
from rdzv_conformance.suite.waiting import WaitingConformance

from rdzv_etcd_v3 import EtcdV3Backend


class TestEtcdV3(BackendConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[EtcdServer]:
        require_service(EtcdServer)
        with EtcdServer() as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls) -> Iterator[EtcdCluster]:
        require_service(EtcdServer)
        with EtcdCluster(3) as cluster:
            yield cluster

    @pytest.fixture
    def connect(self, server: EtcdServer) -> ConnectTo:
        return lambda run_id, endpoint="": EtcdV3Backend(parse_endpoints(endpoint or server.get_endpoint(), 0), run_id)


class TestEtcdV3WithTlsAndPassword(ForkConformance, LifecycleConformance, WaitingConformance):
    """Those parts that a connection could spoil; what builds upon them does not know of it."""

    @pytest.fixture
    def connect(self, locked_etcd: EtcdServer) -> Connect:
        assert locked_etcd.tls
        endpoints = parse_endpoints(locked_etcd.get_endpoint(), 0)
        tls = locked_etcd.tls.client_context()
        return lambda run_id: EtcdV3Backend(endpoints, run_id, tls=tls, user="writer", password="secret")
