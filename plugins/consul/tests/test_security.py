"""Tokens, datacenters and one end without TLS; the suite tries which clients are let in and refused (`security`)."""

import sys
from collections.abc import Callable

import pytest
from rdzv_cli.command import main
from rdzv_conformance.proxy import FaultProxy
from rdzv_conformance.servers import ConsulServer
from rdzv_conformance.servers.certificates import Certificates
from rdzv_conformance.suite.calls import calls_of
from rdzv_conformance.users import Create
from rdzv_core.backend import ANY, KeyValueBackend, PutOutcome, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError, RendezvousParameterError

from .clients import CALL
from .security import LockedConsul

Enter = Callable[..., KeyValueBackend]


def test_one_end_without_tls(shared_consul: ConsulServer, locked_consul: LockedConsul, create: Create) -> None:
    with pytest.raises(RendezvousDeniedError, match=r"protocol=http$"):
        create(shared_consul.get_endpoint(), protocol="https").read("key", timeout=CALL)
    with pytest.raises(RendezvousDeniedError, match=r"protocol=https$"):
        create(locked_consul.server.get_endpoint()).read("key", timeout=CALL)


@pytest.fixture
def enter(locked_consul: LockedConsul, certificates: Certificates, create: Create) -> Enter:
    """Makes backends of the server that demands a token."""
    files = certificates.options()
    return lambda **options: create(locked_consul.server.get_endpoint(), **files, **options)


def test_a_token_that_was_given_comes_before_that_of_the_environment(
    locked_consul: LockedConsul, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", locked_consul.stranger)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    backend = enter(token=locked_consul.writer)
    assert backend.put("key", b"x", expect=ANY, timeout=CALL).outcome is PutOutcome.APPLIED


def test_a_token_that_is_taken_away(locked_consul: LockedConsul, enter: Enter) -> None:
    backend = enter(token=locked_consul.add("fleeting", 'key_prefix "rdzv/" { policy = "write" }'))
    assert backend.put("fleeting", b"x", expect=ANY, timeout=CALL).outcome is PutOutcome.APPLIED
    locked_consul.remove("fleeting")
    for call in calls_of(backend, Snapshot(), CALL, is_served=False).values():
        with pytest.raises(RendezvousDeniedError, match="ACL not found"):
            call()


def test_a_token_that_is_not_demanded_does_no_harm(shared_consul: ConsulServer, create: Create) -> None:
    assert create(shared_consul.get_endpoint(), token="whatever").read("key", timeout=CALL) is None


def test_the_datacenter(shared_consul: ConsulServer, create: Create) -> None:
    here, nowhere = (create(shared_consul.get_endpoint(), datacenter=name) for name in ("dc1", "dc2"))
    for call in calls_of(nowhere, Snapshot(), CALL, is_served=False).values():
        with pytest.raises(RendezvousParameterError, match=r"datacenter 'dc2'.*No path to datacenter"):
            call()
    assert here.put("there", b"x", expect=ANY, timeout=CALL).outcome is PutOutcome.APPLIED
    entry = create(shared_consul.get_endpoint()).read("there", timeout=CALL)
    assert entry is not None
    assert entry.value == b"x"


def test_an_agent_of_another_datacenter_is_refused_and_written_nothing(
    shared_consul: ConsulServer, create: Create
) -> None:
    way = FaultProxy(shared_consul.get_port())
    with ConsulServer(settings={"datacenter": "dc2"}) as other:
        endpoints = f"{way.endpoint},{other.get_endpoint()}"
        either, asked = create(endpoints), create(endpoints, datacenter="dc1")
        for backend in (either, asked):
            backend.read("key", timeout=CALL)
        way.close()
        for backend, reason in ((either, r"another datacenter \(dc2\) than .* first \(dc1\)"), (asked, "No path to")):
            for call in calls_of(backend, Snapshot(), CALL, is_served=False).values():
                with pytest.raises(RendezvousConnectionError, match=reason) as refused:
                    call()
                assert not isinstance(refused.value, RendezvousDeniedError)
        assert other.get_client().keys() == []


@pytest.mark.parametrize("call", ["read", "read_all", "wait"])
def test_a_namespace_where_there_are_none(shared_consul: ConsulServer, create: Create, call: str) -> None:
    """Consul without Enterprise refuses one when it reads; this shows that we ask for it."""
    with pytest.raises(RendezvousParameterError, match="Namespaces are a Consul Enterprise feature"):
        calls_of(create(shared_consul.get_endpoint(), namespace="team"), Snapshot(), CALL, is_served=False)[call]()


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
