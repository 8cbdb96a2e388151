"""What each platform tells, by environments that were recorded; and the traps in them."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from rdzv_cli.platforms import PLATFORMS, SET, Fact, Found, Platform, detect, of

RECORDED: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("platforms.toml").read_text())
STEP: Final[dict[str, str]] = RECORDED["slurm-step"]["environ"]
OPEN_MPI: Final[dict[str, str]] = RECORDED["mpirun-in-slurm"]["environ"]


def found(environ: Mapping[str, str], files: Mapping[str, str] | None = None) -> Found:
    """What an environment tells, with files that are not here."""

    def read(path: str) -> str:
        if path not in (files or {}):
            raise FileNotFoundError(f"there is no {path}")
        return (files or {})[path]

    return detect(environ, PLATFORMS, read)


def why(tells: Found, name: str) -> str:
    """The reason for which a variable is ignored."""
    return next(one.reason for one in tells.ignored if one.name == name)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_environment_tells_this(name: str) -> None:
    one = RECORDED[name]
    tells = found(one["environ"], one.get("files"))
    assert [platform.name for platform in tells.platforms] == one["platforms"]
    told = {fact.value: taken.value for fact, taken in tells.facts.items()}
    assert {fact: list(value) if isinstance(value, tuple) else value for fact, value in told.items()} == one["facts"]


def test_every_platform_was_recorded_and_says_when_and_where_it_was_read() -> None:
    recorded = {name for one in RECORDED.values() for name in one["platforms"]}
    assert {platform.name for platform in PLATFORMS} == recorded
    assert len(recorded) >= 18
    for seen in [*(platform.seen for platform in PLATFORMS), *(one["recorded"] for one in RECORDED.values())]:
        assert "2026-11-2" in seen or "the two together" in seen, seen


def test_nothing_is_there_where_nothing_launches() -> None:
    assert found({"HOME": "/", "HOSTNAME": "laptop-1", "RANK": "0"}) == Found()
    # What is set to nothing is not set.
    assert found(dict.fromkeys(STEP, "")) == Found()


# The traps, in the order of the list of those that others fell into.


def test_the_list_of_hosts_is_expanded() -> None:
    tells = found(STEP | {"SLURM_STEP_NODELIST": "n[001-003,7],gpu-[1-2]-ib"})
    assert tells.get(Fact.HOSTS) == ("n001", "n002", "n003", "n7", "gpu-1-ib", "gpu-2-ib")


def test_a_first_start_has_no_attempt() -> None:
    assert found(STEP).get(Fact.ATTEMPT) is None
    assert found(STEP | {"SLURM_RESTART_COUNT": "3"}).get(Fact.ATTEMPT) == 3


def test_all_components_of_a_heterogeneous_job_have_one_id() -> None:
    het = RECORDED["slurm-het"]["environ"]
    ids = {found(het | {"SLURM_JOB_ID": component}).get(Fact.JOB) for component in ("5", "6")}
    assert ids == {"5"}


def test_the_address_of_the_one_who_called_srun_is_not_the_first_host() -> None:
    tells = found(STEP | {"SLURM_LAUNCH_NODE_IPADDR": "10.1.1.1"})
    assert "10.1.1.1" not in str(tells.facts)
    assert "login node" in why(tells, "SLURM_LAUNCH_NODE_IPADDR")


def test_no_host_is_known_by_the_address_or_the_name_that_this_machine_gives_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("gethostname", "gethostbyname", "getaddrinfo", "getfqdn"):
        monkeypatch.setattr(f"socket.{name}", None)
    # HOSTNAME comes with the environment from the machine of sbatch.
    assert STEP["HOSTNAME"] == "n1"
    assert found(STEP).get(Fact.NODE_NAME) == "n3"


def test_the_tasks_of_this_node_are_counted() -> None:
    tasks = [
        found(STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": str(node)}).get(Fact.TASKS)
        for node in range(5)
    ]
    assert tasks == [2, 2, 2, 1, None]


def test_the_elements_of_an_array_have_ids_of_their_own_and_one_in_common() -> None:
    array = RECORDED["slurm-array"]["environ"]
    one, other = (found(array | {"SLURM_ARRAY_TASK_ID": task, "SLURM_JOB_ID": f"9{task}"}) for task in "01")
    assert (one.get(Fact.JOB), other.get(Fact.JOB)) == ("3_0", "3_1")
    assert one.get(Fact.ARRAY) == other.get(Fact.ARRAY) == "3"
    assert found(RECORDED["lsf"]["environ"]).get(Fact.ARRAY) is None


def test_open_mpi_is_there_with_the_uri_of_4_and_without() -> None:
    names = [found(RECORDED[name]["environ"]).names for name in ("open-mpi-5", "open-mpi-4")]
    assert names == ["Open MPI 5", "Open MPI 4"]


def test_rows_without_a_family_do_not_take_each_others_place() -> None:
    both = found(RECORDED["flux"]["environ"] | RECORDED["mpich"]["environ"])
    assert both.names == "MPICH or Intel MPI in Flux"


def test_the_main_node_of_aws_batch_gets_no_address_and_is_the_first_host_itself() -> None:
    batch = RECORDED["aws-batch"]["environ"] | {"AWS_BATCH_JOB_NODE_INDEX": "0"}
    del batch["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"]
    tells = found(batch)
    assert (tells.get(Fact.FIRST_HOST), tells.get(Fact.NODE_RANK)) == (os.uname().nodename, 0)
    # Another one without the address does not know it.
    assert found(batch | {"AWS_BATCH_JOB_NODE_INDEX": "2"}).get(Fact.FIRST_HOST) is None


def test_aws_batch_counts_attempts_from_1() -> None:
    batch = RECORDED["aws-batch"]["environ"]
    assert found(batch | {"AWS_BATCH_JOB_ATTEMPT": "1"}).get(Fact.ATTEMPT) == 0


def test_what_plugins_of_slurm_set_is_no_other_scheduler() -> None:
    pals = {"PALS_APID": "1.0", "PALS_RANKID": "2", "PALS_NODEID": "9", "PMI_RANK": "2", "PMI_SIZE": "3"}
    tells = found(STEP | pals | {"PBS_JOBID": "1", "PBS_NODENUM": "7", "PBS_TASKNUM": "2"})
    assert (tells.names, tells.get(Fact.NODE_RANK), tells.get(Fact.TASKS)) == ("Slurm", 2, 1)
    assert "spank_pbs" in why(tells, "PBS_JOBID")
    assert "cray_shasta" in why(tells, "PALS_APID")


def test_of_mpirun_in_a_job_the_inner_knows_the_place_and_the_outer_the_job() -> None:
    tells = found(OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})
    of_place = [tells.get(fact) for fact in (Fact.NODES, Fact.NODE_RANK, Fact.TASKS)]
    of_job = [tells.get(fact) for fact in (Fact.JOB, Fact.ATTEMPT, Fact.HOSTS)]
    assert of_place == [2, 0, 1]
    assert of_job == ["1", 2, ("n1", "n2", "n3")]
    assert why(tells, "PMIX_NAMESPACE") == "job: SLURM_JOB_ID comes before it"


@pytest.mark.parametrize("shell", ["slurm-script", "pbs-script", "lsf"])
def test_mpirun_launches_in_a_script_that_is_on_one_node_alone(shell: str) -> None:
    script = RECORDED[shell]
    assert not found(script["environ"], script.get("files")).is_launched
    assert found(script["environ"] | RECORDED["mpich"]["environ"], script.get("files")).is_launched


def test_uneven_numbers_of_tasks_make_no_number_of_nodes() -> None:
    """Nor does Slurm's number take its place: mpirun may have been given fewer nodes."""
    tells = found(OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert tells.get(Fact.NODES) is None
    assert "unequal" in why(tells, "OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE")


@pytest.mark.parametrize(
    "more",
    [
        {"SLURM_PTY_PORT": "41235", "SLURM_STEP_NUM_NODES": "1"},
        {"SLURM_STEP_ID": "4294967290"},
        {"SLURM_STEP_ID": "", "SLURM_JOB_NAME": "interactive"},
        {"SLURM_STEP_ID": "", "SLURM_JOB_NAME": "bash"},
    ],
)
def test_a_terminal_is_no_job_of_one_task(more: dict[str, str]) -> None:
    tells = found(STEP | more)
    assert (tells.names, tells.is_launched, tells.get(Fact.JOB)) == ("Slurm (terminal)", False, None)


def test_srun_in_a_terminal_is_a_job() -> None:
    """Also ``srun -N4 bash train.sh``, whose job has the name of a shell."""
    for more in ({"SLURM_JOB_NAME": "interactive"}, {"SLURM_JOB_NAME": "bash"}, {"SLURM_PTY_PORT": "41235"}):
        assert found(STEP | more).is_launched


def test_rank_counts_nodes_where_no_launcher_has_set_it() -> None:
    pai = RECORDED["pai"]["environ"]
    assert found(pai).get(Fact.NODES) == 3
    assert found(pai | {"LOCAL_RANK": "0"}) == Found()


def test_the_topology_of_a_slurm_without_one_is_none() -> None:
    assert found(STEP).get(Fact.GROUP) is None
    assert "names the node alone" in why(found(STEP), "SLURM_TOPOLOGY_ADDR, SLURM_TOPOLOGY_ADDR_PATTERN")
    block = STEP | {"SLURM_TOPOLOGY_ADDR": "b7.n3.example", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}
    assert found(block).get(Fact.GROUP) == "block=b7"


@pytest.mark.parametrize("name", ["OMPI_MCA_num_restarts", "TORCHELASTIC_RESTART_COUNT"])
def test_what_counts_the_restarts_of_one_process_is_no_attempt(name: str) -> None:
    """Its higher attempt would take the run from all others."""
    recorded = RECORDED["torchrun" if name.startswith("TORCH") else "open-mpi-5"]["environ"]
    tells = found(recorded | {name: "4"})
    assert tells.get(Fact.ATTEMPT) is None
    assert why(tells, name)


def test_lists_of_hosts_in_every_spelling() -> None:
    spelled = {name: found(RECORDED[name]["environ"], RECORDED[name].get("files")).get(Fact.HOSTS) for name in RECORDED}
    assert spelled["sagemaker"] == ("algo-1", "algo-2")
    assert spelled["skypilot"] == ("10.0.0.4", "10.0.0.5")
    assert spelled["lsf"] == ("batch5", "h36n03", "h36n04")
    # A line for each slot.
    assert spelled["pbs-task"] == ("node1", "node2")


# What cannot be read.


@pytest.mark.parametrize("text", ["", " ", "-1", "x", "1.5", "\u0661", "9" * 5000, "1\n"])
@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_RESTART_COUNT", "SLURM_JOB_END_TIME"])
def test_what_is_no_number_is_ignored_and_named(name: str, text: str) -> None:
    facts = {"SLURM_STEP_NUM_NODES": Fact.NODES, "SLURM_NODEID": Fact.NODE_RANK, "SLURM_RESTART_COUNT": Fact.ATTEMPT}
    tells = found(STEP | {name: text})
    assert tells.get(facts.get(name, Fact.ENDS)) is None
    assert not text or any(one.name == name for one in tells.ignored)


@pytest.mark.parametrize("text", ["[", "{}", '["a", 1]', "[" * 100_000, "[]", "null"])
def test_json_that_is_no_list_of_hosts_is_ignored(text: str) -> None:
    tells = found(RECORDED["sagemaker"]["environ"] | {"SM_HOSTS": text})
    assert tells.get(Fact.HOSTS) is None
    assert why(tells, "SM_HOSTS").startswith("nodes: ")


@pytest.mark.parametrize("text", ["[]", "{}", '{"cluster": {}, "task": 1}', '{"cluster": {"a": [1]}, "task": {}}'])
def test_a_cluster_that_is_none_is_ignored(text: str) -> None:
    tells = found(RECORDED["vertex-ai"]["environ"] | {"CLUSTER_SPEC": text})
    assert tells.facts.keys() == {Fact.JOB}


def test_a_file_that_cannot_be_read_is_ignored() -> None:
    tells = found(RECORDED["pbs-task"]["environ"])
    assert tells.get(Fact.HOSTS) is None
    assert "there is no /var/spool/pbs" in why(tells, "the file of PBS_NODEFILE")


def test_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("a\nb\n")
    tells = detect(RECORDED["pbs-task"]["environ"] | {"PBS_NODEFILE": str(file)}, PLATFORMS)
    assert (tells.get(Fact.HOSTS), tells.get(Fact.NODES)) == (("a", "b"), 2)


def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(tmp_path: Path) -> None:
    pipe = tmp_path / "nodes"
    os.mkfifo(pipe)
    tells = detect(RECORDED["pbs-task"]["environ"] | {"PBS_NODEFILE": str(pipe)}, PLATFORMS)
    assert why(tells, "the file of PBS_NODEFILE").endswith("is no file")


def test_several_tasks_of_volcano_make_no_run_and_no_list_of_hosts() -> None:
    """Each task would have a run id of its own, and wait for the others for ever."""
    environ = RECORDED["volcano"]["environ"]
    tells = found(environ | {"VC_PS_NUM": "1", "VC_PS_HOSTS": "train-ps-0.train"})
    assert tells.get(Fact.JOB) is tells.get(Fact.NODES) is tells.get(Fact.HOSTS) is None
    assert "VC_WORKER_NUM, VC_PS_NUM: nodes: the job has 2 tasks" in tells.unread(Fact.JOB, Fact.NODES)
    # Without the plugin svc, nothing counts the tasks.
    assert found({name: environ[name] for name in ("HOSTNAME", "VC_TASK_INDEX")}).get(Fact.JOB) == "train-worker"


def test_a_row_of_a_site_comes_first_and_may_be_broken() -> None:
    def broken(given: str) -> str:
        raise KeyError(given)

    site = Platform(
        name="ours",
        tells={"OURS": SET},
        facts={Fact.NODES: (of("OURS", read=broken),), Fact.JOB: (of("OUR_JOB"),)},
        seen="here",
    )
    tells = detect({"OURS": "1", "OUR_JOB": "j", **STEP}, (site, *PLATFORMS))
    assert tells.names == "ours in Slurm"
    # A number of nodes that cannot be read is not replaced by another's; the job is the outermost's.
    assert (tells.get(Fact.NODES), tells.get(Fact.JOB)) == (None, "1")
    assert why(tells, "OURS") == "nodes: KeyError: '1'"


def test_nothing_is_ignored_that_is_not_there_or_that_the_same_platform_says_otherwise() -> None:
    def ignored(environ: Mapping[str, str]) -> set[str]:
        return {each.name for each in found(environ).ignored}

    assert ignored({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}) == set()
    assert "SLURM_JOB_ID" not in ignored(RECORDED["slurm-array"]["environ"])
    pai = {name: value for name, value in RECORDED["pai"]["environ"].items() if name != "NPROC_PER_NODE"}
    assert "PET_NPROC_PER_NODE" not in ignored(pai | {"PET_NPROC_PER_NODE": "4"})
    volcano = RECORDED["volcano"]["environ"]
    empty = {name: "" for name in volcano if name.endswith("_NUM")}
    assert empty
    assert not ignored(volcano | empty) & empty.keys()


def test_why_something_cannot_be_read_is_said_in_words() -> None:
    assert why(found(STEP | {"SLURM_NODEID": "x"}), "SLURM_NODEID") == "node rank: no whole number"
