"""etcd v3 does what every backend must do, in the open and behind locks."""

from functools import partial

import pytest
from rdzv_conformance import BackendConformance, Connect, ConnectTo, Secured
from rdzv_conformance.fixtures import served_in_class
from rdzv_conformance.servers import EtcdCluster, EtcdServer
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.suite.fork import ForkConformance
from rdzv_conformance.suite.lifecycle import LifecycleConformance
from rdzv_conformance.suite.waiting import WaitingConformance
from rdzv_core.backend import Capability
from rdzv_core.endpoints import parse_endpoints
from rdzv_transport import Present

from rdzv_etcd_v3 import EtcdV3Backend


class TestEtcdV3(BackendConformance):
    server = served_in_class(EtcdServer)
    cluster = served_in_class(EtcdServer, EtcdCluster, 3)

    @pytest.fixture
    def secured(self, locked_etcd: EtcdServer, certificates: Certificates) -> dict[Capability, Secured]:
        files, login = certificates.options(), {"user": "writer", "password": "secret"}
        named = files | login | {"endpoint": f"localhost:{locked_etcd.get_port()}"}
        another_name = named, r"localhost.*cannot be trusted.*server_name"
        distrusted = certificates.strangers(
            distrusts="cannot be trusted.*ca_cert", refused="refused this client's certificate.*cert", **login
        )
        invalid = "invalid user ID or password"
        strangers = {
            "wrong password": (files | login | {"password": "not this"}, f"'writer'.*{invalid}"),
            "unknown user": (files | login | {"user": "unknown"}, f"'unknown'.*{invalid}"),
            "no permission": (files | {"user": "stranger", "password": "hi"}, "'stranger'.*permission denied"),
            "wrong prefix": (files | login | {"prefix": "elsewhere"}, "'writer'.*permission denied.*prefix"),
            "no login": (files, "without user and password"),
        }
        by_options = partial(
            Secured.by_options, "etcd-v3", locked_etcd.get_endpoint(), files | login, follows_files=True
        )
        return {
            Capability.TLS: by_options(
                {**distrusted, "another name": another_name}, also={"its name": named | {"server_name": "127.0.0.1"}}
            ),
            Capability.AUTH: by_options(strangers, reader=files | login | {"user": "reader"}),
        }

    @pytest.fixture
    def connect(self, server: EtcdServer) -> ConnectTo:
        return lambda run_id, endpoint="": EtcdV3Backend(parse_endpoints(endpoint or server.get_endpoint(), 0), run_id)


class TestEtcdV3WithTlsAndPassword(ForkConformance, LifecycleConformance, WaitingConformance):
    """Those parts that a connection could break; what builds upon them does not know of it."""

    @pytest.fixture
    def connect(self, locked_etcd: EtcdServer) -> Connect:
        assert locked_etcd.tls
        endpoints = parse_endpoints(locked_etcd.get_endpoint(), 0)
        tls = Present.fixed(locked_etcd.tls.client_context())
        return lambda run_id: EtcdV3Backend(endpoints, run_id, tls=tls, user="writer", password="secret")
