"""TLS and tokens: what must work works, and what is refused says at once what was refused and why."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rdzv.backend import ABSENT, ANY, KeyValueBackend, Outcome, Snapshot
from rdzv.cli import main
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError, RendezvousParameterError
from rdzv.parameters import RendezvousParameters
from rdzv_conformance.servers import ConsulServer

from rdzv_consul import create_backend

from .clients import CALL
from .security import Certificates, LockedConsul

Create = Callable[..., KeyValueBackend]


@pytest.fixture
def create() -> Iterator[Create]:
    """Makes backends by options, as a user does, and closes them in the end."""
    made: list[KeyValueBackend] = []

    def create(endpoint: str, **options: Any) -> KeyValueBackend:
        backend, _ = create_backend(RendezvousParameters("consul", endpoint, "run", 1, 1, **options))
        assert isinstance(backend, KeyValueBackend)
        made.append(backend)
        return backend

    yield create
    for backend in made:
        backend.close()


def test_certificates_and_token(locked_consul: LockedConsul, certificates: Certificates, create: Create) -> None:
    files = {"ca_cert": certificates.ca, "cert": certificates.client}
    backend = create(locked_consul.server.get_endpoint(), token=locked_consul.writer, **files)
    since = backend.read_all("tls", timeout=CALL)
    assert backend.put("tls", b"x" * 260_000, expect=ANY, timeout=CALL).outcome is Outcome.WON
    assert len(backend.wait("tls", since, timeout=CALL).entries["tls"].value) == 260_000
    assert backend.local_address == "127.0.0.1"
    backend.delete("tls", timeout=CALL)


def test_the_name_in_the_certificate_can_be_given(
    locked_consul: LockedConsul, certificates: Certificates, create: Create
) -> None:
    options = {"ca_cert": certificates.ca, "cert": certificates.client, "token": locked_consul.writer}
    endpoint = f"localhost:{locked_consul.server.get_port()}"
    with pytest.raises(RendezvousDeniedError, match=r"localhost.*cannot be trusted.*server_name"):
        create(endpoint, **options).read("key", timeout=CALL)
    assert create(endpoint, **options, server_name="127.0.0.1").read("key", timeout=CALL) is None


@pytest.mark.parametrize("call", ["read", "put", "wait"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ca_cert": "foreign_ca", "cert": "client"}, "cannot be trusted: .*[a-z]; check ca_cert"),
        ({"ca_cert": "ca"}, "refused this client's certificate.*cert"),
        ({"ca_cert": "ca", "cert": "foreign_client"}, "refused this client's certificate.*cert"),
    ],
    ids=["wrong authority", "no certificate", "wrong certificate"],
)
def test_what_is_refused_says_why(
    locked_consul: LockedConsul,
    certificates: Certificates,
    create: Create,
    options: dict[str, str],
    complaint: str,
    call: str,
) -> None:
    files = {name: getattr(certificates, file) for name, file in options.items()}
    backend = create(locked_consul.server.get_endpoint(), **files)
    began = time.monotonic()
    with pytest.raises(RendezvousDeniedError, match=complaint):
        _do(backend, call)
    assert time.monotonic() - began < 2


def test_one_end_without_tls(shared_consul: ConsulServer, locked_consul: LockedConsul, create: Create) -> None:
    with pytest.raises(RendezvousDeniedError, match=r"protocol=http$"):
        create(shared_consul.get_endpoint(), protocol="https").read("key", timeout=CALL)
    with pytest.raises(RendezvousDeniedError, match=r"protocol=https$"):
        create(locked_consul.server.get_endpoint()).read("key", timeout=CALL)


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


@pytest.fixture
def enter(locked_consul: LockedConsul, certificates: Certificates, create: Create) -> Create:
    """Makes backends of the server that demands a token."""
    files = {"ca_cert": certificates.ca, "cert": certificates.client}
    return lambda **options: create(locked_consul.server.get_endpoint(), **files, **options)


@pytest.mark.parametrize("call", ["read", "read_all", "put", "delete", "wait"])
@pytest.mark.parametrize(
    ("who", "complaint"),
    [
        ("00000000-1111-2222-3333-444444444444", "this token: ACL not found.*option token"),
        ("secret", "this token: ACL not found.*option token"),
        ("stranger", "this token: Permission denied.*key_prefix"),
        ("elsewhere", "this token: Permission denied.*key_prefix"),
        (None, "without a token: Permission denied.*option token"),
    ],
    ids=["unknown token", "no token at all", "no permission", "wrong prefix", "nobody"],
)
def test_who_may_not_is_told_at_once(
    locked_consul: LockedConsul, enter: Create, who: str | None, complaint: str, call: str
) -> None:
    """Also where Consul itself says nothing: it leaves out of a list what we may not read."""
    tokens = {"stranger": locked_consul.stranger, "elsewhere": locked_consul.writer}
    options = {"token": tokens.get(who, who) if who else None, "prefix": "elsewhere" if who == "elsewhere" else "rdzv"}
    locked_consul.server.get_client().put("rdzv/run/key", b"somebody's")
    backend = enter(**options)
    began = time.monotonic()
    with pytest.raises(RendezvousDeniedError, match=complaint) as refused:
        _do(backend, call)
    assert time.monotonic() - began < 2
    assert str(options["token"]) not in str(refused.value)
    assert f'key_prefix "{options["prefix"]}/" {{ policy = "write" }}' in str(refused.value)


def test_who_may_only_read_cannot_write(locked_consul: LockedConsul, enter: Create) -> None:
    backend = enter(token=locked_consul.reader)
    locked_consul.server.get_client().put("rdzv/run/there", b"x")
    entry = backend.read("there", timeout=CALL)
    assert entry is not None
    for expect in (ANY, ABSENT, entry.token):
        with pytest.raises(RendezvousDeniedError, match="Permission denied"):
            backend.put("there", b"y", expect=expect, timeout=CALL)
    with pytest.raises(RendezvousDeniedError, match="Permission denied"):
        backend.delete("there", timeout=CALL)
    assert backend.read("there", timeout=CALL) == entry


def test_a_token_that_was_given_comes_before_that_of_the_environment(
    locked_consul: LockedConsul, enter: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", locked_consul.stranger)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    backend = enter(token=locked_consul.writer)
    assert backend.put("key", b"x", expect=ANY, timeout=CALL).outcome is Outcome.WON


def test_a_token_that_is_taken_away(locked_consul: LockedConsul, enter: Create) -> None:
    backend = enter(token=locked_consul.add("fleeting", 'key_prefix "rdzv/" { policy = "write" }'))
    assert backend.put("fleeting", b"x", expect=ANY, timeout=CALL).outcome is Outcome.WON
    locked_consul.remove("fleeting")
    for call in ("read", "read_all", "put", "delete", "wait"):
        with pytest.raises(RendezvousDeniedError, match="ACL not found"):
            _do(backend, call)


def test_a_token_that_is_not_demanded_does_no_harm(shared_consul: ConsulServer, create: Create) -> None:
    assert create(shared_consul.get_endpoint(), token="whatever").read("key", timeout=CALL) is None


def test_the_datacenter(shared_consul: ConsulServer, create: Create) -> None:
    here, nowhere = (create(shared_consul.get_endpoint(), datacenter=name) for name in ("dc1", "dc2"))
    for call in ("read", "read_all", "put", "delete", "wait"):
        with pytest.raises(RendezvousParameterError, match=r"datacenter 'dc2'.*No path to datacenter"):
            _do(nowhere, call)
    assert here.put("there", b"x", expect=ANY, timeout=CALL).outcome is Outcome.WON
    entry = create(shared_consul.get_endpoint()).read("there", timeout=CALL)
    assert entry is not None
    assert entry.value == b"x"


@pytest.mark.parametrize("call", ["read", "read_all", "wait"])
def test_a_namespace_where_there_are_none(shared_consul: ConsulServer, create: Create, call: str) -> None:
    """Consul without Enterprise refuses one when it reads; this shows that we ask for it."""
    with pytest.raises(RendezvousParameterError, match="Namespaces are a Consul Enterprise feature"):
        _do(create(shared_consul.get_endpoint(), namespace="team"), call)


def test_a_refused_option_is_no_outage(shared_consul: ConsulServer, create: Create) -> None:
    with pytest.raises(RendezvousError) as refused:
        create(shared_consul.get_endpoint(), datacenter="dc2").read("key", timeout=CALL)
    assert not isinstance(refused.value, RendezvousConnectionError)


def test_a_program_needs_the_token_of_its_agent_only_where_that_is_asked_for(
    locked_consul: LockedConsul,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RDZV_TOKEN", locked_consul.writer)
    where = ["--backend=consul", f"--endpoint={locked_consul.server.get_endpoint()}", "--nnodes=1"]
    where += [f"--option=ca_cert={certificates.ca}", f"--option=cert={certificates.client}"]
    program = [sys.executable, "-c", "import rdzv; rdzv.current().store.set('key', b'x')"]
    assert main(["run", *where, "--run-id=held", "--", *program]) == 1
    assert "The option 'token' is missing here" in capfd.readouterr().err
    assert main(["run", *where, "--run-id=passed", "--pass-secrets", "--", *program]) == 0
    assert locked_consul.writer not in "".join(capfd.readouterr())
