"""One ZooKeeper for all tests that leave it running, one for each test that does not, and clients closed in the end."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from rdzv.endpoints import parse_endpoints
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.servers import ZooKeeperServer, ZooKeeperTls, require_service
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.users import Create, creating

from rdzv_zookeeper import ZooKeeperBackend

from .clients import Connect
from .security import SASL_USERS


@pytest.fixture(scope="session")
def shared_zookeeper() -> Iterator[ZooKeeperServer]:
    """A server that every test may use and none may stop."""
    require_service(ZooKeeperServer)
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="session")
def _spare() -> Iterator[ZooKeeperServer]:
    require_service(ZooKeeperServer)
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def zookeeper(_spare: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    """A server to do to it what a test likes; what others have left in it does not matter to the test."""
    yield _spare
    _spare.resume()
    if not _spare.is_running():
        _spare.restart()


@pytest.fixture(scope="session")
def _quiet() -> Iterator[ZooKeeperServer]:
    require_service(ZooKeeperServer)
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def quiet_zookeeper(_quiet: ZooKeeperServer) -> ZooKeeperServer:
    """A server that has no clients but the test's."""
    eventually(lambda: _quiet.sessions() == 0, "the sessions of other tests to end")
    return _quiet


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls_server(certificates: Certificates) -> Iterator[ZooKeeperServer]:
    """A server that shows a certificate, and demands one; every test may use it, none may stop it."""
    require_service(ZooKeeperServer)
    with ZooKeeperServer(tls=ZooKeeperTls(certificates.server, certificates.ca)) as server:
        yield server


@pytest.fixture(scope="session")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server that serves nobody who has not logged in."""
    require_service(ZooKeeperServer)
    users = tmp_path_factory.mktemp("sasl") / "users.conf"
    users.write_text(SASL_USERS)
    settings = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "sasl",
    }
    java_options = [f"-Djava.security.auth.login.config={users}"]
    with ZooKeeperServer(settings=settings, java_options=java_options) as server:
        yield server


@pytest.fixture
def create() -> Iterator[Create]:
    with creating("zookeeper") as create:
        yield create


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients of one run, and closes them in the end."""
    with ExitStack() as opened:

        def connect(endpoint: str, **options: object) -> ZooKeeperBackend:
            run_id = str(options.pop("run_id", "run"))
            backend = ZooKeeperBackend(parse_endpoints(endpoint, 2181), run_id, **options)  # type: ignore[arg-type]
            opened.callback(backend.close)
            return backend

        yield connect
