"""What happens to the nodes: they gather, some die, the others gather again; and what each of that costs."""

import asyncio
import sys
import time

from bench.services import Service

from . import meter
from .lateness import Lateness
from .node import ScaledNode
from .verdict import expected_world, problems

__all__ = ["PhaseError", "Phases"]

_LATE = 1.0
"""Seconds that calls may wait for their turn unnoticed."""

_LOOK = 0.05
"""Seconds between two looks whether a phase is over: the last node is in its world for that long before it is seen."""

_TELL = 2.0
"""Seconds between two lines that say how far it is."""


class PhaseError(Exception):
    """A phase did not end within its time."""


class Phases:
    """One phase after the other.

    Attributes:
        living: The nodes that have not died.
        went_well: Whether all was as it should be, so far.
    """

    def __init__(self, nodes: list[ScaledNode], service: Service, lateness: Lateness, limit: float) -> None:
        """Prepare.

        Args:
            nodes: The nodes, not started yet.
            service: Where they gather.
            lateness: How late this machine is.
            limit: Seconds that each phase may take.
        """
        self.living = nodes
        self.went_well = True
        self._service = service
        self._lateness = lateness
        self._limit = limit
        self._dead: set[str] = set()
        self._round = 0
        self._world: list[str] = []

    async def gather(self) -> None:
        """Start all nodes, at once."""
        before = await self._read()
        for node in self.living:
            node.start()
        await self._gathered("gather", before)

    async def idle(self, seconds: float) -> None:
        """Have nothing happen for a while: what is left are keep-alives."""
        before = await self._read()
        await asyncio.sleep(seconds)
        self._tell("idle", before, await self._read())

    async def lose(self, what: str, victims: list[ScaledNode]) -> None:
        """Kill some, and have the others gather again."""
        before = await self._read()
        self._dead |= {node.id for node in victims}
        self.living = [node for node in self.living if node.id not in self._dead]
        for node in victims:
            node.kill()
        await self._gathered(what, before)

    async def _gathered(self, phase: str, before: meter.Reading) -> None:
        """Wait until all are in a later round, tell what it has cost, and whether it is one world."""
        await self._until_in_later_round(phase)
        self._tell(phase, before, await self._read())
        self._world = expected_world(self._world, {node.id for node in self.living})
        self._round = max(node.state.round for node in self.living if node.state is not None)
        wrong = problems(self.living, self._world, self._dead)
        self.went_well = self.went_well and not wrong
        right = f"round {self._round}: one world of {len(self._world):,}, each node has its rank, no false loss"
        print(f"  {'WRONG: ' + '; '.join(wrong) if wrong else right}", flush=True)

    def _tell(self, phase: str, before: meter.Reading, after: meter.Reading) -> None:
        print(meter.row(phase, len(self.living), before, after), flush=True)
        if (late := self._lateness.take()) > _LATE:
            print(f"  this machine was late: a call waited up to {late:.1f} s for its turn", flush=True)

    def _in_later_round(self, node: ScaledNode) -> bool:
        return node.state is not None and node.state.round > self._round

    async def _until_in_later_round(self, phase: str) -> None:
        """Wait until all are in a later round, and say now and then how many are.

        Raises:
            PhaseError: It takes too long, or a node's program has ended.
        """
        began = told = time.monotonic()
        # A look ends with the first that is not: to count ten thousand each time takes a twentieth of the processor
        # that the nodes share.
        while not all(map(self._in_later_round, self.living)):
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            if now - told < _TELL:
                continue
            told = now
            done = sum(map(self._in_later_round, self.living))
            failed = next((node.failed for node in self.living if node.failed is not None), None)
            if failed is not None or now - began > self._limit:
                why = f": {failed!r}" if failed else ""
                raise PhaseError(f"{phase}: {done:,} of {len(self.living):,} nodes after {now - began:.0f} s{why}")
            print(f"  {now - began:4.0f} s {phase}: {done:,} of {len(self.living):,}", file=sys.stderr, flush=True)

    async def _read(self) -> meter.Reading:
        """Read the counters, while the nodes go on; a server that is busy gets a few chances."""
        for _ in range(10):
            try:
                return await asyncio.to_thread(meter.read, self._service)
            except OSError as error:
                failure = error
        raise PhaseError(f"the server does not say what it has done: {failure}")
