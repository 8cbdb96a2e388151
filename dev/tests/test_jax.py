"""The program of docs/jax.md, on two nodes of which one dies."""

import re
import sys
from pathlib import Path

import pytest

from .agents import BUSY, Agents, wait_until

PATIENCE = 4 * BUSY
PAGE = Path(__file__).parents[2] / "docs" / "jax.md"


@pytest.mark.soak
@pytest.mark.parametrize("victim", [0, 1])
def test_a_program_of_jax_goes_on_when_a_node_dies(
    local: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    Path("train.py").write_text(text)
    nodes = [local.start(sys.executable, "train.py", nnodes="1:2", arguments=("--max-restarts", "3")) for _ in range(2)]
    for node in nodes:
        node.says(r"process \d of 2, from step \d", limit=PATIENCE)
    by_rank = sorted(nodes, key=lambda node: "process 1 of 2" in node.said)
    wait_until(Path("checkpoint").exists, PATIENCE)
    by_rank[victim].process.kill()
    left = by_rank[1 - victim]
    left.says(r"process 0 of 1, from step [1-9]", limit=PATIENCE)
    assert left.ends(PATIENCE) == 0
