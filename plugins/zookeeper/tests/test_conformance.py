"""ZooKeeper does what every backend must do."""

from functools import partial

import pytest
from rdzv_conformance import BackendConformance, Connect, ConnectTo, Secured
from rdzv_conformance.fixtures import served_in_class
from rdzv_conformance.servers import ZooKeeperCluster, ZooKeeperServer
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.suite.security import SecurityConformance
from rdzv_core.backend import Capability
from rdzv_core.endpoints import parse_endpoints

from rdzv_zookeeper import ZooKeeperBackend


class TestZooKeeper(BackendConformance):
    """The server's ticks last 0.5 s: a session ends up to one of them after its time, which is within the second."""

    server = served_in_class(ZooKeeperServer)
    cluster = served_in_class(ZooKeeperServer, ZooKeeperCluster, 3)

    @pytest.fixture
    def secured(
        self, tls_server: ZooKeeperServer, shared_zookeeper: ZooKeeperServer, certificates: Certificates
    ) -> dict[Capability, Secured]:
        files = certificates.options()
        named = files | {"endpoint": f"localhost:{tls_server.get_port()}"}
        another_name = named, r"localhost.*cannot be trusted.*server_name"
        distrusted = certificates.strangers(
            distrusts="cannot be trusted: .*[a-z]; check ca_cert", refused="refused this client's certificate.*cert"
        )
        also = {
            "its name": named | {"server_name": "127.0.0.1"},
            "creator": files | {"acl": "creator", "prefix": "created"},
        }
        # ZooKeeper's own scheme checks no password; but what one user has made, no other one may touch.
        owner, denied = {"user": "me", "password": "secret", "prefix": "secured"}, ".*/secured/.*NoAuth.*acl"
        strangers = {
            "wrong password": (owner | {"password": "not this"}, f"the user 'me'{denied}"),
            "no login": ({"prefix": "secured"}, f"without user and password{denied}"),
        }
        by_options = partial(Secured.by_options, "zookeeper")
        return {
            Capability.TLS: by_options(
                tls_server.get_endpoint(),
                files,
                {**distrusted, "another name": another_name},
                also=also,
                follows_files=True,
            ),
            Capability.AUTH: by_options(shared_zookeeper.get_endpoint(), owner, strangers),
        }

    @pytest.fixture
    def connect(self, server: ZooKeeperServer) -> ConnectTo:
        return lambda run_id, endpoint="": ZooKeeperBackend(
            parse_endpoints(endpoint or server.get_endpoint(), 0), run_id
        )


class TestZooKeeperWithSasl(SecurityConformance):
    """The other way to log in: a server that serves no client that has not."""

    @pytest.fixture
    def secured(self, sasl_server: ZooKeeperServer) -> dict[Capability, Secured]:
        login = {"sasl": "DIGEST-MD5", "user": "rdzv", "password": "secret"}
        strangers = {
            "wrong password": (login | {"password": "not this"}, "'rdzv'"),
            "unknown user": (login | {"user": "unknown"}, "'unknown'"),
            "no permission": (login | {"user": "stranger", "password": "hi"}, "'stranger'.*NoAuth"),
            "no login": ({}, "without user and password.*SessionClosedRequireSasl"),
        }
        endpoint = sasl_server.get_endpoint()
        by_options = partial(Secured.by_options, "zookeeper", follows_files=True)
        return {Capability.AUTH: by_options(endpoint, login, strangers)}

    @pytest.fixture
    def connect(self, sasl_server: ZooKeeperServer) -> Connect:
        return lambda run_id: ZooKeeperBackend(parse_endpoints(sasl_server.get_endpoint(), 0), run_id)
