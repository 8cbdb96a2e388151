"""One Consul for all tests that leave it running, one for those that do not, and clients closed in the end."""

from collections.abc import Iterator
from typing import Any

import pytest
from rdzv_conformance.fixtures import certificates as certificates
from rdzv_conformance.fixtures import connecting, healed, served, using
from rdzv_conformance.servers import ConsulServer, require_service
from rdzv_conformance.servers.certificates import Certificates
from rdzv_core.endpoints import parse_endpoints

from rdzv_consul import ConsulBackend

from .security import LockedConsul, secure_consul

shared_consul = served(ConsulServer)
mended_consul = served(ConsulServer)
consul = healed("mended_consul", lambda server: server.get_client().request("DELETE", "kv/?recurse"))
create = using("consul")


@connecting
def connect(endpoint: str, **options: Any) -> ConsulBackend:
    """A client of one run."""
    return ConsulBackend(parse_endpoints(endpoint, 8500), "run", **options)


@pytest.fixture(scope="session")
def locked_consul(certificates: Certificates) -> Iterator[LockedConsul]:
    """A Consul that demands a certificate and a token; every test may use it, none may stop it."""
    require_service(ConsulServer)
    with secure_consul(certificates) as server:
        yield LockedConsul(server)
