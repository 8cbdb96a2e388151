"""The lines of real agents that wait say what ends the wait: see docs/test_waits.py for all of them."""

from pathlib import Path

from .agents import Agents, program

FAILS = """
import os, pathlib, sys, time
while not (pathlib.Path(sys.argv[1]) / os.environ["RDZV_ROUND"]).exists():
    time.sleep(0.02)
sys.exit(1)
"""
"""Fails, in each round, once there is a file of its number."""

SOON = "import rdzv_cli.run\nrdzv_cli.run._FIRST = rdzv_cli.run._MOST = 0.3"
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
