"""The process that copies the output of the workers of one round, as the agent sees it."""

import contextlib
import fcntl
import json
import logging
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..programs import command_line, copier
from .guard import latin

logger = logging.getLogger(__name__)

_CAPACITY: Final = 1 << 20
"""Bytes that a pipe holds, where the system lets it: a worker waits less often for the copier."""

_POLL: Final = 0.05
"""Seconds between two looks whether to wait any longer."""

_END: Final = 2.0
"""Seconds that one which is done gets to end, on a busy machine, too."""


class Order(NamedTuple):
    """How one pipe is copied: to which console (1, 2, `NOWHERE`), with what before each line there, and to which file.

    With `names`, each line there is an object of JSON that has them, too.
    """

    console: int
    prefix: str
    names: Mapping[str, object] | None
    file: Path | None


class Copier:
    """A process that copies what the workers write to pipes.

    It outlives the agent until all is copied, so that no line is lost with it. The workers wait for it when a console
    stalls: nothing is dropped.

    Attributes:
        pipes: The ends to which the workers write, and which the guard has.
    """

    def __init__(self, environment: Mapping[str, str], count: int) -> None:
        """Start it, with so many pipes.

        Raises:
            OSError: It cannot be started.
        """
        with contextlib.ExitStack() as kept:
            pairs = [_pipe(kept) for _ in range(count)]
            self._ends = [read for read, _ in pairs]
            self.pipes = [write for _, write in pairs]
            self._held = [*self.pipes]
            self._said = b""
            self._agent, theirs = socket.socketpair()
            kept.callback(self._agent.close)
            with theirs:
                self._process = subprocess.Popen(
                    command_line(copier, str(theirs.fileno())),
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(), *self._ends),
                )
            kept.pop_all()
        for end in self._ends:
            os.close(end)

    def hand_over(self) -> None:
        """Leave the pipes to the guard: the copier sees their end when no worker has them any more."""
        while self._held:
            os.close(self._held.pop())

    def copy(self, orders: Sequence[Order]) -> None:
        """Begin to copy, as is said for each pipe."""
        pipes = [
            (end, order.console, latin(order.prefix), order.names, order.file and latin(str(order.file)))
            for end, order in zip(self._ends, orders, strict=True)
        ]
        self._tell("copy", pipes)

    @property
    def is_lost(self) -> bool:
        """Whether it was killed: it does not end before `close`."""
        gone = select.poll()
        gone.register(self._agent, 0)
        return bool(gone.poll(0))

    def tails(self, which: Sequence[int], patience: float) -> list[bytes]:
        """The end of what was written to these pipes up to now; nothing if the console stalls for so many seconds.

        To be asked once: a late answer is passed over.
        """
        self._tell("tail", [self._ends[index] for index in which])
        deadline, said = time.monotonic() + patience, b""
        while not said.endswith(b"\n"):
            if not self._is_ready(deadline - time.monotonic()) or not (more := self._hear()):
                return []
            said += more
        return [tail.encode("latin-1") for tail in json.loads(said.splitlines()[-1])]

    def close(self, patience: float, is_over: Callable[[], bool]) -> bool:
        """Wait until all is copied that has been written.

        Args:
            patience: Seconds, at most.
            is_over: Whether to wait no longer; asked again and again.

        Returns:
            Whether it is.
        """
        self.hand_over()
        deadline = time.monotonic() + patience
        with contextlib.suppress(OSError):
            self._agent.shutdown(socket.SHUT_WR)
        while (rest := deadline - time.monotonic()) >= 0 and not is_over():
            if self._is_ready(min(rest, _POLL)):
                if not (said := self._hear()):
                    self._end()
                    return True
                self._said += said
        return False

    def _end(self) -> None:
        """It is done, or was killed. For what the workers have left behind by intent, it goes on."""
        self._agent.close()
        left = next(filter(bytes.isdigit, reversed(self._said.splitlines())), None)
        if left is None:
            logger.error("the copier of this node's output was killed: what it had not written is lost")
        if left in (None, b"0"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END)

    def _is_ready(self, seconds: float) -> bool:
        ready = select.poll()
        ready.register(self._agent, select.POLLIN)
        return bool(ready.poll(max(0.0, seconds) * 1000))

    def _hear(self) -> bytes:
        """What it says; nothing: it is done, or was killed."""
        try:
            return self._agent.recv(1 << 16)
        except ConnectionError:
            return b""

    def _tell(self, *what: object) -> None:
        # One that was killed has ended its workers, too: they can write no more.
        with contextlib.suppress(OSError):
            self._agent.sendall(json.dumps(what).encode() + b"\n")


def _pipe(kept: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        # A user may have only so many large ones.
        with contextlib.suppress(OSError):
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _CAPACITY)
    kept.callback(os.close, read)
    kept.callback(os.close, write)
    return read, write
