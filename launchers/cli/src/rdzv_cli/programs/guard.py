"""Starts the processes of an agent, and ends what is left of them when the agent is gone, even by kill -9.

It has one thread; `agent.guard.Guard` is the agent's end of it. It is the parent of what it starts: nothing of that
runs before it is known. Where the system lets it, it also becomes the parent of whatever these processes start and
leave behind, so that a session of its own hides none.

Its arguments are the number of a socket, 1 if it adopts, and the signals that the processes start with ignored. It
reads commands from the socket, and answers there, each a list in a line of JSON. When the socket is closed, because the
agent has ended, it kills what is left, and removes the folders that it guards.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

KILLED: Final = 5.0
"""Seconds in which a process that was killed ends; one that waits for a dead disk or device does not."""

_POLL: Final = 0.02
"""Seconds between two looks at processes that were killed."""

_REAPED: Final = 1.0
"""Seconds between two looks for adopted processes that have ended: each reads the list of all processes."""

_PROC: Final = Path("/proc")

_ADOPT: Final = 36
"""PR_SET_CHILD_SUBREAPER, of prctl."""

_KEPT: Final = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
}
"""The signals that do to this program what they do to any: it cannot take them, or is broken when they come."""


class Process(NamedTuple):
    """A process of this machine, as /proc shows it."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    threads: int
    started: int

    @property
    def lives(self) -> bool:
        """Whether it does anything still. One whose main thread has ended is a zombie, too."""
        return self.state not in "ZX" or self.threads > 1


def processes() -> Iterator[Process]:
    """All of this machine or container; none where there is no list of them."""
    try:
        # One of another container, which shares its /proc with this one, has other numbers.
        listed = os.listdir(_PROC) if os.readlink(_PROC / "self") == str(os.getpid()) else []
    except OSError:
        return
    for pid in filter(str.isdecimal, listed):
        if (found := _process(int(pid))) is not None:
            yield found


def _process(pid: int) -> Process | None:
    try:
        # The name, in brackets, may hold anything. (To read a command line may wait for a process that hangs.)
        head, _, tail = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return None
    fields = tail.split()
    state, parent, group, threads, started = (fields[index] for index in (0, 1, 2, 17, 19))
    return Process(pid, head.partition("(")[2], state, int(parent), int(group), int(threads), int(started))


class Ends:
    """The order in which processes end, by an epoll of their pidfds (Linux since 5.3): to their parent all those that
    end while it does something else end at once. It leaves half of the descriptors to the starting of processes."""

    def __init__(self) -> None:
        """Watch none."""
        self._ready = select.epoll() if hasattr(os, "pidfd_open") else None
        self._room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._pids: dict[int, int] = {}

    def watch(self, pid: int) -> None:
        """From now on the moment at which this process ends is known, if the system can tell it, and has room."""
        if self._ready is not None:
            with contextlib.suppress(OSError):
                ends = os.pidfd_open(pid)
                try:
                    if ends >= self._room >= 0:
                        raise OSError(errno.EMFILE, "too few descriptors are left")
                    self._ready.register(ends, select.EPOLLIN)
                except OSError:
                    os.close(ends)
                else:
                    self._pids[ends] = pid

    def told(self, running: set[int]) -> list[int]:
        """Those of these processes that have ended since the last call, in the order of their ends, and then those of
        which it cannot tell whether they have."""
        untold = running.difference(self._pids.values())
        ready = self._ready.poll(0, len(self._pids)) if self._ready is not None and self._pids else []
        for ends, _ in ready:
            os.close(ends)
        return [*(self._pids.pop(ends) for ends, _ in ready), *untold]


class Started:
    """What the guard has started, and what it guards besides.

    Attributes:
        adopts: Whether it becomes the parent of what these processes leave behind.
    """

    def __init__(self, adopts: bool) -> None:
        """Have started nothing."""
        self.adopts = adopts
        self._running: set[int] = set()
        self._ends = Ends()
        # A process that has ended keeps its number, and that of its group, until the agent sends it nothing any more.
        self._groups: set[int] = set()
        self._folders: set[str] = set()

    def start(self, command: list[str], environment: dict[str, str], *streams: int | str | None) -> list[Any]:
        """Start a process in a session of its own. Texts stand for bytes, as Latin-1 has them.

        Args:
            command: The program and its arguments.
            environment: Its variables.
            streams: Its standard output and standard error: a descriptor, the path of a file to which they are
                appended, or None for those of this process.
        """
        variables = {name.encode("latin-1"): value.encode("latin-1") for name, value in environment.items()}
        try:
            with contextlib.ExitStack() as opened:
                out, err = (_opened(stream, opened) for stream in streams)
                process = subprocess.Popen(
                    [part.encode("latin-1") for part in command],
                    env=variables,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
        except OSError as error:
            return ["failed", error.errno, error.strerror]
        except ValueError as error:
            return ["failed", errno.EINVAL, str(error)]
        # We wait for it, and not `subprocess`, which would do so whenever it starts another one.
        process.returncode = 0
        self._running.add(process.pid)
        self._ends.watch(process.pid)
        self._groups.add(process.pid)
        return ["started", process.pid]

    def watch(self, folder: str) -> None:
        """Remove this folder in the end."""
        self._folders.add(folder)

    def forget(self, what: int | str) -> None:
        """The group of this process is sent nothing any more; this folder is removed."""
        self._folders.discard(str(what))
        if what in self._groups:
            self._groups.discard(what)
            self._running.discard(what)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(what), os.WNOHANG)

    def ended(self) -> Iterator[list[Any]]:
        """The processes that have ended since the last call, each with its exit code, or the signal below zero; in
        the order of their ends, where the system tells it."""
        for pid in self._ends.told(self._running):
            if pid not in self._running:
                # It was forgotten.
                continue
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._running.discard(pid)
                yield ["ended", pid, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status]

    def send(self, number: int) -> list[Any]:
        """Send a signal to all that is left of what was started; 0: to see what that is.

        Returns:
            Each with its number, its name, and whether it takes signals of this user.
        """
        left = self._left()
        return ["left", [[process.pid, process.name, _send(process, number)] for process in left if process.lives]]

    def _left(self) -> list[Process]:
        listed = [*processes()]
        if not listed:
            return [Process(pid, "", "R", os.getpid(), pid, 1, 0) for pid in self._running]
        if not self.adopts:
            return [process for process in listed if process.group in self._groups]
        children: dict[int, list[Process]] = {}
        for process in listed:
            children.setdefault(process.parent, []).append(process)
        beneath, parents = [], [os.getpid()]
        while parents:
            found = children.get(parents.pop(), [])
            beneath += found
            parents += [process.pid for process in found]
        return beneath

    def reap(self) -> None:
        """Reap the adopted processes that have ended."""
        for process in processes():
            if process.parent == os.getpid() and not process.lives and process.pid not in self._groups:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    def end(self) -> None:
        """Kill all that is left, wait for its end, and remove the folders."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        deadline = time.monotonic() + KILLED
        # Without a child there is no grandchild, either: each falls to us when its parent ends.
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if self.adopts:
                    self.send(signal.SIGKILL)
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(_POLL)


def _opened(stream: int | str | None, opened: contextlib.ExitStack) -> int | IO[bytes] | None:
    if not isinstance(stream, str):
        return stream
    try:
        return opened.enter_context(open(stream.encode("latin-1"), "ab", buffering=0))
    except OSError as error:
        # It is no fault of the program.
        raise OSError(error.errno, f"{error.strerror}: {stream}") from error


def _send(process: Process, number: int) -> bool:
    """Send a process a signal; whether it takes any of this user."""
    # The number may be that of another one by now.
    now = _process(process.pid)
    try:
        if now is None or now.started == process.started:
            os.kill(process.pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _adopt() -> bool:
    """Become the parent of what the processes beneath this one leave behind; whether the system can do that."""
    try:
        return any(processes()) and ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def _survive() -> int:
    """Outlive all signals that ask a process to end; returns a file that can be read when one has come.

    They have handlers, and are not ignored: what is started here would inherit that.
    """
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    for number in signal.valid_signals() - _KEPT:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, lambda number, frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    return woken


def _serve(agent: socket.socket, started: Started, woken: int) -> None:
    """Do what the agent asks for, until it is gone."""
    do: dict[str, Callable[..., list[Any] | None]] = {
        "start": started.start,
        "send": started.send,
        "watch": started.watch,
        "forget": started.forget,
    }
    ready = select.poll()
    ready.register(agent, select.POLLIN)
    ready.register(woken, select.POLLIN)
    lines, reap_from = b"", 0.0
    _say(agent, ["adopts", started.adopts])
    while True:
        found = dict(ready.poll(_REAPED * 1000 if reap_from else None))
        if woken in found:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 1 << 16)
            _say(agent, *started.ended())
            reap_from = reap_from or (time.monotonic() + _REAPED if started.adopts else 0.0)
        if reap_from and time.monotonic() >= reap_from:
            started.reap()
            reap_from = 0.0
        if agent.fileno() in found:
            *asked, lines = (lines + (said := _hear(agent))).split(b"\n")
            for command, *about in map(json.loads, asked):
                if (answer := do[command](*about)) is not None:
                    _say(agent, answer)
            if not said:
                return


def _say(agent: socket.socket, *answers: list[Any]) -> None:
    # One that is gone may have left commands: they are still to be read.
    with contextlib.suppress(ConnectionError):
        agent.sendall(b"".join(json.dumps(answer).encode() + b"\n" for answer in answers))


def _hear(agent: socket.socket) -> bytes:
    """What the agent says; nothing: it is gone."""
    try:
        return agent.recv(1 << 16)
    except ConnectionError:
        return b""


def main() -> None:
    """Guard until the agent is gone."""
    agent = socket.socket(fileno=int(sys.argv[1]))
    for number in sys.argv[3:]:
        signal.signal(int(number), signal.SIG_IGN)
    woken = _survive()
    started = Started(sys.argv[2] == "1" and _adopt())
    try:
        _serve(agent, started, woken)
    finally:
        started.end()


if __name__ == "__main__":
    main()
