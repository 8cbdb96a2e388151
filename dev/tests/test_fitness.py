"""A node that is not fit: it says why, takes no part, and comes back when it is."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from .agents import ALL, Agents, program, wait_until

BREAKS = """
import os, pathlib, rdzv, sys, time
world = rdzv.current()
print(f"round {world.round}: rank {world.rank} of {world.world_size}, restart {world.restart_count}", flush=True)
broken = pathlib.Path(sys.argv[1])
if sys.argv[2] == "breaks" and world.restart_count < int(sys.argv[3]):
    broken.touch()
    sys.exit(7)
while sys.argv[2] == "stays" and world.world_size == 2 or not world.store.check(["over"]):
    if sys.argv[2] == "breaks":
        world.store.set("over", "")
    time.sleep(0.05)
"""


def fit(path: Path) -> tuple[str, ...]:
    """Arguments for a check that fails as long as there is a file."""
    return ("--check", f"test ! -e {path} || {{ echo 'there is a hole in it'; exit 5; }}")


def test_9_before_the_run_is_joined(local: Agents) -> None:
    node = local.start("echo", "never", nnodes="1", arguments=("--check", "true", "--check", "echo no; exit 3"))
    assert node.ends() == 9
    assert node.said == "rdzv: not fit: the check 'echo no; exit 3' failed with exit code 3: no"
    assert "There is no database" in local.command("status").stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)])
def test_a_signal_before_the_run_is_joined_has_a_word(local: Agents, tmp_path: Path, number: int, code: int) -> None:
    begun = tmp_path / "begun"
    node = local.start("echo", "never", nnodes="1", arguments=("--check", f"touch {begun}; sleep 60"))
    wait_until(begun.exists)
    node.process.send_signal(number)
    assert node.ends() == code
    assert node.said == f"rdzv: ended by {signal.Signals(number).name}; this node is not in the run"


def test_a_signal_before_the_next_check_has_a_word(local: Agents) -> None:
    node = local.start("echo", "never", nnodes="1", arguments=("--check", "false", "--check-cooldown", "60"))
    node.says("this node tries again in 60 s$")
    node.process.terminate()
    assert node.ends() == 143
    node.says("^rdzv: ended by SIGTERM; this node is not in the run$")


def test_9_after_the_program_failed_and_the_others_learn_why(agents: Agents, tmp_path: Path) -> None:
    hole = tmp_path / "hole"
    job = [*program(tmp_path, BREAKS), str(hole)]
    stays = agents.start(*job, "stays", "0", nnodes="1:2", options=ALL)
    breaks = agents.start(*job, "breaks", "9", nnodes="1:2", arguments=(*fit(hole), "--max-restarts", "3"))
    assert breaks.ends() == 9
    why = r"not fit: the check 'test .*' failed with exit code 5: there is a hole in it"
    breaks.says(rf"\]: {why}$")
    assert breaks.said.count("of 2") == 1
    stays.says(f"node left: .*{why}")
    stays.says("rank 0 of 1")


def test_a_node_comes_back_when_it_is_fit_again_and_its_restarts_count(local: Agents, tmp_path: Path) -> None:
    hole = tmp_path / "hole"
    hole.touch()
    job = [*program(tmp_path, BREAKS), str(hole), "breaks"]
    arguments = (*fit(hole), "--check-cooldown", "0.2", "--max-restarts", "1")
    node = local.start(*job, "9", nnodes="1", arguments=arguments)
    last = 0.0
    for seconds in (0.2, 0.4, 0.8, 1.6, 1.6):
        last = node.says(rf"this node tries again in {seconds} s$", after=last)
    hole.unlink()
    node.says("rank 0 of 1, restart 0")
    # The program has failed: it waits again.
    wait_until(hole.exists)
    node.says("this node tries again in 1.6 s$", after=last)
    hole.unlink()
    assert node.ends() == 1
    node.says("rank 0 of 1, restart 1")
    assert "ended with exit code 7, after 1 restart" in node.said
    # It is another node, as far as the run can tell.
    assert len(set(re.findall(r"1 node, node (\S+)", node.said))) == 2


def test_ctrl_c_ends_the_wait(local: Agents) -> None:
    node = local.start("true", nnodes="1", arguments=("--check", "false", "--check-cooldown", "600"))
    node.says("tries again in 600 s")
    node.process.send_signal(signal.SIGINT)
    assert node.ends(10) == 128 + signal.SIGINT
    assert "Traceback" not in node.said


@pytest.mark.parametrize("moment", ["first", "again"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_check(local: Agents, tmp_path: Path, moment: str, number: signal.Signals) -> None:
    asked = tmp_path / "asked"
    hangs = f"echo $$ > {tmp_path}/pid; sleep 600"
    hangs = f"test {moment} = again -a ! -e {asked} && touch {asked} || {{ {hangs}; }}"
    node = local.start("false", nnodes="1", arguments=("--check", hangs, "--max-restarts", "3"))
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    node.process.send_signal(number)
    assert node.ends(10) in (128 + number, -number)
    wait_until(lambda: not _lives(pid))


def _lives(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1] not in ("", "Z")


def test_a_check_gets_no_secret(local: Agents) -> None:
    check = 'test -z "$RDZV_PASSWORD"'
    node = local.start("true", nnodes="1", arguments=("--check", check), environment={"RDZV_PASSWORD": "hunter2"})
    assert node.ends() == 0, node.said
    assert os.environ.get("RDZV_PASSWORD") is None
