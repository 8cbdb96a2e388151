"""One etcd for all tests that leave it running, and clients that are closed in the end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from rdzv.endpoints import parse_endpoints
from rdzv_conformance.servers import EtcdServer, require_service

from rdzv_etcd_v3 import EtcdV3Backend


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdServer]:
    """An etcd that every test may use, none may stop."""
    require_service(EtcdServer)
    with EtcdServer() as server:
        yield server
