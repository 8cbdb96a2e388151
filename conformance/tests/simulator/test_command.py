"""The simulator finds nothing in the rules as they are, and finds what was put back into them."""

import subprocess
import sys

import pytest


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rdzv_conformance.simulator", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_no_violation() -> None:
    done = simulate("--seeds", "0:400")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 violations" in done.stdout


@pytest.mark.parametrize(
    ("bug", "invariant"),
    [("no-exclusivity", "2"), ("edited-world", "5")],
)
def test_a_bug_that_is_put_back_is_found(bug: str, invariant: str) -> None:
    found = simulate("--bug", bug, "--minutes", "1")
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"invariant {invariant}" in found.stdout.lower() or f"\n{invariant}:" in found.stdout, found.stdout


def test_a_seed_reproduces_its_run() -> None:
    first, second = (simulate("--seed", "7") for _ in range(2))
    assert first.stdout == second.stdout
    assert "round 1" in first.stdout
