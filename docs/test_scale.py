"""The table of round trips in docs/scale.md is what the simulator prints: its small rows, which take seconds."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PAGE: Final = Path(__file__).parent / "scale.md"
TESTS: Final = PAGE.parents[1] / "engine" / "tests"
COMMAND: Final = "simulate --trips 2 4 64 65"


def test_the_table_of_round_trips_is_what_the_simulator_prints() -> None:
    command = [sys.executable, "-m", "simulator", *COMMAND.split()[1:]]
    said = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True, timeout=280).stdout
    rows = [line for line in said.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2 * 4
    shown = PAGE.read_text().splitlines()
    if missing := [row for row in rows if row not in shown]:
        pytest.fail("\n".join([f"{PAGE.name} lacks, of python3 dev.py {COMMAND}:", *missing]), pytrace=False)
