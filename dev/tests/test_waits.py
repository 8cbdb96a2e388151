"""The lines of real agents that wait say what ends the wait: see docs/test_waits.py for all of them."""

import re
import sys
from pathlib import Path

import pytest

from .agents import TTL, Agents, program

FAILS = """
import os, pathlib, sys, time
while not (pathlib.Path(sys.argv[1]) / os.environ["RDZV_ROUND"]).exists():
    time.sleep(0.02)
sys.exit(1)
"""
"""Fails, in each round, once there is a file of its number."""

SOON = "import rdzv_cli.wait_line\nrdzv_cli.wait_line.FIRST = rdzv_cli.wait_line.EVERY = 0.3"
"""For the first line and between two lines: most waits of a test are over before those of a user begin to speak."""


def test_each_says_when_a_last_call_ends_and_who_is_still_in_a_round(agents: Agents, tmp_path: Path) -> None:
    job = [*program(tmp_path, FAILS), str(tmp_path)]
    nodes = [
        agents.start(
            *job,
            nnodes="2:4",
            prelude=SOON,
            arguments=("--max-restarts", "1"),
            options={"node_name": name, "last_call_timeout": 4, "keep_alive_interval": 1},
        )
        for name in "abc"
    ]
    for node in nodes:
        node.says(r"\(last call, 3 here: the round begins in \d s, or at once with 4\), \d s of 600 s$")
    for node in nodes:
        node.says("round 1: world size 3")
    dies = nodes.pop()
    dies.process.kill()
    (tmp_path / "1").touch()
    still = r"re-forming: round 1 still has c\.\w+ \(rank \d\), until each leaves it or is silent for 4 s"
    silent = r"no news yet from c\.\w+, which leads; if it is dead, another leads after 4 s"
    for node in nodes:
        node.says(rf"waiting for 2 to 4 nodes \(({still}|round 1 is over for this node; {silent})\), \d s of 600 s$")
        node.says("round 2: world size 2")


TERMINAL = (sys.executable, "-c", "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))")
"""Becomes a command on a terminal of its own."""


def of_slurm(node: int) -> dict[str, str]:
    """What srun tells a node of a step of two."""
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(node - 1),
        "SLURM_NODEID": str(node - 1),
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURMD_NODENAME": f"n{node}",
    }


def test_who_is_missing_of_slurms_list_is_named_and_again_in_the_end(local: Agents) -> None:
    waits = local.start("true", nnodes="2", prelude=SOON, options={"join_timeout": 3}, environment=of_slurm(1))
    waits.says(r"waiting for 2 nodes \(gathering, 1 here, 1 more needed; missing: n2\), \d s of 3 s$")
    assert waits.ends() == 3
    waits.says(r"1 of at least 2 nodes is here \(n1\.\w+\), 1 is missing\. Missing: n2\.$")


def test_the_next_attempt_names_who_was_in_the_one_before(local: Agents, tmp_path: Path) -> None:
    job = [*program(tmp_path, FAILS), str(tmp_path)]
    first = [local.start(*job, nnodes="2", options={"node_name": name}) for name in ("left", "right")]
    for node in first:
        node.says("round 1: world size 2")
        node.process.kill()
    waits = local.start(
        "true",
        nnodes="2",
        prelude=SOON,
        arguments=("--attempt", "1"),
        options={"node_name": "left", "join_timeout": TTL + 8},
    )
    waits.says(r"waiting for 2 nodes \(gathering, 1 here, 1 more needed; missing: right\), ")
    comes = local.start("true", nnodes="2", arguments=("--attempt", "1"), options={"node_name": "right"})
    assert (waits.ends(), comes.ends()) == (0, 0)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_on_a_terminal_the_line_is_redrawn_and_no_other_stands_behind_it(
    local: Agents, tmp_path: Path, term: str
) -> None:
    job = program(tmp_path, "print('hello', flush=True)")
    seen = {"TERM": term, "CI": "", "COLUMNS": "200"}
    waits = local.start(*job, nnodes="2", prelude=SOON, environment={**of_slurm(1), **seen}, within=TERMINAL)
    line = r"waiting for 2 nodes \(gathering, 1 here, 1 more needed; missing: n2\), \d+ s of 600 s$"
    # (A carriage return begins a line here as well.)
    is_redrawn = term == "xterm"
    begins = r"^\x1b\[Krdzv: " if is_redrawn else r"^[^\x1b]+ rdzv\[n1\.\w+\]: "
    waits.says(begins + line, after=waits.says(begins + line))
    comes = local.start(*job, nnodes="2", environment=of_slurm(2))
    assert (waits.ends(), comes.ends()) == (0, 0)
    lines = [line for _, line in waits.lines if line]
    waiting = [place for place, line in enumerate(lines) if "waiting" in line]
    assert all(re.search(" s of 600 s$", lines[place]) for place in waiting)
    assert all(lines[place + 1].startswith("\x1b[K") for place in waiting if is_redrawn)
    assert "hello" in lines
    assert is_redrawn or "\x1b[K" not in waits.said
