"""The jobs that the documentation shows for Slurm, on a real one: what is taken from them, and that they go on."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rdzv_conformance.servers import EtcdServer, free_ports, require_service
from tools.slurm import Slurm

from .agents import KEEP_ALIVE, wait_until

ROOT = Path(__file__).parents[2]

SAVES_AT_ITS_END = """
import signal
def end(number, frame):
    save()
    raise SystemExit
signal.signal(signal.SIGTERM, end)
"""


NAMES = """
import socket
found = socket.getaddrinfo
def getaddrinfo(host, *more, **others):
    return found("127.0.0.1" if host in ("n1", "n2", "n3") else host, *more, **others)
socket.getaddrinfo = getaddrinfo
"""
"""Has Python know the nodes of this Slurm by their names, as the resolver of a cluster does."""

BARE, COMPONENTS, ELEMENTS = range(3)
"""The jobs of docs/slurm.md, in their order."""


class Job:
    """A job of Slurm's, as the documentation has it."""

    def __init__(self, slurm: Slurm, folder: Path, script: str, *arguments: str) -> None:
        (folder / "job.sh").write_text(script)
        self.slurm, self.folder = slurm, folder
        self.id = slurm.command("sbatch", f"--chdir={folder}", "--parsable", *arguments, str(folder / "job.sh")).strip()

    @property
    def said(self) -> str:
        """All that its processes have said."""
        log = self.folder / "job.log"
        return log.read_text() if log.exists() else ""

    def says(self, pattern: str, limit: float = 120.0) -> None:
        """Wait until it has said `pattern`."""
        self._wait(lambda: bool(re.search(pattern, self.said, re.MULTILINE)), f"{pattern!r} was not said", limit)

    def has_world(self, number: int, size: int) -> None:
        """Wait until its program works in a world of that size."""
        for rank in range(size):
            self.says(f"^round {number}: rank {rank} of {size}")

    def ends(self, state: str = "COMPLETED") -> None:
        """Say that it is enough, and wait until it has ended."""
        (self.folder / "enough").touch()
        self._wait(lambda: self.shows(f"JobState={state}"), f"it has not ended as {state}")

    def shows(self, what: str) -> bool:
        """Whether Slurm says this of it."""
        return what in self.slurm.command("scontrol", "show", "job", self.id)

    def waits(self, restarts: int = 1) -> None:
        """Wait until Slurm has taken the nodes, and is to start it again; it is not to wait for long then."""
        again = f"Restarts={restarts} "
        self._wait(lambda: self.shows("JobState=PENDING") and self.shows(again), "it is not started again")
        # In the second in which it has ended, the nodes would refuse it.
        self.slurm.command("scontrol", "update", f"JobId={self.id}", "StartTime=now+2")

    def _wait(self, is_so: Callable[[], bool], otherwise: str, limit: float = 120.0) -> None:
        try:
            wait_until(is_so, limit)
        except AssertionError:
            pytest.fail(f"{otherwise}:\n{self.said}\n{self.slurm.log()}")


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    require_service(Slurm)
    with Slurm() as slurm:
        yield slurm


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job, with the variables that it inherits."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RDZV_OPTIONS", json.dumps(KEEP_ALIVE))
    return tmp_path


def block_of(page: str, beginning: str, number: int = 0) -> str:
    """A block of a page of the documentation."""
    text = (ROOT / "docs" / page).read_text()
    found = re.finditer(rf"^```\w+\n({re.escape(beginning)}.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block[1] for block in found][number]


def preempted(slurm: Slurm, folder: Path, *arguments: str, prelude: str = "") -> Job:
    """The job of the recipe, in its first world."""
    program = block_of("recipes.md", "import pathlib").replace("while not", f"{prelude}\nwhile not", 1)
    (folder / "train.py").write_text(program)
    job = Job(slurm, folder, block_of("recipes.md", "#!/bin/bash\n#SBATCH"), *arguments)
    job.has_world(1, 3)
    return job


def test_a_job_that_is_preempted_saves_and_goes_on(slurm: Slurm, folder: Path) -> None:
    job = preempted(slurm, folder, prelude='print("from step", step, flush=True)')
    slurm.command("scancel", "--signal=USR1", job.id)
    job.waits()
    saved = int((folder / "checkpoint").read_text())
    assert saved > 0
    assert job.said.count("]: drained: ") == 3
    assert "node failed" not in job.said
    job.has_world(2, 3)
    job.says(f"^from step {saved}$")
    job.ends()


@pytest.mark.soak
def test_slurm_warns_it_before_its_time_is_over(slurm: Slurm, folder: Path) -> None:
    # It looks twice a minute: this comes 30 to 60 s after the start.
    job = preempted(slurm, folder, "--time=2", "--signal=USR1@60")
    job.waits()
    assert int((folder / "checkpoint").read_text()) > 0
    assert "node failed" not in job.said
    job.has_world(2, 3)
    job.ends()


@pytest.mark.soak
@pytest.mark.parametrize("saves", [True, False])
def test_a_job_whose_nodes_are_taken_without_a_warning_goes_on(slurm: Slurm, folder: Path, saves: bool) -> None:
    job = preempted(slurm, folder, prelude=SAVES_AT_ITS_END if saves else "")
    slurm.command("scontrol", "requeue", job.id)
    job.waits()
    assert (folder / "checkpoint").exists() == saves
    # The program dies of the signal that its agent gets.
    assert "node failed" not in job.said
    job.has_world(2, 3)
    job.ends()


@pytest.mark.soak
def test_a_job_that_loses_a_node_goes_on_without_it(slurm: Slurm, folder: Path) -> None:
    job = preempted(slurm, folder)
    slurm.command("scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=test")
    job.has_world(2, 2)
    job.ends()


@pytest.mark.soak
def test_a_job_of_torchrun_that_loses_a_node_goes_on_without_it(slurm: Slurm, folder: Path) -> None:
    require_service(EtcdServer)
    shutil.copy(ROOT / "examples" / "train_ddp.py", folder)
    with EtcdServer() as etcd:
        script = block_of("torchrun.md", "#!/bin/bash\n#SBATCH")
        shown = "host1:2379,host2:2379,host3:2379"
        assert shown in script
        job = Job(slurm, folder, script.replace(shown, etcd.get_endpoint()))
        job.says("^rank 2 of 3: from step 0,")
        wait_until((folder / "model.pt").exists)
        slurm.command("scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=test")
        job.says("^rank 1 of 2: from step [1-9]")
        job.says("^rank 1 of 2: done")
        # As it counts the killed one.
        job.ends("FAILED")


@pytest.mark.soak
def test_a_job_of_torchrun_needs_no_service(slurm: Slurm, folder: Path) -> None:
    shutil.copy(ROOT / "examples" / "train_ddp.py", folder)
    script = block_of("torchrun.md", "#!/bin/bash\n#SBATCH", 1)
    assert ":29400" in script
    job = Job(slurm, folder, script.replace(":29400", f":{free_ports(1)[0]}"))
    job.says("^rank 2 of 3: done")
    job.ends()


def test_a_job_needs_no_option_and_no_service(slurm: Slurm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sitecustomize.py").write_text(NAMES)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")
    (folder / "train.py").write_text(block_of("recipes.md", "import pathlib"))
    job = Job(slurm, folder, block_of("slurm.md", "#!/bin/bash", BARE))
    job.has_world(1, 3)
    assert job.said.count(f"run 'rdzv-{job.id}', backend c10d, endpoint n1:") == 3
    assert "attempt from" not in job.said
    slurm.command("scontrol", "requeue", job.id)
    job.waits()
    # The store has ended with the nodes: the rounds begin anew.
    for rank in range(3):
        job.says(rf"(?s)attempt from SLURM_RESTART_COUNT.*^round 1: rank {rank} of 3")
    job.ends()


@pytest.mark.soak
@pytest.mark.parametrize("script", [COMPONENTS, ELEMENTS], ids=["components", "elements"])
def test_the_parts_of_a_job_are_the_nodes_of_one_run(slurm: Slurm, folder: Path, script: int) -> None:
    (folder / "train.py").write_text(block_of("recipes.md", "import pathlib"))
    job = Job(slurm, folder, block_of("slurm.md", "#!/bin/bash", script))
    job.has_world(1, 3)
    assert job.said.count(f"run 'rdzv-{job.id}', backend sqlite, ") == 3
    job.ends()


@pytest.mark.soak
def test_several_tasks_on_a_node_are_refused(slurm: Slurm, folder: Path) -> None:
    script = block_of("slurm.md", "#!/bin/bash", BARE).replace(
        "--ntasks-per-node=1", "--ntasks-per-node=2 --overcommit"
    )
    job = Job(slurm, folder, script)
    job.says("Slurm has started 2 tasks on this node")
    job.ends("FAILED")
    assert "round 1" not in job.said


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_each_preemption_is_followed_by_the_next_attempt_of_the_same_run(slurm: Slurm, folder: Path, part: int) -> None:
    """Five times in each part, twenty in all."""
    job = preempted(slurm, folder, prelude='print("from step", step, flush=True)')
    for restarts in range(1, 6):
        slurm.command("scancel", "--signal=USR1", job.id)
        job.waits(restarts)
        saved = (folder / "checkpoint").read_text()
        # It is one run: its rounds are counted on.
        job.has_world(restarts + 1, 3)
        job.says(f"^from step {saved}$")
    assert job.said.count(f"run 'rdzv-{job.id}', ") == 3 * 6
    assert job.said.count("attempt from SLURM_RESTART_COUNT") == 3 * 5
    assert job.said.count("]: drained: ") == 3 * 5
    assert "node failed" not in job.said
    job.ends()
