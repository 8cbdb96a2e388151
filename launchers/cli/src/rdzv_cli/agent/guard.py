"""The process that starts the workers and has them as its own, as the agent sees it."""

import contextlib
import errno
import json
import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from ..programs import command_line, guard

logger = logging.getLogger(__name__)

Stream = int | Path | None
"""One of the guard's `pipes`, a file to which is appended, or the stream that the guard has."""

Streams = tuple[Stream, Stream]
"""The standard output and the standard error of a process."""

OWN: Final[Streams] = (None, None)

_ANSWER: Final = 60.0
"""Seconds in which the guard starts a program: that may come from a disk that hangs."""

_LEFT: Final = guard.KILLED
"""Seconds in which the guard says what is left."""


@contextlib.contextmanager
def own_children() -> Iterator[None]:
    """Where a launcher ignores the end of children, the system reaps them, and how they ended is lost: not in here."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)


class Guard:
    """A process that starts the workers and is their parent: it kills them should this one be killed before it can.

    Where the system can do that, it has as its own whatever they start, in sessions of their own, too.

    Attributes:
        is_lost: Whether it was killed itself.
        is_stuck: Whether something is left that it cannot kill, so that it need not be waited for.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        output: IO[bytes] | None = None,
        *,
        keep_detached: bool = False,
        ignored: Collection[int] = (),
        pipes: Collection[int] = (),
    ) -> None:
        """Start it.

        Args:
            environment: Its variables.
            output: Takes what the workers write, and they get no input; None: they have the streams of this process.
            keep_detached: Whether to leave alone what has left the process groups of the workers.
            ignored: The signals that the workers start with ignored.
            pipes: The descriptors that workers may have as streams.

        Raises:
            OSError: It cannot be started.
        """
        self.is_lost = self.is_stuck = False
        self._keep_detached = keep_detached
        self._codes: dict[int, int] = {}
        self._said = b""
        self._channel, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command_line(guard, *map(str, map(int, (theirs.fileno(), not keep_detached, *ignored)))),
                    env=dict(environment),
                    stdin=None if output is None else subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(), *pipes),
                )
            except OSError:
                self._channel.close()
                raise

    def start(self, command: Sequence[str], environment: Mapping[str, str], streams: Streams = OWN) -> int:
        """Start a process in a session of its own; returns its number.

        Args:
            command: The program and its arguments.
            environment: Its variables.
            streams: Where its output goes.

        Raises:
            OSError: It cannot be started.
        """
        variables = {latin(name): latin(value) for name, value in environment.items()}
        given = [latin(str(stream)) if isinstance(stream, Path) else stream for stream in streams]
        kind, *answer = self._ask(_ANSWER, "start", [latin(part) for part in command], variables, *given)
        if kind == "failed":
            raise OSError(*answer)
        return int(answer[0])

    def code_of(self, pid: int) -> int | None:
        """How a process that it has started has ended; None: it runs, or that is not known, since the guard is lost."""
        with contextlib.suppress(OSError):
            while not self.is_lost and self._receive(0):
                pass
        return self._codes.get(pid)

    def place_of(self, pid: int) -> int:
        """How many processes had ended before this one, which has."""
        return [*self._codes].index(pid)

    def send(self, number: int) -> list[tuple[int, str, bool]]:
        """Send a signal to all that is left of what it has started; 0: to see what that is.

        Returns:
            Of each process the number, the name, and whether it takes signals of this user.
        """
        try:
            _, left = self._ask(_LEFT, "send", number)
        except OSError:
            return []
        return [tuple(process) for process in left]

    def watch(self, folder: Path) -> None:
        """Remove this folder when we are gone."""
        self._tell("watch", latin(str(folder)))

    def forget(self, what: int | Path) -> None:
        """The group of this process is sent nothing any more; this folder is removed."""
        self._tell("forget", what if isinstance(what, int) else latin(str(what)))

    def _tell(self, *what: object) -> None:
        # A guard that was killed has nothing left to forget.
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(what).encode() + b"\n")

    def _ask(self, patience: float, *what: object) -> list[Any]:
        """What it answers within this many seconds.

        Raises:
            OSError: It does not. It is killed then: what it says later would be the answer to something else.
        """
        deadline = time.monotonic() + patience
        if not self.is_lost:
            self._tell(*what)
        while not self.is_lost and (rest := deadline - time.monotonic()) > 0:
            for kind, *answer in self._receive(rest):
                if kind in ("started", "failed", "left"):
                    return [kind, *answer]
        self._lose("does not answer")
        raise OSError(errno.EPIPE, "its guard was killed, or does not answer")

    def _lose(self, why: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._process.kill()
            logger.error("the guard of this node's processes %s; they are killed", why)

    def _receive(self, patience: float) -> list[list[Any]]:
        """What it has said since the last call; waits that many seconds for anything at all."""
        ready = select.poll()
        ready.register(self._channel, select.POLLIN)
        if not ready.poll(patience * 1000):
            return []
        try:
            said = self._channel.recv(1 << 16)
        except ConnectionError:
            said = b""
        if not said:
            self._lose("was killed")
        *lines, self._said = (self._said + said).split(b"\n")
        news: list[list[Any]] = [json.loads(line) for line in lines]
        for kind, *about in news:
            if kind == "ended":
                self._codes[about[0]] = about[1]
            elif kind == "started":
                # The system may give a number again once a process is forgotten.
                self._codes.pop(about[0], None)
            elif kind == "adopts" and not about[0] and not self._keep_detached:
                logger.warning(
                    "this system does not tell what has left the process groups of the command: that outlives it; "
                    "--keep-detached says that it may"
                )
        return news

    def close(self) -> None:
        """End it; whatever is left is killed."""
        self._channel.close()
        try:
            self._process.wait(0 if self.is_stuck else 2 * guard.KILLED)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(guard.KILLED)


def latin(text: str) -> str:
    """A text that stands for the bytes that the system gets, whatever the encoding of either process is."""
    return os.fsencode(text).decode("latin-1")
