"""One ZooKeeper for all tests that leave it running, one for each test that does not, and clients closed in the end."""

from collections.abc import Iterator
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.fixtures import certificates as certificates
from rdzv_conformance.fixtures import connecting, healed, served, using
from rdzv_conformance.servers import ZooKeeperServer, ZooKeeperTls, require_service
from rdzv_conformance.servers.certificates import Certificates
from rdzv_core.endpoints import parse_endpoints

from rdzv_zookeeper import ZooKeeperBackend

from .security import SASL_USERS

shared_zookeeper = served(ZooKeeperServer)
_spare = served(ZooKeeperServer)
zookeeper = healed("_spare")
"""What others have left in it does not matter to a test."""
_quiet = served(ZooKeeperServer)
create = using("zookeeper")


@connecting
def connect(endpoint: str, *, run_id: str = "run", **options: Any) -> ZooKeeperBackend:
    """A client of one run."""
    return ZooKeeperBackend(parse_endpoints(endpoint, 2181), run_id, **options)


@pytest.fixture
def quiet_zookeeper(_quiet: ZooKeeperServer) -> ZooKeeperServer:
    """A server that has no clients but the test's."""
    eventually(lambda: _quiet.sessions() == 0, "the sessions of other tests to end")
    return _quiet


@pytest.fixture(scope="session")
def tls_server(certificates: Certificates) -> Iterator[ZooKeeperServer]:
    """A server that shows a certificate, and demands one; every test may use it, none may stop it."""
    require_service(ZooKeeperServer)
    with ZooKeeperServer(tls=ZooKeeperTls(certificates.server, certificates.ca)) as server:
        yield server


@pytest.fixture(scope="session")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server that serves no client that has not logged in."""
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
