"""etcd v3 does what every backend must do."""

from collections.abc import Callable

import pytest
from rdzv.backend import KeyValueBackend
from rdzv.endpoints import parse_endpoints
from rdzv_conformance import BackendConformance
from rdzv_conformance.servers import EtcdServer

from rdzv_etcd_v3 import EtcdV3Backend


class TestEtcdV3(BackendConformance):
    @pytest.fixture
    def connect(self, shared_etcd: EtcdServer) -> Callable[[str], KeyValueBackend]:
        endpoints = parse_endpoints(shared_etcd.get_endpoint(), 0)
        return lambda run_id: EtcdV3Backend(endpoints, run_id)
