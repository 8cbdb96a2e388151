"""What happens between us and etcd: replies that are lost, answers that are not etcd's, connections that break."""

import re
import socket
import time
from contextlib import closing
from typing import BinaryIO

import pytest
from rdzv import RendezvousParameters, get_rendezvous_handler
from rdzv_conformance.fixtures import proxied
from rdzv_conformance.http_proxy import STRANGE, answer
from rdzv_conformance.interrupts import check_interrupted_waits
from rdzv_conformance.proxy import FaultProxy as AnyProxy
from rdzv_conformance.servers import EtcdServer
from rdzv_conformance.suite.network import NetworkConformance
from rdzv_conformance.suite.server import ConnectTo
from rdzv_core import turns
from rdzv_core.backend import ABSENT, ANY, MAX_PAYLOAD
from rdzv_core.endpoints import parse_endpoints
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError, RendezvousTimeoutError
from rdzv_transport import Change, changes, prefixes

from rdzv_etcd_v3 import EtcdV3Backend, events
from rdzv_etcd_v3.events import Events

from .clients import CALL, Connect


class FaultProxy(AnyProxy):
    """A fault proxy that passes whole requests on, and answers one after the other."""

    def pass_requests(self, near: socket.socket, far: socket.socket) -> None:
        with near.makefile("rb") as requests:
            while request := _read_request(requests):
                self.requests += 1
                if self.answer is None:
                    far.sendall(request)
                else:
                    near.sendall(self.answer)
                    if b"Connection: close" in request:
                        break


def _read_request(requests: BinaryIO) -> bytes:
    """One whole request; empty at the end."""
    head = b""
    while (proxy := requests.readline()).strip():
        head += proxy
    length = re.search(rb"Content-Length: (\d+)", head)
    return head + proxy + (requests.read(int(length[1])) if length else b"")


proxy = proxied("shared_etcd", FaultProxy)


class TestNetwork(NetworkConformance):
    strange_answers = (
        b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"header"',
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
        b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"kvs":[{}]}',
        b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"header":7}',
        b'HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n{"header":{"revision":1e999}}',
        b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + b"[" * 50000,
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found",
        b'HTTP/1.1 500 Oh\r\nContent-Length: 13\r\n\r\n{"error":"x"}',
        answer("200 OK", b'{"header":{"revision":"%s"}}' % (b"9" * 4301)),
        *STRANGE,
    )
    something_else = answer("404 Not Found", b"Not Found"), "404.*Not Found.*gateway enabled"
    passing = (
        ("502", answer("502 Bad Gateway", b"<html>")),
        ("no leader", answer("503 Service Unavailable", b'{"error":"etcdserver: no leader","code":14}')),
    )

    @staticmethod
    def answer_of(body: bytes) -> bytes:
        return answer("200 OK", body)

    @pytest.fixture
    def connect(self) -> ConnectTo:
        return lambda run_id, endpoint="127.0.0.1:1": EtcdV3Backend(parse_endpoints(endpoint, 2379), run_id)


def test_an_interrupt_between_receiving_and_understanding_loses_no_change(
    shared_etcd: EtcdServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter, writer = (connect(shared_etcd.get_endpoint()) for _ in range(2))
    since = waiter.read_all("interrupted", timeout=CALL)
    assert waiter.wait("interrupted", since, timeout=0.2) is since
    received = Events.receive

    def interrupted(events: Events, deadline: float) -> list[Change]:
        if received(events, deadline):
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr(Events, "receive", interrupted)
    writer.put("interrupted", b"x", expect=ANY, timeout=CALL)
    with pytest.raises(KeyboardInterrupt):
        waiter.wait("interrupted", since, timeout=CALL)
    monkeypatch.undo()
    assert waiter.wait("interrupted", since, timeout=CALL).entries["interrupted"].value == b"x"


def test_an_interrupt_anywhere_leaves_the_prefix_to_the_next_wait(shared_etcd: EtcdServer, connect: Connect) -> None:
    waiter, writer = (connect(shared_etcd.get_endpoint()) for _ in range(2))
    assert check_interrupted_waits(waiter, writer, (events, changes, turns, prefixes), CALL) > 10


def test_no_room_left_is_explained(proxy: FaultProxy, connect: Connect) -> None:
    message = b'{"error":"etcdserver: mvcc: database space exceeded","code":8}'
    proxy.answer = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\n\r\n%s" % (len(message), message)
    with pytest.raises(RendezvousConnectionError, match="alarm disarm"):
        connect(proxy.endpoint).put("key", b"x", expect=ABSENT, timeout=CALL)


@pytest.mark.parametrize("size", [1_600_000, 2_500_000])
def test_what_is_too_large_is_refused_and_not_written(shared_etcd: EtcdServer, connect: Connect, size: int) -> None:
    backend = connect(shared_etcd.get_endpoint())
    with pytest.raises(RendezvousParameterError, match="large"):
        backend.put("large", b"x" * size, expect=ABSENT, timeout=60)
    assert backend.read("large", timeout=60) is None


def test_an_ipv6_endpoint(shared_etcd: EtcdServer, connect: Connect) -> None:
    with closing(FaultProxy(shared_etcd.get_port(), "::1")) as proxy:
        backend = connect(proxy.endpoint)
        since = backend.read_all("six", timeout=CALL)
        put = backend.put("six", b"6", expect=ANY, timeout=CALL)
        assert backend.wait("six", since, timeout=CALL).entries == {"six": put.entry}
        assert backend.local_address == "::1"
        backend.close()


def test_what_hangs_tells_the_time_that_it_took(connect: Connect) -> None:
    # It takes connections, and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(RendezvousConnectionError) as hung:
        connect(f"127.0.0.1:{silent.getsockname()[1]}").read("key", timeout=0.5)
    assert re.match(r"etcd did not answer within \d\.\d s: ", str(hung.value))


def test_full_etcd_differs_from_one_that_is_out_of_reach_and_in_time(connect: Connect) -> None:
    with EtcdServer(extra_args=["--quota-backend-bytes=8000000"]) as full:
        with pytest.raises(RendezvousConnectionError, match="takes no writes"):
            _fill(connect(full.get_endpoint()))
        params = RendezvousParameters("etcd-v3", full.get_endpoint(), "full", 1, 1, join_timeout=2)
        with get_rendezvous_handler(params) as node:
            started = time.monotonic()
            with pytest.raises(RendezvousTimeoutError) as late:
                node.next_rendezvous()
            took = time.monotonic() - started
    said = str(late.value)
    for part in ("'full' on backend 'etcd-v3'", "takes no writes", "etcdctl alarm disarm"):
        assert part in said
    assert "could not be reached" not in said
    told = re.search(r"within (\d+\.\d) s", said)
    assert told is not None
    # A pause is at most a second long: when the next one would end too late, it is over. The number is rounded.
    assert 2 - 1 - 0.05 <= float(told[1]) <= took + 0.05
    # At most a keep-alive interval after the deadline. It was 15 s once, as long as a call may take that no caller
    # waits for.
    assert took < 2 + 5


def _fill(backend: EtcdV3Backend) -> None:
    for number in range(100):
        backend.put(f"filling/{number}", b"x" * MAX_PAYLOAD, expect=ANY, timeout=CALL)
