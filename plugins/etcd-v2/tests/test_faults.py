"""What happens between us and etcd: replies that are lost, answers that are not etcd's, connections that break."""

import time
from typing import Any

import pytest
from rdzv_conformance.fixtures import proxied
from rdzv_conformance.http_proxy import GATEWAY_ERRORS, STRANGE, FaultProxy, answer
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.servers import EtcdServer
from rdzv_conformance.suite.network import NetworkConformance
from rdzv_conformance.suite.server import ConnectTo
from rdzv_core.backend import ABSENT, ANY, PutOutcome
from rdzv_core.endpoints import parse_endpoints
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

from rdzv_etcd_v2 import Access, EtcdV2Backend

from .clients import CALL, Connect, request

proxy = proxied("shared_etcd", FaultProxy)


class TestNetwork(NetworkConformance):
    strange_answers = (
        answer("200 OK", b'{"node"', "X-Etcd-Index: 7"),
        answer("200 OK", b"{}", "X-Etcd-Index: 7"),
        answer("200 OK", b"[7]", "X-Etcd-Index: 7"),
        answer("200 OK", b"null", "X-Etcd-Index: 7"),
        answer("200 OK", b"[" * 50000, "X-Etcd-Index: 7"),
        answer("400 Bad Request", b'{"errorCode":209,"message":"Invalid field"}'),
        answer("404 Not Found", b"{}"),
        answer("412 Precondition Failed", b'{"errorCode":"?"}'),
        answer("200 OK", b"{}", f"X-Etcd-Index: {'9' * 4301}"),
        *STRANGE,
        answer("500 Internal Server Error", b'{"errorCode":300,"message":"Raft Internal Error","cause":"timed out"}'),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Etcd-Index: 7\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nX-Etcd-Index: 7\r\n\r\n{",
    )
    something_else = answer("200 OK", b"Nothing here"), "200.*Nothing here.*is it etcd"
    passing = (("500", answer("500 Internal Server Error", b"etcdserver: no leader")), *GATEWAY_ERRORS)

    @staticmethod
    def answer_of(body: bytes) -> bytes:
        return answer("200 OK", body, "X-Etcd-Index: 7")

    @pytest.fixture
    def connect(self) -> ConnectTo:
        return lambda run_id, endpoint="127.0.0.1:1": EtcdV2Backend(Access(parse_endpoints(endpoint, 2379)), run_id)


def test_numbers_beyond_all_bounds_blind_no_client(proxy: FaultProxy, connect: Connect) -> None:
    backend = connect(proxy.endpoint)
    since = backend.read_all("corrupt", timeout=CALL)
    proxy.disconnect()
    node = b'{"key":"/x","value":"","modifiedIndex":1e999,"createdIndex":1e999}'
    proxy.answer = answer("200 OK", b'{"action":"set","node":' + node + b"}", "X-Etcd-Index: 7")
    with pytest.raises(RendezvousConnectionError):
        backend.read("corrupt", timeout=1)
    assert backend.wait("corrupt", since, timeout=1).entries == since.entries
    proxy.answer = None
    proxy.disconnect()
    with in_background(lambda: follow(backend, "corrupt", since, "corrupt", b"x", CALL)) as followed:
        backend.put("corrupt", b"x", expect=ANY, timeout=CALL)
        followed.result(CALL)


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 0",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nX-Etcd-Index: abc",
        b"Transfer-Encoding: chunked\r\nX-Etcd-Index: " + b"9" * 4301,
    ],
    ids=range(4),
)
def test_a_stream_whose_head_is_not_etcds_is_an_error(proxy: FaultProxy, connect: Connect, head: bytes) -> None:
    backend = connect(proxy.endpoint)
    since = backend.read_all("strange", timeout=CALL)
    proxy.disconnect()
    proxy.answer = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n"
    with pytest.raises(RendezvousConnectionError):
        backend.wait("strange", since, timeout=CALL)


def test_a_value_that_is_not_ours_is_read_as_it_is(shared_etcd: EtcdServer, connect: Connect) -> None:
    """And those beside it can be read."""
    backend = connect(shared_etcd.get_endpoint())
    backend.put("foreign/ours", b"x", expect=ANY, timeout=CALL)
    request(shared_etcd, "PUT", "/rdzv/run/foreign/:value", value="*")
    request(shared_etcd, "PUT", "/rdzv/run/foreign/other", value="*")
    found = backend.read_all("foreign", timeout=CALL).entries
    assert {name: entry.value for name, entry in found.items()} == {"foreign": b"*", "foreign/ours": b"x"}


@pytest.mark.parametrize(
    ("prefix", "leftover"), [("old-a", "/old-a"), ("old-b", "/old-b/run"), ("old-c", "/old-c/run/left")]
)
def test_a_plain_key_where_a_directory_is_wanted_is_corrupt_state(
    shared_etcd: EtcdServer, connect: Connect, prefix: str, leftover: str
) -> None:
    backend = connect(shared_etcd.get_endpoint(), prefix=prefix)
    request(shared_etcd, "PUT", leftover, value="pickled")
    calls: list[Any] = [
        lambda: backend.read("left/a", timeout=CALL),
        lambda: backend.read_all("left/a", timeout=CALL),
        lambda: backend.put("left/a", b"x", expect=ABSENT, timeout=CALL),
        lambda: backend.put("left/a", b"x", expect=ANY, timeout=CALL),
        lambda: backend.put("left/a", b"x", expect=7, timeout=CALL),
        lambda: backend.delete("left/a", timeout=CALL),
    ]
    for call in calls:
        with pytest.raises(RendezvousStateError, match=f"'{leftover}'.*no directory.*etcdctl rm {leftover}"):
            call()
    request(shared_etcd, "DELETE", leftover)
    assert backend.put("left/a", b"x", expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED


def test_a_directory_where_a_value_is_wanted_is_corrupt_state(shared_etcd: EtcdServer, connect: Connect) -> None:
    backend = connect(shared_etcd.get_endpoint(), prefix="turned")
    request(shared_etcd, "PUT", "/turned/run/key/:value/below", value="x")
    calls: list[Any] = [
        lambda: backend.read("key", timeout=CALL),
        lambda: backend.put("key", b"x", expect=ANY, timeout=CALL),
        lambda: backend.put("key", b"x", expect=7, timeout=CALL),
    ]
    for call in calls:
        with pytest.raises(RendezvousStateError, match="'/turned/run/key/:value' is a directory"):
            call()


def test_a_key_and_what_is_below_it(shared_etcd: EtcdServer, connect: Connect) -> None:
    """To etcd one name is a file or a directory; and it hides what begins with an underscore."""
    backend = connect(shared_etcd.get_endpoint())
    names = {"tree", "tree/a", "tree/a/b", "tree/_hidden", "tree/_hidden/_too", "tree/=5Fa"}
    since = backend.read_all("tree", timeout=CALL)
    for number, name in enumerate(sorted(names)):
        assert backend.put(name, name.encode(), expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED
        since = backend.wait("tree", since, timeout=CALL)
        assert len(since.entries) == number + 1
    assert {name: entry.value.decode() for name, entry in since.entries.items()} == {name: name for name in names}
    assert since.entries == backend.read_all("tree", timeout=CALL).entries
    backend.delete("tree/_hidden", timeout=CALL)
    assert backend.wait("tree", since, timeout=CALL).entries.keys() == names - {"tree/_hidden", "tree/_hidden/_too"}


def test_nothing_stays_of_what_is_removed(shared_etcd: EtcdServer, connect: Connect) -> None:
    """Not even empty directories, up to that of the run."""
    backend = connect(shared_etcd.get_endpoint(), prefix="removing")
    for key in ("gone/a/b", "gone/c", "key"):
        backend.put(key, b"", expect=ANY, timeout=CALL)
    backend.delete("gone/a/b", timeout=CALL)
    assert [node["key"] for node in _listed(shared_etcd, "/removing/run/gone")] == ["/removing/run/gone/c"]
    backend.delete("gone", timeout=CALL)
    assert [node["key"] for node in _listed(shared_etcd, "/removing/run")] == ["/removing/run/key"]
    backend.delete("key", timeout=CALL)
    assert not _listed(shared_etcd, "/removing")


def test_keys_with_a_time_to_live_stay_while_a_client_writes(shared_etcd: EtcdServer, connect: Connect) -> None:
    backend = connect(shared_etcd.get_endpoint(), prefix="fading", ttl=2)
    backend.put("ttl/once", b"x", expect=ABSENT, timeout=CALL)
    began = time.monotonic()
    while time.monotonic() - began < 4:
        backend.put("ttl/often", b"x", expect=ANY, timeout=CALL)
        time.sleep(0.1)
    since = backend.read_all("ttl", timeout=CALL)
    assert since.entries.keys() == {"ttl/once", "ttl/often"}
    while since.entries:
        now = backend.wait("ttl", since, timeout=CALL)
        assert now is not since
        since = now
    assert time.monotonic() - began < 9


def _listed(server: EtcdServer, path: str) -> list[Any]:
    node = request(server, "GET", path)["node"]
    return list(node.get("nodes", ()))
