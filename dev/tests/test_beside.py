"""CI's steps that run side by side: no output and no exit code is lost, and none goes on when another has failed."""

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from .agents import wait_until

BESIDE = Path(__file__).parents[2] / ".ci" / "beside"


def beside(*commands: str) -> tuple[int, list[str]]:
    """The exit code and what was printed, without seconds, and without the shell's own news of jobs."""
    with tempfile.TemporaryDirectory() as temp:
        environment = os.environ | {"TMPDIR": temp}
        done = subprocess.run([BESIDE, *commands], capture_output=True, text=True, timeout=120, env=environment)
        assert os.listdir(temp) == []
    return done.returncode, re.sub(r"after \d+ s", "after N s", done.stdout).splitlines()


def shown(command: str, code: int, *lines: str) -> list[str]:
    """What is printed when a command ends."""
    return ["", f"=== {command}", *lines, f"=== exit code {code} after N s: {command}"]


def test_what_each_prints_stands_whole_where_it_ends(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    slow = f"echo begins; touch {first}; until [ -e {second} ]; do sleep 0.01; done; sleep 0.2; echo ends >&2"
    quick = f"until [ -e {first} ]; do sleep 0.01; done; echo quick; touch {second}"
    assert beside(slow, quick) == (0, shown(quick, 0, "quick") + shown(slow, 0, "begins", "ends"))


def test_the_first_that_fails_ends_the_others_and_is_the_exit_code(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    long = f"echo begins; sleep 1000 & echo $! > {pid}.new; mv {pid}.new {pid}; wait; echo never"
    fails = f"until [ -e {pid} ]; do sleep 0.01; done; echo bad; exit 7"
    after = "echo is not lost"
    code, lines = beside(long, fails, after)
    assert code == 7
    for part in (shown(fails, 7, "bad"), shown(long, 143, "begins"), shown(after, 0, "is not lost")):
        assert any(lines[at : at + len(part)] == part for at in range(len(lines))), part
    wait_until(lambda: not is_running(int(pid.read_text())))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_all(tmp_path: Path, number: signal.Signals, code: int) -> None:
    pid = tmp_path / "pid"
    command = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000"
    with subprocess.Popen([BESIDE, command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        wait_until(pid.exists)
        running.send_signal(number)
        assert running.wait(60) == code
    wait_until(lambda: not is_running(int(pid.read_text())))


def test_one_that_does_not_heed_its_end_is_killed(tmp_path: Path) -> None:
    stubborn = f"trap '' TERM; echo here; touch {tmp_path / 'deaf'}; while true; do sleep 0.1; done"
    code, lines = beside(stubborn, f"until [ -e {tmp_path / 'deaf'} ]; do sleep 0.01; done; false")
    assert (code, lines[-3:]) == (1, shown(stubborn, 137, "here")[1:])


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False
