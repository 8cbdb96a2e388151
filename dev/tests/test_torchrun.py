"""torchrun on real services: whole trainings, and whatever may happen to an agent."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import rdzv
from rdzv.inspector import RunInspector, Status
from rdzv.registry import create_backend
from rdzv_conformance.servers import SERVERS, EtcdServer, LocalService, TcpStoreServer, free_ports, require_service

from .agents import BUSY, TTL, Agent, wait_until

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples" / "train_ddp.py"

SERVICES: dict[str, type[LocalService]] = {**SERVERS, "c10d": TcpStoreServer}
KEPT_BY_TORCH = ("c10d", "etcd-v2")
OPTIONS = {"c10d": {"is_host": "false"}}
"""The options of a backend for a service that the test has started."""

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
GATED = """
import pathlib, sys, time
from torch.distributed.run import main
gate = pathlib.Path(sys.argv.pop(1))
print("ready", flush=True)
while not gate.exists():
    time.sleep(0.02)
main()
"""
"""torchrun, with the seconds that it takes to import torch spent before it may begin."""

STUCK = """
import time
import torch.distributed.elastic.agent.server.api as agent
from torch.distributed.run import main
def stop_here(*arguments):
    print("has a world", flush=True)
    time.sleep(600)
agent.SimpleElasticAgent._assign_worker_ranks = stop_here
main()
"""
"""torchrun that gets no further than the rendezvous."""

WORK = """
import json, os, pathlib, sys, time
node = os.environ["GROUP_RANK"]
print(f"rank {node} of {os.environ['WORLD_SIZE']}", flush=True)
orders = pathlib.Path(__file__).with_name("orders")
while node not in (told := json.loads(orders.read_text())):
    time.sleep(0.05)
sys.exit(told[node])
"""
"""A program whose processes never talk to each other. Each works until the test says with which exit code to end."""

GROUP = """
import json, sys, torch, rdzv
import torch.distributed as dist
from rdzv.registry import create_backend
from rdzv_torchrun.store import TorchStore
params = rdzv.RendezvousParameters(**json.loads(sys.argv[1]), min_nodes=1, max_nodes=1, **json.loads(sys.argv[2]))
backend, ours = create_backend(params)
ours = ours or rdzv.KeyValueStore(backend)
rank = int(sys.argv[3])
store = TorchStore(ours)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
tensor = torch.tensor([rank + 1])
dist.all_reduce(tensor)
dist.monitored_barrier()
dist.all_reduce(tensor, group=dist.new_group([0, 1]))
# A rank that ends a group while the other still connects ends it for both.
store.barrier("done", 2)
dist.destroy_process_group()
backend.close()
print("sum", tensor.item())
"""
"""One of two processes that meet in a store of rdzv, and nowhere else."""

PATIENCE = 180.0
"""Seconds: on a busy machine, importing torch takes a good part of them."""

TIMES = {"keep_alive_interval": "0.5", "keep_alive_max_attempt": "4", "last_call_timeout": "1"}


class Nodes:
    """The nodes of one job: a torchrun each, with the workers that it starts."""

    def __init__(self, backend: str, endpoint: str, options: Mapping[str, str] | None = None) -> None:
        self.backend, self.endpoint = backend, endpoint
        self.options = OPTIONS.get(backend, {}) if options is None else dict(options)
        self.running: list[Agent] = []

    def start(
        self,
        program: Path,
        *arguments: object,
        nnodes: str = "2:3",
        options: Mapping[str, Any] | None = None,
        max_restarts: int = 3,
        gate: Path | None = None,
        stuck: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Agent:
        """Start a node; with a `gate`, it says "ready" and joins when that file exists; see `STUCK`."""
        options = TIMES | self.options | dict(options or {})
        command = TORCHRUN if gate is None else [sys.executable, "-c", GATED, str(gate)]
        command = [sys.executable, "-c", STUCK] if stuck else command
        command = [*command, f"--nnodes={nnodes}", "--nproc-per-node=1", f"--max-restarts={max_restarts}"]
        name = f"rdzv-{self.backend}" if self.backend in KEPT_BY_TORCH else self.backend
        command += [f"--rdzv-backend={name}", f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=job"]
        command += ["--rdzv-conf=" + ",".join(f"{name}={value}" for name, value in options.items())]
        # torch takes long enough to import when it is compiled already.
        variables = {"PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1", **(environment or {})}
        node = Agent([*command, str(program), *map(str, arguments)], variables)
        self.running.append(node)
        return node

    def status(self) -> Status:
        """What the run is doing."""
        with RunInspector(self.parameters) as observer:
            return observer.status(timeout=10)

    def keys(self) -> list[str]:
        """Every key of the run that is left in the service."""
        backend, _ = create_backend(self.parameters)
        assert isinstance(backend, rdzv.KeyValueBackend)
        try:
            parts = ("control", "nodes", "heartbeats", "rounds")
            return sorted(key for part in parts for key in backend.read_all(part, timeout=10).entries)
        finally:
            backend.close()

    @property
    def parameters(self) -> rdzv.RendezvousParameters:
        """Which run."""
        return rdzv.RendezvousParameters(self.backend, self.endpoint, "job", 1, 1, **self.options)

    def close(self) -> None:
        """Leave nothing running."""
        for node in self.running:
            kill(node)


def kill(node: Agent) -> float:
    """Kill a node with all that runs on it, by -9, as when its machine dies; returns when."""
    killed = time.monotonic()
    if node.process.poll() is None:
        # torchrun gives each worker a session of its own.
        for pid in [node.process.pid, *descendants(node.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    node.ends()
    return killed


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found: list[int] = []
    for file in Path("/proc", str(pid), "task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return [*found, *(further for child in found for further in descendants(child))]


@pytest.fixture(
    params=["sqlite", *(pytest.param(name, marks=pytest.mark.soak) for name in SERVICES if name != "sqlite")]
)
def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    """A job on each service; on all but the embedded default it is for the soak."""
    yield from job_on(request.param, tmp_path)


@pytest.fixture(params=["sqlite", "etcd-v3", "c10d"])
def of_each_kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    """A job without a server, on a service with leases, and on torch's own store."""
    yield from job_on(request.param, tmp_path)


@pytest.fixture(params=["sqlite", "etcd-v3"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    """A job on a service without a server and on one with."""
    yield from job_on(request.param, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Nodes]:
    """A job on the embedded default."""
    yield from job_on("sqlite", tmp_path)


def job_on(backend: str, folder: Path) -> Iterator[Nodes]:
    """A job on a service of its own."""
    with contextlib.ExitStack() as stack:
        endpoint = str(folder / "rdzv.db")
        if backend in SERVICES:
            require_service(SERVICES[backend])
            endpoint = stack.enter_context(SERVICES[backend]()).get_endpoint()
        nodes = Nodes(backend, endpoint)
        stack.callback(nodes.close)
        yield nodes


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The program that works until the test ends it."""
    program = tmp_path / "work.py"
    program.write_text(WORK)
    order(program, {})
    return program


def order(work: Path, codes: Mapping[int, int]) -> None:
    """Tell the workers with which exit codes to end, by the ranks of their nodes."""
    draft = work.with_name("draft")
    draft.write_text(json.dumps(codes))
    draft.replace(work.with_name("orders"))


def finish(work: Path, *nodes: Agent) -> list[int]:
    """Let all workers end well; returns the nodes' exit codes."""
    order(work, dict.fromkeys(range(9), 0))
    return [node.ends(PATIENCE) for node in nodes]


def losses(*nodes: Agent) -> list[float]:
    """What the workers said of their losses, in the order of time."""
    said = sorted(line for node in nodes for line in node.lines)
    return [float(match[1]) for _, line in said if (match := re.search(r"loss ([\d.]+)$", line))]


@pytest.mark.soak
def test_a_training_survives_and_ends(of_each_kind: Nodes, tmp_path: Path) -> None:
    nodes, gate, checkpoint = of_each_kind, tmp_path / "gate", tmp_path / "model.pt"
    job = (TRAIN, "--checkpoint", checkpoint, "--steps", 100, "--pace", 0.05)
    first = [nodes.start(*job) for _ in range(2)]
    late = [nodes.start(*job, gate=gate) for _ in range(3)]
    for node in late:
        node.says("ready", limit=PATIENCE)
    for node in first:
        node.says("rank . of 2: from step 0", limit=PATIENCE)

    # Three more come. One of them makes the world of three, the others are spares.
    gate.touch()
    for node in first:
        node.says("rank . of 3: from step", limit=PATIENCE)
    wait_until(checkpoint.exists)
    wait_until(lambda: len(nodes.status().nodes) == 5)
    joined = wait_until(lambda: [node for node in late if "rank" in node.said])
    assert len(joined) == 1

    # One of the first dies. A spare takes its place, and they go on from the checkpoint.
    killed = kill(first[0])
    for node in (first[1], joined[0]):
        node.says("rank . of 3: from step [1-9]", after=killed, limit=PATIENCE)
    alive = [first[1], *late]
    assert [node.ends(PATIENCE) for node in alive] == [0, 0, 0, 0]
    assert sorted("done" in node.said for node in alive) == [False, True, True, True]
    found = losses(first[0], *alive)
    assert found[-1] < found[0] / 4
    assert nodes.status().phase == "closed"
    assert nodes.keys() == ["control/state"]


def test_a_process_group_meets_in_the_store(everywhere: Nodes, tmp_path: Path) -> None:
    program = tmp_path / "group.py"
    program.write_text(GROUP)
    settings = json.dumps({"endpoint": everywhere.endpoint, "backend": everywhere.backend, "run_id": "group"})
    options = json.dumps(everywhere.options)
    command = [sys.executable, str(program), settings, options]
    two = [Agent([*command, str(rank)], {"PYTHONDONTWRITEBYTECODE": ""}) for rank in range(2)]
    everywhere.running += two
    assert [process.ends(PATIENCE) for process in two] == [0, 0], [process.said for process in two]
    # torch may have more to say: which names it cannot look up.
    assert ["sum 6" in process.said.splitlines() for process in two] == [True, True], [process.said for process in two]


def test_a_lost_node_is_noticed_although_no_worker_fails(nodes: Nodes, work: Path, tmp_path: Path) -> None:
    three = [nodes.start(work) for _ in range(3)]
    for node in three:
        node.says("rank . of 3", limit=PATIENCE)
    killed = kill(three[0])
    for node in three[1:]:
        took = node.says("rank . of 2", after=killed, limit=PATIENCE) - killed
        print(f"going on without the dead one after {took:.2f} s")
        assert took < TTL + BUSY
    assert finish(work, *three[1:]) == [0, 0]


def starts(*nodes: Agent) -> list[int]:
    """How often the worker of each node was started."""
    return [len(re.findall("^rank", node.said, re.MULTILINE)) for node in nodes]


def go_on_for(seconds: float, *nodes: Agent) -> None:
    """See that no worker is started anew, and none ends, within a time."""
    before, deadline = starts(*nodes), time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert starts(*nodes) == before
        assert [node.process.poll() for node in nodes] == [None] * len(nodes)
        time.sleep(0.05)


def test_a_clock_an_hour_off_changes_nothing(local: Nodes, work: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; real = time.time; time.time = lambda: real() + 3600")
    off = {"PYTHONPATH": str(tmp_path)}
    three = [local.start(work, environment=off if number == 0 else {}) for number in range(3)]
    for node in three:
        node.says("rank . of 3", limit=PATIENCE)
    go_on_for(TTL * 2, *three)
    assert finish(work, *three) == [0, 0, 0]


def test_a_store_that_is_restarted_costs_nothing(work: Path, tmp_path: Path) -> None:
    require_service(EtcdServer)
    with EtcdServer() as server:
        nodes = Nodes("etcd-v3", server.get_endpoint())
        try:
            two = [nodes.start(work, nnodes="2") for _ in range(2)]
            for node in two:
                node.says("rank . of 2", limit=PATIENCE)
            server.kill()
            go_on_for(TTL * 2, *two)
            server.restart()
            go_on_for(TTL * 2, *two)
            assert finish(work, *two) == [0, 0]
            assert nodes.status().phase == "closed"
        finally:
            nodes.close()


def test_a_node_whose_join_times_out_disturbs_no_other(local: Nodes, work: Path, tmp_path: Path) -> None:
    two = [local.start(work, nnodes="2") for _ in range(2)]
    for node in two:
        node.says("rank . of 2", limit=PATIENCE)
    late = local.start(work, nnodes="2", options={"join_timeout": 3})
    assert late.ends(PATIENCE) != 0
    assert "elastic.rendezvous.api.RendezvousTimeoutError: " in late.said
    go_on_for(1.0, *two)
    assert finish(work, *two) == [0, 0]


def test_a_signal_lets_the_others_know_at_once(everywhere: Nodes, work: Path) -> None:
    patient = {"keep_alive_interval": 10, "keep_alive_max_attempt": 6}
    three = [everywhere.start(work, nnodes="2:3", options=patient) for _ in range(3)]
    for node in three:
        node.says("rank . of 3", limit=PATIENCE)
    # A spare that still waits for its first world leaves like a member does.
    spare = everywhere.start(work, nnodes="2:3", options=patient)
    wait_until(lambda: len(everywhere.status().nodes) == 4)
    for node in (spare, three[0]):
        node.process.send_signal(signal.SIGTERM)
        assert node.ends(PATIENCE) != 0
    assert "SignalException" in spare.said
    ended = time.monotonic()
    for node in three[1:]:
        assert node.says("rank . of 2", limit=PATIENCE) < ended + TTL + BUSY
        assert "(its process has ended)" in node.said
    assert finish(work, *three[1:]) == [0, 0]


def test_a_signal_to_the_host_of_the_store_lets_the_others_know_at_once(work: Path) -> None:
    (port,) = free_ports(1)
    nodes = Nodes("c10d", f"127.0.0.1:{port}", {"keep_alive_interval": "10", "keep_alive_max_attempt": "6"})
    try:
        host, two = three_of_one_store(nodes, work, port)
        host.process.send_signal(signal.SIGTERM)
        for node in two:
            node.says("rank . of 2", limit=PATIENCE)
            assert "(its process has ended)" in node.said
        assert host.ends(PATIENCE) != 0
        assert "stays for nodes" not in host.said
        assert finish(work, *two) == [0, 0]
    finally:
        nodes.close()


def test_a_node_that_drains_ends_with_0_and_costs_no_restart(local: Nodes, work: Path) -> None:
    nodes = [local.start(work, nnodes="1:2", max_restarts=0, options={"last_call_timeout": "60"}) for _ in range(2)]
    for node in nodes:
        node.says("rank . of 2", limit=PATIENCE)
    with RunInspector(local.parameters) as operator:
        operator.drain(operator.status(10).nodes[1].id, 1.0, "spot", 10)
    wait_until(lambda: any(node.process.poll() is not None for node in nodes), PATIENCE)
    goes, stays = sorted(nodes, key=lambda node: node.process.poll() is None)
    assert goes.ends() == 0, goes.said
    stays.says("rank 0 of 1", limit=PATIENCE)
    assert finish(work, stays) == [0]


def test_a_node_that_fails_for_good_takes_no_other_with_it(local: Nodes, work: Path) -> None:
    three = [local.start(work, max_restarts=0) for _ in range(3)]
    for node in three:
        node.says("rank . of 3", limit=PATIENCE)
    order(work, {2: 3})
    (failed,) = (node for node in three if "rank 2" in node.said)
    assert failed.ends(PATIENCE) == 1
    others = [node for node in three if node is not failed]
    for node in others:
        node.says("rank . of 2", limit=PATIENCE)
    assert finish(work, *others) == [0, 0]


def test_who_is_done_does_not_hold_up_who_must_begin_again(local: Nodes, work: Path) -> None:
    three = [local.start(work, environment={"LOGLEVEL": "INFO"}) for _ in range(3)]
    for node in three:
        node.says("^rank . of 3", limit=PATIENCE)
    by_rank = {int(re.findall(r"^rank (\d)", node.said, re.MULTILINE)[0]): node for node in three}
    order(work, {0: 0})
    by_rank[0].says("successfully finished", limit=PATIENCE)
    order(work, {1: 3})
    by_rank[1].says("will restart worker group", limit=PATIENCE)
    order(work, {})
    # torchrun's exit barrier lasts for 300 s, and no node gets a world while a member is in the last one.
    assert by_rank[0].ends(PATIENCE) == 0
    for rank in (1, 2):
        by_rank[rank].says("rank . of 2", limit=PATIENCE)
    assert finish(work, by_rank[1], by_rank[2]) == [0, 0]
    assert local.status().phase == "closed"


def test_a_death_before_the_workers_start_ends_the_others_in_time(local: Nodes, work: Path) -> None:
    """torch's agents have no way back from there, and would wait for 300 s."""
    healthy, stuck = local.start(work, nnodes="2"), local.start(work, nnodes="2", stuck=True)
    stuck.says("has a world", limit=PATIENCE)
    kill(stuck)
    assert healthy.ends(PATIENCE) == 1
    assert "is no longer whole" in healthy.said
    assert local.status().phase != "closed"


def test_a_death_in_the_last_barrier_lets_the_others_go(local: Nodes, work: Path) -> None:
    two = [local.start(work, nnodes="2", environment={"LOGLEVEL": "INFO"}) for _ in range(2)]
    for node in two:
        node.says("^rank . of 2", limit=PATIENCE)
    done, lost = two if "\nrank 0 of" in f"\n{two[0].said}" else two[::-1]
    order(work, {0: 0})
    done.says("successfully finished", limit=PATIENCE)
    kill(lost)
    # Long before the 300 s of the barrier.
    assert done.ends(PATIENCE) == 0
    # Whether its work was done is not known.
    assert local.status().phase != "closed"


def test_closing_a_run_ends_it(local: Nodes, work: Path) -> None:
    two = [local.start(work, nnodes="2") for _ in range(2)]
    for node in two:
        node.says("rank . of 2", limit=PATIENCE)
    with RunInspector(local.parameters) as observer:
        observer.close("the operator", "out of budget", timeout=10)
    for node in two:
        assert node.ends(PATIENCE) == 1
        assert re.search("api.RendezvousClosedError: .* by the operator: out of budget", node.said)


def test_the_workers_may_serve_their_store_themselves(local: Nodes, tmp_path: Path) -> None:
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    job = (TRAIN, "--checkpoint", tmp_path / "model.pt", "--steps", 2)
    assert [node.ends(PATIENCE) for node in [local.start(*job, nnodes="2", environment=own) for _ in range(2)]] == [
        0,
        0,
    ]


def test_two_jobs_of_one_node_share_a_machine(work: Path) -> None:
    """PyTorch's recipe, "stacked single-node": even the run id may be the same."""
    nodes = Nodes("c10d", "localhost:0", {})
    try:
        two = [nodes.start(work, nnodes="1") for _ in range(2)]
        for node in two:
            node.says("rank 0 of 1", limit=PATIENCE)
        assert finish(work, *two) == [0, 0]
    finally:
        nodes.close()


def test_standalone_is_pytorchs_own(tmp_path: Path) -> None:
    """As the page and `rdzv doctor` say; once torch heeds the backend that is chosen, they must say something else."""
    nodes = Nodes("sqlite", str(tmp_path / "rdzv.db"))
    program = tmp_path / "nothing.py"
    program.touch()
    chosen = ["--rdzv-backend=sqlite", f"--rdzv-endpoint={nodes.endpoint}"]
    command = [*TORCHRUN, "--standalone", "--nproc-per-node=1", *chosen, str(program)]
    node = Agent(command, {"LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1"})
    nodes.running.append(node)
    assert node.ends(PATIENCE) == 0
    assert re.search(r"rdzv_backend +: c10d", node.said)
    assert not Path(nodes.endpoint).exists()


@pytest.mark.soak
def test_the_page_says_how(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "torchrun.md").read_text()
    (block,) = re.findall("<!-- not run: dev/tests/test_torchrun.py does -->\n```sh\n(.*?)```", page, re.DOTALL)
    script = block.replace("model-1.pt", str(tmp_path / "model.pt")).replace("--pace 0.1", "--pace 0")
    # The embedded default keeps its database there.
    variables = {"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    terminals = [Agent(["bash", "-euc", f"cd {ROOT}\n{script}"], variables) for _ in range(2)]
    try:
        assert [terminal.ends(PATIENCE) for terminal in terminals] == [0, 0]
    finally:
        for terminal in terminals:
            kill(terminal)
    said = "\n".join(terminal.said for terminal in terminals)
    assert said.count("of 4: done") == 4, said


def test_another_node_serves_the_store_when_its_host_dies(work: Path) -> None:
    (port,) = free_ports(1)
    nodes = Nodes("c10d", f"127.0.0.1:{port}", {})
    try:
        host, two = three_of_one_store(nodes, work, port)
        killed = kill(host)
        for node in two:
            node.says("rank . of 2", after=killed, limit=PATIENCE)
        assert finish(work, *two) == [0, 0]
    finally:
        nodes.close()


def three_of_one_store(nodes: Nodes, work: Path, port: int) -> tuple[Agent, list[Agent]]:
    """The node that serves the store, and two more, in a world."""
    host = nodes.start(work)
    wait_until(lambda: accepts(port), limit=PATIENCE)
    two = [nodes.start(work) for _ in range(2)]
    for node in (host, *two):
        node.says("rank . of 3", limit=PATIENCE)
    return host, two


def accepts(port: int) -> bool:
    """Whether a server listens."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
