"""Lines that were written for torchrun, given to `rdzv run`: by torch's own parser they mean the same."""

import os
import re
import signal
import subprocess
import sys
from argparse import Action, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock, Mock

import pytest
from rdzv_cli.agent.signals import signals_to_handle
from rdzv_cli.command import make_parser
from rdzv_cli.run import _command
from rdzv_cli.sources import options_of
from rdzv_cli.torchrun import OPTIONS, RENAMED
from rdzv_conformance.servers.ports import free_ports
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.run import config_from_args, get_args_parser

THEIRS: Final[list[Action]] = [action for action in get_args_parser()._actions if action.dest != "help"]
FLAGS: Final = {option: action for action in THEIRS for option in action.option_strings}
VALUES: Final = {
    "nnodes": "1:2",
    "nproc_per_node": "2",
    "max_restarts": "3",
    "redirects": "3",
    "tee": "0:1,1:2",
    "local_ranks_filter": "0,1",
    "start_method": "fork",
    "monitor_interval": "0.5",
    "node_rank": "1",
    "master_port": "29501",
    "rdzv_conf": "join_timeout=9",
    "numa_binding": "node",
    "signals_to_handle": "SIGTERM,SIGUSR1",
    "shutdown_timeout": "5",
}
"""What each takes that takes no text."""

SAMPLE: Final = Path(__file__).with_name("torchrun_lines.txt").read_text().splitlines()
"""The options of 36 launch commands of public scripts, as these write and combine them."""


def words(line: str) -> list[str]:
    return [word.strip("'") for word in line.split()]


def ours(line: Sequence[str]) -> Namespace:
    return make_parser().parse_args(["run", *line])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the programs of the sample."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rdzv_cli.agent.devices.gpu_devices", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    tells = (
        "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['ROLE_NAME'], *sys.argv[1:])"
    )
    Path("train.py").write_text(tells)
    Path("train.sh").write_text('#!/bin/sh\necho $RANK $WORLD_SIZE $ROLE_NAME "$@"\n')
    Path("train.sh").chmod(0o755)


def test_the_table_has_what_torchrun_has_and_rdzv_run_has_not() -> None:
    known = options_of(next(_run_parsers())).keys() | {"module", "no_python"}
    theirs = {option for option in FLAGS if option.startswith("--") and "_" not in option}
    # --log-line-prefix-template is that of torch from 2.14 on.
    assert {*OPTIONS, *RENAMED} - {"--log-line-prefix-template"} == {
        option for option in theirs if option[2:].replace("-", "_") not in known
    }
    for option in (*RENAMED.values(), *(each.ours for each in OPTIONS.values() if each.ours)):
        assert option[2:].replace("-", "_") in known
    assert all(OPTIONS[name].is_switch == (FLAGS[name].nargs == 0) for name in OPTIONS)


def _run_parsers() -> Any:
    return (action.choices["run"] for action in make_parser()._actions if isinstance(action.choices, dict))


@pytest.mark.parametrize("flag", FLAGS)
def test_each_option_is_read_in_each_spelling_and_leaves_the_program_alone(flag: str) -> None:
    action = FLAGS[flag]
    value = [] if action.nargs == 0 else [VALUES.get(action.dest, "text")]
    program = ["train.py", flag, "--x_y", "--", "z"]
    lines = [[flag, *value, *program]]
    if value and flag.startswith("--"):
        lines.append([f"{flag}={value[0]}", *program])
    for line in lines:
        theirs, mine = get_args_parser().parse_args(line), ours(line)
        assert (mine.program, mine.arguments) == (theirs.training_script, theirs.training_script_args)
        name = RENAMED.get(f"--{action.dest.replace('_', '-')}", action.dest).lstrip("-").replace("-", "_")
        read = getattr(mine, name, None) or getattr(mine, f"torchrun_{action.dest}")
        if action.nargs == 0 or action.dest in OPTIONS or isinstance(read, str):
            assert read == (True if action.nargs == 0 else value[0])
    bare = ours(["train.py"])
    assert vars(bare).keys() == vars(mine).keys()
    assert vars(bare) != vars(mine)


def test_signals_have_the_names_that_torchrun_gives_them() -> None:
    assert len(signals_to_handle(get_args_parser().parse_args(["x"]).signals_to_handle)) == 4


def test_the_sample_is_one_of_36_lines() -> None:
    assert len(SAMPLE) == 36
    assert sum("_per_node" in line for line in SAMPLE) > 24


@pytest.mark.parametrize("line", SAMPLE)
def test_a_line_starts_what_torchrun_starts(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine = get_args_parser().parse_args(words(line)), ours(words(line))
    # torch would set it for this process, too.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config, program, arguments = config_from_args(theirs)
    assert _command(mine) == [program, *arguments]
    assert mine.nproc_per_node == config.nproc_per_node
    assert (mine.max_restarts or 0) == config.max_restarts
    assert (mine.role or "default") == config.role
    assert (mine.nnodes or "1:1") == theirs.nnodes


REALLY: Final = [
    ("--standalone --nproc_per_node=2 train.py --lr 1", "default --lr 1"),
    ("--nproc_per_node=2 --master_port {port} train.py a", "default a"),
    (
        "--nproc_per_node=2 --rdzv_backend c10d --rdzv_endpoint=localhost:0 --role rank --tee 3 -m train --a.b c",
        "rank --a.b c",
    ),
    ("--standalone --nproc-per-node=2 -m train -- --depth=26", "default --depth=26"),
    ("--nproc_per_node=2 --max_restarts 0 --monitor_interval 1 --no_python ./train.sh --x", "default --x"),
    ("--nnodes=1 --node_rank=0 --nproc_per_node=2 --master_addr=127.0.0.1 --master_port={port} ./train.py", "default"),
]


@pytest.mark.parametrize(("line", "told"), REALLY)
def test_a_line_of_each_kind_runs(line: str, told: str) -> None:
    said = _run(line)
    # (Lines of several processes begin with their rank.)
    assert sorted(re.findall(r"^\S+ (\d 2 .*)$", said, re.MULTILINE)) == [f"{rank} 2 {told}" for rank in range(2)]


@pytest.mark.parametrize(
    "line",
    [
        "--nnodes=2 --nproc_per_node=1 --node_rank={rank} --master_addr=127.0.0.1 --master_port={port} train.py",
        "--nnodes=2 --nproc_per_node=1 --rdzv_id 55 --rdzv_backend c10d --rdzv_endpoint localhost:{port} train.py",
    ],
)
def test_lines_of_two_nodes_meet(line: str) -> None:
    (port,) = free_ports(1)
    nodes = [_start(line.format(rank=rank, port=port)) for rank in range(2)]
    said = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert sorted(re.findall(r"^\d 2 .*$", "".join(said), re.MULTILINE)) == ["0 2 default", "1 2 default"]


def _start(line: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "rdzv_cli", "run", *words(line)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RDZV_")}
    environ |= {"TMPDIR": os.getcwd()}
    return subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _run(line: str) -> str:
    node = _start(line.format(port=free_ports(1)[0]))
    said, _ = node.communicate(timeout=120)
    assert node.returncode == 0, said
    return said


def test_the_shutdown_timeout_of_torchrun_is_not_for_a_new_world() -> None:
    # So say docs/torchrun.md and the pages of the frameworks.
    agent = LocalElasticAgent(MagicMock(), Mock(), shutdown_timeout=5)
    agent._pcontext = processes = Mock()
    agent._stop_workers(Mock())
    processes.close.assert_called_once_with(signal.SIGTERM, 30)
