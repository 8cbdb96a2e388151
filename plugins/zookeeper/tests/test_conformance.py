"""ZooKeeper does what every backend must do."""

from collections.abc import Iterator
from typing import Any

import pytest
from rdzv.backend import Capability
from rdzv.endpoints import parse_endpoints
from rdzv.parameters import RendezvousParameters
from rdzv_conformance import BackendConformance, ConnectTo, Parameters, Secured
from rdzv_conformance.servers import ZooKeeperCluster, ZooKeeperServer, require_service

from rdzv_zookeeper import ZooKeeperBackend

from .security import Certificates


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
    def secured(
        self, tls_server: ZooKeeperServer, shared_zookeeper: ZooKeeperServer, certificates: Certificates
    ) -> dict[Capability, Secured]:
        def configure(server: ZooKeeperServer, **options: Any) -> Parameters:
            return lambda run_id: RendezvousParameters("zookeeper", server.get_endpoint(), run_id, 1, 1, **options)

        files = {"ca_cert": certificates.ca, "cert": certificates.client}
        distrusted = {
            "wrong authority": configure(tls_server, **files | {"ca_cert": certificates.foreign_ca}),
            "no certificate": configure(tls_server, ca_cert=certificates.ca),
            "wrong certificate": configure(tls_server, **files | {"cert": certificates.foreign_client}),
        }
        strangers = {
            "wrong password": configure(shared_zookeeper, user="me", password="not this", prefix="secured"),
            "nobody": configure(shared_zookeeper, prefix="secured"),
        }
        owner = configure(shared_zookeeper, user="me", password="secret", prefix="secured")
        return {
            Capability.TLS: Secured(configure(tls_server, **files), distrusted),
            Capability.AUTH: Secured(owner, strangers),
        }

    @pytest.fixture
    def connect(self, server: ZooKeeperServer) -> ConnectTo:
        return lambda run_id, endpoint="": ZooKeeperBackend(
            parse_endpoints(endpoint or server.get_endpoint(), 0), run_id
        )
