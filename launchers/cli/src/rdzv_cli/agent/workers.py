"""The processes of one node in one round, each in a process group of its own."""

import contextlib
import itertools
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rdzv_core.text import printable

from ..programs.guard import KILLED, processes
from ..values import signal_name
from .guard import OWN, Guard, Streams
from .tools import output_of

_POLL: Final = 0.02
"""Seconds between two looks at processes that were asked to end."""

_FAMILIAR: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What every program takes for a request to end, whether it has a handler or not."""

_PROC: Final = Path("/proc")
_PS: Final = ("/bin/ps", "-A", "-o", "stat=,pgid=")
"""Lists the processes where there is no `_PROC`."""


class Output(NamedTuple):
    """Where the output of a worker goes, what its program gets to know of that, and its last lines."""

    streams: Streams = OWN
    variables: Mapping[str, str] = {}
    last_lines: Callable[[], str] = lambda: ""


INHERITED: Final = Output()
"""It goes to the streams of the guard."""


class Worker:
    """One process and its group.

    The system may give the number of a group that has ended to another one. So as long as this one may be sent a
    signal, its first process is not reaped, even when it has ended: that keeps the number.

    Attributes:
        pid: The number of the process, and of its group.
        code: How the process ended: its exit code, or the signal below zero; None while it runs.
        ended: When that was seen, on the monotonic clock.
        place: How many others of its round had ended before.
        is_over: Whether nothing of the group is left. It is sent no signal any more, neither by us nor by the guard.
        last_lines: Tells what it has written last, if that is known.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        keeper: Guard,
        output: Output = INHERITED,
    ) -> None:
        """Start it.

        Args:
            command: The program and its arguments.
            environment: Its variables.
            keeper: The guard that starts it, and kills the group when this agent is gone.
            output: Where its output goes.

        Raises:
            OSError: It cannot be started.
        """
        self._guard = keeper
        self.last_lines = output.last_lines
        self.pid = keeper.start(command, {**environment, **output.variables}, output.streams)
        self.code: int | None = None
        self.ended = math.inf
        self.place = 0
        self.is_over = False

    @property
    def ending(self) -> str:
        """How the process ended, in words."""
        code = self.code or 0
        return f"signal {signal_name(-code)}" if code < 0 else f"exit code {code}"

    def look(self) -> bool:
        """Whether the process has ended since the last look."""
        if self.code is not None:
            return False
        self.code = self._guard.code_of(self.pid)
        if self.code is not None:
            self.place = self._guard.place_of(self.pid)
        elif self._guard.is_lost:
            # No guard keeps its number any more.
            self.send(signal.SIGKILL)
            self.code, self.is_over = -signal.SIGKILL, True
        else:
            return False
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
        # A program that runs as another user cannot be told.
        with contextlib.suppress(PermissionError):
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
        """Forget the group, of which nothing is left, or which was killed. Its number is free then."""
        if not self.is_over:
            self.is_over = True
            self._guard.forget(self.pid)


class Workers:
    """The command, once for each local rank."""

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        keeper: Guard,
        outputs: Iterable[Output] = itertools.repeat(INHERITED),
    ) -> None:
        """Start them all.

        Args:
            command: The program and its arguments.
            environments: The variables of each.
            keeper: The guard.
            outputs: Where the output of each goes.

        Raises:
            OSError: The command cannot be started; none is left running.
        """
        self._guard = keeper
        self._workers: list[Worker] = []
        try:
            for environment, own in zip(environments, outputs, strict=False):
                self._workers.append(Worker(command, environment, keeper, own))
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

    def stop(
        self,
        grace: float,
        number: int = signal.SIGTERM,
        *,
        force: Callable[[], bool] = lambda: False,
        waiting: Callable[[float, Sequence[int]], None] = lambda seconds, left: None,
    ) -> str:
        """Ask all to end with a signal; kill what is left after `grace` seconds, grandchildren too.

        Args:
            grace: Seconds.
            number: The signal; SIGTERM for a program that has no handler for a rare one.
            force: Whether to kill them at once; asked again and again.
            waiting: Called now and then with the seconds so far, and the local ranks of those that are left.

        Returns:
            As `kill`.
        """
        for worker in self._workers:
            worker.ask_to_end(number)
        deadline = time.monotonic() + grace
        to_detached: int = signal.SIGTERM
        # The group, not only its first process: a wrapper script ends before what it wraps.
        while time.monotonic() < deadline and not force():
            self._forget_groups_that_ended()
            if all(worker.is_over for worker in self._workers):
                # What is in none of the groups was to be ended by what is gone now.
                if not self._guard.send(to_detached):
                    return ""
                to_detached = 0
            left = [rank for rank, worker in enumerate(self._workers) if not worker.is_over]
            waiting(grace - (deadline - time.monotonic()), left)
            time.sleep(_POLL)
        return self.kill()

    def kill(self) -> str:
        """Kill all that is left.

        Returns:
            What cannot be killed, in words; empty: nothing is left.
        """
        self.send(signal.SIGKILL)
        deadline = time.monotonic() + KILLED
        while (left := self._guard.send(signal.SIGKILL)) and time.monotonic() < deadline:
            time.sleep(_POLL)
        for worker in self._workers:
            worker.forget()
        self._guard.is_stuck = bool(left)
        if not left:
            return ""
        found = "; ".join(
            f"process {pid} ({printable(name)}) "
            + ("waits in the kernel, as for a disk or a device that hangs" if is_ours else "runs as another user")
            for pid, name, is_ours in left
        )
        return f"cannot be killed: {found}"

    def _forget_groups_that_ended(self) -> None:
        for worker in self._workers:
            worker.look()
        ended = [worker for worker in self._workers if worker.code is not None and not worker.is_over]
        living = _living({worker.pid for worker in ended}) if ended else set()
        for worker in ended:
            if worker.pid not in living:
                worker.forget()


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, as far as the system can tell."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return True
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is None or bool(int(caught[1], 16) >> (number - 1) & 1)


def _living(groups: set[int]) -> set[int]:
    """Those of the groups of which a process lives; one that has ended and is not reaped yet does not."""
    if (_PROC / "self").exists():
        return groups & {process.group for process in processes() if process.lives}
    try:
        listed = output_of(_PS, KILLED)
    except subprocess.SubprocessError:
        return groups
    found = (line.split() for line in listed.splitlines())
    return groups & {int(group) for state, group in found if state[0] not in "ZX"}
