"""TLS and login together, and clients without either; the suite tries which are let in and refused (`security`)."""

import time
from collections.abc import Iterator

import pytest
from rdzv_conformance.servers import EtcdServer
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.suite.calls import calls_of
from rdzv_conformance.users import Create
from rdzv_core.backend import ANY, PutOutcome, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from .clients import CALL
from .security import demand_login, secure_etcd


def test_certificates_and_login_together(certificates: Certificates, create: Create) -> None:
    with secure_etcd(certificates) as etcd:
        demand_login(etcd)
        files = certificates.options(cert="ssl_cert")
        backend = create(etcd.get_endpoint(), user="writer", password="secret", **files)
        since = backend.read_all("tls", timeout=CALL)
        assert backend.put("tls", b"x" * 260_000, expect=ANY, timeout=CALL).outcome is PutOutcome.APPLIED
        assert len(backend.wait("tls", since, timeout=CALL).entries["tls"].value) == 260_000
        assert backend.local_address == "127.0.0.1"
        backend.delete("tls", timeout=CALL)
        # A server that is asked to stop waits for those who poll.
        backend.close()
        with pytest.raises(RendezvousDeniedError, match="Insufficient credentials"):
            create(etcd.get_endpoint(), user="writer", password="wrong", **files).read("tls", timeout=CALL)


def test_one_end_without_tls(shared_etcd: EtcdServer, tls_etcd: EtcdServer, create: Create) -> None:
    """Neither end can tell it from a server that crashes, but the message can name it."""
    with pytest.raises(RendezvousConnectionError, match=r"protocol=http$"):
        create(shared_etcd.get_endpoint(), protocol="https").read("key", timeout=CALL)
    with pytest.raises(RendezvousConnectionError, match=r"protocol=https$"):
        create(tls_etcd.get_endpoint()).read("key", timeout=CALL)


def test_a_login_that_is_not_demanded_does_no_harm(shared_etcd: EtcdServer, create: Create) -> None:
    assert create(shared_etcd.get_endpoint(), user="writer", password="secret").read("key", timeout=CALL) is None


def test_an_etcd_without_the_v2_api_is_named(create: Create, v3_etcd: EtcdServer) -> None:
    says = r"v2 API.*etcd 3\.6 and newer have none.*--enable-v2=true.*etcd-v3.*rdzv-etcd-v3"
    for call in calls_of(create(v3_etcd.get_endpoint()), Snapshot(), CALL, is_served=False).values():
        began = time.monotonic()
        with pytest.raises(RendezvousDeniedError, match=says):
            call()
        assert time.monotonic() - began < 2


@pytest.fixture(scope="module")
def v3_etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


def test_a_member_without_the_v2_api_is_passed_over(
    shared_etcd: EtcdServer, v3_etcd: EtcdServer, create: Create
) -> None:
    backend = create(f"{v3_etcd.get_endpoint()},{shared_etcd.get_endpoint()}")
    assert backend.put("passed", b"x", expect=ANY, timeout=CALL).outcome is PutOutcome.APPLIED
