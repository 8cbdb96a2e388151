"""Logins that expire, and one end without TLS; the suite tries which clients are let in and refused (`security`)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rdzv_cli.command import main
from rdzv_conformance.servers import EtcdServer, require_service
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.users import Create
from rdzv_core.backend import ABSENT, ANY, PutOutcome
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError

from .clients import CALL
from .security import demand_login, secure_etcd, token_keys


@pytest.fixture(scope="module")
def tls_etcd(certificates: Certificates) -> Iterator[EtcdServer]:
    """It shows a certificate, and demands one."""
    require_service(EtcdServer)
    with secure_etcd(certificates) as server:
        yield server


def test_one_end_without_tls(shared_etcd: EtcdServer, tls_etcd: EtcdServer, create: Create) -> None:
    """Neither end can tell it from a server that crashes, but the message can name it."""
    with pytest.raises(RendezvousConnectionError, match=r"protocol=http$"):
        create(shared_etcd.get_endpoint(), protocol="https").read("key", timeout=CALL)
    with pytest.raises(RendezvousConnectionError, match=r"protocol=https$"):
        create(tls_etcd.get_endpoint()).read("key", timeout=CALL)


@pytest.fixture(scope="module")
def auth_etcd() -> Iterator[EtcdServer]:
    """It demands a login, and no TLS."""
    require_service(EtcdServer)
    with EtcdServer(extra_args=["--bcrypt-cost=4"]) as server:
        demand_login(server)
        yield server


def test_a_login_that_expired_is_renewed(auth_etcd: EtcdServer, create: Create) -> None:
    caller, waiter = (create(auth_etcd.get_endpoint(), user="writer", password="secret") for _ in range(2))
    put = caller.put("expiring", b"1", expect=ANY, timeout=CALL)
    since = waiter.read_all("expiring", timeout=CALL)
    # A server forgets its logins when it restarts.
    auth_etcd.restart()
    assert put.entry
    assert caller.put("expiring", b"2", expect=put.entry.token, timeout=CALL).outcome is PutOutcome.APPLIED
    assert waiter.wait("expiring", since, timeout=CALL).entries["expiring"].value == b"2"


def test_a_login_that_became_too_old_is_renewed(create: Create, tmp_path: Path) -> None:
    """A signed login counts only until the permissions of any user change."""
    require_service(EtcdServer)
    with EtcdServer(extra_args=["--bcrypt-cost=4", token_keys(tmp_path)]) as etcd:
        demand_login(etcd)
        backend = create(etcd.get_endpoint(), user="writer", password="secret")
        assert backend.read("key", timeout=CALL) is None
        call = etcd.get_client().call
        call(
            "auth/user/add", call("auth/authenticate", name="root", password="toor")["token"], name="new", password="x"
        )
        assert backend.put("key", b"x", expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED


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
