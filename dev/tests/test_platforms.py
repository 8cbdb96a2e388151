"""Agents that a platform has started, as its variables say, and that no option and no service is given."""

import os
import random
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from rdzv_cli.launch import port_of

from .agents import BUSY, Agent, wait_until

ROOT: Final = Path(__file__).parents[2]
RECORDED: Final[dict[str, Any]] = tomllib.loads((ROOT / "launchers/cli/tests/platforms.toml").read_text())
QUIET: Final = {"TORCH_CPP_LOG_LEVEL": "FATAL"}
PATIENCE: Final = 4 * BUSY
"""Seconds for several agents at once, each of which imports torch, on a machine that does other things as well."""
SOON: Final = "last_call_timeout=1,keep_alive_interval=0.5,keep_alive_max_attempt=4"


class Job:
    """A job of Slurm's, of two nodes of which this machine is the first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: list[Agent] = []

    def start(self, node: int, *command: str, **more: str) -> Agent:
        """Start the agent of a node."""
        environ = {**RECORDED["slurm-step"]["environ"], "SLURM_STEP_NODELIST": "localhost,other", **QUIET}
        environ |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "RDZV_OPTIONS": SOON}
        environ |= {"SLURM_NODEID": str(node), "SLURMD_NODENAME": f"n{node}", "TMPDIR": str(self._folder), **more}
        agent = Agent([sys.executable, "-m", "rdzv_cli", "run", "--", *(command or ("sleep", "600"))], environ)
        self.running.append(agent)
        return agent


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Whose agents end with the test."""
    job = Job(tmp_path)
    yield job
    for agent in job.running:
        agent.process.kill()
        agent.ends()


def free_job() -> str:
    """The id of a job whose port is free."""
    for number in iter(lambda: str(random.randrange(10**6, 10**9)), ""):
        if not is_taken(port_of(f"rdzv-{number}")):
            return number
    raise AssertionError


def is_taken(port: int) -> bool:
    """Whether a process listens there."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_the_nodes_of_a_job_meet_without_an_option_and_without_a_service(job: Job) -> None:
    number = free_job()
    program = ("sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    first, second = (job.start(node, *program, SLURM_JOB_ID=number) for node in (0, 1))
    assert (first.ends(PATIENCE), second.ends(PATIENCE)) == (0, 0)
    for node, agent in enumerate((first, second)):
        assert f"rank {node} of 2" in agent.said
        assert f"backend c10d, endpoint localhost:{port_of(f'rdzv-{number}')}, 2 nodes, node n{node}." in agent.said
        assert "endpoint from SLURM_STEP_NODELIST" in agent.said


@pytest.mark.soak
def test_a_requeued_job_goes_on_in_the_next_attempt_where_the_first_still_is(job: Job) -> None:
    """One of the first attempt is left, and keeps the store."""
    number = free_job()
    for node in (0, 1):
        job.start(node, SLURM_JOB_ID=number)
    for agent in job.running:
        agent.says("round 1: world size 2", limit=PATIENCE)
    again = [job.start(node, "true", SLURM_JOB_ID=number, SLURM_RESTART_COUNT="1") for node in (0, 1)]
    for agent in again:
        agent.says("attempt from SLURM_RESTART_COUNT", limit=PATIENCE)
        agent.says("round 2: world size 2", limit=PATIENCE)
        assert agent.ends(PATIENCE) == 0


def test_a_job_that_has_the_port_of_another_names_both(job: Job) -> None:
    number = free_job()
    port = port_of(f"rdzv-{number}")
    other = next(str(one) for one in range(10**6) if port_of(f"rdzv-{one}") == port)
    job.start(0, SLURM_JOB_ID=number)
    wait_until(lambda: is_taken(port), PATIENCE)
    stranger = job.start(0, SLURM_JOB_ID=other)
    # It is asked again for 30 s: that job may be just about to end.
    stranger.says(
        f"belongs to another run, '.*rdzv-{number}'.* this one is '.*rdzv-{other}'. Give this run an endpoint",
        limit=PATIENCE,
    )


def test_the_tests_are_in_no_job_whatever_has_started_them() -> None:
    recorded = {name: value for each in RECORDED.values() for name, value in each["environ"].items()}
    code = (
        "import os, runpy; from rdzv_cli.platforms import *; print(detect(os.environ, PLATFORMS).names != '')\n"
        "runpy.run_path('conftest.py'); print(detect(os.environ, PLATFORMS).names != '')"
    )
    command = [sys.executable, "-c", code]
    environ = {**os.environ, **recorded}
    said = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "False"]
