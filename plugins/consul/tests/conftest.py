"""One Consul for all tests that leave it running, one for those that do not, and clients closed in the end."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from rdzv.endpoints import parse_endpoints
from rdzv_conformance.servers import ConsulServer, require_service
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.users import Create, creating

from rdzv_consul import ConsulBackend

from .clients import Connect
from .security import LockedConsul, secure_consul


@pytest.fixture(scope="session")
def shared_consul() -> Iterator[ConsulServer]:
    """A Consul that every test may use and none may stop."""
    require_service(ConsulServer)
    with ConsulServer() as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def locked_consul(certificates: Certificates) -> Iterator[LockedConsul]:
    """A Consul that demands a certificate and a token; every test may use it, none may stop it."""
    require_service(ConsulServer)
    with secure_consul(certificates) as server:
        yield LockedConsul(server)


@pytest.fixture(scope="session")
def mended_consul() -> Iterator[ConsulServer]:
    require_service(ConsulServer)
    with ConsulServer() as server:
        yield server


@pytest.fixture
def consul(mended_consul: ConsulServer) -> Iterator[ConsulServer]:
    """A Consul to do to it what the test likes."""
    yield mended_consul
    mended_consul.resume()
    if not mended_consul.is_running():
        mended_consul.restart()
    mended_consul.get_client().request("DELETE", "kv/?recurse")


@pytest.fixture
def create() -> Iterator[Create]:
    with creating("consul") as create:
        yield create


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients of one run, and closes them in the end."""
    with ExitStack() as opened:

        def connect(endpoint: str, **options: object) -> ConsulBackend:
            backend = ConsulBackend(parse_endpoints(endpoint, 8500), "run", **options)  # type: ignore[arg-type]
            opened.callback(backend.close)
            return backend

        yield connect
