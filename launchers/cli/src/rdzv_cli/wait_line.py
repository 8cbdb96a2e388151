"""The line of a wait: redrawn in place on a terminal, said once in ten seconds elsewhere."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Final

from rdzv_core.text import printable

from .log import place, say, show

FIRST: Final = 2.0
"""Seconds of a wait before its first line: most waits are over by then."""

EVERY: Final = 10.0
"""Seconds between two lines where there is no terminal."""

_REDRAWN: Final = 0.5
"""The same on a terminal."""


class WaitLine:
    """Shows for how long something is waited for, and for what.

    Attributes:
        is_in_place: Whether there is a terminal to redraw it on.
    """

    def __init__(self, *, is_in_place: bool | None = None) -> None:
        """See `is_in_place`; None: wherever it can be redrawn."""
        self.is_in_place = can_redraw() if is_in_place is None else is_in_place
        self._waited = 0.0
        self._due = FIRST

    def waits(self, seconds: float, text: Callable[[float], str]) -> None:
        """Show it, if it is time to.

        Args:
            seconds: How long the wait has lasted; less than the last time: it is another wait.
            text: Makes the line, of these seconds.
        """
        if seconds < self._waited:
            self._due = FIRST
        self._waited = seconds
        if seconds < self._due:
            return
        self._due = seconds + (_REDRAWN if self.is_in_place else EVERY)
        if self.is_in_place:
            # Only a line that does not wrap can be taken away again.
            show(printable(f"rdzv: {text(seconds)}", shutil.get_terminal_size().columns - 1))
        else:
            say(text(seconds))


def can_redraw(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the standard error is a terminal that can take a line away again, and which a person looks at."""
    is_plain = environ.get("TERM") in (None, "", "dumb") or bool(environ.get("CI"))
    return place() is None and not is_plain and sys.stderr is not None and sys.stderr.isatty()
