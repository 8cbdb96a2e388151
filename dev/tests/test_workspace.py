"""The workspace keeps its promises: every package is whole, and everything that lists packages lists all."""

import ast
import configparser
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
LAUNCHERS = sorted(path.parent for path in ROOT.glob("launchers/*/pyproject.toml"))
PACKAGES = [ROOT / "core", ROOT / "conformance", *LAUNCHERS, *PLUGINS]
CORE = ROOT / "core" / "src"
MODULES = sorted(CORE.rglob("*.py"))

each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)


@each_package
def test_package_is_whole(package: Path) -> None:
    assert [name for name in ("README.md", "CHANGELOG.md", "LICENSE") if not (package / name).read_text().strip()] == []
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert [path.parent.parent.name for path in package.glob("src/*/py.typed")] == ["src"]
    assert list((package / "tests").rglob("test_*.py"))


@each_package
def test_test_folders_are_no_packages(package: Path) -> None:
    # With an __init__.py, every package's tests would be the one package "tests" to pytest. The simulator is one, and
    # has one.
    packages = [str(path.parent.relative_to(package / "tests")) for path in (package / "tests").rglob("__init__.py")]
    assert sorted(packages) == (["simulator", "simulator/exhaustive"] if package.name == "core" else [])


@each_package
def test_name_of_package_follows_its_folder(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["name"] == ("rdzv" if package.name == "core" else f"rdzv-{package.name}")
    assert (package / "src" / project["name"].replace("-", "_")).is_dir()


def test_every_folder_of_packages_holds_packages_only() -> None:
    assert sorted((ROOT / "plugins").iterdir()) == PLUGINS
    assert sorted((ROOT / "launchers").iterdir()) == LAUNCHERS


def test_matrix_has_every_package_on_every_python() -> None:
    tox = [sys.executable, "-m", "tox", "list", "-qq", "--no-desc"]
    listed = subprocess.run(tox, cwd=ROOT, capture_output=True, text=True, check=True)
    pythons: dict[str, set[str]] = {}
    for environment in listed.stdout.split():
        python, _, package = environment.partition("-")
        pythons.setdefault(package, set()).add(python)
    everywhere = {"py311", "py312", "py313"}
    assert pythons == {path.name: {"py311"} if _needs_torch(path) else everywhere for path in PACKAGES}


def _needs_torch(package: Path) -> bool:
    needs = tomllib.loads((package / "pyproject.toml").read_text())["project"]["dependencies"]
    return any(need.startswith("torch") for need in needs)


def test_matrix_knows_where_packages_are() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    folders = dict(line.split(": ") for line in tox["testenv"]["package_root"].split("\n") if line)
    assert folders == {path.name: str(path.relative_to(ROOT)) for path in PACKAGES}


def test_workspace_sources_are_its_packages() -> None:
    sources = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["sources"]
    names = ["rdzv", *(f"rdzv-{path.name}" for path in PACKAGES[1:])]
    assert sources == {name: {"workspace": True} for name in names}


def test_ci_runs_the_commands_of_the_readme() -> None:
    quick_start = (ROOT / "README.md").read_text().partition("```sh\n")[2].partition("```")[0].splitlines()
    commands = [line.partition("#")[0].strip() for line in quick_start if line.startswith("python3 dev.py")]
    assert len(commands) == 2
    assert {*commands, "python3 dev.py soak"} <= set((ROOT / ".ci" / "run").read_text().splitlines())


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(CORE)))
def test_core_imports_itself_pluggy_and_the_standard_library(module: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            imported.add(node.module.partition(".")[0])
    # `python -m rdzv` is the command where it is installed.
    command = {"rdzv_cli"} if module.name == "__main__.py" else set()
    assert imported - sys.stdlib_module_names <= {"rdzv", "pluggy"} | command


def test_importing_the_core_imports_no_plugin() -> None:
    code = "import rdzv, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(listed.stdout.split())
    assert {"rdzv", "pluggy"} <= modules
    ours = {path.name for package in PACKAGES[1:] for path in (package / "src").iterdir()}
    assert modules & (ours | {"torch", "pytest", "kazoo"}) == set()


def test_without_the_command_the_core_says_what_to_install() -> None:
    code = "import runpy, sys; sys.modules['rdzv_cli'] = None; runpy.run_module('rdzv', run_name='__main__')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.strip().endswith("pip install rdzv-cli")
    run = subprocess.run([sys.executable, "-m", "rdzv", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("rdzv ")


def test_a_program_of_a_node_needs_the_core_and_a_plugin_only() -> None:
    code = "import rdzv, sys; rdzv.World, rdzv.current; print(*{name.partition('.')[0] for name in sys.modules})"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "rdzv_cli" not in listed.stdout.split()
