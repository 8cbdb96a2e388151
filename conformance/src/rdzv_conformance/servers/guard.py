"""Runs one command that must not outlive its owner: ``guard.py OWNER_PID FOLDER COMMAND...``.

Executed as a script, in a process of its own, by `process.GuardedProcess`. It starts the command, writes
the command's pid to its output, and ends with it. If the owner dies first, whatever the way, it kills the
command and removes FOLDER (unless empty). If the guard itself is killed, the kernel kills the command.

The kernel's "signal me when my parent dies" alone would not do: it watches the *thread* that started
the child, and servers are started from threads that end.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_COMMAND_NOT_STARTED = 127


def _exec(command: list[str], guard: int) -> None:
    """Become the command, in the child."""
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:
            os.dup2(2, 1)  # our output is a pipe to the owner, not the command's
            os.execv(command[0], command)  # noqa: S606 - the whole point
    except OSError as error:
        os.write(2, f"{command[0]} could not be started: {error}\n".encode())
    os._exit(_COMMAND_NOT_STARTED)


def _watch(owner: int, child: int) -> int | None:
    """Wait for the end of one of the two: the child's exit status, or None if the owner is gone."""
    watched: list[int] = []
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # the owner is gone already, or the kernel is older than 5.3
            watched = [os.pidfd_open(pid) for pid in (owner, child)]
    while os.getppid() == owner:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        select.select(watched, [], [], None if watched else 0.05)
    return None


def main(owner: int, folder: str, command: list[str]) -> int:
    """Run the command; its exit code is ours (128 + n if signal n ended it)."""
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _exec(command, guard)
    os.write(1, b"%d\n" % child)
    os.close(1)
    status = _watch(owner, child)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if folder:
            import shutil  # slow to import, and seldom needed

            shutil.rmtree(folder, ignore_errors=True)
        return 1
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
