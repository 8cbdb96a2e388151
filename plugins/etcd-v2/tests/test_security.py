"""TLS and logging in: what must work works, and what is refused says at once what was refused and why."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rdzv.backend import ABSENT, ANY, KeyValueBackend, Outcome, Snapshot
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError
from rdzv.parameters import RendezvousParameters
from rdzv_conformance.servers import EtcdServer

from rdzv_etcd_v2 import create_backend

from .clients import CALL
from .security import Certificates, demand_login

Create = Callable[..., KeyValueBackend]
CALLS = ["read", "read_all", "put", "delete", "wait"]


@pytest.fixture
def create() -> Iterator[Create]:
    """Makes backends by options, as a user does, and closes them in the end."""
    made: list[KeyValueBackend] = []

    def create(endpoint: str, **options: Any) -> KeyValueBackend:
        backend, _ = create_backend(RendezvousParameters("etcd-v2", endpoint, "run", 1, 1, **options))
        assert isinstance(backend, KeyValueBackend)
        made.append(backend)
        return backend

    yield create
    for backend in made:
        backend.close()


@pytest.fixture
def enter(auth_etcd: EtcdServer, create: Create) -> Create:
    """Makes backends of the etcd that demands a login."""
    return lambda **options: create(auth_etcd.get_endpoint(), **options)


def _do(backend: KeyValueBackend, call: str) -> object:
    if call == "read":
        return backend.read("key", timeout=CALL)
    if call == "read_all":
        return backend.read_all("key", timeout=CALL)
    if call == "put":
        return backend.put("key", b"x", expect=ABSENT, timeout=CALL)
    if call == "delete":
        return backend.delete("key", timeout=CALL)
    return backend.wait("key", Snapshot(), timeout=CALL)


def test_certificates_and_login_together(certificates: Certificates, create: Create) -> None:
    with certificates.etcd() as etcd:
        demand_login(etcd)
        files = {"ca_cert": certificates.ca, "ssl_cert": certificates.client}
        backend = create(etcd.get_endpoint(), user="writer", password="secret", **files)
        since = backend.read_all("tls", timeout=CALL)
        assert backend.put("tls", b"x" * 260_000, expect=ANY, timeout=CALL).outcome is Outcome.WON
        assert len(backend.wait("tls", since, timeout=CALL).entries["tls"].value) == 260_000
        assert backend.local_address == "127.0.0.1"
        backend.delete("tls", timeout=CALL)
        # A server that is asked to stop waits for those who poll.
        backend.close()
        with pytest.raises(RendezvousDeniedError, match="Insufficient credentials"):
            create(etcd.get_endpoint(), user="writer", password="wrong", **files).read("tls", timeout=CALL)


def test_certificate_and_key_in_two_files(tls_etcd: EtcdServer, certificates: Certificates, create: Create) -> None:
    files = {"ca_cert": certificates.ca, "ssl_cert": certificates.client, "ssl_cert_key": certificates.client}
    assert create(tls_etcd.get_endpoint(), protocol="https", **files).read("key", timeout=CALL) is None


def test_the_name_in_the_certificate_can_be_given(
    tls_etcd: EtcdServer, certificates: Certificates, create: Create
) -> None:
    options = {"ca_cert": certificates.ca, "ssl_cert": certificates.client}
    endpoint = f"localhost:{tls_etcd.get_port()}"
    with pytest.raises(RendezvousDeniedError, match=r"localhost.*cannot be trusted.*server_name"):
        create(endpoint, **options).read("key", timeout=CALL)
    assert create(endpoint, **options, server_name="127.0.0.1").read("key", timeout=CALL) is None


@pytest.mark.parametrize("call", ["read", "put", "wait"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ca_cert": "foreign_ca", "ssl_cert": "client"}, "cannot be trusted: .*[a-z]; check ca_cert"),
        ({"ca_cert": "ca"}, "refused this client's certificate"),
        ({"ca_cert": "ca", "ssl_cert": "foreign_client"}, "refused this client's certificate"),
    ],
    ids=["wrong authority", "no certificate", "wrong certificate"],
)
def test_what_is_refused_says_why(
    tls_etcd: EtcdServer,
    certificates: Certificates,
    create: Create,
    options: dict[str, str],
    complaint: str,
    call: str,
) -> None:
    files = {name: getattr(certificates, file) for name, file in options.items()}
    backend = create(tls_etcd.get_endpoint(), **files)
    began = time.monotonic()
    with pytest.raises(RendezvousDeniedError, match=complaint):
        _do(backend, call)
    assert time.monotonic() - began < 2


def test_one_end_without_tls(shared_etcd: EtcdServer, tls_etcd: EtcdServer, create: Create) -> None:
    """Neither end can tell it from a server that crashes, but the message can name it."""
    with pytest.raises(RendezvousConnectionError, match=r"protocol=http$"):
        create(shared_etcd.get_endpoint(), protocol="https").read("key", timeout=CALL)
    with pytest.raises(RendezvousConnectionError, match=r"protocol=https$"):
        create(tls_etcd.get_endpoint()).read("key", timeout=CALL)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "options",
    [
        {"user": "writer", "password": "wrong"},
        {"user": "nobody", "password": "secret"},
        {"user": "stranger", "password": "hi"},
        {},
        {"user": "writer", "password": "secret", "prefix": "elsewhere"},
    ],
    ids=["wrong password", "unknown user", "no permission", "nobody", "wrong prefix"],
)
def test_who_may_not_is_told_at_once(enter: Create, options: dict[str, str], call: str) -> None:
    backend = enter(**options)
    began = time.monotonic()
    with pytest.raises(RendezvousDeniedError, match=r"refused.*Insufficient credentials.*user and password") as refused:
        _do(backend, call)
    assert time.monotonic() - began < 2
    assert not {"secret", "wrong"} & set(str(refused.value).split())
    who = f"the user '{options['user']}'" if options else "a client without a user"
    assert f"refused {who}: " in str(refused.value)
    assert f"grant ROLE -path '/{options.get('prefix', 'rdzv')}/*' -readwrite" in str(refused.value)


def test_who_may_only_read_cannot_write(enter: Create) -> None:
    enter(user="writer", password="secret").put("there", b"x", expect=ANY, timeout=CALL)
    backend = enter(user="reader", password="secret")
    entry = backend.read("there", timeout=CALL)
    assert entry is not None
    for expect in (ANY, ABSENT, entry.token):
        with pytest.raises(RendezvousDeniedError, match="Insufficient credentials"):
            backend.put("there", b"y", expect=expect, timeout=CALL)
    with pytest.raises(RendezvousDeniedError, match="Insufficient credentials"):
        backend.delete("there", timeout=CALL)
    assert backend.read("there", timeout=CALL) == entry


def test_a_login_that_is_not_demanded_does_no_harm(shared_etcd: EtcdServer, create: Create) -> None:
    assert create(shared_etcd.get_endpoint(), user="writer", password="secret").read("key", timeout=CALL) is None


@pytest.mark.parametrize("call", CALLS)
def test_an_etcd_without_the_v2_api_is_named(create: Create, v3_etcd: EtcdServer, call: str) -> None:
    began = time.monotonic()
    says = r"v2 API.*etcd 3\.6 and newer have none.*--enable-v2=true.*etcd-v3.*rdzv-etcd-v3"
    with pytest.raises(RendezvousDeniedError, match=says):
        _do(create(v3_etcd.get_endpoint()), call)
    assert time.monotonic() - began < 2


@pytest.fixture(scope="module")
def v3_etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


def test_a_member_without_the_v2_api_is_passed_over(
    shared_etcd: EtcdServer, v3_etcd: EtcdServer, create: Create
) -> None:
    backend = create(f"{v3_etcd.get_endpoint()},{shared_etcd.get_endpoint()}")
    assert backend.put("passed", b"x", expect=ANY, timeout=CALL).outcome is Outcome.WON
