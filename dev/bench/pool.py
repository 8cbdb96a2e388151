"""Processes full of nodes, seen from the measuring process: made, given orders, and never left behind."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TextIO

from .nodes import NodeSpec

__all__ = ["TookTooLongError", "WorkerFactory", "WorkerPool", "WorkerPoolError", "load"]

PROCESSES: Final = 8
"""Over how many processes the nodes of every row are spread; fewer nodes have one each."""

_ROOT: Final = Path(__file__).parent.parent
_PATIENCE: Final = 60.0
_SETUP: Final = 0.05
"""Seconds, and so many more per thousand nodes, from an order to join to the moment at which all do."""


class WorkerPoolError(RuntimeError):
    """A node failed, or its process did."""


class TookTooLongError(WorkerPoolError):
    """There was no answer in time."""


class Member:
    """One process."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._received = b""
        self.nodes = 0
        self.pid: int = self._next(_PATIENCE)

    def order(self, name: str, **details: Any) -> None:
        """Give an order; see `worker.Worker`."""
        try:
            self._line.sendall(json.dumps([name, details]).encode() + b"\n")
        except OSError as error:
            raise WorkerPoolError("a process of nodes ended") from error

    def answer(self, limit: float) -> Any:
        """Its answer to the order.

        Raises:
            TookTooLongError: There was none within `limit` seconds.
            WorkerPoolError: It failed, or ended.
        """
        answer = self._next(limit)
        if "error" in answer:
            raise WorkerPoolError(answer["error"])
        return answer["answer"]

    def kill(self) -> float:
        """Kill it with -9; the moment at which it was."""
        os.kill(self.pid, signal.SIGKILL)
        return time.monotonic()

    def dismiss(self) -> None:
        """Tell it to end, whatever it does."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def await_end(self) -> None:
        """Wait until it has ended, after `dismiss` or `kill`."""
        with self._line, contextlib.suppress(OSError):
            self._line.settimeout(_PATIENCE)
            while self._line.recv(1 << 20):
                pass

    def _next(self, limit: float) -> Any:
        deadline = time.monotonic() + limit
        while b"\n" not in self._received:
            if not select.select([self._line], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TookTooLongError("no answer in time")
            data = self._line.recv(1 << 20)
            if not data:
                raise WorkerPoolError("a process of nodes ended")
            self._received += data
        text, _, self._received = self._received.partition(b"\n")
        return json.loads(text)


class WorkerPool:
    """The processes that hold the nodes of one measurement."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.specs: Sequence[NodeSpec] = ()

    def make(self, specs: Sequence[NodeSpec]) -> None:
        """Make the nodes, spread evenly; once more: others in their place."""
        self.specs = specs
        for start, member in enumerate(self.members):
            share = specs[start :: len(self.members)]
            member.nodes = len(share)
            member.order("make", specs=[asdict(spec) for spec in share])
        self.answers(_PATIENCE)

    def join(self, limit: float) -> float:
        """Have all nodes join at once: the seconds from the first call to the last return.

        Raises:
            TookTooLongError: Not all came back within `limit` seconds.
            WorkerPoolError: A node failed, or they are not all in one world.
        """
        nodes = sum(member.nodes for member in self.members)
        try:
            spans = self.all("join", limit + 1, at=time.monotonic() + _SETUP * (1 + nodes / 1000))
        except TookTooLongError:
            raise TookTooLongError(f"> {limit:.0f} s") from None
        seconds = max(span["last"] for span in spans) - min(span["first"] for span in spans)
        if (worlds := {size for span in spans for size in span["worlds"]}) != {str(nodes)}:
            raise WorkerPoolError(f"in worlds of {', '.join(sorted(worlds))}")
        return float(seconds)

    def all(self, name: str, patience: float = _PATIENCE, **details: Any) -> list[Any]:
        """Give every process an order: their answers."""
        for member in self.members:
            member.order(name, **details)
        return self.answers(patience)

    def answers(self, limit: float) -> list[Any]:
        """Every process's answer to the order before."""
        deadline = time.monotonic() + limit
        return [member.answer(max(0.0, deadline - time.monotonic())) for member in self.members]

    def tally(self) -> tuple[int, float]:
        """Calls that the nodes have counted, and CPU seconds that their processes have taken."""
        calls, cpu = zip(*self.all("tally"), strict=True)
        return sum(calls), sum(cpu)

    def end(self) -> None:
        """Let the nodes release everything. If they fail: what was to be measured, was."""
        with contextlib.suppress(WorkerPoolError):
            self.all("end")


class WorkerFactory:
    """A process that has imported what a kind of nodes needs, and is copied for every measurement.

    Args:
        command: Of `worker.py`, with a Python that has what is needed.

    Raises:
        WorkerPoolError: It cannot be imported.
    """

    def __init__(self, command: Sequence[str]) -> None:
        # In a session of its own: Ctrl-C is for us, who then hang up.
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=_environment(),
        )
        if not _stream(self._process.stdout).readline():
            self.close()
            raise WorkerPoolError(load(command)[1])

    @contextmanager
    def pool(self, specs: Sequence[NodeSpec]) -> Iterator[WorkerPool]:
        """The processes of one measurement with their nodes; all are gone afterwards."""
        count = min(PROCESSES, len(specs))
        with (
            tempfile.TemporaryDirectory() as folder,
            socket.socket(socket.AF_UNIX) as door,
            contextlib.ExitStack() as at_end,
        ):
            meet = f"{folder}/meet"
            door.bind(meet)
            door.listen(count)
            door.settimeout(_PATIENCE)
            wanted = _stream(self._process.stdin)
            print(json.dumps({"meet": meet, "count": count}), file=wanted, flush=True)
            members: list[Member] = []
            at_end.callback(_dismiss, members)
            for _ in range(count):
                members.append(Member(_answer(door)))
            pool = WorkerPool(members)
            pool.make(specs)
            yield pool

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def load(command: Sequence[str]) -> tuple[dict[str, float], str]:
    """What importing takes: the figures of ``--load``, and what was said if it fails."""
    done = subprocess.run(
        [*command, "--load"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        env=_environment(),
        check=False,
    )
    return (json.loads(done.stdout) if done.returncode == 0 else {}), (done.stderr.splitlines() or [""])[-1]


def _environment() -> dict[str, str]:
    # torch tells on stderr of every connection that breaks.
    return os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}


def _dismiss(members: Sequence[Member]) -> None:
    for member in members:
        member.dismiss()
    for member in members:
        member.await_end()


def _answer(door: socket.socket) -> socket.socket:
    try:
        return door.accept()[0]
    except TimeoutError as error:
        raise WorkerPoolError("a process of nodes did not begin") from error


def _stream(stream: Any) -> TextIO:
    assert stream is not None
    return stream  # type: ignore[no-any-return]
