"""ZooKeeper does what every backend must do."""

from collections.abc import Iterator

import pytest
from rdzv.endpoints import parse_endpoints
from rdzv_conformance import BackendConformance, ConnectTo
from rdzv_conformance.servers import ZooKeeperCluster, ZooKeeperServer, require_service

from rdzv_zookeeper import ZooKeeperBackend


class TestZooKeeper(BackendConformance):
    """The server's ticks last 0.5 s: a session ends up to one of them after its time, which is within the second."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[ZooKeeperServer]:
        require_service(ZooKeeperServer)
        with ZooKeeperServer() as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls) -> Iterator[ZooKeeperCluster]:
        require_service(ZooKeeperServer)
        with ZooKeeperCluster(3) as cluster:
            yield cluster

    @pytest.fixture
    def connect(self, server: ZooKeeperServer) -> ConnectTo:
        return lambda run_id, endpoint="": ZooKeeperBackend(
            parse_endpoints(endpoint or server.get_endpoint(), 0), run_id
        )
