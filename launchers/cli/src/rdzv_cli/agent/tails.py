"""The last lines of what a process has written, for a message of one line."""

import os
from typing import IO, Final

from ..programs.copier import TAIL

_LINES: Final = 3


def end_of(file: IO[bytes]) -> bytes:
    """The bytes at the end of a file, of which the last lines are shown."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
    return file.read()


def last_lines(written: bytes) -> str:
    """The last lines that are not empty; nothing: there is none."""
    lines = [line.strip() for line in written.decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-_LINES:])
