"""Agents in processes of their own, on real services, through everything that they are meant to survive."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rdzv_conformance.servers import CLUSTERS, SERVERS, require_service
from rdzv_sqlite import SqliteBackend

from .agents import ALL, BUSY, KEEP_ALIVE, TTL, Agent, Agents, agents_on, program, wait_until

REDUCE = Path(__file__).parents[2] / "examples" / "allreduce.py"
SUM = "done: 5133 primes below 50000"

WORK = """
import rdzv, sys, time
world = rdzv.current()
print(f"round {world.round}: rank {world.rank} of {world.world_size}", flush=True)
while world.store.check([f"go on {world.round}"]) is False:
    time.sleep(0.05)
"""
"""A program that works until it is stopped; it says where it is."""


@pytest.fixture(params=["sqlite", *SERVERS])
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agents]:
    """Agents on each service."""
    with agents_on(request.param, tmp_path) as agents:
        yield agents


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Agents]:
    """Agents on the embedded default, whose database is there."""
    with contextlib.closing(SqliteBackend(str(tmp_path / "rdzv.db"), "job")) as backend:
        backend.read_all("control", timeout=10)
    with contextlib.closing(Agents("sqlite", str(tmp_path / "rdzv.db"))) as agents:
        yield agents


def reduce(folder: Path, pace: float = 0.05) -> list[str]:
    """The example program: an all-reduce in a loop, which goes on from its checkpoint."""
    command = [sys.executable, "-u", str(REDUCE), "--checkpoint", str(folder / "primes.json")]
    return [*command, "--steps", "100", "--pace", str(pace)]


def status(agents: Agents) -> dict[str, Any]:
    """What `rdzv status` says."""
    said = agents.command("status", "--json")
    found: dict[str, Any] = json.loads(said.stdout)
    assert said.returncode == (11 if found["phase"] == "unknown" else 0), said.stderr
    return found


class TestTheMainJob:
    def test_a_node_dies_another_joins_and_all_finish(self, agents: Agents, tmp_path: Path) -> None:
        job = reduce(tmp_path)
        nodes = [agents.start(*job) for _ in range(4)]
        for node in nodes:
            node.says("rank . of 4")
        killed = time.monotonic()
        nodes[0].process.kill()
        nodes[0].ends()
        for node in nodes[1:]:
            took = node.says("rank . of 3", after=killed) - killed
            print(f"going on without the dead one after {took:.2f} s")
            assert took < TTL + BUSY
        nodes.append(agents.start(*job))
        joined = time.monotonic()
        for node in nodes[1:]:
            node.says("rank . of 4", after=joined - 1)
        assert [node.ends(60) for node in nodes[1:]] == [0, 0, 0, 0]
        assert all(SUM in node.said for node in nodes[1:])
        after = status(agents)
        assert after["phase"] == "closed"
        assert after["nodes"] == []
        finished = re.compile(rf": done after [0-9.]+ s: all 4 nodes have finished, in round {after['round']}")
        assert all(len(finished.findall(node.said)) == 1 and finished.search(node.lines[-1][1]) for node in nodes[1:])

    @pytest.mark.soak
    def test_a_clock_that_is_wrong_changes_nothing(self, agents: Agents, tmp_path: Path) -> None:
        skewed = """
import datetime, itertools, random, time
real, jumps = time.time, itertools.cycle((3600, -3600, 7200, 0.5))
time.time = lambda: real() + next(jumps)
time.time_ns = lambda: int(time.time() * 1e9)
class datetime_(datetime.datetime):
    now = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
datetime.datetime = datetime_
"""
        job = program(tmp_path, WORK)
        nodes = [agents.start(*job, nnodes="2:3", options=CALM, prelude=skewed * (number == 0)) for number in range(3)]
        for node in nodes:
            node.says("round 1: rank . of 3")
        # Longer than a silent node is thought to be alive.
        assert not _any_says(nodes, "round 2", 10.0)


CALM = {**ALL, "keep_alive_interval": "2"}
"""A node that a busy machine stops for some seconds is not lost."""


def _any_says(nodes: list[Agent], pattern: str, limit: float) -> bool:
    try:
        wait_until(lambda: any(pattern in node.said for node in nodes), limit)
    except AssertionError:
        return False
    return True


@pytest.mark.soak
class TestServices:
    @pytest.mark.parametrize("backend", SERVERS)
    def test_a_service_that_is_away_for_20_s_costs_no_restart(self, backend: str, tmp_path: Path) -> None:
        require_service(SERVERS[backend])
        with SERVERS[backend]() as server, contextlib.closing(Agents(backend, server.get_endpoint())) as agents:
            job = reduce(tmp_path, pace=0.15)
            nodes = [agents.start(*job, options=CALM) for _ in range(4)]
            for node in nodes:
                node.says("round 1: rank . of 4")
            server.kill()
            assert not _any_says(nodes, "round 2", 20.0)
            server.restart()
            assert [node.ends(120) for node in nodes] == [0, 0, 0, 0]
            assert not any("round 2" in node.said for node in nodes)
            assert all(SUM in node.said for node in nodes)

    @pytest.mark.parametrize("backend", CLUSTERS)
    def test_a_cluster_may_lose_its_leader_at_any_time(self, backend: str, tmp_path: Path) -> None:
        require_service(SERVERS[backend])
        with CLUSTERS[backend]() as cluster, contextlib.closing(Agents(backend, cluster.get_endpoint())) as agents:
            job = reduce(tmp_path, pace=0.15)
            nodes = [agents.start(*job, nnodes="4") for _ in range(3)]
            wait_until(lambda: len(status(agents)["nodes"]) == 3)
            cluster.leader().kill()
            nodes.append(agents.start(*job, nnodes="4"))
            for node in nodes:
                node.says("round 1: rank . of 4", limit=60)
            cluster.heal()
            cluster.leader().kill()
            assert [node.ends(120) for node in nodes] == [0, 0, 0, 0]
            assert not any("round 2" in node.said for node in nodes)


class TestConfiguration:
    def test_the_environment_is_enough(self, local: Agents) -> None:
        _, backend, _, endpoint, _, run_id = local.service
        given = {
            "BACKEND": backend,
            "ENDPOINT": endpoint,
            "RUN_ID": run_id,
            "NNODES": "1",
            "OPTIONS": "node_name=alpha",
        }
        environment = os.environ | {f"RDZV_{name}": value for name, value in given.items()}
        command = [sys.executable, "-m", "rdzv", "run", "--", sys.executable, "-m", "rdzv", "status"]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "running, attempt 0, round 1" in said.stdout
        assert "alpha." in said.stdout


class TestExitCodes:
    def test_0_when_done_and_5_for_the_spare(self, local: Agents, tmp_path: Path) -> None:
        job = program(tmp_path, WORK)
        node = local.start(*job, nnodes="1")
        node.says("rank 0 of 1")
        spare = local.start(*job, nnodes="1")
        wait_until(lambda: len(status(local)["nodes"]) == 2)
        end = "import rdzv; rdzv.current().store.set('go on 1', '')"
        environ = os.environ | _variables(local)
        subprocess.run([sys.executable, "-c", end], check=True, env=environ)
        assert node.ends() == 0
        assert spare.ends() == 5
        assert "not needed" in spare.said

    def test_1_when_the_command_fails_for_good(self, local: Agents, tmp_path: Path) -> None:
        job = program(tmp_path, "import os, sys; print('restart', os.environ['RDZV_RESTART_COUNT']); sys.exit(3)")
        node = local.start(*job, nnodes="1", arguments=("--max-restarts", "2"))
        assert node.ends() == 1
        assert "exit code 3, after 2 restarts" in node.said
        assert [f"restart {count}" in node.said for count in range(4)] == [True, True, True, False]

    def test_a_single_restart_is_reported_as_one(self, local: Agents) -> None:
        node = local.start("false", nnodes="1", arguments=("--max-restarts", "1"))
        assert node.ends() == 1
        assert re.search("exit code 1, after 1 restart$", node.said, re.MULTILINE)

    def test_1_when_the_command_does_not_exist(self, local: Agents) -> None:
        node = local.start("no-such-program", nnodes="1")
        assert node.ends() == 1
        assert "no-such-program" in node.said

    @pytest.mark.parametrize(
        ("nnodes", "options", "names"),
        [
            ("4:2", {}, "4"),
            ("two", {}, "two"),
            ("2", {"join_timeut": 3}, "join_timeout"),
            ("2", {"join_timeout": "soon"}, "soon"),
        ],
    )
    def test_2_for_what_cannot_be_used(self, local: Agents, nnodes: str, options: dict[str, str], names: str) -> None:
        node = local.start("true", nnodes=nnodes, options=options)
        assert node.ends() == 2
        assert names in node.said
        assert "Traceback" not in node.said

    def test_3_when_the_rendezvous_times_out(self, local: Agents) -> None:
        node = local.start("true", nnodes="2", options={"join_timeout": 3})
        assert node.ends() == 3
        assert "1 is missing" in node.said

    def test_4_when_the_run_is_closed_with_the_reason(self, local: Agents, tmp_path: Path) -> None:
        node = local.start(*program(tmp_path, WORK), nnodes="1")
        node.says("rank 0")
        assert local.command("close", "--reason", "out of budget").returncode == 0
        assert node.ends() == 4
        assert "out of budget" in node.said

    def test_6_when_the_service_is_unreachable(self) -> None:
        agents = Agents("etcd-v3", "127.0.0.1:1")
        node = agents.start("true", nnodes="1", options={"join_timeout": 1})
        assert node.ends() == 6
        assert "127.0.0.1:1" in node.said
        assert agents.command("status", "--timeout", "0.5").returncode == 6

    @pytest.mark.parametrize("joining", [True, False])
    def test_128_plus_the_signal(self, local: Agents, tmp_path: Path, joining: bool) -> None:
        node = local.start(*program(tmp_path, WORK), nnodes="2" if joining else "1")
        if joining:
            wait_until(lambda: status(local)["nodes"])
        else:
            node.says("rank 0")
        node.process.send_signal(signal.SIGTERM)
        assert node.ends() == 128 + signal.SIGTERM
        # What it has said stays until its lease runs out.
        assert [one for one in status(local)["nodes"] if one["left"] is None] == []


class TestBereavement:
    def test_a_rank_0_that_dies_before_it_begins_is_not_waited_for(self, local: Agents, tmp_path: Path) -> None:
        dies = f"""
import os, rdzv
options = dict({KEEP_ALIVE}, node_name="aaa")
params = rdzv.RendezvousParameters("sqlite", {local.service[3]!r}, "job", 1, 2, **options)
info = rdzv.get_rendezvous_handler(params).next_rendezvous()
assert info.rank == 0 and info.world_size == 2
os._exit(0)
"""
        options = {"last_call_timeout": 60, "node_name": "bbb"}
        node = local.start(*program(tmp_path, WORK), nnodes="1:2", options=options)
        wait_until(lambda: status(local)["nodes"])
        subprocess.run(program(tmp_path, dies), check=True, timeout=60)
        node.says("round 2: rank 0 of 1")

    def test_a_survivor_that_is_too_few_waits_no_longer_than_joining_may_take(
        self, local: Agents, tmp_path: Path
    ) -> None:
        job = program(tmp_path, "import rdzv, sys; sys.exit(rdzv.current().rank)")
        nodes = [local.start(*job, nnodes="2", options={"join_timeout": 4}) for _ in range(2)]
        assert sorted(node.ends() for node in nodes) == [1, 3]

    def test_the_last_of_a_program_that_fails_everywhere_ends_early(self, local: Agents, tmp_path: Path) -> None:
        job = program(tmp_path, "import rdzv, sys; me = rdzv.current(); sys.exit(7 * (me.rank == me.world_size - 1))")
        options = {"join_timeout": 600, "alone_timeout": 1, "last_call_timeout": 1}
        nodes = [local.start(*job, nnodes="2:3", options=options) for _ in range(3)]
        assert sorted(node.ends(90) for node in nodes) == [1, 1, 3]
        last = next(node for node in nodes if node.process.returncode == 3)
        assert "1 of at least 2 nodes is here" in last.said
        assert "has left: " in last.said
        assert "ended with exit code 7" in last.said
        assert "alone_timeout" in last.said
        told = status(local)
        assert told["phase"] == "abandoned"
        reasons = [str(node["left"]) for node in told["nodes"] + told["missing"]]
        # Of the first that failed the record is there until its lease runs out.
        *failed, gave_up = sorted(reasons, key=lambda reason: reason.startswith("gave up"))
        assert failed
        assert all(re.search("ended with exit code 7", reason) for reason in failed)
        assert re.fullmatch(r"gave up after \d+\.\d s: 1 of at least 2 nodes", gave_up)


class TestSignals:
    def test_a_wait_for_a_service_that_never_came_can_be_ended(self) -> None:
        agents = Agents("etcd-v3", "127.0.0.1:1")
        node = agents.start("true", nnodes="1")
        node.says(r"waiting for 1 node \(no call to the service has succeeded for \d+ s: .*127.0.0.1:1", limit=30)
        node.process.send_signal(signal.SIGTERM)
        assert node.ends(15) == 128 + signal.SIGTERM

    def test_what_a_wrapper_script_wraps_gets_its_grace_too(self, local: Agents, tmp_path: Path) -> None:
        saves = """
import signal, sys, time
def save(*args):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("started", flush=True)
time.sleep(600)
"""
        wrapped = " ".join(program(tmp_path, saves))
        node = local.start("sh", "-c", f"{wrapped}; echo after", nnodes="1")
        node.says("started")
        node.process.send_signal(signal.SIGTERM)
        assert node.ends() == 128 + signal.SIGTERM
        assert "saved" in node.said

    def test_a_launcher_that_ignores_the_end_of_children_hides_no_failure(self, local: Agents) -> None:
        ignores = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
        node = local.start("sh", "-c", "exit 3", nnodes="1", prelude=ignores)
        assert node.ends() == 1
        assert "exit code 3" in node.said


AGENT = """agent = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])"""
"""In a program, whose parent is the guard."""

LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} rdzv\[(alpha\.[0-9a-f]+)\]: "


def test_every_line_of_an_agent_has_a_time_and_its_node(tmp_path: Path) -> None:
    where = ["--backend=sqlite", f"--endpoint={tmp_path}/db", "--nnodes=1", "--option=node_name=alpha"]

    def says(run_id: str, *arguments: str) -> list[str]:
        command = [sys.executable, "-m", "rdzv", "run", *where, "--run-id", run_id, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.stdout == ""
        lines = ended.stderr.splitlines()
        for line in lines:
            assert re.match(LINE, line), line
        assert len({re.match(LINE, line)[1] for line in lines}) == 1  # type: ignore[index]
        return [re.sub(LINE, "", line) for line in lines]

    first, *others = says("who", "--nproc-per-node=2", "--", "sh", "-c", "exit 0")
    node = re.fullmatch(
        rf"run 'who', backend sqlite, endpoint .*{tmp_path}/db.*, 1 node, node (alpha\.\w+) \(rdzv .+\)", first
    )
    assert node is not None, first
    *others, last = others
    assert others == ["round 1: world size 2 (nodes: 1, processes on each: 2), ranks 0 to 1"]
    assert re.fullmatch(r"done after [0-9.]+ s: 1 node has finished, in round 1", last)
    _, world, failure = says("crash", "--", "sh", "-c", "kill -9 $$")
    assert world == "round 1: world size 1, rank 0"
    assert re.fullmatch(
        r"sh \(rank 0, local rank 0, process \d+\) ended with signal SIGKILL, after 0 restarts", failure
    )
    said = says("much", "-v", "--", "true")
    assert any(line.startswith("round published: ") for line in said)


def test_the_end_by_a_signal_is_a_sentence(tmp_path: Path) -> None:
    where = ["--backend=sqlite", f"--endpoint={tmp_path}/db", "--run-id=signal", "--nnodes=1"]
    # The program is the terminal's user: it sends the signal to the agent.
    command = [
        sys.executable,
        "-m",
        "rdzv",
        "run",
        *where,
        "--",
        "sh",
        "-c",
        "kill -INT $(ps -o ppid= -p $PPID); sleep 60",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 130
    assert ended.stderr.splitlines()[-1].endswith(": ended by SIGINT; this node leaves the run")


class TestTheCommand:
    def test_says_which_of_its_processes_has_failed(self, local: Agents, tmp_path: Path) -> None:
        job = program(tmp_path, "import os, sys; print('I am', os.getpid()); sys.exit(7 * int(os.environ['RANK']))")
        node = local.start(*job, nnodes="1", arguments=("--nproc-per-node", "2"))
        assert node.ends() == 1
        pids = re.findall(r"I am (\d+)", node.said)
        named = re.search(r"\(rank 1, local rank 1, process (\d+)\) ended with exit code 7", node.said)
        assert named is not None, node.said
        assert named[1] in pids

    @pytest.mark.parametrize(
        ("processes", "environ", "threads"),
        [("2", {}, "1"), ("1", {}, "all"), ("2", {"OMP_NUM_THREADS": "5"}, "5")],
    )
    def test_takes_one_cpu_where_there_are_several_of_it(
        self, local: Agents, monkeypatch: pytest.MonkeyPatch, processes: str, environ: dict[str, str], threads: str
    ) -> None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        job = ("sh", "-c", "echo threads: ${OMP_NUM_THREADS:-all}")
        node = local.start(*job, nnodes="1", arguments=("--nproc-per-node", processes), environment=environ)
        assert node.ends() == 0
        assert re.findall(r"threads: (\w+)", node.said) == [threads] * int(processes)

    def test_gets_the_variables_of_its_world(self, local: Agents, tmp_path: Path) -> None:
        job = program(tmp_path, "import os; print(sorted(os.environ.items()))")
        node = local.start(*job, nnodes="1", arguments=("--nproc-per-node", "2"))
        assert node.ends() == 0
        for local_rank in range(2):
            for expected in {
                "RANK": local_rank,
                "LOCAL_RANK": local_rank,
                "WORLD_SIZE": 2,
                "LOCAL_WORLD_SIZE": 2,
            }.items():
                assert str((expected[0], str(expected[1]))) in node.said
        for name in ("GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "RDZV_RUN_ID", "RDZV_ROUND", "RDZV_BACKEND"):
            assert name in node.said

    def test_is_killed_with_its_children_when_it_does_not_end(self, local: Agents, tmp_path: Path) -> None:
        stubborn = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("started", flush=True)
time.sleep(600)
"""
        node = local.start(*program(tmp_path, stubborn), nnodes="1", arguments=("--grace", "0.5"))
        node.says("started")
        node.process.send_signal(signal.SIGINT)
        assert node.ends() == 128 + signal.SIGINT

    def test_a_second_signal_waits_for_no_grace(self, local: Agents, tmp_path: Path) -> None:
        deaf = "import signal, time; signal.signal(signal.SIGINT, lambda *_: print('heard', flush=True))"
        job = program(tmp_path, f"{deaf}; print('up', flush=True)\nwhile True: time.sleep(1)")
        node = local.start(*job, nnodes="1", arguments=("--grace", "300"))
        node.says("up")
        node.process.send_signal(signal.SIGINT)
        node.says("heard")
        node.process.send_signal(signal.SIGINT)
        assert node.ends() == 128 + signal.SIGINT

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
    def test_outlives_a_signal_that_its_agent_was_started_to_ignore(
        self, local: Agents, tmp_path: Path, number: signal.Signals
    ) -> None:
        """As nohup and the background of a shell do; the command inherits it."""
        ignores = f"import signal; signal.signal({number}, signal.SIG_IGN)"
        job = program(tmp_path, f"import os, signal\n{AGENT}\nos.kill(agent, {number})\nos.kill(os.getpid(), {number})")
        node = local.start(*job, nnodes="1", prelude=ignores)
        assert node.ends() == 0, node.said

    def test_goes_with_an_agent_that_is_killed(self, local: Agents, tmp_path: Path) -> None:
        parent = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("started", flush=True)
time.sleep(600)
"""
        node = local.start(*program(tmp_path, parent), nnodes="1")
        node.says("started")
        node.process.kill()
        assert node.ends() == -signal.SIGKILL

    def test_other_numbers_of_processes_are_refused(self, local: Agents, tmp_path: Path) -> None:
        job = program(tmp_path, WORK)
        first = local.start(*job, nnodes="2", arguments=("--nproc-per-node", "1"))
        second = local.start(*job, nnodes="2", arguments=("--nproc-per-node", "2"))
        refused = wait_until(lambda: [node for node in (first, second) if node.process.poll() is not None])
        assert refused[0].ends() == 2
        assert "--nproc-per-node" in refused[0].said


class TestStatusAndClose:
    def test_status_tells_who_is_there(self, local: Agents, tmp_path: Path) -> None:
        assert status(local)["phase"] == "unknown"
        job = program(tmp_path, WORK)
        first = local.start(*job, nnodes="2:3", options={"last_call_timeout": 60, "node_name": "alpha"})
        wait_until(lambda: status(local)["phase"] == "gathering")
        local.start(*job, nnodes="2:3", options={"last_call_timeout": 60, "node_name": "beta"})
        wait_until(lambda: status(local)["phase"] == "last call")
        local.start(*job, nnodes="2:3", options={"node_name": "gamma"})
        first.says("rank . of 3")
        said = local.command("status")
        assert "running, attempt 0, round 1" in said.stdout
        assert all(name in said.stdout for name in ("alpha", "beta", "gamma", "rank  0", "leader: "))

    @pytest.mark.parametrize("command", [("status",), ("status", "--watch"), ("close",), ("close", "--purge")])
    def test_a_database_that_is_not_there_is_no_empty_run(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        said = Agents("sqlite", str(tmp_path / "nope.db")).command(*command)
        assert said.returncode == 2
        assert f"There is no database '{tmp_path}/nope.db'" in said.stderr
        assert list(tmp_path.iterdir()) == []

    def test_status_names_who_is_missing(self, local: Agents, tmp_path: Path) -> None:
        job = program(tmp_path, WORK)
        nodes = [local.start(*job, nnodes="2", options={"node_name": name}) for name in ("alpha", "beta")]
        for node in nodes:
            node.says("rank . of 2")
        nodes[1].process.kill()
        missing = wait_until(lambda: status(local)["missing"])
        assert missing[0]["id"].startswith("beta.")

    def test_a_closed_run_can_be_purged_and_used_again(self, local: Agents) -> None:
        assert local.command("close").returncode == 0
        assert local.start("true", nnodes="1").ends() == 4
        assert local.command("close", "--purge").returncode == 0
        assert local.start("true", nnodes="1").ends() == 0

    def test_a_running_run_is_not_purged(self, local: Agents, tmp_path: Path) -> None:
        ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        stubborn = f"{ignore}; print('up', flush=True); time.sleep(60)"
        node = local.start(*program(tmp_path, stubborn), nnodes="1", arguments=("--grace", "60"))
        node.says("up")
        refused = local.command("close", "--purge", "--timeout", "1")
        assert refused.returncode == 3
        assert "still there" in refused.stderr


def _variables(agents: Agents) -> dict[str, str]:
    """The variables of a process in round 1 of the run."""
    from rdzv import RendezvousParameters
    from rdzv.config import to_env

    _, backend, _, endpoint, _, run_id = agents.service
    numbers = dict.fromkeys(
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT"), "0"
    )
    params = RendezvousParameters(backend, endpoint, run_id, 1, 1)
    return {**numbers, "RDZV_ROUND": "1", "RDZV_RESTART_COUNT": "0", **to_env(params)}


LOGS = {
    "a full disk": "exec 2> /dev/full",
    "a reader that is gone": "exec 2> >(:); wait $!",
    "none": "exec 2>&-",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_node_outlives_its_log(log: str, tmp_path: Path) -> None:
    rounds = tmp_path / "rounds"
    program = f"echo $RDZV_ROUND >> {rounds}; test $RDZV_ROUND = 2"
    command = [sys.executable, "-m", "rdzv", "run", "--backend=sqlite", f"--endpoint={tmp_path / 'rdzv.db'}"]
    command += ["--run-id=job", "--nnodes=1", "--max-restarts=1", "-v", "--", "sh", "-c", program]
    within = ["bash", "-c", f'{log}; exec "$@"', "bash"]
    ended = subprocess.run([*within, *command], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert rounds.read_text() == "1\n2\n"
