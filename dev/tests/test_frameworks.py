"""The programs of docs/jax.md, docs/lightning.md and docs/accelerate.md: a node comes, and one dies."""

import re
import sys
from pathlib import Path

import pytest

from .agents import BUSY, Agent, Agents, wait_until

PATIENCE = 4 * BUSY
DOCS = Path(__file__).parents[2] / "docs"
SAVED = {"jax": "checkpoint", "lightning": "checkpoint/last.ckpt", "accelerate": "latest"}
"""What each program has written once it has something to go on from."""


@pytest.mark.soak
@pytest.mark.parametrize(("framework", "victim"), [("jax", 0), ("jax", 1), ("lightning", 0), ("accelerate", 0)])
def test_a_program_goes_on_when_a_node_comes_and_one_dies(
    local: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, victim: int
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / f"{framework}.md").read_text()
    (text,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    Path("train.py").write_text(text.replace("Accelerator()", "Accelerator(cpu=True)"))

    def start() -> Agent:
        return local.start(sys.executable, "train.py", nnodes="1:2", arguments=("--max-restarts=3", "--grace=2"))

    nodes = [start()]
    wait_until(Path(SAVED[framework]).exists, PATIENCE)
    nodes.append(start())
    for node in nodes:
        node.says(r"(process|rank) \d of 2, from step [1-9]", limit=PATIENCE)
    by_rank = sorted(nodes, key=lambda node: bool(re.search("(process|rank) 1 of 2", node.said)))
    by_rank[victim].process.kill()
    left = by_rank[1 - victim]
    left.says(r"(process|rank) 0 of 1, from step [1-9]", limit=PATIENCE)
    assert left.ends(PATIENCE) == 0
