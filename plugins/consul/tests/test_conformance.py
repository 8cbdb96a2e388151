"""Consul does what every backend must do, in the open and behind locks."""

from collections.abc import Iterator
from typing import Any

import pytest
from rdzv.backend import Capability
from rdzv.endpoints import parse_endpoints
from rdzv.parameters import RendezvousParameters
from rdzv_conformance import BackendConformance, Connect, ConnectTo, Parameters, Secured
from rdzv_conformance.servers import ConsulCluster, ConsulServer, require_service
from rdzv_conformance.suite.fork import ForkConformance
from rdzv_conformance.suite.lifecycle import LifecycleConformance
from rdzv_conformance.suite.waiting import WaitingConformance

from rdzv_consul import ConsulBackend

from .security import Certificates, LockedConsul


class TestConsul(BackendConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[ConsulServer]:
        require_service(ConsulServer)
        with ConsulServer() as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls) -> Iterator[ConsulCluster]:
        require_service(ConsulServer)
        with ConsulCluster(3) as cluster:
            yield cluster

    @pytest.fixture
    def secured(self, locked_consul: LockedConsul, certificates: Certificates) -> dict[Capability, Secured]:
        def configure(**options: Any) -> Parameters:
            return lambda run_id: RendezvousParameters(
                "consul", locked_consul.server.get_endpoint(), run_id, 1, 1, **options
            )

        files = {"ca_cert": certificates.ca, "cert": certificates.client}
        right = configure(**files, token=locked_consul.writer)
        distrusted = {
            "wrong authority": configure(**files | {"ca_cert": certificates.foreign_ca}, token=locked_consul.writer),
            "wrong certificate": configure(**files | {"cert": certificates.foreign_client}, token=locked_consul.writer),
        }
        strangers = {
            "wrong token": configure(**files, token="11111111-2222-3333-4444-555555555555"),
            "no permission": configure(**files, token=locked_consul.stranger),
            "nobody": configure(**files),
        }
        return {Capability.TLS: Secured(right, distrusted), Capability.AUTH: Secured(right, strangers)}

    @pytest.fixture
    def connect(self, server: ConsulServer) -> ConnectTo:
        return lambda run_id, endpoint="": ConsulBackend(parse_endpoints(endpoint or server.get_endpoint(), 0), run_id)


class TestConsulWithTlsAndToken(ForkConformance, LifecycleConformance, WaitingConformance):
    """Those parts that a connection could spoil; what builds upon them does not know of it."""

    @pytest.fixture
    def connect(self, locked_consul: LockedConsul) -> Connect:
        assert locked_consul.server.tls
        endpoints = parse_endpoints(locked_consul.server.get_endpoint(), 0)
        tls = locked_consul.server.tls.client_context()
        return lambda run_id: ConsulBackend(endpoints, run_id, tls=tls, token=locked_consul.writer)
