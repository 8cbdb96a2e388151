"""Four agents run one job; one is killed, the others go on; another joins; all finish with the right sum.

python3 dev.py demo                      # on sqlite: nothing has to run
python3 dev.py demo --backend etcd-v3    # on a real etcd, which runs as long as the demo
"""

import argparse
import contextlib
import os
import queue
import re
import shutil
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
PACE = {"c10d": 0.25}
"""Seconds of a step, where it is not 0.05: what imports torch takes long to come, and the job waits for none."""
SUM = "done: 9592 primes below 100000"
"""What the program says at the end, unless a step was lost or counted twice."""
BOLD, DIM = 1, 2
COLOURS = (36, 32, 33, 35, 34)
"""By which a terminal shows text bold or dim, and the names of the nodes."""
PATIENCE = 180
"""Seconds that a chapter may take, on a machine that does other things as well: on c10d each agent imports torch."""
OWN_LINE = re.compile(r"\S+ rdzv\[(\S+)\]: (.*)")
"""A line of an agent's own, which begins with the time and the id of its node."""


def main() -> None:
    """Play each chapter with a deadline."""
    arguments = parse_arguments()
    with (
        tempfile.TemporaryDirectory(prefix="rdzv-demo-") as folder,
        service(arguments, folder) as (backend, endpoint),
        Agents(*commands(backend, endpoint, folder)) as agents,
    ):
        with chapter("Four agents start. The job takes two to four: with the fourth it begins."):
            for number in range(1, 5):
                agents.start(f"node{number}")
            ranks = agents.expect("rank (.) of 4", timeout=PATIENCE)
        agents.expect("step 25:", timeout=PATIENCE, of_all=False)

        (victim,) = (name for name, match in ranks.items() if match[1] == "0")
        with chapter(f"{victim}, which has rank 0, is killed with -9. The other three go on."):
            agents.kill(victim)
            agents.expect("rank . of 3", timeout=PATIENCE)
        agents.expect(r"step \d+:", timeout=PATIENCE, of_all=False)

        with chapter("node5 arrives. The three make room, and four go on."):
            agents.start("node5")
            agents.expect("rank . of 4", timeout=PATIENCE)

        with chapter("They finish."):
            agents.expect(re.escape(SUM), timeout=PATIENCE)
            agents.expect_end(timeout=PATIENCE)
    print("\nEvery agent ended with exit code 0, and the sum is right:\nno step was lost, none counted twice.")


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
        self._shown: set[str] = set()

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
                self._show(name, line)
                if name in self._running and (match := re.search(pattern, line)):
                    said[name] = match
        return said

    def expect_end(self, *, timeout: float) -> None:
        """Wait until every agent has ended, with exit code 0."""
        deadline = time.monotonic() + timeout
        codes = {name: self._reap(name, timeout=deadline - time.monotonic()) for name in list(self._running)}
        if any(codes.values()):
            sys.exit(f"FAILED: not every agent ended with exit code 0: {codes}")

    def _show(self, name: str, line: str) -> None:
        """Show a line. What an agent says is shown once: the others see the same. Its place the program says, too."""
        if own := OWN_LINE.fullmatch(line):
            node, text = own.groups()
            told = text.replace(node, "it")
            if told in self._shown or ": world size" in text:
                return
            self._shown.add(told)
            line = f"rdzv: {text}"
        if sys.stdout.isatty():
            line = shorten(line, shutil.get_terminal_size().columns - len(f"  {name} | "))
        line = paint(line, DIM) if own else line
        print(f"  {paint(name, COLOURS[int(name[-1]) % len(COLOURS)])} | {line}", flush=True)

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
    print(f"\n{paint(title, BOLD)}", flush=True)
    begin = time.monotonic()
    yield
    print(f"  ... after {time.monotonic() - begin:.1f} s", flush=True)


def paint(text: str, code: int) -> str:
    """Text in a colour, where it goes to a terminal and NO_COLOR does not say otherwise."""
    return f"\x1b[{code}m{text}\x1b[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def shorten(text: str, width: int) -> str:
    """As much of a text as one line of the terminal has room for."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


@contextlib.contextmanager
def service(arguments: argparse.Namespace, folder: str) -> Iterator[tuple[str, str]]:
    """The backend, and the endpoint of its service; if none is named, the service runs as long as the demo."""
    backend = arguments.backend or os.environ.get("RDZV_BACKEND") or "sqlite"
    # What the environment says belongs to the backend that it names.
    endpoint = arguments.endpoint or (None if arguments.backend else os.environ.get("RDZV_ENDPOINT"))
    if endpoint or backend == "sqlite":
        yield backend, endpoint or f"{folder}/rdzv.db"
        return
    # The servers for tests are in a clone; a service that is there already does without them.
    from rdzv_conformance.servers import SERVERS, LocalService, ServiceMissingError, TcpStoreServer

    servers: dict[str, type[LocalService]] = {**SERVERS, "etcd": SERVERS["etcd-v2"], "c10d": TcpStoreServer}
    if backend not in servers:
        sys.exit(f"No service is known for the backend '{backend}': name one with --endpoint.")
    try:
        servers[backend].find_binary()
    except ServiceMissingError as error:
        sys.exit(str(error))
    with servers[backend]() as server:
        yield backend, server.get_endpoint()


def commands(backend: str, endpoint: str, folder: str) -> tuple[list[str], list[str]]:
    """How to start an agent, and the program that it runs."""
    service = ["--backend", backend, "--endpoint", endpoint]
    options = [f"--option={name}={value}" for name, value in OPTIONS.items()]
    agent = [sys.executable, "-m", "rdzv", "run", *service, "--run-id", Path(folder).name, "--nnodes", "2:4", *options]
    program = [sys.executable, str(PROGRAM), "--checkpoint", f"{folder}/primes.json", "--steps", str(STEPS)]
    return agent, [*program, "--pace", str(PACE.get(backend, 0.05))]


def parse_arguments() -> argparse.Namespace:
    """The command line; RDZV_BACKEND and RDZV_ENDPOINT are its defaults."""
    parser = argparse.ArgumentParser(prog="python3 dev.py demo", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="sqlite, etcd-v3, zookeeper, consul, etcd-v2, c10d, or your own (default: RDZV_BACKEND, else sqlite)",
    )
    parser.add_argument(
        "--endpoint",
        metavar="ADDRESS",
        help="a service that runs already (default: RDZV_ENDPOINT if RDZV_BACKEND is taken, too; else one is started "
        "for the demo, and sqlite has a file of its own)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # what it has started has ended
