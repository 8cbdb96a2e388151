"""Whose failure it was that ended a round: programs fail because a peer died, and wait for one that hangs."""

import re
from pathlib import Path

import pytest

from .agents import ALL, Agent, Agents, program

PEERS = """
import rdzv, select, socket, sys
world = rdzv.current()
listens = socket.create_server(("127.0.0.1", 0))
world.store.set(f"port {world.rank}", str(listens.getsockname()[1]))
others = [rank for rank in range(world.world_size) if rank != world.rank]
peers = [socket.create_connection(("127.0.0.1", int(world.store.get(f"port {rank}")))) for rank in others]
print(f"round {world.round}: rank {world.rank} of {world.world_size}, restart {world.restart_count}", flush=True)
accepted = [listens.accept()[0] for _ in others]
if world.world_size == int(sys.argv[1]):
    select.select(peers, [], [])
    sys.exit(1)
world.store.add("over", 1)
while int(world.store.get("over")) < world.world_size:
    pass
"""
"""Each program fails as soon as that of another node is gone, as a collective does; in a smaller world it ends well."""

FAILS = """
import pathlib, rdzv, sys, time
world = rdzv.current()
print(f"round {world.round}: rank {world.rank} of {world.world_size}, restart {world.restart_count}", flush=True)
if sys.argv[1] == "fails":
    sys.exit(7)
while world.world_size > int(sys.argv[2]):
    time.sleep(0.02)
"""

HANGS = """
import pathlib, rdzv, sys, threading, time
world = rdzv.current()
print(f"round {world.round}: rank {world.rank} of {world.world_size}, restart {world.restart_count}", flush=True)
how, folder = sys.argv[1], pathlib.Path(sys.argv[2])

def report():
    if how != "silent":
        world.progress(9 if how == "before" else 10)

def report_until(pattern, count):
    while len(list(folder.glob(pattern))) < count:
        report()
        time.sleep(0.01)

report()
(folder / f"round {world.round} rank {world.rank}").touch()
report_until(f"round {world.round} rank *", world.world_size)
if world.round == 1:
    if how == "works":
        report_until("one hangs", 1)
    (folder / "one hangs").touch()
    threading.Event().wait()
"""
"""In round 1 a node hangs before it reports step 10, ``after`` that, or reports nothing at all; the others wait for it.

It hangs once all have reported, and the others fall silent after it. They tell each other by files: what a call of a
service takes on a busy machine is no silence.
"""

RESTARTS = ("--max-restarts", "9")
HANG = ("--hang-timeout", "2")

COSTS = "that failure costs no restart: (.*)"


def start(agents: Agents, name: str, *job: str, nnodes: str, arguments: tuple[str, ...] = ()) -> Agent:
    return agents.start(*job, nnodes=nnodes, arguments=arguments, options={**ALL, "node_name": name})


def test_a_death_costs_the_others_no_restart(agents: Agents, tmp_path: Path) -> None:
    job = [*program(tmp_path, PEERS), "3"]
    nodes = [start(agents, name, *job, nnodes="2:3") for name in "abc"]
    for node in nodes:
        node.says("round 1: rank . of 3")
    dies = nodes.pop()
    dies.process.kill()
    for node in nodes:
        node.says("round 2: rank . of 2, restart 0")
    # At least one program broke off before its agent heard of anything; the other agent may have been sooner.
    assert any(
        re.search("that failure costs no restart: 'c.* was lost: its lease ran out", node.said) for node in nodes
    )
    assert [node.ends() for node in nodes] == [0, 0]
    assert "failed first" not in agents.command("status").stdout


def test_a_node_that_fails_without_a_loss_ends_and_the_others_go_on(agents: Agents, tmp_path: Path) -> None:
    job = program(tmp_path, FAILS)
    good = [start(agents, name, *job, "works", "2", nnodes="2:3") for name in "ab"]
    bad = start(agents, "bad", *job, "fails", "2", nnodes="2:3")
    assert bad.ends() == 1
    bad.says("ended with exit code 7, after 0 restarts$")
    for node in good:
        node.says(r"node failed: bad\S+ \(round 1\)")
        node.says("round 2: rank . of 2, restart 0")
    assert [node.ends() for node in good] == [0, 0]


@pytest.mark.parametrize("most", [9, 0])
def test_the_node_that_is_behind_pays_for_a_hang(agents: Agents, tmp_path: Path, most: int) -> None:
    job = program(tmp_path, HANGS)
    arguments = (*HANG, "--max-restarts", str(most))
    good = [start(agents, name, *job, "works", str(tmp_path), nnodes="2:3", arguments=arguments) for name in "ac"]
    bad = start(agents, "b", *job, "before", str(tmp_path), nnodes="2:3", arguments=arguments)
    assert bad.ends(60) == (0 if most else 1)
    assert [node.ends(60) for node in good] == [0, 0]
    # A node that learns of the next world at once is not told of the last one's failure, but for its own.
    named = r"node failed: b\S+ \(round 1\): |'b\S+' had come to step "
    assert any(re.search(named, node.said) for node in good)
    for node in good:
        assert "restart 1 of" not in node.said
        assert all(re.match(r"'b\S+' had come to step \d+, ", because) for because in re.findall(COSTS, node.said))
        last = re.findall("round (.): rank . of (.), restart 0", node.said)[-1]
        assert last == (("2", "3") if most else ("2", "2"))
    if most:
        bad.says("round 2: rank . of 3, restart 1")


@pytest.mark.parametrize("how", ["after", "silent"])
def test_where_none_is_behind_each_pays_for_itself_and_none_is_quarantined(
    local: Agents, tmp_path: Path, how: str
) -> None:
    job = program(tmp_path, HANGS)
    arguments = (*HANG, *RESTARTS)
    good = [start(local, name, *job, "works", str(tmp_path), nnodes="1:3", arguments=arguments) for name in "ac"]
    bad = start(local, "b", *job, how, str(tmp_path), nnodes="1:3", arguments=arguments)
    assert [node.ends(90) for node in (*good, bad)] == [0, 0, 0]
    said = "\n".join(node.said for node in (*good, bad))
    assert "restart 1 of 9" in said
    assert "round 2: rank 0 of 3" in said
    assert "quarantined" not in said
    assert "has ended by the failure of no node" in said
