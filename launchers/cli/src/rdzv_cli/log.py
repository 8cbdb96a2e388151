"""What the command says on the standard error: every line begins with who says it, and `rdzv run`'s with when."""

import contextlib
import logging
import sys
import time
import warnings
from typing import Final

from rdzv_core.text import printable

_LONGEST: Final = 8000
"""Characters of a line; of a longer one its two ends are shown."""

_node = ""
"""The id of the node that speaks; empty while there is none."""


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _lines(super().format(record), record.created)


def begin(verbosity: int) -> None:
    """Log to the standard error: warnings, with 1 also news, from 2 on everything."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=(logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)], handlers=[handler])
    # Python shows these to the authors of a program, and hides them otherwise.
    logging.captureWarnings(True)
    warnings.filterwarnings("default", category=DeprecationWarning, module="rdzv")


def end() -> None:
    """Speak for no handler any more."""
    speak_as("")
    logging.captureWarnings(False)


def speak_as(node: str) -> None:
    """From now on every line has the time and this node's id; empty: neither."""
    global _node
    _node = node


def say(text: str) -> None:
    """Say something, whatever the level of the log."""
    write(f"{_lines(text, time.time())}\n")


def write(text: str) -> None:
    """Write to the standard error as it is.

    A node outlives its log: a full disk, a reader that is gone and a stream that is closed are passed over, as they
    are by `logging`.
    """
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def moment(when: float | None = None) -> str:
    """A point in time (seconds since the epoch; None: now) on this machine's clock, with its time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(when))


def _lines(text: str, when: float) -> str:
    prefix = f"{moment(when)} rdzv[{_node}]: " if _node else "rdzv: "
    # A traceback has many lines, and a collector of logs takes each for itself. Other nodes choose some of the text.
    return "\n".join(f"{prefix}{printable(line, _LONGEST)}" for line in text.splitlines() or [""])
