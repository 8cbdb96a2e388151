"""etcd v3 does what every backend must do, in the open and behind locks."""

from collections.abc import Callable

import pytest
from rdzv.backend import KeyValueBackend
from rdzv.endpoints import parse_endpoints
from rdzv_conformance import BackendConformance
from rdzv_conformance.servers import EtcdServer

from rdzv_etcd_v3 import EtcdV3Backend

Connection = Callable[[str], KeyValueBackend]


class TestEtcdV3(BackendConformance):
    @pytest.fixture
    def connect(self, shared_etcd: EtcdServer) -> Connection:
        endpoints = parse_endpoints(shared_etcd.get_endpoint(), 0)
        return lambda run_id: EtcdV3Backend(endpoints, run_id)


class TestEtcdV3WithTlsAndPassword(BackendConformance):
    @pytest.fixture
    def connect(self, locked_etcd: EtcdServer) -> Connection:
        assert locked_etcd.tls
        endpoints = parse_endpoints(locked_etcd.get_endpoint(), 0)
        tls = locked_etcd.tls.client_context()
        return lambda run_id: EtcdV3Backend(endpoints, run_id, tls=tls, user="writer", password="secret")
