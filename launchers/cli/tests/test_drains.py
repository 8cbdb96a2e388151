"""What the workers of a node learn of the drains of its run, and what they answer."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from engine.tests.memory import MemoryBackend, MemoryService
from rdzv import Drain, DynamicRendezvousHandler, RendezvousParameters, RendezvousSettings
from rdzv.channel import ProcessEnd
from rdzv.engine.node_view import NodeView
from rdzv_core.errors import RendezvousConnectionError

from rdzv_cli.agent import Agent, AgentOptions, AgentResult, ExitStatus
from rdzv_cli.agent.channels import Channels
from rdzv_cli.agent.drains import DrainNotices
from rdzv_cli.agent.guard import Guard
from rdzv_cli.agent.processes import PROCESSES
from rdzv_cli.agent.signals import Asked, Signals
from rdzv_cli.agent.workers import Worker, Workers

SPOT = Drain("a.1", 60.0, "spot")
RACK = Drain("b.2", 30.0, "the rack is switched off")


@pytest.fixture
def keeper() -> Iterator[Guard]:
    with closing(Guard({})) as keeper:
        yield keeper


@pytest.fixture
def channels(keeper: Guard) -> Iterator[Channels]:
    with closing(Channels(2, keeper)) as channels:
        yield channels


@pytest.fixture
def processes(channels: Channels) -> list[ProcessEnd]:
    return [ProcessEnd(channels.path(local_rank)) for local_rank in range(2)]


@pytest.fixture
def workers(keeper: Guard) -> Iterator[Sequence[Worker]]:
    """Two that run as long as the test."""
    workers = Workers(["sleep", "600"], [{}, {}], keeper)
    yield workers.look()
    workers.kill()


def test_another_drain_is_shown_once(channels: Channels, processes: list[ProcessEnd]) -> None:
    notices = DrainNotices(channels)
    assert not notices.show([])
    assert notices.show([SPOT])
    assert not notices.show([Drain("a.1", 59.9, "spot")])
    assert [drain.node for drain in processes[1].drains()] == ["a.1"]
    assert notices.show([SPOT, RACK])
    assert [drain.node for drain in processes[0].drains()] == ["b.2", "a.1"]
    # It leaves sooner than was said.
    assert notices.show([Drain("a.1", 5.0, "spot"), RACK])
    assert processes[0].drains()[0].seconds < 5
    # One that is over is no news that a worker has to act on.
    assert not notices.show([RACK])
    assert [drain.node for drain in processes[0].drains()] == ["b.2"]


def test_they_are_answered_once_every_worker_is_ready_for_all(
    channels: Channels, processes: list[ProcessEnd], workers: Sequence[Worker]
) -> None:
    notices = DrainNotices(channels)
    for process in processes:
        process.ready()
    assert not notices.are_answered(workers)
    notices.show([SPOT])
    processes[0].ready()
    assert not notices.are_answered(workers)
    processes[1].ready()
    # Until the run knows.
    assert notices.are_answered(workers)
    assert notices.are_answered(workers)
    notices.answered = notices.asked
    assert not notices.are_answered(workers)
    notices.show([SPOT, RACK])
    processes[0].ready()
    assert not notices.are_answered(workers)
    # One drain less: what was said holds for those that are left.
    notices.show([RACK])
    processes[1].ready()
    assert notices.are_answered(workers)
    notices.show([])
    notices.show([RACK])
    assert not notices.are_answered(workers)


def test_a_worker_that_has_ended_has_nothing_to_save(
    channels: Channels, processes: list[ProcessEnd], keeper: Guard
) -> None:
    notices = DrainNotices(channels)
    notices.show([SPOT])
    with_an_end = Workers(["sh", "-c", "exec $0", "true"], [{"PATH": "/usr/bin:/bin"}] * 2, keeper)
    try:
        deadline = time.monotonic() + 30
        while not notices.are_answered(with_an_end.look()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        with_an_end.kill()
    assert [process.drains()[0].node for process in processes] == ["a.1", "a.1"]


def test_the_files_go_with_the_round_or_with_the_agent(keeper: Guard) -> None:
    channels = Channels(1, keeper)
    folder = Path(channels.path(0)).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    channels.close()
    assert not folder.exists()
    script = "import os; from rdzv_cli.agent.channels import Channels; from rdzv_cli.agent.guard import Guard;"
    script += "print(Channels(1, Guard({})).path(0), flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    deadline = time.monotonic() + 30
    while Path(killed.stdout.strip()).parent.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_without_room_for_the_files_the_command_runs_on(
    keeper: Guard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rdzv_cli.agent.channels._MEMORY", Path("/none"))
    monkeypatch.setattr("tempfile.tempdir", "/none")
    with closing(Channels(2, keeper)) as channels:
        assert "no progress and no drains in this round" in caplog.text
        assert channels.path(1) == ""
        assert channels.reports() == []
        assert not DrainNotices(channels).are_answered([])


class DrainingView(NodeView):
    """Of a node that leaves its run in a minute."""

    _until = time.monotonic() + 60

    @property
    def drains(self) -> tuple[Drain, ...]:
        seconds = self._until - time.monotonic()
        return (Drain(self.node_id, seconds, "spot"),)


class Draining(DynamicRendezvousHandler):
    """A node that leaves its run in a minute; `answers` are its own."""

    answers: ClassVar[list[Collection[str] | None]] = []

    @property
    def view(self) -> DrainingView:
        return DrainingView(self._node, lambda: None)

    def ready_to_drain(self, nodes: Collection[str] | None = None) -> None:
        self.answers.append(nodes)
        if len(self.answers) == 1:
            raise RendezvousConnectionError("an outage")


SAVES = """
import signal, sys, time, rdzv
world = rdzv.current()
heard = []
if sys.argv[1] == "signal":
    time.sleep(0.3)
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
while not (heard if sys.argv[1] == "signal" else world.drains):
    world.progress(1)
    time.sleep(0.01)
print("saves for", world.drains[0].node, world.drains[0].reason, flush=True)
world.ready_to_drain()
time.sleep(2)
"""


@pytest.mark.parametrize("way", ["signal", "look"])
def test_a_program_saves_when_a_node_is_about_to_leave(way: str, capfd: pytest.CaptureFixture[str]) -> None:
    params = RendezvousParameters("memory", "", "run", 1, 1)
    Draining.answers.clear()
    handler = Draining(RendezvousSettings.from_parameters(params), MemoryBackend())
    # There is a drain from the start: until the program has a handler, the signal would kill it.
    command = [sys.executable, "-c", SAVES, way]
    options = AgentOptions(nproc_per_node=2, on_drain=signal.SIGUSR1 if way == "signal" else 0)
    agent = Agent(handler, params, command, options)
    ending = agent.run()
    assert ending.exit_status is ExitStatus.DONE, ending.reason
    lines = [f"[1:{rank}] saves for {handler.view.node_id} spot" for rank in range(2)]
    assert sorted(capfd.readouterr().out.splitlines()) == lines
    # The first was lost.
    assert [list(nodes or ()) for nodes in handler.answers] == [[handler.view.node_id]] * 2


def test_the_command_starts_with_the_scheduler_s_signal_ignored_and_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def ignored(*drain: str) -> int:
        command = [sys.executable, "-m", "rdzv_cli", "run", f"--endpoint={tmp_path / 'db'}", "--run-id", f"of{drain}"]
        command += ["--nnodes", "1", *drain, "--", "grep", "SigIgn", "/proc/self/status"]
        subprocess.run(command, timeout=60, check=True)
        return int(capfd.readouterr().out.split()[1], 16)

    assert ignored("--drain", "600") == ignored() | 1 << signal.SIGUSR1 - 1


def test_a_program_that_fails_while_its_node_drains_alone_does_not_end_it_as_failed(tmp_path: Path) -> None:
    params = RendezvousParameters("memory", "", "run", 1, 1)
    node = DynamicRendezvousHandler(RendezvousSettings.from_parameters(params), MemoryBackend())
    asked = tmp_path / "asked"

    def say(text: str) -> None:
        if text.startswith("asked to end"):
            asked.touch()

    # A scheduler signals it as well as its agent: it has saved its work, and says what has ended it.
    command = ["sh", "-c", f"until test -e {asked}; do sleep 0.01; done; exit 143"]
    agent = Agent(node, params, command, AgentOptions(drain=0.5), say=say)

    def ask() -> None:
        deadline = time.monotonic() + 30
        while not agent._signals.in_world:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    ending = agent.run()
    asking.join()
    assert ending.exit_status is ExitStatus.DRAINED, ending.reason


def test_a_signal_puts_off_no_drain_that_ends_sooner_and_is_not_said_to(tmp_path: Path) -> None:
    params = RendezvousParameters("memory", "", "run", 1, 1)
    node = DynamicRendezvousHandler(RendezvousSettings.from_parameters(params), MemoryBackend())
    started, said = tmp_path / "started", list[str]()
    agent = Agent(
        node, params, ["sh", "-c", f"touch {started}; exec sleep 60"], AgentOptions(drain=600.0), say=said.append
    )

    def ask() -> None:
        deadline = time.monotonic() + 30
        while not started.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        node.drain(1.0, "the rack")
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    ending = agent.run()
    asking.join()
    assert (ending.exit_status, ending.reason) == (ExitStatus.DRAINED, "drained: the rack")
    (told,) = [text for text in said if text.startswith("asked to end")]
    assert re.fullmatch(r"asked to end: this node leaves within [01]\.\d s \(the rack\), so that .*", told)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def handler(service: MemoryService) -> DynamicRendezvousHandler:
    params = RendezvousParameters("memory", "", "run", 2, 2)
    return DynamicRendezvousHandler(RendezvousSettings.from_parameters(params), MemoryBackend(service))


def join(other: DynamicRendezvousHandler) -> None:
    """Join without an agent."""
    info = other.next_rendezvous()
    if info.rank == 0:
        info.store.set(PROCESSES, "1")


def agent_of(node: DynamicRendezvousHandler, *command: str) -> Agent:
    params = RendezvousParameters("memory", "", "run", 2, 2)
    return Agent(node, params, command, AgentOptions(drain=600.0), say=lambda text: None)


def ending_beside(agent: Agent, others: Callable[[], None]) -> AgentResult:
    beside = threading.Thread(target=others)
    beside.start()
    ending = agent.run()
    beside.join()
    return ending


@pytest.mark.parametrize("waits", [False, True], ids=["in its world", "waiting for the next"])
def test_a_node_that_drains_goes_as_drained_though_the_others_have_finished_first(tmp_path: Path, waits: bool) -> None:
    service, started, fails = MemoryService(), tmp_path / "started", tmp_path / "fails"
    node, other = handler(service), handler(service)
    agent = agent_of(node, "sh", "-c", f"touch {started}; until test -e {fails}; do sleep 0.1; done; exit 7")
    agent.restarts.most = 1

    def finish() -> None:
        join(other)
        until(started.exists)
        node.drain(600.0, "the rack")
        if waits:
            fails.touch()
            until(lambda: node.view.record is not None and node.view.record.last_round == 1)
        other.shutdown()

    ending = ending_beside(agent, finish)
    assert (ending.exit_status, ending.reason) == (ExitStatus.DRAINED, "drained: the rack")


def test_a_spare_that_is_to_drain_much_later_was_not_needed() -> None:
    service = MemoryService()
    others = [handler(service) for _ in range(2)]
    joining = [threading.Thread(target=join, args=(other,)) for other in others]
    for thread in joining:
        thread.start()
    for thread in joining:
        thread.join()
    spare = handler(service)

    def finish() -> None:
        until(lambda: spare.view.record is not None)
        spare.drain(600.0, "the rack")
        others[0].shutdown()

    assert ending_beside(agent_of(spare, "sleep", "60"), finish).exit_status is ExitStatus.SPARE
    others[1].shutdown()


def test_a_node_that_drains_and_has_failed_for_good_says_so_though_the_others_have_finished() -> None:
    service = MemoryService()
    node, other = handler(service), handler(service)
    agent, report = agent_of(node, "sh", "-c", "exit 7"), node.report_failure

    def report_late(reason: str, progressed: bool = False) -> bool:
        first = report(reason, progressed)
        node.drain(600.0, "the rack")
        other.shutdown()
        until(lambda: node.view.closed)
        return first

    node.report_failure = report_late  # type: ignore[method-assign]
    ending = ending_beside(agent, lambda: join(other))
    assert ending.exit_status is ExitStatus.FAILED


def test_a_node_drains_unasked_when_its_job_is_about_to_end(tmp_path: Path) -> None:
    params = RendezvousParameters("memory", "", "run", 1, 1)
    node = DynamicRendezvousHandler(RendezvousSettings.from_parameters(params), MemoryBackend())
    said = list[str]()
    command = ["sh", "-c", "exec sleep 60"]
    agent = Agent(node, params, command, AgentOptions(drain=0.5), say=said.append, drain_at=time.monotonic())
    ending = agent.run()
    assert (ending.exit_status, ending.reason) == (ExitStatus.DRAINED, "drained: its job is about to end")
    assert "the job is about to end: this node leaves within 0.5 s, so that the others can save work" in said


def test_a_signal_that_comes_while_a_node_drains_unasked_asks_for_nothing_more() -> None:
    """Slurm sends one, too, where the job has --signal; the next one ends it at once."""
    signals = Signals(True, in_world=True, drain_at=0.0)
    asked = []
    with signals.handled():
        signals.look()
        assert signals.is_draining
        since = signals.drain_since
        for number in (signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
            asked.append((signals.is_draining, signals.asked, signals.drain_since == since))
    assert asked == [(True, Asked.DRAIN, True), (False, Asked.END, True)]


def test_a_node_in_no_world_does_not_drain_unasked() -> None:
    waits, without = Signals(True, drain_at=0.0), Signals(False, in_world=True, drain_at=0.0)
    waits.look()
    without.look()
    assert not waits.is_draining
    assert not without.is_draining
