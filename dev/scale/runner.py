"""Runs the real coroutines of one node on an event loop: what `rdzv.engine.runner.Runner` does with threads."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rdzv import Event, RendezvousConnectionError
from rdzv.engine import effects, leader
from rdzv.engine.client import DecodedSnapshot, RetryingClient
from rdzv.engine.effects import Coroutine, Effect
from rdzv.engine.node import Node
from rdzv.engine.records import LEADER_KEY
from rdzv_etcd_v3 import EtcdV3Backend

from .watches import LoopWatch, wait

__all__ = ["Access", "LoopRunner"]

_R = TypeVar("_R")


@dataclass(frozen=True)
class Access:
    """What all nodes reach the service with.

    Attributes:
        backend: The backend, which makes the calls.
        pool: The threads on which it makes them.
        leaders: The thread on which it makes those of the node that leads, and claims to lead.
    """

    backend: EtcdV3Backend
    pool: Executor
    leaders: Executor


class LoopRunner:
    """Drives the coroutines of one node. All of them run on the loop's thread, one piece at a time."""

    def __init__(self, node: Node, access: Access, emit: Callable[[Event], None]) -> None:
        """Drive `node`; `emit` hears of every event."""
        self._node = node
        self._access = access
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._client = RetryingClient(access.backend, node.id, self._on_error, node.pauses)
        self._watches: dict[str, LoopWatch] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any]) -> None:
        """Run a coroutine beside the others."""
        self.add(asyncio.create_task(self.run(coroutine)))

    def add(self, task: asyncio.Task[Any]) -> None:
        """Have a task end with this node."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self, coroutine: Coroutine[_R]) -> _R:
        """Run a coroutine; returns what it returns, raises what it raises."""
        result: Any = None
        error: Exception | None = None
        effect: Effect | None = None
        try:
            while True:
                before, effect = effect, None
                try:
                    effect = coroutine.send(result) if error is None else coroutine.throw(error)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
                finally:
                    if not effects.waits_on(before, effect):
                        self._notify()
                result, error = None, None
                try:
                    result = await self._perform(effect)
                except Exception as raised:  # the coroutine decides what to do about it
                    error = raised
        finally:
            coroutine.close()

    async def changed(self, until: float) -> None:
        """Wait until what the node knows has changed, until that moment at most."""
        change = self._loop.create_future()
        self._waiting.append(change)
        timer = self._loop.call_at(until, _wake, change)
        try:
            await change
        finally:
            timer.cancel()

    def kill(self) -> None:
        """End the node as kill -9 does: without a word, its connection closed by the system."""
        for task in self._tasks:
            task.cancel()
        for watch in self._watches.values():
            watch.close()

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            _wake(change)

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case effects.Sleep(until):
                return await asyncio.sleep(max(0.0, until - time.monotonic()))
            case effects.WaitForChange(until):
                return await self.changed(until)
            case effects.Emit(events):
                return [self._emit(event) for event in events]
            case effects.AssignRanks():
                return None
            case effects.SpawnLeader(term):
                return self.start(leader.lead(self._node, term))
            case effects.Wait(prefix, since, deadline):
                return await self._wait(prefix, since, deadline)
            case effects.Together(calls):
                # The pool bounds how many are on their way.
                return await asyncio.gather(*map(self._perform, calls))
            case effects.Call():
                # The leader has a machine of its own elsewhere: behind the calls of all others here, each of its steps
                # would take seconds, in which the others do nothing but keep their leases alive. So would a claim to
                # lead, in which all others claim, too.
                leads = self._node.leading or (isinstance(effect, effects.Put) and effect.key == LEADER_KEY)
                pool = self._access.leaders if leads else self._access.pool
                result = await self._loop.run_in_executor(pool, self._make, effect, time.monotonic())
                if effect.is_contact:
                    self._node.connection.on_contact()
                return result

    def _make(self, call: Any, asked: float) -> Any:
        """Make a call, on a thread of the pool."""
        # For its turn it waits here alone, where thousands share a processor: that is no time of the service's.
        return replace(call, deadline=call.deadline + time.monotonic() - asked).perform(self._client)

    async def _wait(self, prefix: str, since: DecodedSnapshot, deadline: float) -> DecodedSnapshot:
        if prefix not in self._watches:
            self._watches[prefix] = LoopWatch(self._access.backend.link, prefix)
        return await wait(self._watches[prefix], since, deadline, self._access.pool)

    def _on_error(self, error: RendezvousConnectionError, lasted: float) -> None:
        # On a thread of the pool.
        self._loop.call_soon_threadsafe(self._node.connection.on_error, error, lasted)


def _wake(change: "asyncio.Future[None]") -> None:
    if not change.done():
        change.set_result(None)
