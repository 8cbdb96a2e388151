"""What happens between us and Consul: replies that are lost, answers that are not Consul's, connections that break."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from rdzv.backend import ABSENT, ANY, PutOutcome, PutResult
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousParameterError
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.http_proxy import FaultProxy, answer
from rdzv_conformance.meanwhile import unanswered_names
from rdzv_conformance.servers import ConsulServer

from .clients import CALL, Connect


@pytest.fixture
def proxy(shared_consul: ConsulServer) -> Iterator[FaultProxy]:
    proxy = FaultProxy(shared_consul.get_port())
    yield proxy
    proxy.close()


def test_a_read_whose_reply_is_lost_goes_elsewhere(
    shared_consul: ConsulServer, proxy: FaultProxy, connect: Connect
) -> None:
    backend = connect(f"{proxy.endpoint},{shared_consul.get_endpoint()}")
    proxy.loses_replies = True
    assert backend.read("anything", timeout=CALL) is None
    # The agent that failed is the last now.
    backend.read("anything", timeout=CALL)
    assert proxy.requests == 1


def test_a_connection_that_broke_while_idle_is_replaced(proxy: FaultProxy, connect: Connect) -> None:
    backend = connect(proxy.endpoint)
    for number in range(5):
        assert backend.put("idle", b"%d" % number, expect=ANY, timeout=CALL).outcome is PutOutcome.APPLIED
        proxy.disconnect()
        # The end must have come by the time of the next call.
        time.sleep(0.05)


_NOT_CONSUL = [
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
    answer("301 Moved", b"", "Location: http://192.0.2.1/"),
    answer("502 Bad Gateway", b"<html>"),
    answer("500 Internal Server Error", b"rpc error: EOF"),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Consul-Index: 7\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nX-Consul-Index: 7\r\n\r\n[",
    b"SSH-2.0-OpenSSH\r\n\r\n",
    b"\0\xff" * 100,
    b"",
]


@pytest.mark.parametrize("strange", _NOT_CONSUL)
def test_an_answer_that_is_not_consuls(proxy: FaultProxy, connect: Connect, strange: bytes) -> None:
    backend = connect(proxy.endpoint)
    backend.put("corrupt", b"x", expect=ANY, timeout=CALL)
    since = backend.read_all("corrupt", timeout=CALL)
    backend.delete("corrupt", timeout=CALL)
    proxy.disconnect()
    proxy.answer = strange
    calls: list[Callable[[], object]] = [
        lambda: backend.read("corrupt", timeout=1),
        lambda: backend.read_all("corrupt", timeout=1),
        lambda: backend.delete("corrupt", timeout=1),
        lambda: backend.wait("corrupt", since, timeout=1),
    ]
    for call in calls:
        with pytest.raises(RendezvousConnectionError):
            call()
    assert backend.put("corrupt", b"x", expect=ABSENT, timeout=1).outcome is PutOutcome.UNKNOWN
    proxy.answer = None
    assert backend.read("corrupt", timeout=CALL) is None
    assert backend.wait("corrupt", since, timeout=CALL).entries == {}


def test_a_refused_connection_is_said(connect: Connect) -> None:
    with pytest.raises(RendezvousConnectionError, match=r"127\.0\.0\.1:1.*refused"):
        connect("127.0.0.1:1").read("key", timeout=1)


def test_something_else_at_the_endpoint_is_named(proxy: FaultProxy, connect: Connect) -> None:
    proxy.answer = answer("404 Not Found", b"Nothing here")
    with pytest.raises(RendezvousDeniedError, match=f"{proxy.endpoint}.*404.*Nothing here.*is it Consul"):
        connect(proxy.endpoint).read("key", timeout=CALL)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("500 Internal Server Error", b"No cluster leader"),
        ("502 Bad Gateway", b"<html>"),
        ("503 Service Unavailable", b"<html>"),
        ("504 Gateway Time-out", b"<html>"),
    ],
)
def test_what_passes_is_not_refused(proxy: FaultProxy, connect: Connect, status: str, body: bytes) -> None:
    proxy.answer = answer(status, body)
    with pytest.raises(RendezvousConnectionError, match=status[:3]) as passing:
        connect(proxy.endpoint).read("key", timeout=CALL)
    assert not isinstance(passing.value, RendezvousDeniedError)


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


def test_a_name_that_does_not_exist(connect: Connect) -> None:
    with pytest.raises(RendezvousConnectionError, match=r"nowhere\.invalid:8500.*not connected"):
        connect("nowhere.invalid").read("key", timeout=5)
    # The resolver's thread ends with its answer.
    eventually(lambda: not any("resolve" in thread.name for thread in threading.enumerate()), "the thread to end")


def test_a_name_that_is_not_resolved_is_said(connect: Connect) -> None:
    with unanswered_names(), pytest.raises(RendezvousConnectionError, match=r"not resolved within \d"):
        connect("service.test").read("key", timeout=0.5)
