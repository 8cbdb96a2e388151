"""Every kind of store does what every backend must do."""

from pathlib import Path

import pytest
from rdzv_conformance import BackendConformance, Connect, ConnectTo, Parameters
from rdzv_conformance.processes import Processes
from rdzv_conformance.suite.keys import KeysConformance
from rdzv_conformance.suite.waiting import WaitingConformance
from rdzv_core.parameters import RendezvousParameters

from rdzv_c10d import C10dRendezvousBackend
from rdzv_c10d.locator import FileLocator
from rdzv_c10d.store import stores

from .clients import ForkedStore, tcp_client


class TestTcpStore(BackendConformance):
    @pytest.fixture
    def server(self, processes: Processes) -> ForkedStore:
        return ForkedStore(processes)

    @pytest.fixture
    def connect(self, shared_store: ForkedStore) -> ConnectTo:
        return lambda run_id, endpoint="": tcp_client(endpoint or shared_store.endpoint, run_id)

    @pytest.fixture
    def parameters(self, shared_store: ForkedStore) -> Parameters:
        return lambda run_id: RendezvousParameters("c10d", shared_store.endpoint, run_id, 1, 1, is_host=False)


class TestFileStore(BackendConformance):
    no_server = "There is no server: the store is a file."

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda run_id: C10dRendezvousBackend(FileLocator(str(tmp_path / "store")), run_id)

    @pytest.fixture
    def parameters(self, tmp_path: Path) -> Parameters:
        return lambda run_id: RendezvousParameters("c10d", str(tmp_path / "store"), run_id, 1, 1, store_type="file")


class TestStoreOfTheUsers(KeysConformance, WaitingConformance):
    """Those parts that the names of a PrefixStore could break; what builds upon them does not know of it."""

    @pytest.fixture
    def connect(self, shared_store: ForkedStore) -> Connect:
        host, _, port = shared_store.endpoint.partition(":")
        client = stores().TCPStore(host, int(port), is_master=False, wait_for_workers=False)
        store = stores().PrefixStore("mine", client)
        return lambda run_id: C10dRendezvousBackend(store, run_id)
