"""The whole task, for some seconds: real agents on real services; it finds nothing."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rdzv_conformance.chaos.faults import FAULTS
from rdzv_conformance.chaos.plan import FaultSchedule
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.servers import EtcdServer, require_service

KINDS = ["kill", "pause", "partition", "outage"]
PATIENCE = 200.0


class Chaos:
    """The command as a process in a process group of its own, with a folder of its own for temporary files."""

    command: Sequence[str] = (sys.executable, "-m", "rdzv_conformance.chaos")

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*self.command, *arguments],
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ends(self) -> tuple[int, str]:
        """Its exit code, and what it said."""
        said, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said

    def leaves_nothing(self) -> None:
        """Fail if there is a process or a file of it."""
        eventually(self._is_gone, "every process of the task to be gone")
        assert list(self.folder.iterdir()) == []

    def _is_gone(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "t"
    path.mkdir()
    return path


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["sqlite", "etcd-v3"])
def test_nothing_is_violated(folder: Path, tmp_path: Path, backend: str) -> None:
    if backend == "etcd-v3":
        require_service(EtcdServer)
    chaos = Chaos(folder, "--backend", backend, "--minutes", "0.4", "--seed", "2", "--keep", str(tmp_path / "kept"))
    code, said = chaos.ends()
    assert code == 0, said
    assert " 0 violations" in said
    assert not said.rpartition(" min, ")[2].startswith("0 faults")
    assert list((tmp_path / "kept").glob("agent*.jsonl"))
    chaos.leaves_nothing()


class LateChaos(Chaos):
    """The same, whose agents take longer to begin than a world may take to form."""

    command = (
        sys.executable,
        "-c",
        """
import sys, time
from rdzv_conformance.chaos import agent, command
begin = agent.Agent.__init__
agent.Agent.__init__ = lambda *arguments: (time.sleep(7), begin(*arguments))[1]
sys.exit(command.main())
""",
    )


@pytest.mark.soak
def test_the_time_in_which_an_agent_begins_is_no_nodes_delay(folder: Path) -> None:
    chaos = LateChaos(folder, "--backend", "sqlite", "--minutes", "0.05", "--agents", "4", "--bound", "6")
    code, said = chaos.ends()
    assert code == 0, said
    assert " 0 violations" in said
    chaos.leaves_nothing()


class ToldChaos(Chaos):
    """The same, whose nodes wait until all is read that they say. No process reads that, and all gather again."""

    command = (
        sys.executable,
        "-c",
        """
import sys
from rdzv import backlog
from rdzv_conformance.chaos import campaign, command, plan
backlog.Backlog.add = lambda self, work: work()
stalls = [plan.FaultEvent(0.0, "stall", who / 8) for who in range(8)]
fails = [plan.FaultEvent(3.0, "kill"), *(plan.FaultEvent(6.0, "fail_many", who) for who in (0.0, 0.5))]
campaign.FaultSchedule.draw = lambda *arguments: plan.FaultSchedule(8.0, (*stalls, *fails))
sys.exit(command.main())
""",
    )


@pytest.mark.soak
def test_a_node_that_a_reader_holds_up_is_found(folder: Path) -> None:
    chaos = ToldChaos(folder, "--backend", "sqlite", "--minutes", "0.2", "--bound", "10")
    code, said = chaos.ends()
    assert code == 1, said
    assert "invariant 4: not all were in one world" in said
    assert " is not read" in said
    chaos.leaves_nothing()


def test_ctrl_c_leaves_nothing(folder: Path) -> None:
    require_service(EtcdServer)
    chaos = Chaos(folder, "--backend", "etcd-v3", "--minutes", "10")
    eventually(lambda: len(list(folder.glob("rdzv-chaos-*/agent*.jsonl"))) > 3, "agents to be there", 60)
    os.killpg(chaos.process.pid, signal.SIGINT)
    code, said = chaos.ends()
    assert code == 130, said
    assert "Traceback" not in said
    chaos.leaves_nothing()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backend", "sqllite"], "sqlite"),
        (["--backend", "sqlite", "--server", "rdzv_conformance.servers:Nothing"], "module:Class"),
    ],
)
def test_what_cannot_be_run_is_said(folder: Path, arguments: list[str], says: str) -> None:
    chaos = Chaos(folder, *arguments)
    code, said = chaos.ends()
    assert code == 2, said
    assert says in said
    assert "Traceback" not in said
    chaos.leaves_nothing()


def test_a_seed_is_a_schedule() -> None:
    one, same, other = (FaultSchedule.draw(seed, 0, KINDS, 60.0) for seed in (1, 1, 2))
    assert one == same != other
    moments = [event.moment for event in one.events]
    assert moments == sorted(moments)


def test_every_third_episode_closes_the_run() -> None:
    closing = [
        {"close", "shutdown"} & {event.fault for event in FaultSchedule.draw(5, number, KINDS, 60.0).events}
        for number in range(6)
    ]
    assert [bool(found) for found in closing] == [False, False, True, False, False, True]


def test_a_fault_phase_ends_with_the_time_and_is_the_same_until_then() -> None:
    whole, part = (FaultSchedule.draw(1, 2, KINDS, longest) for longest in (60.0, 5.0))
    assert part.fault_phase == 5.0
    assert part.events == tuple(event for event in whole.events if event.moment < 5.0)
    assert 0 < len(part.events) < len(whole.events)


def test_a_service_that_is_not_ours_is_left_as_it_was(folder: Path) -> None:
    require_service(EtcdServer)
    with EtcdServer() as server:
        chaos = Chaos(folder, "--backend", "etcd-v3", "--endpoint", server.get_endpoint(), "--minutes", "0.1")
        code, said = chaos.ends()
        assert code == 0, said
        assert server.get_client().keys() == []
    chaos.leaves_nothing()


@pytest.mark.soak
def test_a_server_of_ones_own_is_started_and_faulted(folder: Path) -> None:
    require_service(EtcdServer)
    server = "rdzv_conformance.servers:EtcdServer"
    chaos = Chaos(folder, "--backend", "etcd-v3", "--server", server, "--minutes", "0.2", "--seed", _with_outage(9.0))
    code, said = chaos.ends()
    assert code == 0, said
    assert "1 server to fault" in said
    assert " outage" in said
    chaos.leaves_nothing()


def _with_outage(seconds: float) -> str:
    """A seed whose first fault phase has an outage within so many seconds."""
    one_server = [name for name in FAULTS if name not in {"close", "shutdown", "member"}]
    return seed_of(one_server, seconds, lambda faults: "outage" in faults)


def seed_of(kinds: Sequence[str], seconds: float, wanted: Callable[[Sequence[str]], bool]) -> str:
    """A seed whose first fault phase is as it should be; new faults change what a seed draws.

    Args:
        kinds: What can go wrong.
        seconds: How much of the fault phase counts.
        wanted: Whether these faults, in order, are right.
    """
    episodes = ((seed, FaultSchedule.draw(seed, 0, kinds, seconds)) for seed in itertools.count())
    return next(str(seed) for seed, it in episodes if wanted([event.fault for event in it.events]))
