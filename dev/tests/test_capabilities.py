"""The tables of docs/capabilities.md say what the plugins declare, and are written as they should be."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rdzv
import rdzv_core

ROOT = Path(__file__).parents[2]
TOOL = "capabilities"
PLUGINS = [tomllib.loads(path.read_text())["project"] for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
BACKENDS = [project for project in PLUGINS if "rdzv" in project.get("entry-points", {})]


@pytest.fixture
def page(tool: Any) -> str:
    return str(tool.PAGE.read_text())


def test_page_says_what_the_plugins_declare(tool: Any, page: str) -> None:
    written = tool.section(page, "capabilities")
    names = [name.strip() for name in written.splitlines()[0].split("|")[2:-1]]
    backends = {name: rdzv.load_backend_plugin(name).backend_type for name in names}
    declared = [
        tool.Declared(
            name,
            frozenset(one.name for one in backend.capabilities),
            {one.name: reason for one, reason in backend.unsupported.items()},
        )
        for name, backend in backends.items()
        if issubclass(backend, rdzv.KeyValueBackend)
    ]
    assert written == tool.capabilities(declared), "run: python3 dev.py capabilities"


@pytest.mark.parametrize("project", BACKENDS, ids=lambda project: project["name"])
def test_page_has_every_plugin(tool: Any, page: str, project: Mapping[str, Any]) -> None:
    for name in ("capabilities", "features", "results"):
        table = tool.section(page, name)
        assert any(f"| {backend} |" in table for backend in project["entry-points"]["rdzv"]), "run: dev.py capabilities"


def report(path: Path, *outcomes: str) -> Path:
    """A report of one class whose tests ended like this."""
    tests = {f"test_{number}": {"outcome": end, "reason": "issue 12"} for number, end in enumerate(outcomes)}
    unsupported = {one.name: "it cannot" for one in rdzv_core.Capability if one is not rdzv_core.Capability.LEASE}
    features = {f"feature_{number}": {"what": "works", "outcome": end} for number, end in enumerate(outcomes)}
    declared = {"name": "mine", "capabilities": ["LEASE"], "unsupported": unsupported, "untried": ["LEASE"]}
    declared["features"] = features
    path.write_text(json.dumps({"suite": "9", "backends": [{"test": "f.py::TestMine", **declared, "tests": tests}]}))
    return path


def test_report_becomes_tables(tool: Any, tmp_path: Path) -> None:
    (found,) = tool.read_report(report(tmp_path / "mine.json", "passed", "passed", "unsupported", "deviating"))
    capabilities = tool.capabilities([found.declared])
    assert capabilities.count("| yes |") == 1
    assert "* **mine** has no `TLS`: it cannot." in capabilities
    results = tool.results([found])
    assert "| mine | `TestMine` | 2 | 1 | 0 | 1 |" in results
    assert "* **mine** deviates in `test_3`: issue 12" in results
    assert "* mine: `LEASE`" in results


def test_feature_works_where_it_works_in_every_class(tool: Any, tmp_path: Path) -> None:
    (good,) = tool.read_report(report(tmp_path / "mine.json", "passed", "passed"))
    (weak,) = tool.read_report(report(tmp_path / "mine.json", "deviating", "passed", "passed"))
    other = replace(good, declared=replace(good.declared, name="other"))
    for found in ([good, weak, other], [other, weak, good]):
        assert tool.features(found).splitlines() == [
            "|  | mine | other |",
            "| --- | --- | --- |",
            "| `feature_0` works | deviating | yes |",
            "| `feature_1` works | yes | yes |",
            "| `feature_2` works | yes | not tried |",
        ]


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_report_that_is_not_good_is_refused(tool: Any, tmp_path: Path, outcome: str) -> None:
    with pytest.raises(ValueError, match=rf"test_1: {outcome}"):
        tool.read_report(report(tmp_path / "mine.json", "passed", outcome))


def test_missing_report_is_named(tool: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no report of mine"):
        tool.read_report(tmp_path / "mine.json")


def test_report_of_nothing_is_refused(tool: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"suite": "9", "backends": []}))
    with pytest.raises(ValueError, match="mine: the suite tested nothing"):
        tool.read_report(path)


def test_page_keeps_what_is_written_by_hand(tool: Any, page: str) -> None:
    filled = tool.fill(page, "results", "new")
    assert tool.section(filled, "results") == "new"
    assert tool.fill(filled, "results", tool.section(page, "results")) == page
