"""etcd v3 does what every backend must do, in the open and behind locks."""

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

from rdzv_etcd_v3 import EtcdV3Backend

from .security import Certificates


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
    def secured(self, locked_etcd: EtcdServer, certificates: Certificates) -> dict[Capability, Secured]:
        def configure(**options: Any) -> Parameters:
            return lambda run_id: RendezvousParameters("etcd-v3", locked_etcd.get_endpoint(), run_id, 1, 1, **options)

        files = {"ca_cert": certificates.ca, "cert": certificates.client}
        user = {"user": "writer", "password": "secret"}
        right = configure(**files, **user)
        distrusted = {
            "wrong authority": configure(**files | {"ca_cert": certificates.foreign_ca}, **user),
            "no certificate": configure(ca_cert=certificates.ca, **user),
            "wrong certificate": configure(**files | {"cert": certificates.foreign_client}, **user),
        }
        strangers = {
            "wrong password": configure(**files, user="writer", password="not this"),
            "unknown user": configure(**files, user="nobody", password="secret"),
            "no permission": configure(**files, user="stranger", password="hi"),
            "nobody": configure(**files),
        }
        return {Capability.TLS: Secured(right, distrusted), Capability.AUTH: Secured(right, strangers)}

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
