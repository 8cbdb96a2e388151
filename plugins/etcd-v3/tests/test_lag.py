"""etcd v3 far away: each reply comes a tenth of a second later, as from a service in another city."""

from collections.abc import Iterator
from typing import Final

import pytest
from rdzv_conformance import BackendConformance, Connect
from rdzv_conformance.proxy import FaultProxy
from rdzv_conformance.servers import EtcdServer
from rdzv_conformance.servers.requirement import require_service
from rdzv_core.endpoints import parse_endpoints

from rdzv_etcd_v3 import EtcdV3Backend

pytestmark = pytest.mark.soak


_LAG: Final = 0.1


class TestFarAway(BackendConformance):
    """What needs no server that is stopped."""

    no_server = "What a lag changes of an outage, `outages` tries with answers that take seconds."

    @pytest.fixture(scope="class")
    @classmethod
    def far(cls) -> Iterator[str]:
        """The endpoint of a server that is so far away."""
        require_service(EtcdServer)
        with EtcdServer() as server, FaultProxy(server.get_port()) as proxy:
            proxy.slow(_LAG)
            yield proxy.endpoint

    @pytest.fixture
    def connect(self, far: str) -> Connect:
        return lambda run_id: EtcdV3Backend(parse_endpoints(far, 0), run_id)
