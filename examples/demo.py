"""Four agents run one job; one is killed, the others go on; another joins; all finish with the right sum.

python3 dev.py demo                                        # on sqlite
python3 dev.py services etcd-v3 python examples/demo.py    # on a real etcd
"""

import argparse
import contextlib
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

PROGRAM = Path(__file__).with_name("allreduce.py")
OPTIONS = {"keep_alive_interval": 1, "keep_alive_max_attempt": 2, "last_call_timeout": 1}
"""A node is given up after 2 s, not after the default 15, so that the demo is short."""
STEPS = 200
SUM = "done: 9592 primes below 100000"
"""What the program says at the end, unless a step was lost or counted twice."""


def main() -> None:
    """Play each chapter with a deadline."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="rdzv-demo-") as folder, Agents(*commands(arguments, folder)) as agents:
        with chapter("Four agents start. The job takes two to four nodes, so with the fourth it begins at once."):
            for number in range(1, 5):
                agents.start(f"node{number}")
            ranks = agents.expect("rank (.) of 4", timeout=60)
        agents.expect("step 25:", timeout=60, of_all=False)

        (victim,) = (name for name, match in ranks.items() if match[1] == "0")
        with chapter(f"{victim}, which has rank 0, is killed with -9. The other three go on from where they were."):
            agents.kill(victim)
            agents.expect("rank . of 3", timeout=60)
        agents.expect(r"step \d+:", timeout=60, of_all=False)

        with chapter("node5 arrives. The three make room, and four go on."):
            agents.start("node5")
            agents.expect("rank . of 4", timeout=60)

        with chapter("They finish."):
            agents.expect(re.escape(SUM), timeout=120)
            agents.expect_end(timeout=60)
    print("\nEvery agent ended with exit code 0, and the sum is right: no step was lost, none counted twice.")


class Agents:
    """The running agents of one job by name, and what they say.

    Args:
        agent: How to start one, without its name.
        program: What it runs.
    """

    def __init__(self, agent: list[str], program: list[str]) -> None:
        self._agent = agent
        self._program = program
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._readers: dict[str, threading.Thread] = {}
        self._lines: queue.Queue[tuple[str, str | None]] = queue.Queue()

    def start(self, name: str) -> None:
        """Start an agent."""
        command = [*self._agent, f"--option=node_name={name}", "--", *self._program]
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._running[name] = agent
        self._readers[name] = threading.Thread(target=self._read, args=(name, agent), daemon=True)
        self._readers[name].start()

    def kill(self, name: str) -> None:
        """Kill an agent with -9, and see that the program it ran goes with it."""
        self._running[name].kill()
        self._reap(name, timeout=15)

    def expect(self, pattern: str, *, timeout: float, of_all: bool = True) -> dict[str, re.Match[str]]:
        """Show what the agents say until all of them, or one of them, have said `pattern`.

        Returns:
            The match by agent.
        """
        deadline = time.monotonic() + timeout
        said: dict[str, re.Match[str]] = {}
        while not said or (of_all and self._running.keys() - said.keys()):
            missing = sorted(self._running.keys() - said.keys())
            try:
                name, line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                sys.exit(f"FAILED: in {timeout:g} s not said by {', '.join(missing)}: '{pattern}'.")
            if line is None and name in missing:
                sys.exit(f"FAILED: {name} ended before it said '{pattern}', with exit code {self._reap(name, 15)}.")
            if line is not None:
                print(f"  {name} | {line}", flush=True)
                if name in self._running and (match := re.search(pattern, line)):
                    said[name] = match
        return said

    def expect_end(self, *, timeout: float) -> None:
        """Wait until every agent has ended, with exit code 0."""
        deadline = time.monotonic() + timeout
        codes = {name: self._reap(name, timeout=deadline - time.monotonic()) for name in list(self._running)}
        if any(codes.values()):
            sys.exit(f"FAILED: not every agent ended with exit code 0: {codes}")

    def _read(self, name: str, agent: subprocess.Popen[str]) -> None:
        assert agent.stdout is not None
        with agent.stdout:
            for line in agent.stdout:
                self._lines.put((name, line.rstrip()))
        self._lines.put((name, None))

    def _reap(self, name: str, timeout: float) -> int:
        """Wait for an agent's end, and for the end of all that could still write to its output."""
        try:
            code = self._running[name].wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            sys.exit(f"FAILED: {name} did not end in time.")
        del self._running[name]
        reader = self._readers.pop(name)
        reader.join(15)
        if reader.is_alive():
            sys.exit(f"FAILED: {name} has ended, but a program that it started still runs.")
        return code

    def __enter__(self) -> Self:
        """Nothing is started yet."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leave no agent running."""
        for agent in self._running.values():
            agent.terminate()
        for agent in self._running.values():
            try:
                agent.wait(15)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


@contextlib.contextmanager
def chapter(title: str) -> Iterator[None]:
    """Say what happens, and then how long it took."""
    print(f"\n{title}", flush=True)
    begin = time.monotonic()
    yield
    print(f"  ... after {time.monotonic() - begin:.1f} s", flush=True)


def commands(arguments: argparse.Namespace, folder: str) -> tuple[list[str], list[str]]:
    """How to start an agent, and the program that it runs."""
    service = ["--backend", arguments.backend, "--endpoint", arguments.endpoint or f"{folder}/rdzv.db"]
    options = [f"--option={name}={value}" for name, value in OPTIONS.items()]
    agent = [sys.executable, "-m", "rdzv", "run", *service, "--run-id", Path(folder).name, "--nnodes", "2:4", *options]
    program = [sys.executable, str(PROGRAM), "--checkpoint", f"{folder}/primes.json", "--steps", str(STEPS)]
    return agent, [*program, "--pace", "0.05"]


def parse_arguments() -> argparse.Namespace:
    """The command line; RDZV_BACKEND and RDZV_ENDPOINT are its defaults."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default=os.environ.get("RDZV_BACKEND", "sqlite"), help="default: sqlite")
    parser.add_argument("--endpoint", default=os.environ.get("RDZV_ENDPOINT"), help="default for sqlite: a new file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
