"""Waiting for changes on an event loop: the backend's own watch, received when its socket has something."""

import asyncio
import time
from concurrent.futures import Executor
from typing import Any

from rdzv.engine.client import DecodedSnapshot
from rdzv_core import Snapshot
from rdzv_transport import ChangeWatch

__all__ = ["LoopWatch", "wait"]


class LoopWatch(ChangeWatch):
    """A watch that takes one step at a time, so that one thread can look after thousands."""

    def news(self, since: Snapshot) -> Snapshot | None:
        """What is known and differs from what the caller knows; None: nothing."""
        self._adopt(since)
        return self._news(since)

    def is_open(self) -> bool:
        """Whether the next step only receives; if not, it makes a call, which takes its time."""
        return self._changes is not None and self._doubt is None and self.fileno() >= 0

    def step(self, deadline: float) -> None:
        """Read the prefix, or open the watch."""
        self._step(deadline)

    def receive(self) -> None:
        """Receive what has come to the watch, which is open."""
        changes: Any = self._changes
        self._receive(changes, 0.0)

    def fileno(self) -> int:
        """The socket of the watch; -1: it was closed, which the next step finds out."""
        changes: Any = self._changes
        stream: Any = changes and changes._stream
        return int(stream._connection.sock._sock.fileno())


async def wait(watch: LoopWatch, since: DecodedSnapshot, deadline: float, pool: Executor) -> DecodedSnapshot:
    """What `RetryingClient.wait` does on a thread of its own.

    Args:
        watch: The watch of the prefix, this node's own.
        since: What the node knows.
        deadline: Until when to wait.
        pool: The threads that make calls.
    """
    while (news := watch.news(since.encoded)) is None:
        if time.monotonic() >= deadline:
            return since
        if not watch.is_open():
            await asyncio.get_running_loop().run_in_executor(pool, watch.step, deadline)
        elif await _readable(watch.fileno(), deadline):
            watch.receive()
    return DecodedSnapshot(news, since)


async def _readable(file: int, deadline: float) -> bool:
    """Wait until a socket has something; False: it had nothing until the deadline."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()
    loop.add_reader(file, _settle, answer, True)
    timer = loop.call_at(deadline, _settle, answer, False)
    try:
        return await answer
    finally:
        loop.remove_reader(file)
        timer.cancel()


def _settle(answer: asyncio.Future[bool], value: bool) -> None:
    if not answer.done():
        answer.set_result(value)
