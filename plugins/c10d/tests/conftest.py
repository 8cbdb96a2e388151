"""One TCPStore for all tests that leave it running, one for each test that does not, and clients closed in the end."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from rdzv_conformance.fixtures import connecting
from rdzv_conformance.fixtures import processes as processes
from rdzv_conformance.processes import Processes

# torch looks up the name of both ends of every connection. Where no DNS server answers, that takes seconds each.
os.environ["RES_OPTIONS"] = "attempts:0"

from rdzv_c10d import C10dRendezvousBackend
from rdzv_c10d.store import stores

from .clients import ForkedStore, tcp_client


@pytest.fixture(scope="session", autouse=True)
def torch_is_imported() -> None:
    """Importing torch takes seconds; the tests' processes have it from their parent."""
    stores()


@pytest.fixture(scope="session")
def shared_store() -> Iterator[ForkedStore]:
    """A TCPStore that every test may use and none may stop."""
    with Processes() as processes:
        yield ForkedStore(processes)


@pytest.fixture
def server(processes: Processes) -> ForkedStore:
    """A TCPStore of the test's own, to do to it what it likes."""
    return ForkedStore(processes)


@connecting
def connect(endpoint: str, run_id: str = "run", **options: Any) -> C10dRendezvousBackend:
    """A client."""
    return tcp_client(endpoint, run_id, **options)
