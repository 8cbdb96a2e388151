"""A line that was written for torchrun, given to `rdzv run`: what it does, or says to do in its place."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final
from unittest.mock import MagicMock, Mock

import pytest
from rdzv_cli.torchrun import IN_PLACE_OF
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.run import get_args_parser

RUN: Final = [sys.executable, "-m", "rdzv_cli", "run"]
NOT_THERE: Final = {
    "--duplicate-stdout-filters",
    *("--duplicate-stderr-filters", "--logs-specs", "--numa-binding", "--virtual-local-rank"),
}
"""What `rdzv run` has nothing for."""


def ends(*arguments: str) -> tuple[int, str]:
    """How `rdzv run` ends, and what it says."""
    done = subprocess.run([*RUN, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_option_of_torchrun_is_known_or_answered() -> None:
    _, usage = ends("--help")
    options = [option for action in get_args_parser()._actions for option in action.option_strings]
    for option in (option for option in options if option.startswith("--") and "_" not in option):
        assert (option in usage) + (option in IN_PLACE_OF) + (option in NOT_THERE) == 1, option


@pytest.mark.parametrize("option", IN_PLACE_OF)
def test_what_is_given_in_its_place_is_there(option: str) -> None:
    answer = IN_PLACE_OF[option]
    _, usage = ends("--help")
    for word in answer.split():
        assert word in usage or not word.startswith("--") or word == "--", answer


def test_a_line_with_underscores_runs(tmp_path: Path) -> None:
    program = "echo $RANK of $WORLD_SIZE: $0 $1"
    line = ["--standalone", "--nnodes=1", "--nproc_per_node=2", "--max_restarts", "0", f"--endpoint={tmp_path}/db"]
    code, said = ends(*line, "--", "sh", "-c", program, "--a_b", "--c_d=e_f")
    assert code == 0, said
    for rank in range(2):
        assert f"{rank} of 2: --a_b --c_d=e_f" in said


def test_the_shutdown_timeout_of_torchrun_is_not_for_a_new_world() -> None:
    # So say docs/torchrun.md and the pages of the frameworks.
    agent = LocalElasticAgent(MagicMock(), Mock(), shutdown_timeout=5)
    agent._pcontext = processes = Mock()
    agent._stop_workers(Mock())
    processes.close.assert_called_once_with(signal.SIGTERM, 30)
