"""The suite passes what is right."""

import pytest

from rdzv_conformance import BackendConformance, Connect
from rdzv_conformance.processes import Processes

from ..reference import MemoryBackend, PollingBackend, serve


class TestReference(BackendConformance):
    """A service that can wake waiters and end leases."""

    @pytest.fixture
    def connect(self, processes: Processes) -> Connect:
        address = serve(processes)
        return lambda run_id: MemoryBackend(address, run_id)


class TestPolling(BackendConformance):
    """A service that can do neither."""

    @pytest.fixture
    def connect(self, processes: Processes) -> Connect:
        address = serve(processes)
        return lambda run_id: PollingBackend(address, run_id)
