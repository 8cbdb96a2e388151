"""Jobs that real launchers of MPI start on several nodes, all of which are this machine."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rdzv_conformance.servers import require_service
from tools.mpi import LAUNCHERS, NODES, Launcher

from .agents import BUSY, KEEP_ALIVE, Agent

RUN = (sys.executable, "-m", "rdzv_cli", "run")
RANK = ("--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")


@pytest.fixture(params=LAUNCHERS, ids=lambda one: one.name)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Each of them."""
    require_service(request.param)
    launcher: Launcher = request.param
    return launcher


def ends(launcher: Launcher, command: list[str], folder: Path) -> tuple[int, str]:
    """How a job has ended, and what it has said."""
    environ = {**os.environ, **launcher.environment, "RDZV_OPTIONS": "last_call_timeout=1"}
    out = subprocess.PIPE
    done = subprocess.run(
        command, cwd=folder, env=environ, stdout=out, stderr=subprocess.STDOUT, text=True, timeout=4 * BUSY, check=False
    )
    return done.returncode, done.stdout


def test_the_processes_of_a_job_are_the_nodes_of_one_run(launcher: Launcher, tmp_path: Path) -> None:
    # MPICH tells no job.
    named = () if "Open" in launcher.name else ("--run-id", "of-mpich")
    command = launcher.command(tmp_path, *RUN, *named, "--endpoint", str(tmp_path / "nodes.db"), *RANK)
    code, said = ends(launcher, command, tmp_path)
    assert code == 0, said
    assert sorted(re.findall(r"rank \d of \d", said)) == [f"rank {rank} of 3" for rank in range(len(NODES))]
    assert len(set(re.findall(r"run '(.+?)', backend sqlite", said))) == 1
    assert len(re.findall(rf"; {launcher.name}: .*nnodes from ", said)) == len(NODES)


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.name)
def test_the_page_shows_the_options_with_which_a_job_goes_on(launcher: Launcher) -> None:
    page = (Path(__file__).parents[2] / "docs" / "mpi.md").read_text()
    assert f"{' '.join(launcher.goes_on)} " in page


@pytest.mark.soak
def test_without_a_service_a_job_of_several_nodes_is_refused(launcher: Launcher, tmp_path: Path) -> None:
    code, said = ends(launcher, launcher.command(tmp_path, *RUN, "--run-id", "r", *RANK), tmp_path)
    assert code == 2, said
    assert "no service is named, and no host is known to all of them" in said


@pytest.mark.soak
def test_several_processes_on_one_node_are_refused(launcher: Launcher, tmp_path: Path) -> None:
    code, said = ends(launcher, [launcher.program, "-np", "2", *RUN, "--run-id", "r", *RANK], tmp_path)
    assert code == 2, said
    assert f"{launcher.name} has started 2 tasks on this node" in said


@pytest.mark.soak
def test_a_job_that_has_lost_a_node_goes_on(launcher: Launcher, tmp_path: Path) -> None:
    run = [*RUN, "--run-id", "r", "--nnodes", "2:3", "--max-restarts", "3", "--endpoint", str(tmp_path / "nodes.db")]
    program = f"echo rank $RANK of $WORLD_SIZE; while [ ! -e {tmp_path}/enough ]; do sleep 0.2; done"
    options = json.dumps({**KEEP_ALIVE, "last_call_timeout": "1"})
    command = launcher.command(tmp_path, *run, "--", "sh", "-c", program, goes_on=True)
    job = Agent(command, {**launcher.environment, "RDZV_OPTIONS": options})
    try:
        for rank in range(3):
            job.says(f"rank {rank} of 3", limit=BUSY)
        first, *_ = processes(run)
        os.kill(first, signal.SIGKILL)
        for rank in range(2):
            job.says(f"rank {rank} of 2", limit=BUSY)
        (tmp_path / "enough").touch()
        job.ends(BUSY)
    finally:
        job.process.terminate()
    assert job.said.count("done after") == 2


def processes(command: list[str]) -> list[int]:
    """Those whose command line begins with this."""
    beginning = "\0".join(command).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(beginning):
                found.append(int(path.parent.name))
    return found
