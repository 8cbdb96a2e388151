"""Whatever answers at a service's place: each call gives what the contract says, or an error of rdzv's."""

import base64
import itertools
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv_consul import ConsulBackend
from rdzv_core import ABSENT, ANY, Capability, Entry, KeyValueBackend, PutOutcome, PutResult, Snapshot
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousError
from rdzv_etcd_v2 import EtcdV2Backend
from rdzv_etcd_v2.access import Access
from rdzv_etcd_v3 import EtcdV3Backend
from rdzv_zookeeper import ZooKeeperBackend

from .hostile import damaged, fuzzed, mutated
from .server import Server, running

pytestmark = pytest.mark.soak

_CALL = 0.5
_KEY = "control/state"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


_CONSUL_ENTRY = {"Key": f"rdzv/run/{_KEY}", "Value": _text(b"ab"), "ModifyIndex": 5, "CreateIndex": 3}
_V2_NODE = {"key": f"/rdzv/run/{_KEY}/value", "value": _text(b"ab"), "modifiedIndex": 5, "createdIndex": 3, "ttl": 9}
_V3_KEY = _text(f"/rdzv/run/{_KEY}".encode())
_V3_PAIR = {"key": _V3_KEY, "value": _text(b"a"), "mod_revision": "5", "create_revision": "3"}
_V3_HEADER = {"cluster_id": "7", "member_id": "8", "revision": "5", "raft_term": "2"}
HTTP: dict[str, tuple[Callable[[Endpoint], KeyValueBackend], list[Any]]] = {
    "consul": (
        lambda endpoint: ConsulBackend([endpoint], "run", request_timeout=_CALL),
        [
            [_CONSUL_ENTRY],
            {"Results": [{"KV": _CONSUL_ENTRY}]},
            {"Results": None, "Errors": [{"OpIndex": 0, "What": "failed to set key, index is stale"}]},
            "127.0.0.1:8300",
        ],
    ),
    "etcd-v2": (
        lambda endpoint: EtcdV2Backend(Access((endpoint,)), "run", ttl=9),
        [
            {"action": "get", "node": {"key": "/rdzv/run", "dir": True, "nodes": [_V2_NODE]}},
            {"action": "set", "node": _V2_NODE, "prevNode": _V2_NODE},
            {"errorCode": 100, "message": "Key not found", "cause": "/rdzv/run", "index": 5},
        ],
    ),
    "etcd-v3": (
        lambda endpoint: EtcdV3Backend([endpoint], "run", request_timeout=_CALL),
        [
            {"header": _V3_HEADER, "kvs": [_V3_PAIR], "count": "1"},
            {"header": _V3_HEADER, "succeeded": True, "responses": [{"response_range": {"kvs": [_V3_PAIR]}}]},
            {"header": _V3_HEADER, "ID": "9", "TTL": "3"},
            {"result": {"header": _V3_HEADER, "created": True, "events": [{"kv": _V3_PAIR}], "TTL": "3"}},
            {"error": {"grpc_code": 5, "message": "etcdserver: requested lease not found"}},
            {"code": 14, "message": "etcdserver: no leader"},
        ],
    ),
}
_COUNTS = st.sampled_from(["0", "5", "-1", "", "5.0", "1e9", "\xb2", "9" * 19, "9" * 20, "9" * 4300, "9" * 4301])
_STATUS = st.sampled_from(
    ["200 OK", "200", "204 None", "404 x", "409 x", "401 x", "500 x", "100 x", "000", "\xb2\xb2\xb2", "2"]
)
_FRAMING = st.sampled_from(
    [
        *("Content-Length: {length}", "Content-Length: 9{length}", "Content-Length: -1", "Content-Length: {nines}"),
        *("Transfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: {length}"),
        *("Connection: keep-alive", "X: 1"),
    ]
)


@st.composite
def answers(draw: st.DrawFn, bodies: list[Any]) -> bytes:
    """An answer over HTTP, and perhaps nothing of the kind."""
    body = draw(st.sampled_from(bodies).flatmap(mutated))
    framing = draw(_FRAMING).format(length=len(body), nines="9" * 4301)
    if "chunked" in framing and draw(st.booleans()):
        size = draw(st.sampled_from([f"{len(body):x}", "0", "-1", "f" * 5000, "g", ""]))
        body = size.encode() + b"\r\n" + body + draw(st.sampled_from([b"\r\n0\r\n\r\n", b"\r\n0\r\nA: b", b""]))
    count = draw(_COUNTS)
    head = f"HTTP/1.1 {draw(_STATUS)}\r\n{framing}\r\nX-Consul-Index: {count}\r\nX-Etcd-Index: {count}\r\n\r\n"
    data = head.encode("latin-1") + body
    return draw(damaged(data)) if draw(st.integers(0, 4)) == 0 else data


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as one:
        yield one


@pytest.mark.parametrize("service", HTTP)
def test_http(service: str, server: Server) -> None:
    make, bodies = HTTP[service]

    @fuzzed(300)
    @given(st.lists(answers(bodies), min_size=1, max_size=4))
    def try_some(given_answers: list[bytes]) -> None:
        turns = itertools.cycle([*given_answers, b""])
        server.answer, server.hangs_up = lambda received: next(turns), True
        _call_everything(make(server.endpoint))

    try_some()


_CONNECTED = struct.pack("!iiq", 0, 9000, 7) + struct.pack("!i", 16) + bytes(16) + b"\x00"
_STAT = struct.pack("!qqqqiiiqiiq", 3, 5, 0, 0, 0, 0, 0, 0, 2, 0, 4)
_DATA = struct.pack("!i", 2) + b"ab" + _STAT
_CHILDREN = struct.pack("!i", 1) + struct.pack("!i", 5) + b"state"
_DONE = struct.pack("!i?i", -1, True, -1)
_MULTI = struct.pack("!i?i", 13, False, 0) + _DONE
_EVENT = struct.pack("!iqi", -1, -1, 0) + struct.pack("!iii", 1, 3, 10) + b"/rdzv/run/"


@fuzzed(300)
@given(
    damaged(_CONNECTED) | st.just(_CONNECTED),
    st.lists(st.sampled_from([_DATA, _CHILDREN, _MULTI, _STAT]).flatmap(damaged), min_size=1, max_size=3),
    st.integers(-120, 1),
    st.sampled_from([b"", _EVENT]).flatmap(damaged),
)
def test_zookeeper(server: Server, hello: bytes, bodies: list[bytes], code: int, event: bytes) -> None:
    turns = itertools.cycle(bodies)

    def answer(received: bytes) -> bytes:
        requests = list(_frames(received))
        if requests and len(requests[0]) == 45:  # the first one of a connection
            return _frame(hello)
        found = [_frame(event)] if event else []
        for request in requests:
            number = request[:4]
            found.append(_frame(number + struct.pack("!qi", 5, 0 if code > -101 else code) + next(turns)))
        return b"".join(found)

    server.answer, server.hangs_up = answer, False
    _call_everything(ZooKeeperBackend([server.endpoint], "run", request_timeout=_CALL))


@fuzzed(200)
@given(st.binary(max_size=200) | damaged(struct.pack("!i", len(_CONNECTED)) + _CONNECTED))
def test_zookeeper_of_any_bytes(server: Server, data: bytes) -> None:
    turns = itertools.cycle([data, b""])
    server.answer, server.hangs_up = lambda received: next(turns), True
    _call_everything(ZooKeeperBackend([server.endpoint], "run", request_timeout=_CALL))


def _frames(data: bytes) -> Iterator[bytes]:
    while len(data) >= 4:
        (length,) = struct.unpack_from("!i", data)
        yield data[4 : 4 + length]
        data = data[4 + length :]


def _frame(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def _call_everything(backend: KeyValueBackend) -> None:
    try:
        since = Snapshot({}, None)
        with suppress(RendezvousError):
            entry = backend.read(_KEY, timeout=_CALL)
            assert entry is None or _is_entry(entry)
        with suppress(RendezvousError):
            since = backend.read_all("control", timeout=_CALL)
            assert all(isinstance(key, str) and _is_entry(entry) for key, entry in since.entries.items())
        for expect in (ABSENT, ANY, next((entry.token for entry in since.entries.values()), ANY)):
            with suppress(RendezvousError):
                put = backend.put(_KEY, b"ab", expect=expect, timeout=_CALL)
                assert isinstance(put, PutResult)
                assert (put.outcome is PutOutcome.APPLIED) <= (put.entry is not None)
        for _ in range(2):
            with suppress(RendezvousError):
                since = backend.wait("control", since, timeout=0.1)
                assert all(isinstance(key, str) and _is_entry(entry) for key, entry in since.entries.items())
        for key in ("control", *since.entries):
            with suppress(RendezvousError):
                backend.delete(key, timeout=_CALL)
        if Capability.LEASE in backend.capabilities:
            with suppress(RendezvousError):
                lease = backend.open_lease(3.0, timeout=_CALL)
                assert lease.ttl >= 0
                lease.keep_alive(_CALL)
                lease.revoke(_CALL)
    finally:
        backend.close()


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, Entry) and type(entry.value) is bytes and type(entry.order) is int
