"""Starts a program that has a signal ignored until it handles it: ``ignoring.py NUMBER CMD [ARG ...]``.

It becomes that program. Python cannot start one so: for a moment the agent would have to ignore the signal itself, and
could miss it.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from errno import ENOENT
from pathlib import Path
from typing import Final

_CANNOT_START: Final = 127
"""The exit code that shells have for this."""


def ignoring(number: int, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command that starts `command` with a signal ignored.

    Raises:
        OSError: There is no such program.
    """
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
    return [sys.executable, "-I", "-S", str(Path(__file__)), str(int(number)), *command]


def main() -> None:
    """Become the program."""
    signal.signal(int(sys.argv[1]), signal.SIG_IGN)
    # Python itself has these ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - this is what it is for
    except OSError as error:
        print(f"cannot start {sys.argv[2]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(_CANNOT_START)


if __name__ == "__main__":
    main()
