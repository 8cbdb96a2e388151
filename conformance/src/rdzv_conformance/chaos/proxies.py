"""The fault proxies between the agents and the service: TCP proxies that can be partitioned, in a process of their own.

An agent is given ports of its proxy instead of the service's. While the proxy is partitioned, bytes that arrive are
held back; afterwards they get through late, as TCP's own repetitions do, or are lost with their connections.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ..processes import Link, Processes, Worker
from . import namespaces

__all__ = ["PARTITIONS", "FaultProxies"]

PARTITIONS: Final = ("everything", "requests", "replies")
"""What may be held back; ``wire`` is a further one for agents in namespaces."""

_HOST: Final = "127.0.0.1"
_DAY: Final = 86400.0


class FaultProxies:
    """The fault proxies of all agents; in the process that controls them."""

    def __init__(self, processes: Processes) -> None:
        """Start their process."""
        self._worker: Worker = processes.fork(_serve)

    def open(self, name: str, targets: Sequence[tuple[str, int]], pid: int | None) -> list[str]:
        """Make a fault proxy.

        Args:
            name: Whose it is.
            targets: Where the service is.
            pid: A process in whose namespace the proxy begins; None: in ours.

        Returns:
            The ``host:port`` of each beginning, in the order of `targets`.
        """
        return [f"{_HOST}:{port}" for port in self._ask("open", name, targets, pid)]

    def partition(self, name: str, what: str) -> None:
        """Let nothing through: one of `PARTITIONS`, or ``wire``: the agent's network is down."""
        self._ask("partition", name, what)

    def slow(self, name: str, seconds: float) -> None:
        """Have everything that is answered from now on take so much longer."""
        self._ask("slow", name, seconds)

    def heal(self, name: str, lose: bool) -> None:
        """Let everything through again; what was held back is lost with its connections, or comes late."""
        self._ask("heal", name, lose)

    def close(self, name: str) -> None:
        """Remove a fault proxy."""
        self._ask("close", name)

    def _ask(self, *question: Any) -> Any:
        self._worker.send(question)
        return self._worker.receive()


def _serve(link: Link) -> None:
    """The life of the process: it never ends by itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    proxies: dict[str, _FaultProxy] = {}
    while True:
        command, name, *arguments = link.receive(_DAY)
        proxy = proxies.setdefault(name, _FaultProxy())
        link.send(asyncio.run_coroutine_threadsafe(getattr(proxy, command)(*arguments), loop).result())
        if command == "close":
            del proxies[name]


class _FaultProxy:
    """One fault proxy: a listening socket for each target, and what runs through."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._control: socket.socket | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._requests, self._replies = asyncio.Event(), asyncio.Event()
        self._requests.set()
        self._replies.set()
        self._lag = 0.0

    async def open(self, targets: Sequence[tuple[str, int]], pid: int | None) -> list[int]:
        if pid is None:
            sockets = [_listen() for _ in targets]
        else:
            self._control, *sockets = namespaces.within(pid, lambda: [_control(), *(_listen() for _ in targets)])
        for target, listening in zip(targets, sockets, strict=True):
            self._servers.append(await asyncio.start_server(partial(self._connect, *target), sock=listening))
        return [listening.getsockname()[1] for listening in sockets]

    async def partition(self, what: str) -> None:
        if what == "wire":
            assert self._control is not None
            namespaces.set_loopback(self._control, up=False)
        if what in ("everything", "requests"):
            self._requests.clear()
        if what in ("everything", "replies"):
            self._replies.clear()

    async def slow(self, seconds: float) -> None:
        self._lag = seconds

    async def heal(self, lose: bool) -> None:
        if lose:
            self._abort()
        if self._control is not None:
            namespaces.set_loopback(self._control, up=True)
        self._requests.set()
        self._replies.set()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        await self.heal(lose=True)
        if self._control is not None:
            self._control.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            await self._requests.wait()
            answers, far = await asyncio.open_connection(host, port)
            self._writers.add(far)
            await asyncio.gather(
                _pump(reader, far, self._requests, lambda: 0.0),
                _pump(answers, writer, self._replies, lambda: self._lag),
            )
        except OSError:
            pass
        finally:
            for one in (writer, far):
                if one is not None:
                    self._writers.discard(one)
                    one.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event, lag: Callable[[], float]
) -> None:
    with contextlib.closing(writer):
        while data := await reader.read(65536):
            await asyncio.sleep(lag())
            await gate.wait()
            writer.write(data)
            await writer.drain()
        await gate.wait()


def _listen() -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind((_HOST, 0))
    listening.listen(128)
    return listening


def _control() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
