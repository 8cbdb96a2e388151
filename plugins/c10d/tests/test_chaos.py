"""Chaos knows a server for c10d: a store of its own, which stands still and is never killed, since it would forget."""

import subprocess
import sys

import pytest


@pytest.mark.soak
def test_nothing_is_violated_on_a_store_that_stands_still() -> None:
    # Its plan has outages in it; eight agents that import torch may need half of the time to meet.
    command = [sys.executable, "-m", "rdzv_conformance.chaos", "--backend", "c10d", "--minutes", "1", "--seed", "35"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 server to fault" in done.stdout
    assert " outage" in done.stdout
    assert " 0 violations" in done.stdout
    assert "frame #" not in done.stderr
