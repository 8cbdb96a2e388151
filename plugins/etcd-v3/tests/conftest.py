"""One etcd for all tests that leave it running, one for each test that does not, and clients closed in the end."""

from collections.abc import Iterator
from typing import Any

import pytest
from rdzv_conformance.fixtures import certificates as certificates
from rdzv_conformance.fixtures import connecting, served, using
from rdzv_conformance.servers import EtcdServer, require_service
from rdzv_conformance.servers.certificates import Certificates
from rdzv_core.endpoints import parse_endpoints

from rdzv_etcd_v3 import EtcdV3Backend

from .security import demand_login, secure_etcd

shared_etcd = served(EtcdServer)
etcd = served(EtcdServer, scope="function")
create = using("etcd-v3")


@connecting
def connect(endpoint: str, **options: Any) -> EtcdV3Backend:
    """A client of one run."""
    return EtcdV3Backend(parse_endpoints(endpoint, 2379), "run", **options)


@pytest.fixture(scope="session")
def locked_etcd(certificates: Certificates) -> Iterator[EtcdServer]:
    """An etcd that demands a certificate, a user and a password; every test may use it, none may stop it."""
    require_service(EtcdServer)
    with secure_etcd(certificates) as server:
        demand_login(server)
        yield server
