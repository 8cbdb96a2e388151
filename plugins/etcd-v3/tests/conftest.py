"""One etcd for all tests that leave it running, one for each test that does not, and clients closed in the end."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from rdzv.endpoints import parse_endpoints
from rdzv_conformance.servers import EtcdServer, require_service
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.users import Create, creating

from rdzv_etcd_v3 import EtcdV3Backend

from .clients import Connect
from .security import demand_login, secure_etcd


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdServer]:
    """An etcd that every test may use and none may stop."""
    require_service(EtcdServer)
    with EtcdServer() as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def locked_etcd(certificates: Certificates) -> Iterator[EtcdServer]:
    """An etcd that demands a certificate, a user and a password; every test may use it, none may stop it."""
    require_service(EtcdServer)
    with secure_etcd(certificates) as server:
        demand_login(server)
        yield server


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    """An etcd of the test's own, to do to it what it likes."""
    require_service(EtcdServer)
    with EtcdServer() as server:
        yield server


@pytest.fixture
def create() -> Iterator[Create]:
    with creating("etcd-v3") as create:
        yield create


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients of one run, and closes them in the end."""
    with ExitStack() as opened:

        def connect(endpoint: str, **options: object) -> EtcdV3Backend:
            backend = EtcdV3Backend(parse_endpoints(endpoint, 2379), "run", **options)  # type: ignore[arg-type]
            opened.callback(backend.close)
            return backend

        yield connect
