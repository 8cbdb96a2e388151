"""One etcd for all tests that leave it running, one for those that do not, and clients closed in the end."""

from collections.abc import Iterator
from typing import Any

import pytest
from rdzv_conformance.fixtures import certificates as certificates
from rdzv_conformance.fixtures import connecting, healed, served, using
from rdzv_conformance.servers import EtcdServer, require_service
from rdzv_conformance.servers.certificates import Certificates
from rdzv_core.endpoints import parse_endpoints

from rdzv_etcd_v2 import Access, EtcdV2Backend

from .security import demand_login, secure_etcd

shared_etcd = served(EtcdServer, enable_v2=True)
mended_etcd = served(EtcdServer, enable_v2=True)
etcd = healed("mended_etcd")
"""Keys stay, so each test has its own."""
create = using("etcd-v2")


@connecting
def connect(endpoint: str, *, prefix: str = "rdzv", ttl: int | None = None, **options: Any) -> EtcdV2Backend:
    """A client of one run."""
    return EtcdV2Backend(Access(parse_endpoints(endpoint, 2379), **options), "run", prefix=prefix, ttl=ttl)


@pytest.fixture(scope="session")
def tls_etcd(certificates: Certificates) -> Iterator[EtcdServer]:
    """An etcd that shows a certificate, and demands one; every test may use it, none may stop it."""
    require_service(EtcdServer)
    with secure_etcd(certificates) as server:
        yield server


@pytest.fixture(scope="session")
def auth_etcd() -> Iterator[EtcdServer]:
    """An etcd that demands a login; every test may use it, none may stop it."""
    require_service(EtcdServer)
    with EtcdServer(enable_v2=True) as server:
        demand_login(server)
        yield server
