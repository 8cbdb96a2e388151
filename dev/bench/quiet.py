"""A quiet machine: what is measured shares its processors with nothing else, or the results say so."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["BOUND", "Quiet"]

BOUND: Final = 0.2
"""Up to how many processors may be in use by others."""

_LOOK: Final = 0.25
_LOOK_AGAIN: Final = 1.0
"""Seconds over which the use of the processors is looked at."""


class Quiet:
    """Waits for quiet before each measurement.

    Args:
        patience: Seconds that all waiting together may take; what comes then is measured beside the others.
        tell: Gets a line to show while it waits.
    """

    def __init__(self, patience: float, tell: Callable[[str], None]) -> None:
        self._left = patience
        self._tell = tell

    def wait(self) -> float:
        """Wait; returns how many processors are in use by others still. Nothing that is measured may run."""
        used = _used(_LOOK)
        while used > BOUND and self._left > 0:
            self._tell(
                f"waits for quiet: others use {used:.1f} processors; goes on in {self._left:.0f} s at the latest"
            )
            self._left -= _LOOK_AGAIN
            used = _used(_LOOK_AGAIN)
        return used


def _used(seconds: float) -> float:
    """How many processors are in use on average, while this process sleeps."""
    before, began = _busy(), time.monotonic()
    time.sleep(seconds)
    return (_busy() - before) / (time.monotonic() - began)


def _busy() -> float:
    """Seconds that all processors have worked, or were taken away, since the start of the machine."""
    user, nice, system, _idle, _waiting, *others = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")
