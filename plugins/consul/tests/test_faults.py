"""What happens between us and Consul: replies that are lost, answers that are not Consul's, connections that break."""

import pytest
from rdzv_conformance.fixtures import proxied
from rdzv_conformance.http_proxy import GATEWAY_ERRORS, STRANGE, FaultProxy, answer
from rdzv_conformance.servers import ConsulServer
from rdzv_conformance.suite.network import NetworkConformance
from rdzv_conformance.suite.server import ConnectTo
from rdzv_core.backend import ABSENT, ANY, PutOutcome, PutResult
from rdzv_core.endpoints import parse_endpoints
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError

from rdzv_consul import ConsulBackend

from .clients import CALL, Connect

proxy = proxied("shared_consul", FaultProxy)


class TestNetwork(NetworkConformance):
    strange_answers = (
        answer("200 OK", b'[{"Key"', "X-Consul-Index: 7"),
        answer("200 OK", b"[{}]", "X-Consul-Index: 7"),
        answer("200 OK", b"[7]", "X-Consul-Index: 7"),
        answer("200 OK", b"null", "X-Consul-Index: 7"),
        answer("200 OK", b'[{"Key":"x","Value":null,"ModifyIndex":1e999,"CreateIndex":1}]', "X-Consul-Index: 7"),
        answer("200 OK", b"[]", "X-Consul-Index: many"),
        answer("200 OK", b"[]"),
        answer("200 OK", b"[" * 50000, "X-Consul-Index: 7"),
        answer("404 Not Found", b"Not Found"),
        answer("409 Conflict", b'{"Errors":[{"What":"it rains"}]}'),
        answer("200 OK", b"[]", f"X-Consul-Index: {'9' * 4301}"),
        *STRANGE,
        answer("500 Internal Server Error", b"rpc error: EOF"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Consul-Index: 7\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nX-Consul-Index: 7\r\n\r\n[",
    )
    something_else = answer("404 Not Found", b"Nothing here"), "404.*Nothing here.*is it Consul"
    passing = (("500", answer("500 Internal Server Error", b"No cluster leader")), *GATEWAY_ERRORS)

    @staticmethod
    def answer_of(body: bytes) -> bytes:
        return answer("200 OK", body, "X-Consul-Index: 7")

    @pytest.fixture
    def connect(self) -> ConnectTo:
        return lambda run_id, endpoint="127.0.0.1:1": ConsulBackend(parse_endpoints(endpoint, 8500), run_id)


@pytest.mark.parametrize("reason", [b"No cluster leader", b"rate limit reached", b"No path to datacenter"])
def test_what_an_agent_did_not_pass_on_is_not_written_and_said(
    shared_consul: ConsulServer, proxy: FaultProxy, connect: Connect, reason: bytes
) -> None:
    """A put that certainly was not applied may go to the next agent; if there is none, the error says why."""
    alone, helped = connect(proxy.endpoint), connect(f"{proxy.endpoint},{shared_consul.get_endpoint()}")
    for backend in (alone, helped):
        backend.read("warm", timeout=CALL)
    proxy.disconnect()
    proxy.answer = answer("500 Internal Server Error", reason)
    with pytest.raises(RendezvousConnectionError, match=reason.decode()):
        alone.put("passed/on", b"x", expect=ANY, timeout=CALL)
    assert helped.put("passed/on", b"y", expect=ANY, timeout=CALL).outcome is PutOutcome.APPLIED


@pytest.mark.parametrize("size", [400_000, 1_000_000])
def test_what_is_too_large_is_refused_and_not_written(shared_consul: ConsulServer, connect: Connect, size: int) -> None:
    backend = connect(shared_consul.get_endpoint())
    with pytest.raises(RendezvousParameterError, match="too large"):
        backend.put("large", b"x" * size, expect=ABSENT, timeout=CALL)
    assert backend.read("large", timeout=CALL) is None


def test_a_value_written_twice_is_written_twice(shared_consul: ConsulServer, connect: Connect) -> None:
    """Left to itself, Consul takes an equal value for no change: the old token would still open the door."""
    backend = connect(shared_consul.get_endpoint())
    since = backend.read_all("same", timeout=CALL)
    first = backend.put("same", b"x", expect=ANY, timeout=CALL)
    assert first.entry is not None
    second = backend.put("same", b"x", expect=first.entry.token, timeout=CALL)
    assert second.outcome is PutOutcome.APPLIED
    assert backend.put("same", b"x", expect=first.entry.token, timeout=CALL) == PutResult(
        PutOutcome.CONFLICT, second.entry
    )
    now = backend.wait("same", since, timeout=CALL)
    third = backend.put("same", b"x", expect=ANY, timeout=CALL)
    assert third.entry is not None
    assert backend.wait("same", now, timeout=CALL).entries["same"] == third.entry


def test_no_lock_of_consuls_delays_anything(shared_consul: ConsulServer, connect: Connect) -> None:
    """A key that another client held a lock on is taken over at once: Consul's lock-delay is for locks only."""
    client, backend = shared_consul.get_client(), connect(shared_consul.get_endpoint())
    session = client.call("PUT", "session/create", {"Behavior": "delete"})["ID"]
    assert client.call("PUT", f"kv/rdzv/run/lock?acquire={session}") is True
    client.call("PUT", f"session/destroy/{session}")
    assert backend.read("lock", timeout=CALL) is None
    assert backend.put("lock", b"mine", expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED
