"""What the command says on the standard output: it is written, or the command fails."""

import contextlib
import os
import signal
import sys

from .agent import ExitStatus
from .log import say


class OutputError(Exception):
    """The standard output takes no more; the cause says why."""


def begin() -> None:
    """Write characters that the encoding of the standard output lacks as escapes, as Python does on standard error."""
    with contextlib.suppress(AttributeError, ValueError):
        # A stream of another class needs neither.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def show(text: str) -> None:
    """Write a line, at once.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        if sys.stdout is None:
            raise ValueError("it is closed")
        print(text, flush=True)
    except (OSError, ValueError) as error:
        raise OutputError from error


def fail(error: OutputError) -> int:
    """Say that the output cannot be written, unless its reader has gone; returns the exit code."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        # At its end, the interpreter would try to write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    cause = error.__cause__
    if isinstance(cause, BrokenPipeError):
        return 128 + signal.SIGPIPE
    say(f"The standard output cannot be written: {getattr(cause, 'strerror', None) or cause}.")
    return ExitStatus.ERROR.value
