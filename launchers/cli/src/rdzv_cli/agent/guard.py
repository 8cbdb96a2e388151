"""Kills an agent's workers when the agent is gone, even by kill -9.

Run as a program of its own, standard library only. It reads commands from its standard input,
``+PGID`` and ``-PGID``; when the input ends, because the agent ended, whatever is left is killed.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Guard until the agent is gone."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    guarded: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            guarded.add(group)
        else:
            guarded.discard(group)
    for group in guarded:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
