"""The processes of one node in one round, each in a process group of its own."""

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from rdzv.programs import public_environment

from . import guard

_POLL: Final = 0.02
"""Seconds between two looks at processes that were asked to end."""

_FAMILIAR: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What every program takes for a request to end, whether it has a handler or not."""

_PROC: Final = Path("/proc")
_PS: Final = ("/bin/ps", "-A", "-o", "stat=,pgid=")
"""Lists the processes where there is no `_PROC`."""


@contextlib.contextmanager
def own_children() -> Iterator[None]:
    """Where a launcher ignores the end of children, the system reaps them, and how they ended is lost: not in here."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)


class Guard:
    """A process that kills the workers, and removes folders, should this one be killed before it can."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it, with these variables."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__))],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, what: int | Path) -> None:
        """Kill this process group, or remove this folder, when we are gone."""
        self._say(f"+{what}\n")

    def forget(self, what: int | Path) -> None:
        """This process group has ended; this folder is removed."""
        self._say(f"-{what}\n")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - we asked for a pipe
        # A guard that was killed must not take the job with it.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(os.fsencode(line))
            self._process.stdin.flush()

    def close(self) -> None:
        """End it; whatever it still guards is killed."""
        self._process.communicate()


class Worker:
    """One process and its group.

    The system may give the number of a group that has ended to another one. So as long as this one may be sent a
    signal, its first process is not reaped, even when it has ended: that keeps the number.

    Attributes:
        pid: The number of the process, and of its group.
        code: How the process ended: its exit code, or the signal below zero; None while it runs.
        ended: When that was seen, on the monotonic clock.
        is_over: Whether nothing of the group is left. It is sent no signal any more, neither by us nor by the guard.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        keeper: Guard,
        output: IO[bytes] | None = None,
    ) -> None:
        """Start it.

        Args:
            command: The program and its arguments.
            environment: Its variables.
            keeper: The guard that kills the group when this agent is gone.
            output: Takes what it writes, and it gets no input; None: it has the streams of this agent.

        Raises:
            OSError: It cannot be started.
        """
        self._guard = keeper
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=None if output is None else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.code: int | None = None
        self.ended = math.inf
        self.is_over = False
        self._guard.watch(self.pid)

    @property
    def ending(self) -> str:
        """How the process ended, in words."""
        code = self.code or 0
        return f"signal {signal_name(-code)}" if code < 0 else f"exit code {code}"

    def look(self) -> bool:
        """Whether the process has ended since the last look."""
        if self.code is not None:
            return False
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        self.code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self.ended = time.monotonic()
        return True

    def send(self, number: int) -> None:
        """Send a signal to what is left of the group."""
        if not self.is_over:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def ask_to_end(self, number: int) -> None:
        """Send a signal to what is left of the group; SIGTERM if the program does not know what it asks for."""
        self.send(number if number in _FAMILIAR or _handles(self.pid, number) else signal.SIGTERM)

    def send_if_handled(self, number: int) -> bool:
        """Send a signal to the process alone, if its program has a handler for it: without one, it would be killed.

        Returns:
            Whether it was sent, or the process has ended.
        """
        if self.code is not None:
            return True
        if not _handles(self.pid, number):
            return False
        os.kill(self.pid, number)
        return True

    def send_to(self, process: int, number: int) -> bool:
        """Send a signal to one process of the group, as that process has asked for.

        Returns:
            Whether it was sent; the process may have ended, or be one of another machine or container.
        """
        try:
            if self.is_over or os.getpgid(process) != self.pid:
                return False
            os.kill(process, number)
        except (OSError, OverflowError, ValueError):
            return False
        return True

    def forget(self) -> None:
        """Reap the process and forget the group, of which nothing is left, or which was killed."""
        if not self.is_over:
            self.is_over = True
            # The guard first: once the process is reaped, its number may be that of another group.
            self._guard.forget(self.pid)
            self._process.wait()


class Workers:
    """The command, once for each local rank."""

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]], keeper: Guard) -> None:
        """Start them all.

        Raises:
            OSError: The command cannot be started; none is left running.
        """
        self._workers: list[Worker] = []
        try:
            for environment in environments:
                self._workers.append(Worker(command, environment, keeper))
        except OSError:
            self.kill()
            raise

    def look(self) -> list[Worker]:
        """All of them, in the order of their local ranks, as they are now."""
        if [worker for worker in self._workers if worker.look()]:
            self._forget_groups_that_ended()
        return self._workers

    def send(self, number: int) -> None:
        """Send a signal to every group."""
        for worker in self._workers:
            worker.send(number)

    def stop(self, grace: float, number: int = signal.SIGTERM, *, force: Callable[[], bool] = lambda: False) -> None:
        """Ask all to end with a signal; kill what is left after `grace` seconds, grandchildren too.

        Args:
            grace: Seconds.
            number: The signal; SIGTERM for a program that has no handler for a rare one.
            force: Whether to kill them at once; asked again and again.
        """
        for worker in self._workers:
            worker.ask_to_end(number)
        deadline = time.monotonic() + grace
        # The group, not only its first process: a wrapper script ends before what it wraps.
        while time.monotonic() < deadline and not force():
            self._forget_groups_that_ended()
            if all(worker.is_over for worker in self._workers):
                return
            time.sleep(_POLL)
        self.kill()

    def kill(self) -> None:
        """Kill every group and collect the processes."""
        self.send(signal.SIGKILL)
        for worker in self._workers:
            worker.forget()

    def _forget_groups_that_ended(self) -> None:
        for worker in self._workers:
            worker.look()
        ended = [worker for worker in self._workers if worker.code is not None and not worker.is_over]
        living = _living_groups() if ended else set()
        for worker in ended:
            if worker.pid not in living:
                worker.forget()


def signal_name(number: int) -> str:
    """The name of a signal; real-time ones have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, as far as the system can tell."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return True
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is None or bool(int(caught[1], 16) >> (number - 1) & 1)


def _living_groups() -> set[int]:
    """The groups of all processes of this machine that live; one that has ended and is not reaped yet does not."""
    return {int(group) for state, group, threads in _processes() if state[0] not in "ZX" or int(threads) > 1}


def _processes() -> Iterator[tuple[str, str, str]]:
    """Of each its state, its group and how many threads it has: a process whose main thread has ended is a zombie, too.

    What ps can tell of threads differs between systems; it counts as one.
    """
    if not (_PROC / "self").exists():
        listed = subprocess.run(_PS, env=public_environment(), stdout=subprocess.PIPE, text=True, check=True)
        for line in listed.stdout.splitlines():
            state, group = line.split()
            yield state, group, "1"
        return
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # The name of the program, in brackets, may hold anything.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield fields[0], fields[2], fields[17]
