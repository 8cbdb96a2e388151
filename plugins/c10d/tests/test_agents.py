"""A job of four `rdzv run` agents, one of which serves the store; one dies, a newcomer takes its place."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from rdzv_cli.command import main
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.processes import Link, Processes, Worker
from rdzv_conformance.servers import free_ports

from .clients import is_served

_TTL = 2.0
_PROGRAM = """
import os, time
with open({worlds!r}, "a") as worlds:
    print(*(os.environ[name] for name in ("RDZV_ROUND", "RANK", "WORLD_SIZE")), file=worlds)
while not os.path.exists({done!r}):
    time.sleep(0.02)
"""
"""Takes note of each world, and is done when the test says so."""


class Job:
    """The agents of one job, and the worlds that their programs have seen."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.endpoint = f"127.0.0.1:{free_ports(1)[0]}"
        self._worlds, self._done = folder / "worlds", folder / "done"
        self._worlds.touch()
        self._processes = processes

    def start(self) -> Worker:
        """Start an agent; with the first one the store is there as well."""
        arguments = ["run", "--backend", "c10d", "--endpoint", self.endpoint, "--run-id", "job", "--nnodes", "2:4"]
        options = {"keep_alive_interval": _TTL / 4, "keep_alive_max_attempt": 4, "last_call_timeout": 30}
        arguments += [f"--option={name}={value}" for name, value in options.items()]
        program = _PROGRAM.format(worlds=str(self._worlds), done=str(self._done))

        def be_agent(_: Link) -> int:
            code = main([*arguments, "--", sys.executable, "-ISc", program])
            # Where it serves, it goes on until the others have left.
            for thread in threading.enumerate():
                if thread.name == "rdzv-c10d-linger":
                    thread.join()
            return code

        agent = self._processes.fork(be_agent)
        eventually(lambda: is_served(self.endpoint), "an agent to serve the store", 60)
        return agent

    def await_world(self, size: int, after: int = 0) -> int:
        """Wait for a whole world of some size, later than that round; returns its round."""
        began = time.monotonic()
        eventually(lambda: self._whole(size, after) > 0, f"a world of {size}", 30)
        print(f"a world of {size} after {time.monotonic() - began:.2f} s")
        return self._whole(size, after)

    def finish(self) -> None:
        """Let the programs be done."""
        self._done.touch()

    def _whole(self, size: int, after: int) -> int:
        worlds: dict[int, set[int]] = {}
        for line in self._worlds.read_text().splitlines():
            number, rank, there = map(int, line.split())
            if there == size and number > after:
                worlds.setdefault(number, set()).add(rank)
        return max((number for number, ranks in worlds.items() if ranks == set(range(size))), default=0)


@pytest.mark.parametrize("victim", ["a member", "the host"])
def test_a_job_outlives_the_death_of_an_agent(tmp_path: Path, processes: Processes, victim: str) -> None:
    job = Job(tmp_path, processes)
    agents = [job.start() for _ in range(4)]
    number = job.await_world(4)

    killed = time.monotonic()
    agents.pop(0 if victim == "the host" else 2).kill()
    number = job.await_world(3, number)
    took = time.monotonic() - killed
    print(f"going on without {victim} after {took:.2f} s")
    # Seconds are lost where the machine does other things as well.
    assert took < _TTL + 10

    agents.append(job.start())
    job.await_world(4, number)
    job.finish()
    assert [agent.result() for agent in agents] == [os.EX_OK] * 4
    assert not is_served(job.endpoint), "the store outlived its job"
