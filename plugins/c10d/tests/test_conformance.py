"""Every kind of store does what every backend must do."""

from pathlib import Path

import pytest
from rdzv_conformance import BackendConformance, Connect
from rdzv_conformance.servers import TcpStoreServer
from rdzv_conformance.suite.concurrency import ConcurrencyConformance
from rdzv_conformance.suite.fencing import FencingConformance
from rdzv_conformance.suite.keys import KeysConformance
from rdzv_conformance.suite.lifecycle import LifecycleConformance
from rdzv_conformance.suite.order import OrderConformance
from rdzv_conformance.suite.waiting import WaitingConformance

from rdzv_c10d import C10dRendezvousBackend
from rdzv_c10d.place import FilePlace
from rdzv_c10d.store import stores

from .clients import tcp_client


class TestTcpStore(BackendConformance):
    @pytest.fixture
    def connect(self, shared_store: TcpStoreServer) -> Connect:
        return lambda run_id: tcp_client(shared_store.get_endpoint(), run_id)


class TestFileStore(BackendConformance):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda run_id: C10dRendezvousBackend(FilePlace(str(tmp_path / "store")), run_id)


# What the core makes of the keys is the same for every store.
class TestStoreOfTheUsers(
    LifecycleConformance,
    ConcurrencyConformance,
    WaitingConformance,
    OrderConformance,
    KeysConformance,
    FencingConformance,
):
    @pytest.fixture
    def connect(self, shared_store: TcpStoreServer) -> Connect:
        client = stores().TCPStore(
            shared_store.get_host(), shared_store.get_port(), is_master=False, wait_for_workers=False
        )
        store = stores().PrefixStore("mine", client)
        return lambda run_id: C10dRendezvousBackend(store, run_id)
