"""Consul does what every backend must do, in the open and behind locks."""

from collections.abc import Callable

import pytest
from rdzv.backend import KeyValueBackend
from rdzv.endpoints import parse_endpoints
from rdzv_conformance import BackendConformance
from rdzv_conformance.servers import ConsulServer
from rdzv_conformance.suite.lifecycle import LifecycleConformance
from rdzv_conformance.suite.waiting import WaitingConformance

from rdzv_consul import ConsulBackend

from .security import LockedConsul

Connection = Callable[[str], KeyValueBackend]


class TestConsul(BackendConformance):
    @pytest.fixture
    def connect(self, shared_consul: ConsulServer) -> Connection:
        endpoints = parse_endpoints(shared_consul.get_endpoint(), 0)
        return lambda run_id: ConsulBackend(endpoints, run_id)


class TestConsulWithTlsAndToken(LifecycleConformance, WaitingConformance):
    """Those parts that a connection could spoil; what builds upon them does not know of it."""

    @pytest.fixture
    def connect(self, locked_consul: LockedConsul) -> Connection:
        assert locked_consul.server.tls
        endpoints = parse_endpoints(locked_consul.server.get_endpoint(), 0)
        tls = locked_consul.server.tls.client_context()
        return lambda run_id: ConsulBackend(endpoints, run_id, tls=tls, token=locked_consul.writer)
