"""How nodes end as a scheduler sees it: codes that it takes for 0, the program's own; and a drain that waits."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from engine.tests.waiting import wait_until

from rdzv_cli.command import main

WHERE = ("--endpoint", "ends.db", "--run-id", "ends")

SAVES = """
import rdzv, time
world = rdzv.current()
print("starts", flush=True)
while not world.drains:
    time.sleep(0.01)
open("saved", "w").close()
world.ready_to_drain()
time.sleep(600)
"""

SAVES_ON = """
import signal, sys, time
def save(number, frame):
    open("saved", "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("starts", flush=True)
time.sleep(600)
"""

STAYS = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("starts", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    """The exit code of ``rdzv run``."""
    command = [sys.executable, "-m", "rdzv_cli", "run", *WHERE, "--nnodes", "1", *arguments]
    return subprocess.run(command, timeout=60, check=False).returncode


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ``rdzv run`` with a program, and returns when that has begun."""
    agents = []

    def start(program: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "rdzv_cli", "run", *WHERE, "--nnodes", "1", *arguments]
        command += ["--option", "node_name=a", "--", sys.executable, "-c", program]
        agents.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert agents[-1].stdout is not None
        assert agents[-1].stdout.readline() == "starts\n"
        return agents[-1]

    yield start
    for agent in agents:
        with agent:
            # The second one ends it at once.
            while agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    agent.wait(0.5)


def test_a_node_that_comes_after_the_job_is_done_is_not_needed() -> None:
    assert run("--", "true") == 0
    assert run("--", "true") == 5
    assert run("--ok-exit-code", "8, 5", "--", "true") == 0
    assert run("--ok-exit-code", "8", "--", "true") == 5


def test_a_node_that_comes_after_an_operator_has_closed_the_run_learns_that() -> None:
    Path("ends.db").touch()
    assert main(["close", *WHERE, "--reason", "enough"]) == 0
    assert run("--ok-exit-code", "5", "--", "true") == 4


@pytest.mark.parametrize(("ends", "code"), [("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_exit_code_of_the_program_is_passed_on(ends: str, code: int) -> None:
    assert run("--pass-exit-code", "--", "sh", "-c", ends) == code
    assert run("--", "sh", "-c", ends) == 1
    assert run("--pass-exit-code", "--ok-exit-code", str(code), "--", "sh", "-c", ends) == 0


@pytest.mark.parametrize("codes", ["", "0", "256", "5,", "five", "-1"])
def test_what_is_no_exit_code_is_refused(codes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", *WHERE, "--nnodes", "1", f"--ok-exit-code={codes}", "--", "true"])
    assert "is no exit code from 1 to 255" in capsys.readouterr().err


def test_a_drain_that_waits_ends_when_the_node_has_left(
    start: Start, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = start(SAVES)
    assert main(["drain", *WHERE, "--node", "a", "--in", "600", "--wait"]) == 0
    assert capsys.readouterr().out.endswith(" within 600 s.\nIt has left.\n")
    assert (folder / "saved").exists()
    assert agent.wait(30) == 8


def test_a_drain_that_waits_says_which_node_is_still_here(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start(STAYS, "--grace", "600")
    assert main(["drain", *WHERE, "--node", "a", "--in", "0.1", "--wait", "0.5"]) == 3
    assert "Still in the run 'ends' 0.5 s after their time was over: a." in capsys.readouterr().err


def test_a_second_signal_ends_the_wait_for_a_service_that_hangs(start: Start) -> None:
    agent = start("import time; print('starts', flush=True); time.sleep(600)", "--option", "keep_alive_interval=60")
    with closing(sqlite3.connect("ends.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        agent.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            # It leaves, which may take half a minute here.
            agent.wait(1)
        agent.send_signal(signal.SIGINT)
        assert agent.wait(20) == 128 + signal.SIGTERM


@pytest.mark.parametrize("ends", ["done", "closed"])
def test_a_node_that_is_never_fit_ends_with_its_run(ends: str) -> None:
    if ends == "done":
        assert run("--", "true") == 0
    else:
        Path("ends.db").touch()
        assert main(["close", *WHERE, "--reason", "enough"]) == 0
    never = ("--check", "false", "--check-cooldown", "0.1", "--", "true")
    assert run(*never) == (5 if ends == "done" else 4)
    # In a higher attempt it would go on.
    assert main(["close", *WHERE, "--reason", "enough"]) == 0


def test_a_node_that_is_not_fit_goes_on_where_its_run_cannot_be_asked() -> None:
    Path("ends.db").write_text("not ours")
    fit_later = ("--check", "mv missing there 2> told || { touch missing; false; }", "--check-cooldown", "0.1")
    assert run(*fit_later, "--", "true") in (6, 7)
    assert Path("there").exists()


@pytest.mark.parametrize("way", ["the operator", "a signal"])
def test_a_node_that_drains_while_it_makes_its_checks_goes_in_time(start: Start, way: str) -> None:
    slow = ("--check", "test ! -e failed || { touch checks; sleep 600; }", "--check-timeout", "600")
    fails = "print('starts', flush=True); open('failed', 'w').close(); raise SystemExit(7)"
    agent = start(fails, *slow, "--drain", "0.5", "--max-restarts", "1", "--option", "last_call_timeout=0.1")
    wait_until(Path("checks").exists)
    if way == "a signal":
        agent.send_signal(signal.SIGTERM)
    else:
        assert main(["drain", *WHERE, "--node", "a", "--in", "0.5"]) == 0
    assert agent.wait(30) == 8


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGQUIT, signal.SIGXCPU])
def test_a_program_saves_whatever_signal_ends_its_agent(start: Start, folder: Path, number: int) -> None:
    # As in the background of a script, which would have SIGQUIT ignored.
    before = signal.signal(number, signal.SIG_DFL)
    agent = start(SAVES_ON)
    signal.signal(number, before)
    agent.send_signal(number)
    assert agent.wait(30) == 128 + number
    assert (folder / "saved").exists()
