"""etcd's v2 API does what every backend must do, in the open and behind locks."""

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

from rdzv_etcd_v2 import Access, EtcdV2Backend


class TestEtcdV2(BackendConformance):
    server = served_in_class(EtcdServer, enable_v2=True)
    cluster = served_in_class(EtcdServer, EtcdCluster, 3, enable_v2=True)

    @pytest.fixture
    def secured(
        self, tls_etcd: EtcdServer, auth_etcd: EtcdServer, certificates: Certificates
    ) -> dict[Capability, Secured]:
        files, login = certificates.options(cert="ssl_cert"), {"user": "writer", "password": "secret"}
        named = files | {"endpoint": f"localhost:{tls_etcd.get_port()}"}
        another_name = named, r"localhost.*cannot be trusted.*server_name"
        refused = "refused this client's certificate"
        distrusted = certificates.strangers(
            cert="ssl_cert", distrusts="cannot be trusted: .*[a-z]; check ca_cert", refused=refused
        )
        also = {
            "its name": named | {"server_name": "127.0.0.1"},
            "two files": files | {"ssl_cert_key": certificates.client, "protocol": "https"},
        }

        def denied(who: str, prefix: str = "rdzv") -> tuple[str, str, str]:
            grant = rf"grant ROLE -path '/{prefix}/\*' -readwrite"
            return "refused.*Insufficient credentials.*user and password", f"refused {who}: ", grant

        strangers = {
            "wrong password": (login | {"password": "not this"}, *denied("the user 'writer'")),
            "unknown user": (login | {"user": "unknown"}, *denied("the user 'unknown'")),
            "no permission": ({"user": "stranger", "password": "hi"}, *denied("the user 'stranger'")),
            "wrong prefix": (login | {"prefix": "elsewhere"}, *denied("the user 'writer'", "elsewhere")),
            "no login": ({}, *denied("a client without a user")),
        }
        by_options = partial(Secured.by_options, "etcd-v2", follows_files=True)
        return {
            Capability.TLS: by_options(
                tls_etcd.get_endpoint(), files, {**distrusted, "another name": another_name}, also=also
            ),
            Capability.AUTH: by_options(auth_etcd.get_endpoint(), login, strangers, reader=login | {"user": "reader"}),
        }

    @pytest.fixture
    def connect(self, server: EtcdServer) -> ConnectTo:
        return lambda run_id, endpoint="": EtcdV2Backend(
            Access(parse_endpoints(endpoint or server.get_endpoint(), 0)), run_id
        )


class TestEtcdV2WithTls(ForkConformance, LifecycleConformance, WaitingConformance):
    """Those parts that a connection could break; what builds upon them does not know of it."""

    @pytest.fixture
    def connect(self, tls_etcd: EtcdServer) -> Connect:
        assert tls_etcd.tls
        access = Access(parse_endpoints(tls_etcd.get_endpoint(), 0), Present.fixed(tls_etcd.tls.client_context()))
        return lambda run_id: EtcdV2Backend(access, run_id)
