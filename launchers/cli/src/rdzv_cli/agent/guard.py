"""Cleans up after an agent that is gone, even by kill -9: kills its workers and removes its folders.

Run as a program of its own, standard library only. It reads commands from its standard input: ``+`` and ``-``, each
before the number of a process group or the path of a folder, which it guards or forgets. When the input ends, because
the agent ended, whatever is left goes.
"""

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Guard until the agent is gone."""
    # A scheduler signals every process of a job, this one, too.
    for ignored in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(ignored, signal.SIG_IGN)
    guarded: set[str] = set()
    for line in sys.stdin:
        what = line[1:].removesuffix("\n")
        if line[0] == "+":
            guarded.add(what)
        else:
            guarded.discard(what)
    groups = {what for what in guarded if what.isdecimal()}
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(group), signal.SIGKILL)
    for folder in guarded - groups:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
