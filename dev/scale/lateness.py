"""How late this machine is: all nodes share one processor here, which none does elsewhere."""

import asyncio
import time
from concurrent.futures import Executor
from typing import Final

__all__ = ["Lateness"]

_EVERY: Final = 0.2
"""Seconds between two looks."""


class Lateness:
    """How long calls wait until a thread makes them."""

    def __init__(self, pool: Executor) -> None:
        """Look at `pool`, which makes them."""
        self._pool = pool
        self._longest = 0.0

    async def watch(self) -> None:
        """Look, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = time.monotonic() + _EVERY
            await asyncio.sleep(_EVERY)
            made = await loop.run_in_executor(self._pool, time.monotonic)
            self._longest = max(self._longest, made - due)

    def take(self) -> float:
        """The longest wait since it was last asked, in seconds."""
        longest, self._longest = self._longest, 0.0
        return longest
