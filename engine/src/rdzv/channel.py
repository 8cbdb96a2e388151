"""What an agent and one of its processes tell each other: a small file on their machine, nothing on the network.

The process maps the file into its memory and writes numbers of eight bytes, each at once. The agent writes the drains
into the half that is not shown, and then shows it, so a reader waits for no writer, not even for one that is stopped.
"""

import array
import contextlib
import errno
import faulthandler
import json
import mmap
import os
import signal
import struct
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdzv_core.errors import RendezvousParameterError
from rdzv_core.handler import Drain

__all__ = ["AgentEnd", "ProcessEnd", "Report"]

_MAGIC: Final = b"rdzvch01"
"""Which layout the file has: the engine of the process may be another version than the agent's."""


_MAGIC_AT, _SHOWN, _STEP, _CALLS, _READY, _PROCESS, _SIGNAL = range(7)
"""Where the numbers at the head of the file stand. `_SHOWN` is that of the set of drains; 0: there never was one."""

_WORD: Final = struct.calcsize("q")
_HEAD: Final = 7 * _WORD
_ABOUT: Final = struct.Struct("=qqq")
"""Before each set of drains: its number, its length in bytes, and its checksum."""

_HALF: Final = 32 * 1024
_SIZE: Final = _HEAD + 2 * _HALF

_ATTEMPTS: Final = 100
"""How often a set is read while the agent writes others over it; then what was known before is good enough."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a process has told its agent.

    Attributes:
        calls: How often it has reported progress; 0: never.
        step: The step that it reported last.
        ready: The number of the last set of drains for which it has checkpointed; 0: none.
        process: The process that writes its stacks to its standard error when it is sent `signal`; 0: none does.
        signal: See `process`.
    """

    calls: int = 0
    step: int = 0
    ready: int = 0
    process: int = 0
    signal: int = 0


class AgentEnd:
    """The agent's end, which makes the file and removes it.

    It reads and writes the file instead of mapping it: a process that cuts the file short does the agent no harm.
    """

    def __init__(self, path: Path) -> None:
        """Make the file.

        Raises:
            OSError: It cannot be made.
        """
        self.path = path
        self._shown = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # All of it: a process that touches a page for which there is no room is killed.
            if os.write(self._file, _MAGIC.ljust(_SIZE, b"\0")) < _SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            self.close()
            raise

    def show(self, drains: Iterable[tuple[str, float, str]]) -> int:
        """Show the process a set of drains; of those that do not fit, the latest are left out.

        Args:
            drains: Of each the node's id, the moment of `time.monotonic` at which it leaves, and the reason.

        Returns:
            The number of the set, which only grows.
        """
        content = _fitting(sorted(drains, key=lambda drain: drain[1]))
        number = self._shown + 1
        about = _ABOUT.pack(number, len(content), zlib.crc32(content, number))
        os.pwrite(self._file, about + content, _offset(number))
        os.pwrite(self._file, struct.pack("=q", number), _SHOWN * _WORD)
        self._shown = number
        return number

    def report(self) -> Report:
        """What the process has said so far."""
        head = os.pread(self._file, _HEAD, 0)
        if len(head) < _HEAD:
            return Report()
        words = struct.unpack("=7q", head)
        return Report(*(words[at] for at in (_CALLS, _STEP, _READY, _PROCESS, _SIGNAL)))

    def close(self) -> None:
        """Remove the file; the process may go on using its end."""
        os.close(self._file)
        # A process may have put anything in its place.
        with contextlib.suppress(OSError):
            self.path.unlink()


class ProcessEnd:
    """The end of the process that the agent has started; a process that it forks may use it, too."""

    def __init__(self, path: str) -> None:
        """Open the file.

        Args:
            path: Where the agent has put it. Without one, and without a file there that this version can use, what is
                written is read by no process, and there are no drains.
        """
        self._memory: mmap.mmap | array.array[int] = _map(path) or array.array("q", bytes(_SIZE))
        self._bytes = memoryview(self._memory).cast("B")
        self._words = self._bytes[:_HEAD].cast("q")
        self._is_new = True
        self._number = 0
        self._drains: tuple[tuple[str, float, str], ...] = ()

    def progress(self, step: int) -> None:
        """Say that the process goes on.

        Raises:
            RendezvousParameterError: The step is not a whole number of 64 bits.
        """
        words = self._words
        try:
            words[_STEP] = step
        except (TypeError, ValueError) as error:
            raise RendezvousParameterError(
                f"progress() takes a whole number from -2**63 to 2**63 - 1 as the step, and got {step!r}."
            ) from error
        # After the step: an agent that sees this call sees its step.
        words[_CALLS] += 1
        if self._is_new:
            self._is_new = False
            self._offer_stacks()

    def drains(self) -> tuple[Drain, ...]:
        """The nodes that are about to leave, as the agent knows it."""
        if self._words[_SHOWN] != self._number:
            self._read()
        now = time.monotonic()
        return tuple(Drain(node, max(0.0, moment - now), reason) for node, moment, reason in self._drains)

    def ready(self) -> None:
        """Say that the process has checkpointed for the drains that are shown now."""
        self._words[_READY] = self._words[_SHOWN]

    def _read(self) -> None:
        for _ in range(_ATTEMPTS):
            number = self._words[_SHOWN]
            start = _offset(number)
            named, length, checksum = _ABOUT.unpack_from(self._bytes, start)
            start += _ABOUT.size
            if named == number and 0 < length <= _HALF - _ABOUT.size:
                content = bytes(self._bytes[start : start + length])
                # The next set but one may have been written over this one meanwhile.
                if zlib.crc32(content, number) == checksum:
                    self._drains = tuple((node, moment, reason) for node, moment, reason in json.loads(content))
                    self._number = number
                    return

    def _offer_stacks(self) -> None:
        """Write the stacks of all threads to the standard error at a signal, if the program has no use for it."""
        number = getattr(signal, "SIGRTMIN", None) or getattr(signal, "SIGUSR2", None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            faulthandler.register(number, file=2, all_threads=True, chain=False)
            self._words[_SIGNAL] = number
            # Last: it says that the signal may be sent.
            self._words[_PROCESS] = os.getpid()


def _offset(number: int) -> int:
    """Where the set of drains of this number stands."""
    return _HEAD + (number % 2) * _HALF


def _fitting(drains: Iterable[tuple[str, float, str]]) -> bytes:
    """As many of the drains, from the first on, as a half holds."""
    items: list[str] = []
    room = _HALF - _ABOUT.size - 1
    for drain in drains:
        item = json.dumps(drain)
        room -= len(item) + 1
        if room < 0:
            break
        items.append(item)
    return f"[{','.join(items)}]".encode()


def _map(path: str) -> mmap.mmap | None:
    if not path:
        return None
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), _SIZE)
    except (OSError, ValueError):
        # It ended with its round; or it belongs to another user, or to another machine.
        return None
    return memory if memory[:_WORD] == _MAGIC else None
