"""The processes of one node in one round, each in a process group of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from . import guard

__all__ = ["Guard", "Workers"]

_POLL = 0.02
"""Seconds between two looks at processes that were asked to end."""


class Guard:
    """A process that kills the workers should this one be killed before it can."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it, with these variables."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__))],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Kill this process group when we are gone."""
        self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        """This process group has ended."""
        self._say(f"-{group}\n")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - we asked for a pipe
        # A guard that somebody killed must not take the job with it.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """End it; whatever it still guards is killed."""
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Workers:
    """The command, once for each local rank."""

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]], keeper: Guard) -> None:
        """Start them all.

        Raises:
            OSError: The command cannot be started; none is left running.
        """
        self._guard = keeper
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for environment in environments:
                process = subprocess.Popen(command, env=dict(environment), start_new_session=True)
                self._guard.watch(process.pid)
                self._processes.append(process)
        except OSError:
            self.kill()
            raise

    def exit_codes(self) -> list[int | None]:
        """The exit code of each, None for those that run; negative: the signal that ended it."""
        return [process.poll() for process in self._processes]

    def send(self, number: int) -> None:
        """Send a signal to every group."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def stop(self, grace: float, number: int = signal.SIGTERM, *, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask all to end with a signal; kill what is left after `grace` seconds, grandchildren too.

        Args:
            grace: Seconds.
            number: The signal.
            hurry: Whether to kill them at once; asked again and again.
        """
        self.send(number)
        deadline = time.monotonic() + grace
        # The group, not only its first process: a wrapper script ends before what it wraps.
        while time.monotonic() < deadline and not hurry() and not all(map(_has_ended, self._processes)):
            time.sleep(_POLL)
        self.kill()

    def kill(self) -> None:
        """Kill every group and collect the processes."""
        self.send(signal.SIGKILL)
        for process in self._processes:
            process.wait()
            self._guard.forget(process.pid)


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether nothing of a process's group is left."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
