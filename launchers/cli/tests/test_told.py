"""A program that is an agent itself, or starts one, takes part in no run by what its own agent has told it."""

import subprocess
import sys
from pathlib import Path

import pytest
from rdzv import RendezvousParameters

from rdzv_cli.told import as_told, for_agents, is_own_run

RDZV = (sys.executable, "-m", "rdzv_cli")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RDZV_ENDPOINT", "RDZV_RUN_ID", "RDZV_TOLD"):
        monkeypatch.delenv(name, raising=False)


def outer(*program: str) -> "subprocess.CompletedProcess[str]":
    """A run whose program is what is tested."""
    where = ("--endpoint", "outer.db", "--run-id", "outer", "--nnodes", "1:2", "--option", "last_call_timeout=0.1")
    command = [*RDZV, "run", *where, "--", *program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_agent_in_a_run_does_not_wait_for_that_run() -> None:
    ended = outer(*RDZV, "run", "--nnodes", "1", "--", "echo", "inner")
    assert "The variable RDZV_RUN_ID is that of the run of which this process is a program" in ended.stderr
    assert "exit code 2, after 0 restarts" in ended.stderr
    assert "inner" not in ended.stdout


def test_an_agent_in_a_run_does_not_take_part_in_that_run_either_where_it_is_named() -> None:
    inner = (*RDZV, "run", "--run-id", "outer", "--endpoint", "./outer.db", "--nnodes", "1:2", "--", "echo", "inner")
    for program in (inner, ("env", "-u", "RDZV_RUN_ID", *inner)):
        ended = outer(*program)
        assert "The run 'outer' is the one of which this process is a program" in ended.stderr
        assert "give another --run-id, such as 'outer-inner'" in ended.stderr
        assert "exit code 2, after 0 restarts" in ended.stderr
        assert ended.stdout == ""


def test_nor_does_one_in_a_run_within_that_run() -> None:
    inner = ("--run-id", "outer", "--endpoint", "outer.db", "--nnodes", "1:2", "--", "echo", "inner")
    between = ("--run-id", "between", "--endpoint", "outer.db", "--nnodes", "1", "--", *RDZV, "run", *inner)
    ended = outer(*RDZV, "run", *between)
    assert "The run 'outer' is the one of which this process is a program" in ended.stderr
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.parametrize("where", [("--endpoint", "inner.db"), ("--endpoint", "outer.db", "--option", "prefix=inner")])
def test_a_run_of_the_same_name_elsewhere_is_another_one(where: tuple[str, ...]) -> None:
    ended = outer(*RDZV, "run", "--run-id", "outer", *where, "--nnodes", "1", "--", "echo", "inner")
    assert (ended.returncode, ended.stdout) == (0, "inner\n"), ended.stderr


def test_a_run_is_known_by_the_names_that_its_place_has() -> None:
    def params(
        backend: str = "etcd-v3", endpoint: str = "db1:2379, db2:2379", run_id: str = "job", **options: str
    ) -> RendezvousParameters:
        return RendezvousParameters(backend, endpoint, run_id, 1, 1, **options)

    environ = as_told({}, params(), {})
    assert is_own_run(params(), environ)
    assert is_own_run(params(endpoint="db2:2379,db1:2379", join_timeout="5", prefix="rdzv"), environ)
    assert not is_own_run(params(), {})
    others = params("etcd-v2"), params(endpoint="db3:2379"), params(run_id="job2"), params(prefix="x")
    assert not any(is_own_run(other, environ) for other in others)


def test_an_agent_in_a_run_takes_part_in_another_one() -> None:
    ended = outer(*RDZV, "run", "--run-id", "inner", "--nnodes", "1", "--endpoint", "inner.db", "--", "echo", "inner")
    assert (ended.returncode, ended.stdout) == (0, "inner\n"), ended.stderr
    assert "RDZV_ENDPOINT" not in ended.stderr


def test_a_service_that_is_not_taken_over_is_named(tmp_path: Path) -> None:
    inner = f"RDZV_RUN_ID=inner {' '.join(RDZV)} run --nnodes 1 -- sh -c 'echo $RDZV_RUN_ID $RDZV_ENDPOINT.'"
    ended = outer("env", f"TMPDIR={tmp_path}", "sh", "-c", inner)
    assert (ended.returncode, ended.stdout) == (0, "inner .\n"), ended.stderr
    assert "the variable RDZV_ENDPOINT is that of the run of which this process is a program" in ended.stderr


def test_the_other_commands_find_the_run() -> None:
    ended = outer(*RDZV, "status")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, "run outer: running, attempt 0, round 1"), ended


def test_what_a_user_has_set_is_for_every_agent() -> None:
    own = {"RDZV_ENDPOINT": "db1:2379", "RDZV_RUN_ID": "outer", "HOME": "/"}
    told = {"RDZV_ENDPOINT": "db1:2379", "RDZV_RUN_ID": "outer", "RDZV_OPTIONS": "{}", "RANK": "0"}
    environ = own | as_told(told, RendezvousParameters("sqlite", "db1:2379", "outer", 1, 1), own)
    # The service is that of all jobs; the run is not.
    assert for_agents(environ).keys() == {"RDZV_ENDPOINT", "RDZV_TOLD", "HOME", "RANK"}
    anew = environ | {"RDZV_OPTIONS": "join_timeout=5"}
    assert for_agents(anew)["RDZV_OPTIONS"] == "join_timeout=5"
    assert for_agents(own) == own
