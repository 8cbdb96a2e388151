"""One etcd for all tests that leave it running, one for those that do not, and clients closed in the end."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from rdzv.endpoints import parse_endpoints
from rdzv_conformance.servers import EtcdServer, require_service
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.users import Create, creating

from rdzv_etcd_v2 import Access, EtcdV2Backend

from .clients import Connect
from .security import demand_login, secure_etcd


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdServer]:
    """An etcd that every test may use and none may stop."""
    require_service(EtcdServer)
    with EtcdServer(enable_v2=True) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


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


@pytest.fixture(scope="session")
def mended_etcd() -> Iterator[EtcdServer]:
    require_service(EtcdServer)
    with EtcdServer(enable_v2=True) as server:
        yield server


@pytest.fixture
def etcd(mended_etcd: EtcdServer) -> Iterator[EtcdServer]:
    """An etcd to do to it what the test likes. Keys stay, so each test has its own."""
    yield mended_etcd
    mended_etcd.resume()
    if not mended_etcd.is_running():
        mended_etcd.restart()


@pytest.fixture
def create() -> Iterator[Create]:
    with creating("etcd-v2") as create:
        yield create


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients of one run, and closes them in the end."""
    with ExitStack() as opened:

        def connect(endpoint: str, *, prefix: str = "rdzv", ttl: int | None = None, **options: Any) -> EtcdV2Backend:
            access = Access(parse_endpoints(endpoint, 2379), **options)
            backend = EtcdV2Backend(access, "run", prefix=prefix, ttl=ttl)
            opened.callback(backend.close)
            return backend

        yield connect
