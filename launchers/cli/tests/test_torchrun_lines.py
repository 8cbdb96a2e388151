"""Lines that were written for torchrun: what they mean here, and what they run without."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rdzv_core.errors import RendezvousParameterError

from rdzv_cli.command import main, make_parser
from rdzv_cli.run import _command
from rdzv_cli.taking import Taking

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a program."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import os, sys; print(os.environ['ROLE_NAME'], *sys.argv[1:])")


def parsed(line: str) -> argparse.Namespace:
    """A line, whose words stand between single blanks."""
    return make_parser().parse_args(["run", *line.split()])


def taken(line: str, **environ: str) -> Any:
    """What becomes of a line."""
    return Taking.of(parsed(line), environ).arguments


def command(line: str) -> list[str]:
    return _command(parsed(line))


PYTHON = [sys.executable, "-u"]


@pytest.mark.parametrize(
    ("line", "started"),
    [
        ("train.py --lr 1 --nnodes 3 -v", [*PYTHON, "train.py", "--lr", "1", "--nnodes", "3", "-v"]),
        # What is the program's own stays to the letter.
        ("train.py --n --a=1 -lr 1 -task -r", [*PYTHON, "train.py", "--n", "--a=1", "-lr", "1", "-task", "-r"]),
        ("--nproc_per_node 2 train.py --max_restarts=1", [*PYTHON, "train.py", "--max_restarts=1"]),
        ("-m package.train -- --depth=2", [*PYTHON, "-m", "package.train", "--depth=2"]),
        ("--module package.train a -- b", [*PYTHON, "-m", "package.train", "a", "--", "b"]),
        ("train.py -- -- a", [*PYTHON, "train.py", "--", "a"]),
        ("--no_python echo --nnodes", ["echo", "--nnodes"]),
        ("--no-python -- echo a", ["echo", "a"]),
        ("--run_path train.py a", [*PYTHON, "train.py", "a"]),
        ("-- train.py a", ["train.py", "a"]),
        ("-- echo -m -- --no-python", ["echo", "-m", "--", "--no-python"]),
        ("-m -- package.train a", [*PYTHON, "-m", "package.train", "a"]),
    ],
)
def test_what_stands_behind_a_separator_is_any_program_and_all_else_is_torchruns(line: str, started: list[str]) -> None:
    assert command(line) == started


def test_the_python_that_torchrun_would_take_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert command("train.py") == ["/opt/python", "-u", "train.py"]
    assert command("-- echo") == ["echo"]


def test_a_module_is_for_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-m", "--no-python", "train"]) == 2
    assert "--module is for Python, and --no-python for any other program: leave one out." in capsys.readouterr().err


def test_a_file_for_python_behind_a_separator_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--standalone", "--", "./train.py"]) == 1
    assert capsys.readouterr().err.endswith("or it is not executable; for Python leave out --\n")


def test_a_line_without_nodes_is_of_this_machine_alone_each_time() -> None:
    first, second = (taken("train.py") for _ in range(2))
    assert (first.nnodes, first.backend, first.endpoint) == ("1", None, None)
    assert first.run_id.startswith("standalone-")
    assert first.run_id != second.run_id
    # As many words as rdzv's own lines need, it does not take.
    with pytest.raises(SystemExit):
        taken("-- train.py")


@pytest.mark.parametrize(
    "line",
    [
        "--rdzv-backend=c10d --rdzv-endpoint=localhost:0",
        "--nnodes=1 --rdzv_backend c10d --rdzv_endpoint localhost:0",
        "--nnodes=1:1 --rdzv-backend=c10d",
        "--standalone --rdzv-backend=c10d --rdzv-endpoint=host:29400",
    ],
)
def test_a_store_that_no_other_node_finds_is_this_machine_alone(line: str) -> None:
    mine = taken(f"{line} --rdzv-id=55 train.py")
    assert (mine.standalone, mine.nnodes[:1], mine.backend, mine.endpoint) == (True, "1", None, None)
    # torchrun's store of the next run of that name knows nothing of this one.
    assert mine.run_id.startswith("55-")


def test_a_run_that_is_named_on_a_service_keeps_its_name() -> None:
    for service in ("etcd-v3", "c10d"):
        mine = taken(f"--nnodes=1 --rdzv-backend={service} --rdzv-endpoint=h:1 --rdzv-id=55 train.py")
        assert (mine.run_id, mine.backend, mine.endpoint, mine.standalone) == ("55", service, "h:1", None)
    assert taken("--nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=h:1 train.py").run_id.startswith("standalone-")


@pytest.mark.parametrize(
    ("line", "backend", "endpoint"),
    [
        ("--rdzv-backend=c10d --rdzv-endpoint=h:1", "c10d", "h:1"),
        ("--rdzv-backend=rdzv-c10d --rdzv-endpoint=h:1", "c10d", "h:1"),
        ("--rdzv-backend=etcd --rdzv-endpoint=h:1 --rdzv-id=x", "etcd-v2", "h:1"),
        ("--rdzv-backend=etcd-v2 --rdzv-endpoint=h:1 --rdzv-id=x", "etcd-v2", "h:1"),
        ("--rdzv-backend=rdzv --rdzv-conf=plugin=sqlite --rdzv-endpoint=f --rdzv-id=x", "sqlite", "f"),
        ("--rdzv-backend=static --rdzv-endpoint=h:1", "c10d", "h:1"),
        ("--rdzv-endpoint=h:1", "c10d", "h:1"),
        ("--rdzv-endpoint=h:1 --backend=sqlite --rdzv-id=x", "sqlite", "h:1"),
        ("--master_addr=h --node_rank=1", "c10d", "h:29500"),
        ("--master_addr=h --master_port=7", "c10d", "h:7"),
        ("--master_addr=fd00::1 --master_port=7 --rdzv_backend=static", "c10d", "[fd00::1]:7"),
        ("--master_addr=g --rdzv_backend=c10d --rdzv_endpoint=h:1", "c10d", "h:1"),
    ],
)
def test_several_nodes_meet_where_the_line_says(line: str, backend: str, endpoint: str) -> None:
    mine = taken(f"--nnodes=2 {line} train.py")
    assert (mine.backend, mine.endpoint, mine.standalone) == (backend, endpoint, None)
    # A store that begins with the run knows no earlier one: torchrun's own id does.
    assert mine.run_id == ("x" if "rdzv-id" in line else "none")


def test_a_run_id_is_needed_where_the_store_outlives_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        taken("--nnodes=2 --rdzv-backend=etcd-v3 --rdzv-endpoint=h:1 train.py")
    assert "the following arguments are required: --run-id" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("--nnodes=1 --master_port=7", "7"),
        ("--master_addr=localhost --master_port=7", "7"),
        ("--nnodes=2 --master_addr=h --master_port=7", None),
        ("--nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=h:7 --master_port=7", None),
        ("--nnodes=2 --backend=sqlite --endpoint=f --run-id=x --master-port=7", "7"),
    ],
)
def test_a_master_port_is_that_of_the_world_unless_the_store_has_it(line: str, port: str | None) -> None:
    assert taken(f"{line} train.py").master_port == port


def test_a_variable_of_rdzvs_comes_before_what_torchrun_would_take_unasked() -> None:
    environ = {"RDZV_BACKEND": "etcd-v3", "RDZV_ENDPOINT": "e:1", "RDZV_RUN_ID": "x"}
    mine = taken("--nnodes=2 --master_addr=h train.py", **environ)
    assert (mine.backend, mine.endpoint, mine.run_id) == ("etcd-v3", "e:1", "x")
    mine = taken("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-id=y train.py", **environ)
    assert (mine.backend, mine.endpoint, mine.run_id) == ("c10d", "h:1", "y")


def test_under_a_scheduler_its_nodes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = taken("train.py", **SLURM)
    assert (mine.nnodes, mine.run_id, mine.standalone) == ("2", "7", None)
    # torchrun would be one node where a script has not been started on all.
    script = {name: value for name, value in SLURM.items() if "STEP" not in name} | {"SLURM_JOB_NUM_NODES": "2"}
    mine = taken("train.py", **script)
    assert (mine.nnodes, mine.standalone) == ("1", True)
    assert taken("train.py", PET_NNODES="2", PET_RDZV_ID="x").nnodes == "2"


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (
            "--rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-conf=is_host=1,attempt=2",
            ["is_host=1", "attempt=2"],
        ),
        ("--rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-conf=timeout=9,a=b", ["join_timeout=9"]),
        ("--rdzv-backend=etcd --rdzv-endpoint=h:1 --rdzv-conf=cacert=f,cert=g", ["ca_cert=f", "ssl_cert=g"]),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-conf=attempt=1 --option attempt=2",
            ["attempt=1", "attempt=2"],
        ),
        ("--rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-conf=", []),
    ],
)
def test_what_an_item_of_its_configuration_means_is_an_option(line: str, options: list[str]) -> None:
    assert taken(f"--nnodes=2 --rdzv-id=x {line} train.py").option == options


@pytest.mark.parametrize("conf", ["a", "=b", "a=1,b", "a="])
def test_a_configuration_that_torchrun_refuses_is_refused(conf: str) -> None:
    with pytest.raises(RendezvousParameterError, match="--rdzv-conf takes NAME=VALUE,NAME=VALUE; "):
        taken(f"--rdzv-conf={conf} train.py")


def test_what_is_said_twice_is_refused() -> None:
    for twice in ("--rdzv-backend=c10d --backend=sqlite", "--rdzv-id=a --run-id=b", "--rdzv-endpoint=a:1 --endpoint=b"):
        with pytest.raises(RendezvousParameterError, match=r"--rdzv-\w+ is --.*, which is given, too: leave one out"):
            taken(f"--nnodes=2 {twice} train.py")


def test_what_a_line_runs_without_is_said_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    line = "--node_rank=0 --master_addr=a --start-method=fork --monitor_interval 5 --rdzv-conf=a=b --virtual-local-rank"
    taken(f"{line} train.py")
    (said,) = caplog.messages
    for reason in (
        "--node-rank (each world gives its nodes their ranks)",
        "--start-method (each process is a program of its own)",
        "--monitor-interval (an agent knows at once when a process ends)",
        "--virtual-local-rank (each process has its own LOCAL_RANK)",
        "--master-addr (each world has its own MASTER_ADDR)",
        "a of --rdzv-conf (no option here)",
    ):
        assert reason in said
    caplog.clear()
    taken("--nproc_per_node=2 --standalone --tee 3 --role rank --shutdown-timeout 5 train.py")
    assert caplog.messages == []


def test_what_only_has_another_name_is_taken() -> None:
    mine = taken("--shutdown_timeout=5 --log-line-prefix-template=x train.py")
    assert (mine.grace, mine.prefix) == (5.0, "x")


def test_a_role_is_what_programs_learn(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"--endpoint={os.getcwd()}/db", "--role", "trainer", "train.py", "--a", "b"]) == 0
    assert capfd.readouterr().out == "trainer --a b\n"
