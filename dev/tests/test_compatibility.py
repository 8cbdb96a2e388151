"""What docs/compatibility.md says of packages, Pythons, services and torch is what the tree knows of them."""

import re
import tomllib
from pathlib import Path

import pytest

from .matrix import matrix

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
PROJECTS = {
    project["name"]: (path.parent, project)
    for folder in ("*", "plugins/*", "launchers/*")
    for path in ROOT.glob(f"{folder}/pyproject.toml")
    for project in [tomllib.loads(path.read_text())["project"]]
}
WORKSPACE = tomllib.loads((ROOT / "pyproject.toml").read_text())


def table(heading: str) -> dict[str, dict[str, str]]:
    """The cells of a section's table, by the first one of their row and by their column."""
    lines = re.findall(r"^\|(.*)\|$", PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0], re.MULTILINE)
    columns, _, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    return {row[0].strip("`"): dict(zip(columns, row, strict=True)) for row in rows}


PACKAGES = table("Packages and Pythons")
SERVICES = table("Services")
TORCH = table("torch")


def dotted(python: str) -> str:
    """`py311` as the page writes it."""
    return f"3.{python.removeprefix('py3')}"


def test_page_has_every_package_and_every_python_of_the_matrix() -> None:
    assert PACKAGES.keys() == PROJECTS.keys()
    pythons = {dotted(python) for listed in matrix().values() for python in listed}
    for row in PACKAGES.values():
        assert {column for column in row if column.startswith("3.")} == pythons


@pytest.mark.parametrize("name", PROJECTS)
def test_what_was_tried_is_in_the_matrix(name: str) -> None:
    folder, _ = PROJECTS[name]
    cells = {column: cell for column, cell in PACKAGES[name].items() if column.startswith("3.")}
    assert set(cells.values()) <= {"always", "tried", "untried"}
    assert {column for column, cell in cells.items() if cell != "untried"} <= set(map(dotted, matrix()[folder.name]))


def test_what_ci_always_runs_is_said_to_be() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    (minors,) = re.findall(r"^for minor in ([\d ]+); do$", script, re.MULTILINE)
    assert {f"3.{minor}" for minor in minors.split()} == set(map(dotted, matrix()["core"]))
    tried = set(re.findall(r"py3\$minor-([\w-]+)", script))
    assert tried
    for name, (folder, _) in PROJECTS.items():
        always = {column for column, cell in PACKAGES[name].items() if cell == "always"}
        assert always == ({"3.11", "3.12", "3.13"} if folder.name in tried else {"3.11"}), name


@pytest.mark.parametrize("service", SERVICES)
def test_versions_of_a_service_are_those_of_its_plugin(service: str) -> None:
    row = SERVICES[service]
    (name,) = re.findall(r"^`([\w-]+)`", row["package"])
    folder, _ = PROJECTS[name]
    assert PACKAGES[name]["service"] == service
    claimed = re.findall(r"\(tested with ([^)]+)\)", (folder / "README.md").read_text())
    if claimed:
        tested = set(re.findall(r"\d+\.\d+\.\d+", claimed[0]))
        assert set(re.findall(r"\d+\.\d+\.\d+", f"{row['always']} {row['tried']}")) == tested


def test_every_plugin_of_a_service_has_a_row() -> None:
    plugins = {name for name, (folder, _) in PROJECTS.items() if "(tested with" in (folder / "README.md").read_text()}
    assert plugins <= {re.findall(r"`([\w-]+)`", row["package"])[0] for row in SERVICES.values()}


def test_torch_is_the_workspaces() -> None:
    (constraint,) = (need for need in WORKSPACE["tool"]["uv"]["constraint-dependencies"] if need.startswith("torch=="))
    needing = {
        name: need
        for name, (_, project) in PROJECTS.items()
        for need in project["dependencies"]
        if need.startswith("torch")
    }
    assert TORCH.keys() == needing.keys()
    for name, row in TORCH.items():
        assert [column for column, cell in row.items() if cell == "always"] == [constraint.removeprefix("torch==")]
        (refused,) = (column for column, cell in row.items() if cell == "refused")
        assert f"torch>={refused.removeprefix('older than ')}" == needing[name]
        assert PACKAGES[name]["torch"] != "none"
