"""A program that reports progress and then hangs: it is named, its stacks are in its log, and the others go on."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from .agents import ALL, Agents, program, wait_until

STEPS = """
import os, rdzv, sys, threading, time
world = rdzv.current()
world.progress(0)
print(f"round {world.round}: rank {world.rank} is process {os.getpid()}, channel {world.channel}", flush=True)
step = 0

def wait_for_the_others():
    threading.Event().wait()

def is_over():
    return world.store.check(["over"])

while not is_over():
    step += 1
    world.progress(step)
    time.sleep(0.02)
    if step == 10 and world.round == 1 and world.rank == int(sys.argv[1]):
        wait_for_the_others()
    if step == 100 and world.round == 2:
        world.store.set("over", "")
"""
"""Rank ``argv[1]`` hangs in the first round; the second ends after 100 steps."""

SILENT = "import rdzv, time; rdzv.current(); time.sleep(3)"

HANG = ("--hang-timeout", "2")


def test_the_world_goes_on_in_another_round(agents: Agents, tmp_path: Path) -> None:
    job = program(tmp_path, STEPS)
    nodes = [agents.start(*job, "1", nnodes="2", arguments=(*HANG, "--max-restarts", "1")) for _ in range(2)]
    assert [node.ends(60) for node in nodes] == [0, 0]
    ((hangs, other),) = [pair for pair in (nodes, nodes[::-1]) if "restart 1 of 1" in pair[0].said]
    pid = re.search(r"round 1: rank 1 is process (\d+)", hangs.said)
    assert pid is not None
    who = rf"\(rank 1, local rank 0, process {pid[1]}\)"
    hangs.says(rf"{who} hangs: no progress for 2 s, last step 10$")
    hangs.says("that failure costs restart 1 of 1$")
    # The stacks come after the line that says whose they are.
    assert hangs.says(f"{who} is asked to write its stacks") <= hangs.says("in wait_for_the_others")
    hangs.says("most recent call first")
    other.says("rank 1, .* hangs: no progress for 2 s, last step 10")


def test_without_restarts_the_others_learn_why_it_left(local: Agents, tmp_path: Path) -> None:
    job = program(tmp_path, STEPS)
    nodes = [local.start(*job, "0", nnodes="1:2", arguments=HANG, options=ALL) for _ in range(2)]
    wait_until(lambda: any(node.process.poll() is not None for node in nodes), 60)
    hangs, goes_on = sorted(nodes, key=lambda node: node.process.poll() is None)
    assert hangs.ends() == 1
    hangs.says(r"rank 0, .* hangs: no progress for 2 s, last step 10, after 0 restarts$")
    goes_on.says("node failed: .*hangs: no progress for 2 s, last step 10")
    assert goes_on.ends(60) == 0


def test_a_program_that_reports_nothing_may_take_its_time(local: Agents, tmp_path: Path) -> None:
    node = local.start(*program(tmp_path, SILENT), nnodes="1", arguments=("--hang-timeout", "0.5"))
    assert node.ends() == 0, node.said


@pytest.mark.parametrize("which", ["the agent", "both"])
def test_an_agent_that_was_stopped_takes_its_pause_for_no_hang(local: Agents, tmp_path: Path, which: str) -> None:
    job = program(tmp_path, STEPS)
    # No lease may end meanwhile.
    node = local.start(*job, "-1", nnodes="1", arguments=HANG, options={"keep_alive_interval": "10"})
    node.says("rank 0 is process")
    pid = re.search(r"rank 0 is process (\d+)", node.said)
    assert pid is not None
    stopped = [node.process.pid, *([int(pid[1])] if which == "both" else [])]
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    time.sleep(4)
    for process in stopped:
        os.kill(process, signal.SIGCONT)
    time.sleep(1)
    assert node.process.poll() is None
    assert "hangs" not in node.said


def test_a_worker_that_was_stopped_hangs_and_is_killed(local: Agents, tmp_path: Path) -> None:
    node = local.start(*program(tmp_path, STEPS), "-1", nnodes="1", arguments=(*HANG, "--grace", "0.5"))
    node.says("rank 0 is process")
    pid = re.search(r"rank 0 is process (\d+)", node.said)
    assert pid is not None
    os.kill(int(pid[1]), signal.SIGSTOP)
    assert node.ends() == 1
    assert "hangs: no progress for 2 s" in node.said


def test_what_a_wrapper_script_wraps_writes_its_stacks(local: Agents, tmp_path: Path) -> None:
    wrapped = " ".join([*program(tmp_path, STEPS), "0"])
    node = local.start("sh", "-c", f"{wrapped}; echo after", nnodes="1", arguments=HANG)
    assert node.ends() == 1
    assert "in wait_for_the_others" in node.said
    assert re.search(r"sh \(rank 0, local rank 0, process \d+\) hangs", node.said)


@pytest.mark.parametrize("killed", [False, True])
def test_no_file_is_left(local: Agents, tmp_path: Path, killed: bool) -> None:
    node = local.start(*program(tmp_path, STEPS), "0", nnodes="1", arguments=HANG)
    node.says("channel /")
    channel = re.search(r"channel (/.+)$", node.said, re.MULTILINE)
    assert channel is not None
    folder = Path(channel[1]).parent
    assert folder.exists()
    if killed:
        node.process.kill()
    node.ends()
    wait_until(lambda: not folder.exists())
