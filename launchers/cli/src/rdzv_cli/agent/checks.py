"""Whether this node is fit to take part: commands, each in a process group of its own that is killed if it hangs."""

import argparse
import contextlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from rdzv_core.near import near_name
from rdzv_core.text import printable

from ..programs import command_line, probes
from .guard import Guard, own_children
from .tails import end_of, last_lines
from .workers import Workers

_POLL: Final = 0.02
"""Seconds between two looks at a check that runs."""

_MOST: Final = 64 << 20
"""Bytes that a check may write: one that goes mad must not fill the disk before its time is over."""

_LAST_PORT: Final = 65535

_PORT: Final = r"(?P<port>[1-9]\d{0,4})"

_OURS: Final = {
    "disk": (r"disk:(.+):(\d+(?:\.\d+)?[KMGT]?)", "disk:PATH:SIZE, such as disk:/scratch:20G"),
    "port": (rf"port(?::{_PORT})?", "port, or port:NUMBER, such as port:29500"),
    "gpu": (r"gpu", "gpu"),
    "host": (rf"host:([^:]+|\[.+\]):{_PORT}", "host:NAME:PORT, such as host:storage:2049"),
}
"""What is no command line: how each is written, by pattern and in words. The groups are arguments of `probes`."""


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], bool]]:
    """What asks this process to end takes effect at the end of the block: else a check that just starts would be left.

    The block gets a function that says whether such a signal has come.
    """
    came: list[int] = []
    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in endings if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in heard}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: What the user has written.
        command: What is run; the node is fit if it ends with 0.
    """

    name: str
    command: tuple[str, ...]


def parse_check(text: str) -> Check:
    """The check that ``--check`` means, for argparse: a built-in one, or a command line for the shell."""
    kind = text.partition(":")[0]
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty text is no check; give a command line, disk, port, gpu or host")
    if kind not in _OURS:
        # A command line has a colon in a path or a variable, too.
        near = near_name(kind.lower(), _OURS) if kind.isalpha() else None
        if near is not None and ":" in text and shutil.which(kind) is None:
            raise argparse.ArgumentTypeError(
                f"'{printable(kind)}' is no command, and no kind of check; did you mean {_OURS[near][1]}?"
            )
        return Check(text, ("/bin/sh", "-c", text))
    pattern, form = _OURS[kind]
    found = re.fullmatch(pattern, text)
    if found is None or int(found.groupdict().get("port") or 0) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is no check; write {form}")
    given = [group for group in found.groups() if group is not None]
    return Check(text, tuple(command_line(probes, kind, *given)))


@dataclass(frozen=True)
class Checks:
    """The checks of a node.

    Attributes:
        checks: They are made one after the other; the first that fails is the last.
        timeout: Seconds that each may take.
        environment: Their variables.
        keep_detached: Whether to leave alone what they start in sessions of their own.
    """

    checks: Sequence[Check]
    timeout: float
    environment: Mapping[str, str]
    keep_detached: bool = False

    def run(self, is_over: Callable[[], bool] = lambda: False) -> str | None:
        """Make them; call it on the main thread.

        Args:
            is_over: Whether to end at once; asked again and again.

        Returns:
            Why the node is not fit, in words; None: it is, or it was over.
        """
        if not self.checks:
            return None
        with deferred_signals() as is_signalled, own_children():
            for check in self.checks:
                if failure := self._run(check, lambda: is_signalled() or is_over()):
                    return f"not fit: the check '{printable(check.name)}' {failure}"
        return None

    def _run(self, check: Check, is_over: Callable[[], bool]) -> str | None:
        try:
            with (
                tempfile.TemporaryFile() as output,
                contextlib.closing(Guard(self.environment, output, keep_detached=self.keep_detached)) as keeper,
            ):
                workers = Workers(check.command, [self.environment], keeper)
                try:
                    how = self._wait(workers, output, is_over)
                finally:
                    stuck = workers.kill()
                how = f"{how or 'has ended'}; it {stuck}" if stuck else how
                return how and f"{how}{_tail(output)}"
        except OSError as error:
            return f"cannot be made: {error}"

    def _wait(self, workers: Workers, output: IO[bytes], is_over: Callable[[], bool]) -> str | None:
        """How a check has failed; None: it did not."""
        deadline = time.monotonic() + self.timeout
        while (worker := workers.look()[0]).code is None and time.monotonic() < deadline and not is_over():
            if os.fstat(output.fileno()).st_size > _MOST:
                return f"wrote more than {_MOST >> 20} MiB, and was killed"
            time.sleep(_POLL)
        if worker.code == 0 or (worker.code is None and is_over()):
            return None
        if worker.code is None:
            return f"did not end within {self.timeout:g} s, and was killed"
        return f"failed with {worker.ending}"


def _tail(output: IO[bytes]) -> str:
    lines = last_lines(end_of(output))
    return f": {lines}" if lines else ""
