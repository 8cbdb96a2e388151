"""The channels to the workers of one round: a file for each in a folder that goes with the round."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rdzv.channel import AgentEnd, Report

from .guard import Guard

logger = logging.getLogger(__name__)

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder with a random name, which only its owner may enter, is made there
"""Preferred: no worker waits for a disk there."""


class Channels:
    """The agent's ends, by local rank. There may be none: a full disk is no reason not to run the command."""

    def __init__(self, count: int, keeper: Guard) -> None:
        """Make them; the guard removes what this agent cannot.

        Args:
            count: How many workers there are.
            keeper: The guard.
        """
        self._guard = keeper
        self._folder: Path | None = None
        self._ends: list[AgentEnd] = []
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="rdzv-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
            keeper.watch(self._folder)
            for local_rank in range(count):
                self._ends.append(AgentEnd(self._folder / str(local_rank)))
        except OSError as error:
            logger.warning("no progress and no drains in this round: the files for them cannot be made: %s", error)
            self.close()

    def path(self, local_rank: int) -> str:
        """Where the worker finds its end; empty: there is none."""
        return str(self._ends[local_rank].path) if self._ends else ""

    def show(self, drains: Iterable[tuple[str, float, str]]) -> int:
        """Show the workers a set of drains, as `AgentEnd.show`; returns its number."""
        drains = list(drains)
        number = 0
        for end in self._ends:
            try:
                number = end.show(drains)
            except OSError as error:
                logger.warning("the process of '%s' does not learn of a drain: %s", end.path, error)
        return number

    def reports(self) -> list[Report]:
        """What each worker has said so far."""
        return [end.report() for end in self._ends]

    def close(self) -> None:
        """Remove the files."""
        for end in self._ends:
            end.close()
        self._ends = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._guard.forget(self._folder)
            self._folder = None
