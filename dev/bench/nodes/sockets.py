"""A node without a rendezvous and without a client library: the floor of what Python takes for a rendezvous on etcd v3.

It sends what a node of rdzv sends, over sockets, and receives as much: a lease, the record of each round under a
condition, a watch that tells of the leader and of each world, and a large world's page. The first node counts the
records, and writes the world. Nothing is made sure of, and nothing times out.
"""

import json
import socket
import time
from base64 import b64encode
from typing import Any, Final

from . import FloorNode, Node, NodeSpec

__all__ = ["body_of", "connect", "encoded", "load", "make", "request", "under", "write"]

_PAUSE: Final = 0.01
"""Seconds between two looks of the first node at the records."""
_RECORD: Final = "x" * 500
_WORLD: Final = "x" * 400
_PAGE: Final = "x" * 2000
"""About what rdzv writes."""
_LARGE: Final = 64
"""Nodes up to which the world has no page of its own."""
_HEAD: Final = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}"


def load(backend: str) -> None:
    """Nothing: all is there."""
    assert backend == "etcd-v3"


def make(spec: NodeSpec) -> Node:
    """Make a node; it connects at once, and watches."""
    return _Node(spec)


class _Node(FloorNode):
    def __init__(self, spec: NodeSpec) -> None:
        self._spec = spec
        self._calls, self._events = connect(spec.endpoint), connect(spec.endpoint)
        self._heard = b""
        self._round = 0
        self._lease = "0"
        control = under(f"{spec.run_id}/control/")
        self._call("/v3/kv/range", control)
        self._events.sendall(request("/v3/watch", {"create_request": control | {"start_revision": "1"}}))

    def join(self) -> int:
        self._round += 1
        records = f"{self._spec.run_id}/nodes/{self._round}/"
        page = f"{self._spec.run_id}/page/{self._round}"
        if self._round == 1:
            self._lease = str(self._call("/v3/lease/grant", {"TTL": "30"})["ID"])
        self._write(f"{records}{self._spec.number}", _RECORD)
        if self._spec.number == 0:
            while self._count(records) < self._spec.min_nodes:
                time.sleep(_PAUSE)
            self._write(page, _PAGE)
            self._write(f"{self._spec.run_id}/control/leader", _WORLD)
            self._write(f"{self._spec.run_id}/control/world/{self._round}", _WORLD)
        self._await(encoded(f"{self._spec.run_id}/control/world/{self._round}"))
        if self._spec.min_nodes > _LARGE and self._round == 1:
            self._call("/v3/kv/range", {"key": encoded(page)})
        return self._spec.min_nodes

    def _write(self, key: str, value: str) -> None:
        assert self._call("/v3/kv/txn", write(key, value, self._lease))["succeeded"]

    def _count(self, folder: str) -> int:
        return int(self._call("/v3/kv/range", under(folder) | {"count_only": True}).get("count", 0))

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._calls.sendall(request(path, body))
        answer: dict[str, Any] = json.loads(_receive(self._calls))
        return answer

    def _await(self, key: str) -> None:
        while True:
            *lines, self._heard = self._heard.split(b"\n")
            messages = [json.loads(line)["result"] for line in lines if line.startswith(b"{")]
            if any(event["kv"]["key"] == key for message in messages for event in message.get("events", ())):
                return
            self._heard += self._events.recv(1 << 16)


def connect(endpoint: str) -> socket.socket:
    """A connection of a node's own."""
    host, port = endpoint.split(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def encoded(text: str) -> str:
    """A key or a value in etcd's JSON."""
    return b64encode(text.encode()).decode()


def under(folder: str) -> dict[str, Any]:
    """The fields that select all in a folder, whose name ends with a slash."""
    return {"key": encoded(folder), "range_end": encoded(f"{folder[:-1]}0")}


def write(key: str, value: str, lease: str) -> dict[str, Any]:
    """A write under a condition, which is met, as rdzv makes it."""
    where = {"key": encoded(key)}
    return {
        "compare": [where | {"target": "CREATE", "result": "GREATER", "create_revision": "-1"}],
        "success": [
            {"request_put": where | {"value": encoded(value), "lease": lease}},
            {"request_range": where | {"keys_only": True}},
        ],
        "failure": [{"request_range": where}],
    }


def request(path: str, body: dict[str, Any], *headers: str) -> bytes:
    """A request, as it is sent."""
    data = json.dumps(body)
    return "\r\n".join([_HEAD.format(path, len(data)), *headers, "", data]).encode()


def body_of(data: bytes) -> bytes | None:
    """The body of an answer, which comes whole or in chunks; None: there is more to come."""
    head, _, body = data.partition(b"\r\n\r\n")
    _, length, rest = head.partition(b"Content-Length: ")
    if length:
        return body if len(body) == int(rest.partition(b"\r")[0]) else None
    return b"".join(body.split(b"\r\n")[1::2]) if body.endswith(b"0\r\n\r\n") else None


def _receive(sock: socket.socket) -> bytes:
    data = b""
    while (body := body_of(data)) is None:
        data += sock.recv(1 << 16)
    return body
