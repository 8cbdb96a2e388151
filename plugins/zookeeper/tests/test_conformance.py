"""ZooKeeper does what every backend must do."""

from collections.abc import Callable

import pytest
from rdzv.backend import KeyValueBackend
from rdzv.endpoints import parse_endpoints
from rdzv_conformance import BackendConformance
from rdzv_conformance.servers import ZooKeeperServer

from rdzv_zookeeper import ZooKeeperBackend

Connection = Callable[[str], KeyValueBackend]


class TestZooKeeper(BackendConformance):
    @pytest.fixture
    def connect(self, shared_zookeeper: ZooKeeperServer) -> Connection:
        endpoints = parse_endpoints(shared_zookeeper.get_endpoint(), 0)
        return lambda run_id: ZooKeeperBackend(endpoints, run_id)
