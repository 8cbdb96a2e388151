"""A child process that can be killed, paused and resumed, and that never outlives its owner."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from . import guard

_STOP_SECONDS: Final = 5.0


class GuardedProcess:
    """A running command, watched by a guard that kills it when this process ends, even by ``kill -9``.

    It may be started from any thread. Signals reach the command itself, not the guard.

    Args:
        command: The program's path and its arguments.
        output: Where its output and its errors go.
        folder: Removed by the guard if this process ends without stopping the command; None: nothing is.
        env: Its environment; None: ours.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        output: int | IO[bytes] | IO[str],
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        # A session of its own: Ctrl-C on the terminal is for the owner, who then stops what it started.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(folder or ""), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            env=env,
            start_new_session=True,
        )
        pipe = self._guard.stdout
        assert pipe is not None
        with pipe:
            answer = pipe.readline()
        if not answer:
            self._guard.wait()
            raise RuntimeError(f"The guard of {command[0]} ended at once, with exit code {self._guard.returncode}.")
        self.pid = int(answer)

    def poll(self) -> int | None:
        """The exit code (128 + n if signal n ended it), or None while it runs."""
        return self._guard.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal to the command; nothing happens if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def pause(self) -> None:
        """Freeze it (SIGSTOP), and wait until it is: its connections stay open, and nothing answers."""
        self.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_SECONDS
        while self.poll() is None and not _is_stopped(self.pid) and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a frozen one go on (SIGCONT)."""
        self.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL) and wait for its end."""
        self.send_signal(signal.SIGKILL)
        self._guard.wait()

    def terminate(self, timeout: float = 10) -> None:
        """Ask it to end (SIGTERM) and wait for its end; after `timeout` seconds, kill it."""
        self.send_signal(signal.SIGTERM)
        self.resume()
        try:
            self._guard.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()


def _is_stopped(pid: int) -> bool:
    """Whether every thread of a process stands still; True where the system does not tell (no /proc)."""
    try:
        states = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return not Path("/proc/self/task").exists()
    return all(state.rpartition(")")[2].split()[0] in "Tt" for state in states)
