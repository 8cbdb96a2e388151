"""TLS and logging in: what must work works, and what is refused says at once what was refused and why."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rdzv.backend import ABSENT, ANY, KeyValueBackend, Outcome, Snapshot
from rdzv.cli import main
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousParameterError
from rdzv.parameters import RendezvousParameters
from rdzv_conformance.servers import EtcdServer, require_service

from rdzv_etcd_v3 import create_backend

from .clients import CALL
from .security import Certificates, demand_login, token_keys

Create = Callable[..., KeyValueBackend]


@pytest.fixture(scope="module")
def tls_etcd(certificates: Certificates) -> Iterator[EtcdServer]:
    """It shows a certificate, and demands one."""
    require_service(EtcdServer)
    with certificates.etcd() as server:
        yield server


@pytest.fixture
def create() -> Iterator[Create]:
    """Makes backends by options, as a user does, and closes them in the end."""
    made: list[KeyValueBackend] = []

    def create(endpoint: str, **options: Any) -> KeyValueBackend:
        backend, _ = create_backend(RendezvousParameters("etcd-v3", endpoint, "run", 1, 1, **options))
        assert isinstance(backend, KeyValueBackend)
        made.append(backend)
        return backend

    yield create
    for backend in made:
        backend.close()


def test_both_ends_show_their_certificates(tls_etcd: EtcdServer, certificates: Certificates, create: Create) -> None:
    backend = create(tls_etcd.get_endpoint(), ca_cert=certificates.ca, cert=certificates.client)
    since = backend.read_all("tls", timeout=CALL)
    assert backend.put("tls", b"x" * 300_000, expect=ANY, timeout=CALL).outcome is Outcome.WON
    assert len(backend.wait("tls", since, timeout=CALL).entries["tls"].value) == 300_000
    assert backend.local_address == "127.0.0.1"
    assert backend.open_lease(5, timeout=CALL).keep_alive(CALL)


def test_the_name_in_the_certificate_can_be_given(
    tls_etcd: EtcdServer, certificates: Certificates, create: Create
) -> None:
    options = {"ca_cert": certificates.ca, "cert": certificates.client}
    endpoint = f"localhost:{tls_etcd.get_port()}"
    with pytest.raises(RendezvousDeniedError, match=r"localhost.*cannot be trusted.*server_name"):
        create(endpoint, **options).read("key", timeout=CALL)
    assert create(endpoint, **options, server_name="127.0.0.1").read("key", timeout=CALL) is None


@pytest.mark.parametrize("call", ["read", "put", "wait"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ca_cert": "foreign_ca", "cert": "client"}, "cannot be trusted.*ca_cert"),
        ({"ca_cert": "ca"}, "refused this client's certificate.*cert"),
        ({"ca_cert": "ca", "cert": "foreign_client"}, "refused this client's certificate.*cert"),
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
    with pytest.raises(RendezvousDeniedError, match=complaint):
        _persist(backend, call)


def test_one_end_without_tls(shared_etcd: EtcdServer, tls_etcd: EtcdServer, create: Create) -> None:
    """Neither end can tell it from a server that crashes, but the message can name it."""
    with pytest.raises(RendezvousConnectionError, match=r"protocol=http$"):
        create(shared_etcd.get_endpoint(), protocol="https").read("key", timeout=CALL)
    with pytest.raises(RendezvousConnectionError, match=r"protocol=https$"):
        create(tls_etcd.get_endpoint()).read("key", timeout=CALL)


def _persist(backend: KeyValueBackend, call: str) -> None:
    """Try for some seconds, as the core does, to be refused: a server that hangs up may hang up on its own reason."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            _do(backend, call)
        except RendezvousDeniedError:
            raise
        except RendezvousConnectionError:
            pass


def _do(backend: KeyValueBackend, call: str) -> object:
    if call == "read":
        return backend.read("key", timeout=CALL)
    if call == "put":
        return backend.put("key", b"x", expect=ABSENT, timeout=CALL)
    if call == "delete":
        return backend.delete("key", timeout=CALL)
    return backend.wait("key", Snapshot(revision=1), timeout=CALL)


@pytest.fixture(scope="module")
def auth_etcd() -> Iterator[EtcdServer]:
    """It demands a login, and no TLS."""
    require_service(EtcdServer)
    with EtcdServer(extra_args=["--bcrypt-cost=4"]) as server:
        demand_login(server)
        yield server


def test_a_user_with_permission(auth_etcd: EtcdServer, create: Create) -> None:
    backend = create(auth_etcd.get_endpoint(), user="writer", password="secret")
    since = backend.read_all("auth", timeout=CALL)
    lease = backend.open_lease(5, timeout=CALL)
    put = backend.put("auth/key", b"x", expect=ABSENT, lease=lease, timeout=CALL)
    assert backend.wait("auth", since, timeout=CALL).entries == {"auth/key": put.entry}
    assert lease.keep_alive(CALL)
    backend.delete("auth", timeout=CALL)
    lease.revoke(CALL)


@pytest.mark.parametrize("call", ["read", "put", "delete", "wait"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"user": "writer", "password": "wrong"}, "'writer'.*invalid user ID or password"),
        ({"user": "nobody", "password": "secret"}, "'nobody'.*invalid user ID or password"),
        ({"user": "stranger", "password": "hi"}, "'stranger'.*permission denied"),
        ({}, "without user and password"),
        ({"user": "writer", "password": "secret", "prefix": "elsewhere"}, "'writer'.*permission denied.*prefix"),
    ],
    ids=["wrong password", "unknown user", "no permission", "nobody", "wrong prefix"],
)
def test_who_may_not_is_told_at_once(
    auth_etcd: EtcdServer, create: Create, options: dict[str, str], complaint: str, call: str
) -> None:
    backend = create(auth_etcd.get_endpoint(), **options)
    began = time.monotonic()
    with pytest.raises(RendezvousDeniedError, match=complaint) as refused:
        _do(backend, call)
    assert time.monotonic() - began < 2
    assert "wrong" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_login_that_expired_is_renewed(auth_etcd: EtcdServer, create: Create) -> None:
    caller, waiter = (create(auth_etcd.get_endpoint(), user="writer", password="secret") for _ in range(2))
    put = caller.put("expiring", b"1", expect=ANY, timeout=CALL)
    since = waiter.read_all("expiring", timeout=CALL)
    # A server forgets its logins when it restarts.
    auth_etcd.restart()
    assert put.entry
    assert caller.put("expiring", b"2", expect=put.entry.token, timeout=CALL).outcome is Outcome.WON
    assert waiter.wait("expiring", since, timeout=CALL).entries["expiring"].value == b"2"


def test_a_login_that_became_too_old_is_renewed(create: Create, tmp_path: Path) -> None:
    """A signed login counts only until anybody's permissions change."""
    require_service(EtcdServer)
    with EtcdServer(extra_args=["--bcrypt-cost=4", token_keys(tmp_path)]) as etcd:
        demand_login(etcd)
        backend = create(etcd.get_endpoint(), user="writer", password="secret")
        assert backend.read("key", timeout=CALL) is None
        call = etcd.get_client().call
        call(
            "auth/user/add", call("auth/authenticate", name="root", password="toor")["token"], name="new", password="x"
        )
        assert backend.put("key", b"x", expect=ABSENT, timeout=CALL).outcome is Outcome.WON


def test_a_login_that_is_not_demanded_does_no_harm(shared_etcd: EtcdServer, create: Create) -> None:
    assert create(shared_etcd.get_endpoint(), user="writer", password="secret").read("key", timeout=CALL) is None


def test_a_password_needs_a_user(create: Create) -> None:
    with pytest.raises(RendezvousParameterError, match="'user' and 'password'"):
        create("localhost", password="secret")


def test_a_program_reads_the_password_from_the_file_of_its_agent(
    auth_etcd: EtcdServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    program = "import os, rdzv; rdzv.current().store.set('key', b'x'); print(sorted(os.environ.values()))"
    options = ["--option=user=writer", f"--option=password_file={password}"]
    where = ["--backend=etcd-v3", f"--endpoint={auth_etcd.get_endpoint()}", "--run-id=file", "--nnodes=1", *options]
    assert main(["run", *where, "--", sys.executable, "-c", program]) == 0
    said = capfd.readouterr()
    assert str(password) in said.out
    assert "'secret'" not in said.out + said.err
