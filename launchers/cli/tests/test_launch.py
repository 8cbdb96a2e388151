"""What `rdzv run` takes from a platform: its run, its nodes, its service; and what it refuses."""

import math
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from rdzv_core.errors import RendezvousParameterError

from rdzv_cli.agent import AgentResult, ExitStatus
from rdzv_cli.command import main, make_parser
from rdzv_cli.launch import Launch, port_of
from rdzv_cli.platforms import PLATFORMS, Fact, detect
from rdzv_cli.taking import Taking

Install = Callable[[str, str, Mapping[str, str]], None]

RECORDED: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("platforms.toml").read_text())
STEP: Final[dict[str, str]] = RECORDED["slurm-step"]["environ"]
ALONE: Final = STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n3", "SLURM_NODEID": "0"}
"""A step on one node."""
ARRAY: Final[dict[str, str]] = RECORDED["slurm-array"]["environ"]


def launch(environ: Mapping[str, str], array: Any = "sweep") -> Launch:
    """What an environment launches."""
    return Launch(detect(environ, PLATFORMS), array)


def given(environ: Mapping[str, str], array: Any = "sweep") -> dict[str, Any]:
    """What it gives."""
    return {name: taken.value for name, taken in launch(environ, array).given().items()}


def test_a_step_of_slurm_gives_a_run() -> None:
    assert given(STEP) == {"run_id": "rdzv-1", "nnodes": "3", "node_name": "n3"}


def test_clusters_whose_jobs_have_the_same_number_do_not_meet() -> None:
    assert given(STEP | {"SLURM_CLUSTER_NAME": "b"})["run_id"] != given(STEP)["run_id"]
    assert given(STEP | {"SLURM_CLUSTER_NAME": ""})["run_id"] == "1"


def test_a_requeue_is_the_next_attempt_of_the_same_run() -> None:
    again = STEP | {"SLURM_RESTART_COUNT": "2"}
    assert given(again) == given(STEP) | {"attempt": 2}


def test_the_second_step_of_a_job_is_another_run() -> None:
    """And the same again after a requeue, which counts the steps anew."""
    requeued = RECORDED["slurm-requeued"]["environ"]
    assert given(requeued)["run_id"] == "rdzv-1.1"


def test_what_mpirun_starts_is_one_run_whatever_step_its_daemon_is_in() -> None:
    mpirun = RECORDED["mpirun-in-slurm"]["environ"]
    # On its own node, mpirun needs no daemon, and there is no step.
    own = {name: value for name, value in mpirun.items() if not name.startswith("SLURM_STEP")}
    assert {given(one)["run_id"] for one in (mpirun, mpirun | {"SLURM_STEP_ID": "4"}, own)} == {"rdzv-1"}


def test_all_components_of_a_heterogeneous_job_meet() -> None:
    het = RECORDED["slurm-het"]["environ"]
    assert {given(het | {"SLURM_JOB_ID": component})["run_id"] for component in ("5", "6")} == {"rdzv-5"}


def test_each_element_of_an_array_is_a_run() -> None:
    assert given(ARRAY) == {"run_id": "rdzv-3_0", "nnodes": "1", "node_name": "n1"}


def test_the_elements_of_an_array_are_the_nodes_of_one_job() -> None:
    again = ARRAY | {"SLURM_RESTART_COUNT": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]"}
    job = launch(again, "job")
    # Each is started again alone: its higher attempt would take the run from the others.
    assert given(again, "job") == {"run_id": "rdzv-3", "nnodes": "4", "node_name": "n1"}
    assert [one.name for one in job.ignored()] == ["SLURM_RESTART_COUNT"]
    assert job.hosts() is job.first_host() is None
    assert given(STEP, "job") == given(STEP)


def test_the_switch_of_a_node_is_its_label() -> None:
    labels = given(RECORDED["slurm-tree"]["environ"])["labels"]
    assert labels == "switch=root_switch.CELL1.iswi1r4s0c1l1"


def test_variables_of_torchrun_come_before_the_scheduler() -> None:
    mine = given(RECORDED["torchrun-variables"]["environ"])
    assert mine == {
        "run_id": "mine",
        "nnodes": "2:3",
        "nproc_per_node": "gpu",
        "max_restarts": "3",
        "node_name": "n2",
        "backend": "c10d",
        "endpoint": "n1:29400",
    }


@pytest.mark.parametrize(
    ("name", "ours"), [("rdzv-etcd-v3", "etcd-v3"), ("etcd-v3", "etcd-v3"), ("etcd", "etcd-v2"), ("c10d", "c10d")]
)
def test_a_backend_of_torchrun_is_one_that_rdzv_has(name: str, ours: str) -> None:
    assert given({"PET_RDZV_BACKEND": name, "PET_RDZV_ENDPOINT": "e:1"}) == {"backend": ours, "endpoint": "e:1"}
    assert given({"PET_RDZV_BACKEND": "static", "PET_RDZV_ENDPOINT": "e:1"}) == {}


def test_the_trainer_of_kubeflow_names_a_run_and_its_first_host() -> None:
    """It sets none of PET_RDZV_BACKEND, PET_RDZV_ENDPOINT and PET_RDZV_ID."""
    trainer = launch(RECORDED["kubeflow-trainer"]["environ"])
    host = trainer.first_host()
    assert given(RECORDED["kubeflow-trainer"]["environ"]) == {"run_id": "train", "nnodes": "2", "nproc_per_node": "4"}
    assert host is not None
    assert host.value == "train-node-0-0.train"


# The service.


def with_c10d(install: Install) -> None:
    """Install what a node needs to host a store, by name."""
    install("torch", "", {})
    install("rdzv-c10d", "BACKEND = None", {"rdzv": "c10d"})


def test_the_store_is_at_the_first_host(install: Install) -> None:
    with_c10d(install)
    nodes = [STEP | {"SLURM_NODEID": str(node), "SLURM_LAUNCH_NODE_IPADDR": f"10.0.0.{node}"} for node in range(3)]
    endpoints = {launch(node).endpoint("rdzv-1").value for node in nodes}
    assert endpoints == {f"n1:{port_of('rdzv-1')}"}


def test_an_ipv6_address_stands_in_brackets(install: Install) -> None:
    with_c10d(install)
    sky = RECORDED["skypilot"]["environ"] | {"SKYPILOT_NODE_IPS": "fd00::1\nfd00::2"}
    assert launch(sky).endpoint("r").value == f"[fd00::1]:{port_of('r')}"


def test_ports_are_below_those_of_connections_and_differ() -> None:
    ports = {port_of(f"rdzv-{job}") for job in range(3000)}
    assert all(20_000 <= port < 30_000 for port in ports)
    assert len(ports) > 2500
    # Every version reckons alike, or the nodes of a job with two would not meet.
    assert port_of("rdzv-1") == 23713
    # A run id may be any bytes, as they are in variables.
    assert port_of("größe") == port_of("größe".encode().decode("ascii", "surrogateescape"))


def test_all_hosts_are_expected() -> None:
    hosts = launch(STEP | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]"}).hosts()
    assert hosts is not None
    assert hosts.value == ("n1", "n2")
    assert launch({}).hosts() is None


def test_hosts_that_are_not_those_of_the_nodes_are_not_taken() -> None:
    """mpirun may start fewer nodes than the job has, and not the first of them."""
    fewer = launch(RECORDED["mpirun-in-slurm"]["environ"] | {"OMPI_COMM_WORLD_SIZE": "2"})
    assert fewer.hosts() is fewer.first_host() is None
    assert [(one.name, one.reason) for one in fewer.ignored()] == [
        ("SLURM_STEP_NODELIST", "hosts: 3 hosts, and 2 nodes")
    ]


@pytest.mark.parametrize("package", ["rdzv-c10d", "torch"])
def test_without_what_hosts_a_store_the_error_has_three_ways_out(
    package: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdzv_cli.launch._missing", lambda: package)
    with pytest.raises(RendezvousParameterError, match=f"no service is named, and {package} is not installed") as error:
        launch(STEP).endpoint("rdzv-1")
    for way in ("--backend and --endpoint", "install torch and rdzv-c10d", "--endpoint n1:29400", "--nnodes 1"):
        assert way in str(error.value)


def test_where_no_host_is_known_no_file_takes_its_place(install: Install) -> None:
    with_c10d(install)
    with pytest.raises(RendezvousParameterError, match="no host is known to all of them: a file of this machine"):
        launch(RECORDED["indexed-job"]["environ"]).endpoint("train")


def test_the_first_host_of_one_srun_is_not_that_of_another(install: Install) -> None:
    """As where a script starts one srun for each node: each has a first host of its own."""
    with_c10d(install)
    one = launch(ALONE)
    assert one.endpoint("r", 1).value.startswith("n3:")
    with pytest.raises(RendezvousParameterError, match="no host is known to all of them"):
        one.endpoint("r", 2)


# The end of the job.


@pytest.mark.parametrize(
    ("left", "takes", "begins"),
    [(3600, 100, 3480), (120, 100, 0), (60, 40, 0), (5, 1, 0), (0, 100, math.inf), (-9, 100, math.inf)],
)
def test_a_drain_begins_in_time_for_the_end_of_the_job(left: float, takes: float, begins: float) -> None:
    """An end that is over is of another clock, or another attempt."""
    ends = launch(STEP | {"SLURM_JOB_END_TIME": "1795694400"})
    assert ends.drain(1795694400 - left) == (takes, begins)


def test_where_no_end_is_known_signals_alone_begin_a_drain() -> None:
    assert launch(STEP).drain(0) == (100, math.inf)


# The command.


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What `rdzv run` would take part with: parameters, and the words of the first line."""
    seen: list[Any] = []

    def take_part(params: Any, public: Any, command: Any, options: Any, checks: Any, restarts: Any, taking: Any) -> Any:
        seen.append((params, options, taking.in_words))
        return AgentResult(ExitStatus.DONE, "")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rdzv_cli.run._take_part", take_part)
    for name in ("RDZV_RUN_ID", "RDZV_NNODES", "RDZV_ENDPOINT", "RDZV_BACKEND", "RDZV_OPTIONS", "RDZV_TOLD"):
        monkeypatch.delenv(name, raising=False)
    return seen


def surround(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    """Be where a platform has started this process."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def test_a_run_needs_no_flag(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    surround(monkeypatch, ALONE | {"SLURM_RESTART_COUNT": "1"})
    assert main(["run", "--", "true"]) == 0
    ((params, options, words),) = taken
    assert (params.run_id, params.min_nodes, params.max_nodes) == ("rdzv-1", 1, 1)
    assert params.config == {"attempt": 1, "node_name": "n3"}
    assert options.nproc_per_node == 1
    assert words == (
        "; Slurm: run id from SLURM_CLUSTER_NAME, SLURM_JOB_ID, nnodes from SLURM_STEP_NUM_NODES, attempt from "
        "SLURM_RESTART_COUNT, node name from SLURMD_NODENAME"
    )


def test_a_flag_comes_before_a_variable_of_rdzv_and_that_before_the_platform(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {
        "RDZV_RUN_ID": "ours",
        "RDZV_NNODES": "1:2",
        "RDZV_OPTIONS": "attempt=7,node_name=ours",
        "RDZV_BACKEND": "sqlite",
    }
    surround(monkeypatch, ALONE | {"SLURM_RESTART_COUNT": "1"} | ours)
    assert main(["run", "--", "true"]) == 0
    assert main(["run", "--run-id", "flag", "--attempt", "9", "--option", "node_name=flag", "--", "true"]) == 0
    first, second = (params for params, _, _ in taken)
    assert (first.run_id, first.max_nodes, first.config) == ("ours", 2, {"attempt": "7", "node_name": "ours"})
    assert (second.run_id, second.config) == ("flag", {"attempt": 9, "node_name": "flag"})
    assert [words for _, _, words in taken] == ["", ""]


def test_what_a_flag_gives_is_not_said_to_be_the_platforms(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    surround(monkeypatch, ALONE | {"SLURM_RESTART_COUNT": "1"})
    assert main(["run", "--attempt", "9", "--", "true"]) == 0
    ((params, _, words),) = taken
    assert params.config["attempt"] == 9
    assert "attempt" not in words


def test_drain_auto_takes_the_end_of_the_job(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1795694400 - 70.0)
    surround(monkeypatch, ALONE | {"SLURM_JOB_END_TIME": "1795694400"})
    assert main(["run", "--drain", "auto", "--", "true"]) == 0
    assert main(["run", "--drain", "30", "--", "true"]) == 0
    assert [options.drain for _, options, _ in taken] == [50, 30]
    assert ["drain from SLURM_JOB_END_TIME" in words for _, _, words in taken] == [True, False]


def test_the_processes_that_a_platform_tells_are_started(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"PET_NNODES": "1", "PET_RDZV_ID": "mine", "PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "4"}
    surround(monkeypatch, variables)
    assert main(["run", "--", "true"]) == 0
    assert main(["run", "--nproc-per-node", "2", "--", "true"]) == 0
    assert [options.nproc_per_node for _, options, _ in taken] == [3, 2]
    assert [options.max_restarts for _, options, _ in taken] == [4, 4]


def test_processes_that_are_no_number_are_refused(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    surround(monkeypatch, {"PET_NNODES": "1", "PET_RDZV_ID": "mine", "PET_NPROC_PER_NODE": "many"})
    assert main(["run", "--", "true"]) == 2
    assert "PET_NPROC_PER_NODE: 'many' is neither a number" in capsys.readouterr().err
    surround(monkeypatch, {"PET_NPROC_PER_NODE": "1", "PET_MAX_RESTARTS": "-1"})
    assert main(["run", "--", "true"]) == 2
    assert "PET_MAX_RESTARTS: '-1' is no whole number" in capsys.readouterr().err


def test_a_second_task_of_a_node_is_refused_where_the_platform_tells_only_its_place() -> None:
    """Three tasks on two nodes: no platform's numbers tell how many are here."""
    uneven = RECORDED["flux"]["environ"] | {"FLUX_JOB_NNODES": "2", "FLUX_JOB_SIZE": "3"}
    launch(uneven | {"FLUX_TASK_LOCAL_ID": "0"}).check(None)
    with pytest.raises(RendezvousParameterError, match=r"2 or more tasks on this node \(FLUX_TASK_LOCAL_ID\)"):
        launch(uneven | {"FLUX_TASK_LOCAL_ID": "1"}).check(None)


@pytest.mark.parametrize(
    ("name", "more", "tasks"),
    [
        ("slurm-tasks", {}, 2),
        ("open-mpi-5", {}, 2),
        ("mpich", {}, 2),
        ("torchrun", {}, 2),
        ("flux", {"FLUX_JOB_SIZE": "4"}, 2),
    ],
)
def test_several_tasks_on_one_node_are_refused(
    name: str,
    more: dict[str, str],
    tasks: int,
    taken: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    surround(monkeypatch, RECORDED[name]["environ"] | more)
    command = ["run", "--run-id", "r", "--nnodes", "4", "--backend", "sqlite"]
    assert main([*command, "--", "true"]) == 2
    said = capsys.readouterr().err
    assert f"has started {tasks} tasks on this node" in said
    assert f"--nproc-per-node {tasks}" in said
    assert not taken
    assert main([*command, "--platform", "none", "--", "true"]) == 0
    monkeypatch.setenv("RDZV_PLATFORM", "none")
    assert main([*command, "--", "true"]) == 0


def test_a_script_that_is_on_one_of_several_nodes_is_refused(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    surround(monkeypatch, RECORDED["slurm-script"]["environ"])
    assert main(["run", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "The job has 3 nodes (SLURM_JOB_NUM_NODES), and this is Slurm (no srun), on one of them alone:" in said
    assert "put srun in front" in said
    # For this one alone, or where others are started by hand.
    assert main(["run", "--nnodes", "1", "--", "true"]) == 0
    assert taken[0][0].run_id == "rdzv-1"


def test_a_terminal_has_no_run_of_its_own(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second command there would be told that its job is done."""
    surround(monkeypatch, RECORDED["slurm-pty"]["environ"])
    assert main(["run", "--", "true"]) == 2
    needed = "--run-id (or RDZV_RUN_ID), --nnodes (or RDZV_NNODES)"
    ways = f"{needed}; or put srun in front, which starts it on every node; or, for this machine alone, --standalone."
    assert f"Slurm (terminal) does not tell what is needed: give {ways}" in capsys.readouterr().err
    # Several agents of one machine meet in a file, as everywhere.
    assert main(["run", "--run-id", "r", "--nnodes", "2", "--", "true"]) == 0
    assert taken[0][0].backend == "sqlite"


def test_what_cannot_be_read_is_said_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    surround(monkeypatch, STEP | {"SLURM_STEP_NUM_NODES": "many"})
    assert main(["run", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "Slurm does not tell what is needed (SLURM_STEP_NUM_NODES: nodes: no whole number): give --nnodes" in said
    with pytest.raises(RendezvousParameterError, match=r"known to all of them \(SLURM_STEP_NODELIST: hosts: no list"):
        launch(STEP | {"SLURM_STEP_NODELIST": "n[1-"}).endpoint("r")
    assert launch(STEP | {"SLURM_NODEID": "x"}).found.unread(Fact.JOB, Fact.NODES, Fact.HOSTS) == ""
    both = launch(STEP | RECORDED["open-mpi-4"]["environ"]).found
    assert any(one.reason.startswith("local rank: ") for one in both.ignored)
    assert both.unread(Fact.LOCAL_RANK) == ""


@pytest.mark.parametrize("name", ["pbs-terminal", "lsf-terminal"])
def test_a_terminal_of_another_scheduler_has_none_either(name: str) -> None:
    environ = RECORDED[name]["environ"]
    assert "run_id" not in given(environ)
    # What mpirun starts there is a run of its own.
    assert given(environ | RECORDED["open-mpi-5"]["environ"])["run_id"] == "prterun-host1-22038@1"


def test_several_nodes_meet_at_the_first_host(
    taken: list[Any], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_c10d(install)
    surround(monkeypatch, STEP)
    taking = Taking.of(_arguments(), STEP)
    taking.host(3, 3)
    assert (taking.arguments.backend, taking.arguments.endpoint) == ("c10d", f"n1:{port_of('rdzv-1')}")
    assert "endpoint from SLURM_STEP_NODELIST" in taking.in_words


@pytest.mark.parametrize("where", ["slurm-script", "slurm-step"])
def test_the_other_commands_are_about_the_run_of_their_job(
    where: str, taken: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Inspector:
        def __init__(self, params: Any) -> None:
            asked.append((params.backend, params.endpoint, params.run_id))
            raise RendezvousParameterError("enough")

    monkeypatch.setattr("rdzv_cli.status.RunInspector", Inspector)
    monkeypatch.setattr("rdzv_cli.drain.RunInspector", Inspector)
    surround(monkeypatch, RECORDED[where]["environ"])
    assert main(["status", "--endpoint", "f", "--backend", "sqlite"]) == 2
    assert main(["drain", "--node", "n", "--endpoint", "f", "--backend", "sqlite"]) == 2
    assert asked == [("sqlite", "f", "rdzv-1")] * 2


def test_a_command_in_no_job_needs_a_run_id(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["status"])
    assert "required: --run-id" in capsys.readouterr().err
    surround(monkeypatch, STEP | {"RDZV_PLATFORM": "none"})
    with pytest.raises(SystemExit):
        main(["status"])


@pytest.mark.parametrize("more", [["--backend", "sqlite"], ["--endpoint", "f"], ["--nnodes", "1"]])
def test_a_service_that_is_named_is_taken(more: list[str], taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    surround(monkeypatch, STEP)
    assert main(["run", *more, "--", "true"]) == 0
    assert taken[0][0].backend == "sqlite"


def test_several_nodes_never_meet_in_a_file_that_was_not_named(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rdzv_cli.launch._missing", lambda: "torch")
    surround(monkeypatch, STEP)
    assert main(["run", "--", "true"]) == 2
    assert "no service is named, and torch is not installed" in capsys.readouterr().err
    assert not taken


def test_an_agent_in_a_run_is_not_what_the_platform_has_started(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    surround(monkeypatch, ALONE | {"RDZV_TOLD": "run=0123456789abcdef"})
    with pytest.raises(SystemExit):
        main(["run", "--", "true"])
    assert "required: --run-id (or RDZV_RUN_ID), --nnodes (or RDZV_NNODES)" in capsys.readouterr().err


def test_a_row_of_a_site_that_is_broken_is_named(
    taken: list[Any], install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("our-site", "ROW = 7", {"rdzv.platforms": "ours = our_site:ROW"})
    assert main(["run", "--run-id", "r", "--nnodes", "1", "--", "true"]) == 7
    assert "The plugin 'ours' of the package 'our-site' is broken" in capsys.readouterr().err


def test_a_row_of_a_site_is_taken_first(taken: list[Any], install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    row = """
from rdzv_cli.platforms import Fact, Platform, of
ROW = Platform(name="ours", tells={"OUR_JOB": ".+"}, facts={Fact.JOB: (of("OUR_JOB"),)}, seen="here")
"""
    install("our-site", row, {"rdzv.platforms": "ours = our_site:ROW"})
    surround(monkeypatch, ALONE | {"OUR_JOB": "j"})
    assert main(["run", "--", "true"]) == 0
    assert taken[0][0].run_id == "j"
    assert taken[0][2].startswith("; ours in Slurm: run id from OUR_JOB, nnodes from SLURM_STEP_NUM_NODES")


def _arguments() -> Any:
    return make_parser().parse_args(["run", "--", "true"])


def test_an_array_of_unknown_size_needs_its_number_of_nodes() -> None:
    """LSF tells the elements of an array no more than their own number."""
    assert given(RECORDED["lsf-array"]["environ"], "job") == {"run_id": "2207"}


def test_the_nodes_that_a_user_has_named_are_those_of_the_whole_array() -> None:
    assert given(ARRAY | {"PET_NNODES": "2:4"}, "job")["nnodes"] == "2:4"


def test_a_machine_alone_needs_no_run_id(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    surround(monkeypatch, {"PET_RDZV_BACKEND": "etcd-v3", "PET_NPROC_PER_NODE": "2"})
    for _ in range(2):
        assert main(["run", "--standalone", "--nnodes=1:1", "--", "true"]) == 0
    (first, options, _), (second, _, _) = taken
    assert (first.max_nodes, first.backend, options.nproc_per_node) == (1, "sqlite", 2)
    assert first.run_id.startswith("standalone-")
    assert first.run_id != second.run_id
    assert main(["run", "--standalone", "--run-id", "mine", "--", "true"]) == 0
    assert taken[2][0].run_id == "mine"


def test_a_machine_alone_is_one_in_a_job_of_several(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    surround(monkeypatch, RECORDED["slurm-script"]["environ"])
    assert main(["run", "--standalone", "--", "true"]) == 0
    assert taken[0][0].max_nodes == 1
    assert taken[0][0].run_id.startswith("standalone-")


def test_several_machines_are_none_alone(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--standalone", "--nnodes", "2", "--", "true"]) == 2
    assert (
        "--standalone is a run of this machine alone, and --nnodes (or RDZV_NNODES) is '2'" in capsys.readouterr().err
    )
    monkeypatch.setenv("RDZV_NNODES", "1:2")
    assert main(["run", "--standalone", "--", "true"]) == 2
    assert not taken


def test_a_flag_comes_before_its_variable_and_that_before_the_platform(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    surround(monkeypatch, ALONE | {"SLURM_RESTART_COUNT": "1", "PET_NPROC_PER_NODE": "3"})
    surround(
        monkeypatch, {"RDZV_NPROC_PER_NODE": "2", "RDZV_ATTEMPT": "7", "RDZV_KEEP_DETACHED": "0", "RDZV_GRACE": ""}
    )
    assert main(["run", "--", "true"]) == 0
    assert main(["run", "--attempt", "8", "--nproc-per-node", "4", "--", "true"]) == 0
    by_variable, by_flag = ((options.attempt, options.nproc_per_node) for _, options, _ in taken)
    assert (by_variable, by_flag) == ((7, 2), (8, 4))
    assert (taken[0][1].grace, taken[0][1].keep_detached) == (10.0, False)


def test_variables_of_torchrun_are_no_launcher() -> None:
    """So a further step of Slurm's stays a run of its own, and a script on one node gets Slurm's advice."""
    assert given(STEP | {"SLURM_STEP_ID": "1", "PET_NPROC_PER_NODE": "2"})["run_id"] == "rdzv-1.1"
    script = RECORDED["slurm-script"]["environ"] | {"PET_RDZV_ID": "mine"}
    with pytest.raises(RendezvousParameterError, match="put srun in front"):
        launch(script).check(None)


def test_a_first_host_that_is_named_is_none_of_an_array_and_none_of_hosts_that_are_not_all_there() -> None:
    named = {"PET_NODE_RANK": "0", "PET_MASTER_ADDR": "n9"}
    host = launch(named).first_host()
    assert host is not None
    assert host.value == "n9"
    array = {name: value for name, value in ARRAY.items() if not name.endswith("NODELIST")}
    for other in (launch(array | named, "job"), launch(STEP | named | {"SLURM_STEP_NUM_NODES": "2"})):
        assert other.found.get(Fact.FIRST_HOST) == "n9"
        assert other.first_host() is None


def test_the_first_host_is_known_with_the_nodes_or_without() -> None:
    step = {name: value for name, value in STEP.items() if name != "SLURM_STEP_NUM_NODES"}
    for environ, first in ((step, "n1"), (RECORDED["aws-batch"]["environ"], None)):
        host = launch(environ).first_host()
        assert host is not None
        assert first in (None, host.value)
    assert list(launch(STEP).ignored()) == []


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_script_is_refused_that_is_on_one_node_of_more(nodes: str) -> None:
    script = RECORDED["slurm-script"]["environ"] | {"SLURM_JOB_NUM_NODES": nodes}
    if nodes == "1":
        launch(script).check(None)
    else:
        with pytest.raises(RendezvousParameterError, match=f"The job has {nodes} nodes"):
            launch(script).check(None)
    # What mpirun has started there is on every node.
    launch(script | RECORDED["open-mpi-4"]["environ"]).check(None)


def test_a_store_at_the_first_host_needs_a_backend_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdzv_cli.launch.installed_backends", lambda: {"c10d": None})
    monkeypatch.setattr("rdzv_cli.launch.find_spec", lambda name: None)
    with pytest.raises(RendezvousParameterError, match="and torch is not installed"):
        launch(STEP).endpoint("r")
    monkeypatch.setattr("rdzv_cli.launch.find_spec", lambda name: name)
    assert launch(STEP).endpoint("r").value == f"n1:{port_of('r')}"
    monkeypatch.setattr("rdzv_cli.launch.installed_backends", dict)
    with pytest.raises(RendezvousParameterError, match="and rdzv-c10d is not installed"):
        launch(STEP).endpoint("r")


def test_an_array_whose_nodes_torchruns_variables_say_has_so_many() -> None:
    lsf = RECORDED["lsf-array"]["environ"]
    assert given(lsf | {"PET_NNODES": "2:4"}, "job")["nnodes"] == "2:4"
