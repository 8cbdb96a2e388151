"""One node and its program, which works in each world until others wait."""

import asyncio
import math
import secrets
import time
from typing import TYPE_CHECKING

from rdzv import Event, EventKind, RendezvousSettings
from rdzv.engine import join, keep_alive, watch
from rdzv.engine.node import Node

from .runner import Access, LoopRunner

if TYPE_CHECKING:
    from rdzv.engine.records import State

__all__ = ["ScaledNode"]

_PORT = 29500
"""What a node offers as rank 0; it keeps no port free, which would cost it another file."""


class ScaledNode:
    """A node, what its program has got, and what it has heard.

    Attributes:
        id: The node's id; the order of ids is that of numbers.
        state: The state that the program got last; None: it waits.
        rank: Its rank there.
        lost: The ids of the nodes that it has heard to be lost or gone.
        evicted: How often it has heard that it was evicted itself.
        failed: What has ended its program.
    """

    def __init__(self, number: int, settings: RendezvousSettings, access: Access) -> None:
        """Begin nothing yet."""
        self.id = f"node{number:06}.{secrets.token_hex(6)}"
        self.state: State | None = None
        self.rank = -1
        self.lost: set[str] = set()
        self.evicted = 0
        self.failed: Exception | None = None
        self._node = Node(
            settings,
            access.backend.name,
            time.monotonic,
            id=self.id,
            creates_at_once=access.backend.creates_at_once,
        )
        self._runner = LoopRunner(self._node, access, self._hear)

    @property
    def leads(self) -> bool:
        """Whether this node leads."""
        return self._node.leading

    def start(self) -> None:
        """Begin as a handler does, and join."""
        self._runner.start(watch.watch_loop(self._node))
        self._runner.start(keep_alive.keep_alive_loop(self._node))
        self._runner.add(asyncio.create_task(self._program()))

    def kill(self) -> None:
        """End without a word."""
        self._runner.kill()

    async def _program(self) -> None:
        try:
            while True:
                began = time.monotonic()
                deadline = began + self._node.settings.timeout.join.total_seconds()
                await self._runner.run(watch.wait_until_connected(self._node, deadline, began))
                self.state, self.rank = await self._runner.run(join.join(self._node, "127.0.0.1", _PORT, deadline))
                while not self._node.waiting():
                    await self._runner.changed(math.inf)
                self.state = None
        except Exception as error:
            self.failed = error

    def _hear(self, event: Event) -> None:
        if event.kind in (EventKind.NODE_LOST, EventKind.NODE_LEFT):
            self.lost.add(event.node)
        elif event.kind is EventKind.EVICTED:
            self.evicted += 1
