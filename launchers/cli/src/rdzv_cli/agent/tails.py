"""The last lines of what a process has written, for a message of one line."""

from typing import Final

BYTES: Final = 2000
"""Bytes at the end, of which the last lines are shown."""

_LINES: Final = 3


def last_lines(written: bytes) -> str:
    """The last lines that are not empty; nothing: there is none."""
    lines = [line.strip() for line in written[-BYTES:].decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-_LINES:])
