"""What the forge reads is valid and as safe as it says: the release workflow, the issue forms, the citation."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path: Path) -> Any:
    """What a YAML file holds."""
    return YAML(typ="safe").load(path)


def unpinned(workflow: str) -> Iterator[str]:
    """The actions of a workflow that another commit could replace."""
    for used in re.findall(r"^[\s-]*uses:\s*(.+?)\s*$", workflow, re.MULTILINE):
        if not PINNED.fullmatch(used):
            yield used


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_each_file_is_as_its_schema_says(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert files
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_commit(workflow: Path) -> None:
    assert "uses:" in workflow.read_text()
    assert [*unpinned(workflow.read_text())] == []


@pytest.mark.parametrize(
    "used",
    [
        "actions/checkout@v6",
        "actions/checkout@main # v6.0.2",
        "actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83d # v6.0.2",
        "actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd",
        "docker://alpine:3",
    ],
)
def test_an_action_that_is_not_pinned_is_found(used: str) -> None:
    assert [*unpinned(f"    steps:\n      - uses: {used}\n        with:\n          a: b\n")] == [used]


def test_only_the_upload_has_an_identity_and_no_step_has_a_secret() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    workflow = read(path)
    assert workflow["permissions"] == {}
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    assert "secrets." not in path.read_text()
    *_, upload = workflow["jobs"]["publish"]["steps"]
    assert upload["with"]["attestations"] is True
    assert workflow["jobs"]["publish"]["environment"]["name"] == "pypi-${{ matrix.package }}"


def test_the_workflow_rehearses_with_the_tag_what_it_uploads() -> None:
    build = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["build"]
    (rehearsal,) = (step["run"] for step in build["steps"] if "release.py" in step.get("run", ""))
    assert rehearsal.endswith('python dev/tools/release.py --dry-run --tag "$GITHUB_REF_NAME" --keep dist')


def test_citation_is_of_this_version() -> None:
    citation = read(ROOT / "CITATION.cff")
    core = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"]
    assert citation["version"] == core["version"]
    assert citation["license"] == core["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in core["authors"]]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_each_form_asks_for_something(form: Path) -> None:
    asked = [field for field in read(form)["body"] if field["type"] != "markdown"]
    assert any(field["validations"]["required"] for field in asked)
    assert len({field["id"] for field in asked}) == len(asked)


def test_vulnerabilities_have_a_private_way() -> None:
    policy = (ROOT / "SECURITY.md").read_text()
    assert "Report a\nvulnerability" in policy
    assert "## Supported versions" in policy
    for link in re.findall(r"\]\(([^)#]+)", policy):
        assert (ROOT / link).exists(), link
