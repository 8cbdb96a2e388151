"""Nodes that have to go: they say so, the others save their work, and no node is lost."""

import os
import re
import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from rdzv_conformance.servers import SERVERS, require_service

from .agents import ALL, BUSY, Agent, Agents, program

JOB = """
import rdzv, signal, sys, time
world, told = rdzv.current(), []
signal.signal(signal.SIGUSR1, lambda *_: told.append("by a signal"))
print(f"round {world.round}: rank {world.rank} of {world.world_size}, restart {world.restart_count}", flush=True)
known = ()
while not world.store.check(["over"]):
    time.sleep(0.02)
    if told:
        print("told", told.pop(), flush=True)
    if (drains := world.drains) and (now := [drain.reason for drain in drains]) != known:
        print("saves:", *(known := now), flush=True)
        if sys.argv[1] == "ready":
            world.ready_to_drain()
    if world.round == 2 and sys.argv[2] == "ends":
        world.store.set("over", "")
"""
"""It says what it learns of drains, is ready for them or not, and ends in the second round or never."""

LONG = 600.0
"""Seconds that no test waits for."""

CALM = {**ALL, "keep_alive_interval": "2"}


def start(
    agents: Agents, folder: Path, *names: str, nnodes: str, drain: float = LONG, ready: bool = True, ends: bool = True
) -> list[Agent]:
    """Nodes that drain at a signal."""
    job = program(folder, JOB)
    job += ["ready" if ready else "not", "ends" if ends else "never"]
    arguments = ("--drain", str(drain), "--on-drain", "SIGUSR1", "--grace", "5")
    return [
        agents.start(*job, nnodes=nnodes, arguments=arguments, options={**CALM, "node_name": name}) for name in names
    ]


def all_say(nodes: list[Agent], pattern: str) -> float:
    """Wait until all have said it; returns when the last one did."""
    return max(node.says(pattern) for node in nodes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_8_as_soon_as_all_are_ready_and_the_others_go_on(agents: Agents, tmp_path: Path, number: int) -> None:
    nodes = start(agents, tmp_path, "a", "b", "c", nnodes="2:3")
    all_say(nodes, "round 1: rank . of 3")
    asked = time.monotonic()
    nodes[1].process.send_signal(number)
    assert nodes[1].ends() == 8
    assert [nodes[0].ends(), nodes[2].ends()] == [0, 0]
    for node in nodes:
        print(f"{all_say([node], 'node drains: b') - asked:.2f} s until it was known")
        node.says("told by a signal")
        node.says("saves: its agent was asked to end")
    nodes[1].says(r"\]: drained: its agent was asked to end$")
    for node, place in ((nodes[0], "rank 0 of 2"), (nodes[2], "rank 1 of 2")):
        # No restart is counted, though none is allowed.
        assert node.says(f"round 2: {place}, restart 0") - asked < BUSY
        assert "node lost" not in node.said


def test_a_spare_takes_the_rank(agents: Agents, tmp_path: Path) -> None:
    nodes = start(agents, tmp_path, "a", "b", "c", nnodes="2:3")
    all_say(nodes, "round 1: rank . of 3")
    nodes += start(agents, tmp_path, "d", nnodes="2:3")
    nodes[3].says("waiting for")
    nodes[1].process.terminate()
    assert [node.ends() for node in nodes] == [0, 8, 0, 0]
    for node, rank in ((nodes[0], 0), (nodes[2], 2), (nodes[3], 1)):
        node.says(f"round 2: rank {rank} of 3")


def test_it_goes_at_the_end_of_its_time_if_one_is_not_ready(local: Agents, tmp_path: Path) -> None:
    nodes = start(local, tmp_path, "a", nnodes="1:2", drain=2.0) + start(
        local, tmp_path, "b", nnodes="1:2", drain=2.0, ready=False
    )
    all_say(nodes, "round 1: rank . of 2")
    nodes[0].process.terminate()
    asked = nodes[0].says(r"asked to end: this node leaves within 2 s of the signal")
    left = nodes[0].says(r"\]: drained: ")
    assert 1.4 < left - asked < 2.0 + BUSY
    assert [node.ends() for node in nodes] == [8, 0]


def test_138_at_a_second_signal(local: Agents, tmp_path: Path) -> None:
    nodes = start(local, tmp_path, "a", "b", nnodes="1:2", ready=False)
    all_say(nodes, "round 1: rank . of 2")
    nodes[0].process.terminate()
    nodes[0].says("asked to end")
    nodes[0].process.send_signal(signal.SIGUSR1)
    assert nodes[0].ends() == 128 + signal.SIGUSR1
    nodes[1].says("node left: a.*SIGUSR1")
    assert nodes[1].ends() == 0


def test_a_drain_before_the_first_world_has_its_line(local: Agents, tmp_path: Path) -> None:
    nodes = start(local, tmp_path, "a", "b", nnodes="3")
    all_say(nodes, "gathering, 2 here, 1 more needed")
    drain = local.command("drain", "--node", "b", "--in", "1", "--reason", "spot")
    assert drain.returncode == 0, drain.stderr
    all_say(nodes, r"\]: node drains: b\S+: in 1 s: spot$")
    assert nodes[1].ends() == 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_its_exit_code_stands_once_it_ends(local: Agents, tmp_path: Path, number: int) -> None:
    # The hook of a pod waits until the node has left: the signal after it may come before the process has ended.
    ends = f"""
import atexit, os, time
def end():
    print("ends", flush=True)
    while not os.path.exists("{tmp_path}/enough"):
        time.sleep(0.01)
atexit.register(end)
"""
    node = local.start("true", nnodes="1", prelude=ends)
    node.says("^ends")
    node.process.send_signal(number)
    (tmp_path / "enough").touch()
    assert node.ends() == 0


@pytest.mark.soak
def test_143_at_a_first_signal_while_its_world_ends(local: Agents, tmp_path: Path) -> None:
    stubborn = program(
        tmp_path,
        """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("goes on", flush=True))
print("works", flush=True)
while True:
    time.sleep(600)
""",
    )
    arguments = ("--drain", "600", "--grace", "3")
    nodes = [local.start(*stubborn, nnodes="2", arguments=arguments, options=CALM) for _ in range(2)]
    all_say(nodes, "works")
    nodes[1].process.kill()
    nodes[0].says("goes on")
    # Its programs have the time to end: there is no world to drain from.
    nodes[0].process.terminate()
    assert nodes[0].ends() == 128 + signal.SIGTERM


def test_all_of_a_world_may_drain_at_once(local: Agents, tmp_path: Path) -> None:
    nodes = start(local, tmp_path, "a", "b", nnodes="2", ends=False)
    all_say(nodes, "round 1: rank . of 2")
    for node in nodes:
        node.process.terminate()
    # The one that is left waits for none that would come.
    assert [node.ends() for node in nodes] == [8, 8]


def test_a_program_that_breaks_off_because_a_node_goes_has_not_failed(local: Agents, tmp_path: Path) -> None:
    breaks = program(
        tmp_path,
        """
import rdzv, sys, time
world = rdzv.current()
print(f"round {world.round}: rank {world.rank} of {world.world_size}", flush=True)
while world.round == 1:
    time.sleep(0.01)
    if any(not drain.seconds for drain in world.drains):
        sys.exit("the other end is gone")
""",
    )
    nodes = [local.start(*breaks, nnodes="1:2", arguments=("--drain", "1"), options=CALM) for _ in range(2)]
    all_say(nodes, "round 1: rank . of 2")
    nodes[0].process.terminate()
    assert [node.ends() for node in nodes] == [8, 0]
    assert "node failed" not in nodes[1].said


@pytest.mark.parametrize("first", ["agent", "program"])
def test_a_program_that_dies_of_the_signal_that_its_agent_gets_has_not_failed(
    local: Agents, tmp_path: Path, first: str
) -> None:
    works = program(tmp_path, 'import os, time\nprint("process", os.getpid(), flush=True)\ntime.sleep(600)')
    node, other = (
        local.start(*works, nnodes="1:2", arguments=("--drain", str(LONG)), options={**CALM, "node_name": name})
        for name in "ab"
    )
    all_say([node, other], r"^process \d")
    its_program = int(re.findall(r"process (\d+)", node.said)[0])
    # Slurm signals all processes of a job, in any order. The program's death is seen before the second signal comes.
    for process in (node.process.pid, its_program) if first == "agent" else (its_program, node.process.pid):
        os.kill(process, signal.SIGTERM)
        time.sleep(0.3)
    other.says("node drains: a")
    # Both go once neither has anything to save.
    other.process.terminate()
    os.kill(int(re.findall(r"process (\d+)", other.said)[0]), signal.SIGTERM)
    assert [node.ends(), other.ends()] == [8, 8]
    assert "node failed" not in other.said


def test_a_program_that_alone_gets_a_signal_has_failed(local: Agents, tmp_path: Path) -> None:
    dies = program(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)")
    node = local.start(*dies, nnodes="1", arguments=("--drain", str(LONG)))
    assert node.ends() == 1
    node.says("ended with signal SIGTERM, after 0 restarts")


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["etcd-v3", "consul"])
def test_in_an_outage_it_goes_and_the_others_stay(backend: str, tmp_path: Path) -> None:
    require_service(SERVERS[backend])
    with ExitStack() as stack:
        server = stack.enter_context(SERVERS[backend]())
        agents = stack.enter_context(closing(Agents(backend, server.get_endpoint())))
        nodes = start(agents, tmp_path, "a", "b", "c", nnodes="2:3", drain=3.0)
        all_say(nodes, "round 1: rank . of 3")
        server.kill()
        nodes[1].process.terminate()
        asked = nodes[1].says("asked to end")
        assert nodes[1].ends() == 8
        assert nodes[1].says(r"\]: drained: ") - asked < 3.0 + BUSY
        assert [node.process.poll() for node in (nodes[0], nodes[2])] == [None, None]
        server.restart()
        assert [nodes[0].ends(60), nodes[2].ends(60)] == [0, 0]
        for node in (nodes[0], nodes[2]):
            node.says("round 2: rank . of 2, restart 0")


def test_an_operator_drains_by_name_and_by_id(agents: Agents, tmp_path: Path) -> None:
    nodes = start(agents, tmp_path, "a", "b", "c", nnodes="1:3")
    all_say(nodes, "round 1: rank . of 3")
    unknown = agents.command("drain", "--node", "x")
    assert unknown.returncode == 2
    assert "No node 'x' is in the run 'job'; here are: " in unknown.stderr
    assert all(f"{name}." in unknown.stderr for name in "abc")
    where = ("--in", str(LONG), "--reason", "the rack is switched off")
    by_name = agents.command("drain", "--node", "b", *where)
    assert (by_name.returncode, by_name.stdout[:8]) == (0, "Node 'b."), by_name.stderr
    assert nodes[1].ends() == 8
    assert [nodes[0].ends(), nodes[2].ends()] == [0, 0]
    nodes[0].says("saves: the rack is switched off")


def test_an_operator_sees_who_drains(local: Agents, tmp_path: Path) -> None:
    nodes = start(local, tmp_path, "a", "b", nnodes="1:2", ready=False)
    all_say(nodes, "round 1: rank . of 2")
    (one,) = re.findall(r"rank +\d+  (b\.\w+)", local.command("status").stdout)
    assert local.command("drain", "--node", one, "--in", str(LONG), "--reason", "a test").returncode == 0
    all_say(nodes, "saves: a test")
    assert re.search(
        rf" {one}  .*  in the round, drains within 600 s of the announcement: a test\n", local.command("status").stdout
    )
    # What is announced later and ends later changes nothing, and is not said to.
    later = local.command("drain", "--node", one, "--in", str(LONG + 1), "--reason", "later")
    assert later.returncode == 0
    assert later.stdout.endswith(
        " leaves the run 'job' within 600 s of an earlier announcement, which stands: a test\n"
    )
    assert re.search(
        rf" {one}  .*  in the round, drains within 600 s of the announcement: a test\n", local.command("status").stdout
    )
    # A second time it comes closer.
    assert local.command("drain", "--node", one, "--in", "0", "--reason", "now").returncode == 0
    assert [node.ends() for node in nodes] == [0, 8]
    nodes[1].says(r"\]: drained: now$")
