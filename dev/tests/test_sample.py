"""The sample of a third party's backend stands on what is public alone, and works.

`python3 dev.py sample` runs the suite on it, installed.
"""

import ast
import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import rdzv
import rdzv_core

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "examples" / "third-party"
PROJECT = tomllib.loads((SAMPLE / "pyproject.toml").read_text())["project"]


def test_it_is_no_part_of_the_workspace() -> None:
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]
    assert SAMPLE not in [path for pattern in workspace["members"] for path in ROOT.glob(pattern)]


@pytest.mark.parametrize("module", sorted(SAMPLE.glob("src/*/*.py")), ids=lambda path: path.name)
def test_it_imports_only_what_is_public(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).startswith("rdzv"):
            assert node.module == "rdzv_core"
            assert {name.name for name in node.names} <= set(rdzv_core.__all__)


def test_its_entry_point_brings_a_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, value),) = PROJECT["entry-points"]["rdzv"].items()
    monkeypatch.syspath_prepend(SAMPLE / "src")
    monkeypatch.setitem(rdzv.registered_backends, name, EntryPoint(name, value, "rdzv").load())
    params = rdzv.RendezvousParameters(name, str(tmp_path), "job", 1, 1)
    with rdzv.get_rendezvous_handler(params) as handler:
        assert handler.next_rendezvous().world_size == 1


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment in which the sample is an installed package, entry point and all."""
    package = tmp_path / "site" / "rdzv_directory-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: rdzv-directory\nVersion: 1.0\n")
    entries = "".join(f"{name} = {module}\n" for name, module in PROJECT["entry-points"]["rdzv"].items())
    (package / "entry_points.txt").write_text(f"[rdzv]\n{entries}")
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(SAMPLE / "src"), str(package.parent)))}


def test_it_runs_the_example(installed: dict[str, str], tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    command = [
        "rdzv",
        "run",
        "--backend",
        "directory",
        "--endpoint",
        str(shared),
        "--run-id",
        "primes",
        "--nnodes",
        "1",
    ]
    job = [sys.executable, str(ROOT / "examples" / "allreduce.py"), "--checkpoint", str(tmp_path / "x.json")]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--", *job, "--steps", "3"],
        env=installed,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done: 239 primes below 1500" in done.stdout + done.stderr
