"""Many nodes of the real engine on one event loop and one real service, in miniature."""

import re
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rdzv.engine.records import Pages, State
from rdzv_conformance.servers import EtcdServer, require_service

from .agents import wait_until
from .test_bench import descendants, heed_ctrl_c, runs

DEV = Path(__file__).parents[1]


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Any:
    """dev/scale/verdict.py."""
    monkeypatch.syspath_prepend(DEV)
    return import_module("scale.verdict")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "scale", *arguments]


def test_nodes_gather_lose_some_and_their_leader_and_are_one_world_each_time() -> None:
    require_service(EtcdServer)
    arguments = command("--nodes", "40", "--interval", "0.6", "--limit", "60")
    done = subprocess.run(arguments, cwd=DEV, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    worlds = re.findall(r"round (\d): one world of (\d+), each node has its rank, no false loss", done.stdout)
    assert worlds == [("1", "40"), ("2", "36"), ("3", "35")]
    rows = {line[:28].strip(): line[28:].split() for line in done.stdout.splitlines()}
    nodes, seconds, calls, _, *rest = rows["gather"]
    assert nodes == "40"
    assert 0 < float(seconds) < 60
    # A look, a lease, a record and a watch; and what the leader asks for.
    assert 4 <= float(calls) <= 7
    assert all(float(value) > 0 for value in rest)
    # No member is missed before its time to live is over.
    assert all(float(rows[f"{who}: gather again"][1]) > 1.1 for who in ("10 % die", "leader dies"))
    assert float(rows["idle"][3]) == pytest.approx(3, abs=1.1)
    assert "This machine has room for" in done.stderr


def test_bare_nodes_send_and_receive_as_much_as_nodes_do() -> None:
    require_service(EtcdServer)
    spent = {}
    for kind, options in (("bare", ["--floor"]), ("real", [])):
        arguments = command("--nodes", "100", "--limit", "60", *options)
        with subprocess.Popen(arguments, cwd=DEV, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            row = next(line for line in process.stdout if line.startswith("gather"))
            # What a run of nodes does after that is not of interest here.
            process.kill()
        spent[kind] = [float(value) for value in row[28:].split()]
    for bare, real in zip(*(spent[kind][2:5:2] for kind in ("bare", "real")), strict=True):
        assert bare == pytest.approx(real, rel=0.15)


def test_more_nodes_than_there_are_files_for_are_refused() -> None:
    done = subprocess.run(command("--nodes", "9999999"), cwd=DEV, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "9,999,999 nodes are too many here" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "limit"),
    [
        ("--nodes", "0", "a whole number of at least 2"),
        ("--interval", "0", "seconds, more than 0 and at most 86400"),
        ("--limit", "-1", "seconds, more than 0 and at most 86400"),
        ("--limit", "nan", "seconds, more than 0 and at most 86400"),
    ],
)
def test_what_makes_no_sense_is_refused(option: str, value: str, limit: str) -> None:
    done = subprocess.run(command(f"{option}={value}"), cwd=DEV, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"argument {option}: '{value}' is refused: give {limit}" in done.stderr


def test_ctrl_c_leaves_nothing_running() -> None:
    require_service(EtcdServer)
    arguments = command("--nodes", "30")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(arguments, cwd=DEV, preexec_fn=heed_ctrl_c, **pipes) as process:
        said = ""
        while "one world of 30" not in said:
            assert process.stdout is not None
            said += process.stdout.readline()
        started = list(descendants(process.pid))
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in told
    assert "Stopped" in told
    wait_until(lambda: not any(map(runs, started)))


def test_the_verdict_sees_what_is_wrong(verdict: Any) -> None:
    state = State(0, 1, (), "host", 1, 1, 2, pages=Pages("folder", 1, 2, "a"))
    nodes = [SimpleNamespace(id=name, rank=rank, state=state, lost=set(), evicted=0) for rank, name in enumerate("ab")]
    assert verdict.problems(nodes, ["a", "b"], {"c"}) == []
    nodes[0].lost = {"b", "c"}
    nodes[1].evicted = 1
    nodes[1].state = replace(state, pages=Pages("folder", 1, 3, "a"))
    assert verdict.problems(nodes, ["b", "a"], {"c"}) == [
        "2 different worlds",
        "worlds of [2, 3] nodes instead of one of 2",
        "2 wrong ranks, such as 0 instead of 1 of a",
        "1 nodes that live were reported as lost, such as b",
        "1 nodes that live were evicted",
    ]


def test_survivors_keep_their_ranks_and_the_last_ones_fill_the_holes(verdict: Any) -> None:
    assert verdict.expected_world([], {"b", "a"}) == ["a", "b"]
    assert verdict.expected_world(["a", "b", "c", "d", "e"], {"a", "c", "d", "e"}) == ["a", "e", "c", "d"]
