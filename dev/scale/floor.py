"""The floor: what as many bare nodes take, which send and receive what a node does while it gathers, and do no more.

They share the loop, the service and the connections for calls as nodes do, and keep their leases alive as often. There
are no deadlines, failures or rules. The first node counts the records, and writes the world.
"""

import asyncio
import json
import random
import socket
from collections import deque
from typing import Any

from bench.nodes.sockets import body_of, connect, encoded, request, under, write
from rdzv.engine import worlds

__all__ = ["gather"]

_ROOT = "/rdzv/scale"
_CONTROL = under(f"{_ROOT}/control/")
_STATE = f"{_ROOT}/control/state"
_NODES = f"{_ROOT}/nodes/0/"
_PAGES = f"{_ROOT}/rounds/1/world/0.0123456789abcdef/"
_RECORD, _PAGE, _LEADER, _WORLD = "x" * 390, "x" * 2050, "x" * 200, "x" * 310
"""As long as what nodes write here."""
_RECORDED = b'"create_revision"'


async def gather(endpoint: str, count: int, connections: int, interval: float, ttl: float) -> None:
    """Have so many nodes gather.

    Args:
        endpoint: Where etcd is.
        count: How many.
        connections: How many they share for their calls.
        interval: Seconds between two keep-alives of each.
        ttl: The seconds for which their leases are granted.
    """
    calls = _Calls(endpoint, connections)
    grant = {"TTL": str(round(ttl))}
    await asyncio.gather(*(_BareNode(number, count, calls, interval).gather(grant) for number in range(count)))


class _Calls:
    """The connections over which all nodes call: on each, one request at a time."""

    def __init__(self, endpoint: str, connections: int) -> None:
        self.endpoint = endpoint
        self._waiting = deque[tuple[bytes, asyncio.Future[bytes]]]()
        self._idle = [connect(endpoint) for _ in range(connections)]

    def __call__(self, path: str, body: dict[str, Any]) -> "asyncio.Future[bytes]":
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((request(path, body, "Accept-Encoding: identity"), answer))
        if self._idle:
            self._send(self._idle.pop())
        return answer

    def _send(self, sock: socket.socket) -> None:
        data, answer = self._waiting.popleft()
        sock.sendall(data)
        asyncio.get_running_loop().add_reader(sock, self._receive, sock, answer, bytearray())

    def _receive(self, sock: socket.socket, answer: "asyncio.Future[bytes]", heard: bytearray) -> None:
        heard += _received(sock)
        if (body := body_of(bytes(heard))) is None:
            return
        if not answer.cancelled():
            answer.set_result(body)
        if self._waiting:
            self._send(sock)
        else:
            asyncio.get_running_loop().remove_reader(sock)
            self._idle.append(sock)


class _BareNode:
    def __init__(self, number: int, count: int, calls: _Calls, interval: float) -> None:
        self._number = number
        self._count = count
        self._calls = calls
        self._interval = interval
        self._lease = ""
        asyncio.get_running_loop().call_later(interval * random.uniform(0.5, 1.0), self._keep_alive)

    async def gather(self, grant: dict[str, str]) -> None:
        known = json.loads(await self._calls("/v3/kv/range", _CONTROL))["header"]["revision"]
        published = self._watch(_CONTROL, known, encoded(_STATE).encode(), 1)
        self._lease = json.loads(await self._calls("/v3/lease/grant", grant))["ID"]
        await self._write(f"{_NODES}node{self._number:06}.0123456789ab", _RECORD)
        if self._number == 0:
            await self._lead(known)
        await published
        if self._count > worlds.PAGE:
            await self._calls("/v3/kv/range", {"key": encoded(f"{_PAGES}{self._number // worlds.PAGE}")})

    async def _lead(self, known: str) -> None:
        await self._write(f"{_ROOT}/control/leader", _LEADER)
        await self._watch(under(_NODES), known, _RECORDED, self._count)
        if self._count > worlds.PAGE:
            pages = range(-(-self._count // worlds.PAGE))
            await asyncio.gather(*(self._write(f"{_PAGES}{page}", _PAGE) for page in pages))
        await self._write(_STATE, _WORLD)

    def _write(self, key: str, value: str) -> "asyncio.Future[bytes]":
        return self._calls("/v3/kv/txn", write(key, value, self._lease))

    def _watch(self, what: dict[str, Any], known: str, wanted: bytes, times: int) -> "asyncio.Future[None]":
        """Watch, over a connection of its own, until something has come so many times."""
        loop = asyncio.get_running_loop()
        body = {"create_request": what | {"start_revision": str(int(known) + 1)}}
        sock, came, heard = connect(self._calls.endpoint), loop.create_future(), bytearray()
        sock.sendall(request("/v3/watch", body, "Connection: close", "Grpc-Metadata-hasleader: true"))

        def hear() -> None:
            nonlocal times
            heard.extend(_received(sock))
            times -= heard.count(wanted)
            # What begins at the end of a piece goes on in the next.
            del heard[: -len(wanted) + 1]
            if times <= 0 and not came.done():
                came.set_result(None)

        loop.add_reader(sock, hear)
        return came

    def _keep_alive(self) -> None:
        if self._lease:
            self._calls("/v3/lease/keepalive", {"ID": self._lease})
        asyncio.get_running_loop().call_later(self._interval, self._keep_alive)


def _received(sock: socket.socket) -> bytes:
    if data := sock.recv(1 << 16):
        return data
    asyncio.get_running_loop().remove_reader(sock)
    raise ConnectionResetError("etcd has ended a connection")
