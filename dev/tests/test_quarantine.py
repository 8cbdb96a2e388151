"""Nodes that fail again and again, and jobs that do."""

import re
from pathlib import Path

import pytest

from .agents import ALL, Agents, program, wait_until

FAILS = """
import pathlib, rdzv, sys, time
world = rdzv.current()
print(f"round {world.round}: rank {world.rank} of {world.world_size}", flush=True)
repaired = pathlib.Path(__file__).with_name("repaired")
if sys.argv[1] == "fails" and not repaired.exists():
    sys.exit(7)
while not (world.store.check(["over"]) or sys.argv[2] == "ends" and repaired.exists()):
    time.sleep(0.02)
world.store.set("over", "")
"""
"""``fails``: in each round until it is repaired; ``ends``: after that, for all."""

STEPS = """
import rdzv, sys
world = rdzv.current()
if sys.argv[1] == "forward":
    world.progress(world.round)
sys.exit(7)
"""
"""Fails in each round; ``forward``: one step further each time."""

CALM = {**ALL, "keep_alive_interval": "2"}
RESTARTS = ("--max-restarts", "99")


def test_after_three_failures_it_waits_until_it_is_pardoned(agents: Agents, tmp_path: Path) -> None:
    job = program(tmp_path, FAILS)
    good = agents.start(*job, "works", "never", nnodes="1:2", options={**CALM, "node_name": "good"})
    bad = agents.start(*job, "fails", "ends", nnodes="1:2", options={**CALM, "node_name": "bad"}, arguments=RESTARTS)
    for number in (1, 2, 3):
        good.says(rf"node failed: bad\S+ \(round {number}\): .* ended with exit code 7$")
    # The leader writes it before the next world: who looks once sees both.
    good.says(r"node quarantined: bad \(round [34]\): for 60 s: it failed first in 3 consecutive rounds: ")
    good.says("round 4: world size 1")
    bad.says(r"waiting for 1 to 2 nodes \(quarantined for another \d+ s: it failed first")
    assert not re.search("round 4: rank", bad.said)
    said = agents.command("status").stdout
    assert re.search(r"^  quarantined: bad: quarantine 1, 60 s from when it learns of that: ", said, re.MULTILINE), said
    assert len(re.findall(r"^  round \d: bad\S+ failed first: ", said, re.MULTILINE)) == 3
    unknown = agents.command("pardon", "--node", "good")
    assert unknown.returncode == 2
    assert "No node 'good' is quarantined in the run 'job'; quarantined are: bad." in unknown.stderr
    (tmp_path / "repaired").touch()
    pardon = agents.command("pardon", "--node", "bad")
    assert (pardon.returncode, pardon.stdout) == (0, "Node 'bad' is pardoned.\n")
    assert [good.ends(), bad.ends()] == [0, 0]
    bad.says("round 5: rank . of 2")


@pytest.mark.soak
def test_it_survives_a_restart_of_the_node_and_ends_by_its_own_clock(local: Agents, tmp_path: Path) -> None:
    job = program(tmp_path, FAILS)
    # Longer than the lease of the one that is killed: what it has left would be taken into the world.
    options = {**CALM, "quarantine_cooldown": "9"}
    good = local.start(*job, "works", "never", nnodes="1:2", options={**options, "node_name": "good"})
    bad = local.start(*job, "fails", "ends", nnodes="1:2", options={**options, "node_name": "bad"}, arguments=RESTARTS)
    good.says("round 4: world size 1")
    bad.process.kill()
    bad.ends()
    (tmp_path / "repaired").touch()
    again = local.start(*job, "fails", "ends", nnodes="1:2", options={**options, "node_name": "bad"})
    waits = again.says("quarantined for another")
    assert again.says("round 5: world size 2") > waits
    assert [good.ends(), again.ends()] == [0, 0]


def test_a_world_that_needs_it_takes_it(local: Agents, tmp_path: Path) -> None:
    job = program(tmp_path, FAILS)
    good = local.start(*job, "works", "never", nnodes="2", options={**CALM, "node_name": "good"})
    bad = local.start(*job, "fails", "ends", nnodes="2", options={**CALM, "node_name": "bad"}, arguments=RESTARTS)
    wait_until(lambda: "round 5: rank" in bad.said)
    assert any(
        re.search(r"round \d of 'job' has node 'bad\S+' although it is quarantined: the others are too few", said)
        for said in (good.said, bad.said)
    )
    (tmp_path / "repaired").touch()
    assert [good.ends(), bad.ends()] == [0, 0]


def test_10_after_rounds_without_progress_for_all(agents: Agents, tmp_path: Path) -> None:
    arguments = (*RESTARTS, "--give-up-after", "2")
    job = [*program(tmp_path, STEPS), "never"]
    nodes = [agents.start(*job, nnodes="2", arguments=arguments, options=CALM) for _ in range(2)]
    assert [node.ends() for node in nodes] == [10, 10]
    first = r"in round {} '\S+' failed first: .* ended with exit code 7"
    for node in nodes:
        node.says(f"2 rounds without progress: {first.format(1)}; {first.format(2)}")
    assert "2 rounds without progress" in agents.command("status").stdout


def test_one_round_without_progress_is_one(local: Agents, tmp_path: Path) -> None:
    node = local.start(*program(tmp_path, STEPS), "never", nnodes="1", arguments=("--give-up-after", "1"), options=CALM)
    assert node.ends() == 10
    node.says(r"1 round without progress: in round 1 '\S+' failed first")


def test_a_program_that_comes_further_is_not_given_up(local: Agents, tmp_path: Path) -> None:
    job = [*program(tmp_path, STEPS), "forward"]
    arguments = ("--max-restarts", "4", "--give-up-after", "2")
    node = local.start(*job, nnodes="1", arguments=arguments, options={"quarantine_after": "0"})
    assert node.ends() == 1
    node.says("after 4 restarts")


def test_2_for_more_rounds_than_are_kept(local: Agents) -> None:
    node = local.start("true", nnodes="1", arguments=("--give-up-after", "11"))
    assert node.ends() == 2
    node.says("--give-up-after: '11' is no number of rounds from 1 to 10")
