"""The suite passes what is right."""

from pathlib import Path

import pytest

from rdzv_conformance import BackendConformance, ConnectTo
from rdzv_conformance.processes import Processes
from rdzv_conformance.suite.lifecycle import LifecycleConformance
from rdzv_conformance.suite.outages import OutagesConformance
from rdzv_conformance.suite.waiting import WaitingConformance

from ..faults import HastyWait
from ..reference import DurableBackend, DurableService, MemoryServer, OnMemory, PollingBackend


class TestReference(OnMemory, BackendConformance):
    """A service that can wake waiters and end leases."""


class TestHasty(OnMemory, LifecycleConformance, WaitingConformance):
    """A backend that uses what the contract leaves open: a wait too short for a question may be an error."""

    backend = HastyWait


class TestPolling(OnMemory, BackendConformance):
    """A service that can do neither."""

    backend = PollingBackend


class TestDurable(OutagesConformance):
    """A service that keeps everything."""

    @pytest.fixture
    def server(self, processes: Processes, tmp_path: Path) -> MemoryServer:
        return MemoryServer(processes, lambda: DurableService(tmp_path / "service.json"))

    @pytest.fixture
    def connect(self, server: MemoryServer) -> ConnectTo:
        return lambda run_id, endpoint="": DurableBackend(endpoint or server.get_endpoint(), run_id)
