"""What the pages say of installing works as written: each line is typed, in a clone and in an empty environment."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rdzv_conformance.servers import ServiceMissingError, require_service
from tools.services import WHEELS

from docs.test_snippets import PAGES, ROOT, read_blocks


def test_what_is_to_be_installed_from_a_clone_is_there() -> None:
    text = "\n".join(block.text for page in PAGES for block in read_blocks(page))
    named = re.findall(r" (\./\S+)", "\n".join(re.findall(r"^pip install .+", text, re.M)))
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path / "pyproject.toml").exists()] == []


class Wheels:
    """The packages of others that ours need, downloaded before."""

    @staticmethod
    def find_binary() -> Path:
        """The folder."""
        if not WHEELS.exists():
            raise ServiceMissingError("No .services/wheels. Run `python3 dev/tools/services.py install wheels`.")
        return WHEELS


@pytest.mark.soak
def test_what_is_installed_by_the_pages_runs(tmp_path: Path) -> None:
    """All blocks marked `installs`, in the order of the pages, in one environment."""
    marked = (block.text for page in PAGES for block in read_blocks(page) if block.mark == "installs")
    blocks = list(dict.fromkeys(marked))  # what the README says again is installed once
    assert len(blocks) == 4
    require_service(Wheels)
    # With the pip that Python has in itself, and what was brought in before: nothing has to be downloaded.
    offline = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(Wheels.find_binary())}
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    within = f". {tmp_path}/venv/bin/activate\n"
    for block in blocks:
        subprocess.run(["bash", "-euc", within + block], cwd=ROOT, env=offline, check=True, timeout=300)
    job = "rdzv run --backend sqlite --endpoint job.db --run-id job --nnodes 1 -- echo it runs"
    ran = subprocess.run(["bash", "-euc", within + job], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "it runs" in ran.stdout
