"""etcd's v2 API does what every backend must do, in the open and behind locks."""

from collections.abc import Iterator
from typing import Any

import pytest
from rdzv.backend import Capability
from rdzv.endpoints import parse_endpoints
from rdzv.parameters import RendezvousParameters
from rdzv_conformance import BackendConformance, Connect, ConnectTo, Parameters, Secured
from rdzv_conformance.servers import EtcdCluster, EtcdServer, require_service
from rdzv_conformance.suite.fork import ForkConformance
from rdzv_conformance.suite.lifecycle import LifecycleConformance
from rdzv_conformance.suite.waiting import WaitingConformance

from rdzv_etcd_v2 import Access, EtcdV2Backend

from .security import Certificates


class TestEtcdV2(BackendConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[EtcdServer]:
        require_service(EtcdServer)
        with EtcdServer(enable_v2=True) as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls) -> Iterator[EtcdCluster]:
        require_service(EtcdServer)
        with EtcdCluster(3, enable_v2=True) as cluster:
            yield cluster

    @pytest.fixture
    def secured(
        self, tls_etcd: EtcdServer, auth_etcd: EtcdServer, certificates: Certificates
    ) -> dict[Capability, Secured]:
        def configure(server: EtcdServer, **options: Any) -> Parameters:
            return lambda run_id: RendezvousParameters("etcd-v2", server.get_endpoint(), run_id, 1, 1, **options)

        files = {"ca_cert": certificates.ca, "ssl_cert": certificates.client}
        distrusted = {
            "wrong authority": configure(tls_etcd, **files | {"ca_cert": certificates.foreign_ca}),
            "no certificate": configure(tls_etcd, ca_cert=certificates.ca),
            "wrong certificate": configure(tls_etcd, **files | {"ssl_cert": certificates.foreign_client}),
        }
        strangers = {
            "wrong password": configure(auth_etcd, user="writer", password="not this"),
            "unknown user": configure(auth_etcd, user="nobody", password="secret"),
            "no permission": configure(auth_etcd, user="stranger", password="hi"),
            "nobody": configure(auth_etcd),
        }
        return {
            Capability.TLS: Secured(configure(tls_etcd, **files), distrusted),
            Capability.AUTH: Secured(configure(auth_etcd, user="writer", password="secret"), strangers),
        }

    @pytest.fixture
    def connect(self, server: EtcdServer) -> ConnectTo:
        return lambda run_id, endpoint="": EtcdV2Backend(
            Access(parse_endpoints(endpoint or server.get_endpoint(), 0)), run_id
        )


class TestEtcdV2WithTls(ForkConformance, LifecycleConformance, WaitingConformance):
    """Those parts that a connection could spoil; what builds upon them does not know of it."""

    @pytest.fixture
    def connect(self, tls_etcd: EtcdServer) -> Connect:
        assert tls_etcd.tls
        access = Access(parse_endpoints(tls_etcd.get_endpoint(), 0), tls_etcd.tls.client_context())
        return lambda run_id: EtcdV2Backend(access, run_id)
