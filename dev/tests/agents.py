"""Real agents for the integration tests: `rdzv run` processes, what they say, how they end."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from rdzv_conformance.servers import SERVERS, require_service

from engine.tests.waiting import wait_until

__all__ = ["ALL", "BUSY", "KEEP_ALIVE", "TTL", "Agent", "Agents", "agents_on", "program", "wait_until"]

KEEP_ALIVE = {"keep_alive_interval": "0.5", "keep_alive_max_attempt": "4"}
TTL = 2.0
ALL = {"last_call_timeout": "600"}
"""The first world has as many nodes as one may have: they may start far apart on a busy machine."""
BUSY = 30.0
"""Seconds that a machine may lose which does other things as well; `python3 dev.py bench` measures."""

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # As in the background of a shell: the agents would inherit it. They do not inherit a handler that does nothing.
    signal.signal(signal.SIGINT, lambda *_: None)


class Agent:
    """One running agent."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
        )
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append((time.monotonic(), line.rstrip()))

    @property
    def said(self) -> str:
        """Everything so far."""
        return "\n".join(line for _, line in self.lines)

    def says(self, pattern: str, after: float = 0.0, limit: float = 30.0) -> float:
        """Wait until it has said `pattern`, later than the moment `after`; returns when."""

        def found() -> float | None:
            return next((at for at, line in list(self.lines) if at > after and re.search(pattern, line)), None)

        deadline = time.monotonic() + limit
        while (at := found()) is None:
            assert time.monotonic() < deadline, f"{pattern!r} was not said within {limit} s:\n{self.said}"
            time.sleep(0.01)
        return at

    def ends(self, limit: float = 30.0) -> int:
        """Its exit code, once it and everything that it started have ended."""
        code = self.process.wait(limit)
        self._reader.join(limit)
        assert not self._reader.is_alive(), "the agent has ended, but what it started still runs"
        return code


class Agents:
    """The agents of one test."""

    def __init__(self, backend: str, endpoint: str, run_id: str = "job") -> None:
        self.service = ["--backend", backend, "--endpoint", endpoint, "--run-id", run_id]
        self.running: list[Agent] = []

    def start(
        self,
        *program: str,
        nnodes: str = "2:4",
        options: Mapping[str, Any] | None = None,
        arguments: tuple[str, ...] = (),
        prelude: str = "",
        environment: Mapping[str, str] | None = None,
        within: tuple[str, ...] = (),
    ) -> Agent:
        """Start an agent.

        Args:
            program: What it runs.
            nnodes: How many nodes a world has.
            options: Options of rdzv or the backend.
            arguments: More arguments of ``rdzv run``.
            prelude: Python to run in the agent's process first.
            environment: More variables.
            within: A command that becomes the agent, whose command line is its last arguments.
        """
        chosen = {**KEEP_ALIVE, "last_call_timeout": "1", **(options or {})}
        start = ["-c", f"{prelude}\nimport sys, rdzv_cli; sys.exit(rdzv_cli.main())"] if prelude else ["-m", "rdzv"]
        command = [sys.executable, *start, "run", *self.service, "--nnodes", nnodes, *arguments]
        command += [f"--option={name}={value}" for name, value in chosen.items()]
        agent = Agent([*within, *command, "--", *program], environment or {})
        self.running.append(agent)
        return agent

    def command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another subcommand on the same run."""
        command = [sys.executable, "-m", "rdzv", name, *self.service, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def close(self) -> None:
        """Leave nothing running."""
        for agent in self.running:
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGCONT)
                agent.process.kill()
            agent.ends()


def program(folder: Path, source: str) -> list[str]:
    """Write a Python program; the command that runs it."""
    path = folder / f"program{len(list(folder.iterdir()))}.py"
    path.write_text(source)
    return [sys.executable, "-u", str(path)]


@contextmanager
def agents_on(backend: str, folder: Path) -> Iterator[Agents]:
    """Agents on a service that runs meanwhile, or on a file in `folder`."""
    with ExitStack() as stack:
        endpoint = str(folder / "rdzv.db")
        if backend in SERVERS:
            require_service(SERVERS[backend])
            endpoint = stack.enter_context(SERVERS[backend]()).get_endpoint()
        yield stack.enter_context(closing(Agents(backend, endpoint)))
