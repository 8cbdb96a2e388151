"""Consul does what every backend must do, in the open and behind locks."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import pytest
from rdzv_conformance import BackendConformance, Connect, ConnectTo, Secured
from rdzv_conformance.fixtures import served_in_class
from rdzv_conformance.servers import ConsulCluster, ConsulServer
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.suite.fork import ForkConformance
from rdzv_conformance.suite.lifecycle import LifecycleConformance
from rdzv_conformance.suite.waiting import WaitingConformance
from rdzv_core.backend import Capability
from rdzv_core.endpoints import parse_endpoints
from rdzv_transport import Present

from rdzv_consul import ConsulBackend

from .security import LockedConsul


class TestConsul(BackendConformance):
    deviations: ClassVar[Mapping[str, str]] = {
        f"test_address_that_faces_the_service[{when}-IPv6]": "an agent of this very machine shows only its loopback, "
        "which no other node reaches: the address towards the servers' leader is given instead"
        for when in ("new", "connected")
    }
    server = served_in_class(ConsulServer)
    cluster = served_in_class(ConsulServer, ConsulCluster, 3)

    @pytest.fixture
    def secured(self, locked_consul: LockedConsul, certificates: Certificates) -> dict[Capability, Secured]:
        right = {**certificates.options(), "token": locked_consul.writer}
        named = right | {"endpoint": f"localhost:{locked_consul.server.get_port()}"}
        another_name = named, r"localhost.*cannot be trusted.*server_name"
        distrusted = certificates.strangers(
            distrusts="cannot be trusted: .*[a-z]; check ca_cert",
            refused="refused this client's certificate.*cert",
            token=locked_consul.writer,
        )
        unknown, policy = "this token: ACL not found.*option token", 'key_prefix "%s/" { policy = "write" }'
        denied = "this token: Permission denied"
        strangers = {
            "unknown token": (right | {"token": "11111111-2222-3333-4444-555555555555"}, unknown, policy % "rdzv"),
            "no token at all": (right | {"token": "hunter2"}, unknown, policy % "rdzv"),
            "no permission": (right | {"token": locked_consul.stranger}, denied, policy % "rdzv"),
            "wrong prefix": (right | {"prefix": "elsewhere"}, denied, policy % "elsewhere"),
            "no login": (certificates.options(), "without a token: Permission denied.*option token", policy % "rdzv"),
        }
        endpoint = locked_consul.server.get_endpoint()
        by_options = partial(Secured.by_options, "consul", endpoint, right, follows_files=True)
        return {
            Capability.TLS: by_options(
                {**distrusted, "another name": another_name}, also={"its name": named | {"server_name": "127.0.0.1"}}
            ),
            Capability.AUTH: by_options(strangers, reader=right | {"token": locked_consul.reader}),
        }

    @pytest.fixture
    def connect(self, server: ConsulServer) -> ConnectTo:
        return lambda run_id, endpoint="": ConsulBackend(parse_endpoints(endpoint or server.get_endpoint(), 0), run_id)


class TestConsulWithTlsAndToken(ForkConformance, LifecycleConformance, WaitingConformance):
    """Those parts that a connection could break; what builds upon them does not know of it."""

    @pytest.fixture
    def connect(self, locked_consul: LockedConsul) -> Connect:
        assert locked_consul.server.tls
        endpoints = parse_endpoints(locked_consul.server.get_endpoint(), 0)
        tls = Present.fixed(locked_consul.server.tls.client_context())
        return lambda run_id: ConsulBackend(endpoints, run_id, tls=tls, token=locked_consul.writer)
