"""The rehearsal of a release refuses what should not be published, and says what would be."""

import hashlib
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "{version}"
readme = "README.md"
requires-python = ">=3.11"
dependencies = {needs}

[project.urls]
Source = "{source}"

[tool.hatch.build.targets.wheel]
packages = ["src"]
"""
READY = "# Changelog\n\n## 0.1.0 (2026-12-01)\n\n- First.\n"

Make = Callable[..., Path]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """dev/tools/release.py."""
    monkeypatch.syspath_prepend(ROOT / "dev" / "tools")
    return import_module("release")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a repository with two packages, the second of which needs the first; all that it takes is committed."""

    def make(
        version: str = "0.1.0",
        needs: str = "first>=0.1,<0.2",
        changelog: str = READY,
        source: str = "https://github.com/a/b",
        readme: str = "# Second\n",
        more: str = "",
    ) -> Path:
        root = tmp_path / "repository"
        for folder, name, number, asks in (
            ("core", "first", "0.1.0", "[]"),
            ("plugins/two", "second", version, [needs]),
        ):
            package = root / folder
            (package / "src").mkdir(parents=True)
            (package / "src" / f"{name}.py").write_text('"""A module."""\n')
            text = PROJECT.format(name=name, version=number, needs=asks, source=source)
            (package / "pyproject.toml").write_text(text + more)
            (package / "CHANGELOG.md").write_text(changelog)
            (package / "README.md").write_text(readme)
        members = (
            '[tool.uv.workspace]\nmembers = ["core", "plugins/*"]\n[tool.uv.sources]\nfirst = { workspace = true }\n'
        )
        (root / "pyproject.toml").write_text(
            f'[project]\nname = "all"\nversion = "0"\n[tool.uv]\npackage = false\n{members}'
        )
        commit = ["-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--quiet", "--message=All"]
        for command in (["init", "--quiet"], ["add", "."], commit):
            subprocess.run(["git", "-C", str(root), *command], check=True)
        return root

    return make


def test_what_would_be_published_is_said_and_kept(tool: Any, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    root = make(changelog=READY.replace("2026-12-01", "unreleased"), source="https://a.example/b")
    tool.main(["--dry-run", "--keep", "dist"], root)
    *lines, summary, before, dated, address = capsys.readouterr().out.splitlines()
    kept = sorted((root / "dist").rglob("*.*"), key=lambda path: path.name)
    assert [str(path.relative_to(root / "dist")) for path in kept] == [
        "first/first-0.1.0-py3-none-any.whl",
        "first/first-0.1.0.tar.gz",
        "second/second-0.1.0-py3-none-any.whl",
        "second/second-0.1.0.tar.gz",
    ]
    assert lines == [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in kept]
    assert summary.startswith("4 files of 2 packages would be published: version 0.1.0, commit ")
    assert before == "Before the upload:"
    assert dated == (
        "- '## 0.1.0 (unreleased)' comes first; a release takes '## 0.1.0 (YYYY-MM-DD)', with its day. "
        "In core/CHANGELOG.md, plugins/two/CHANGELOG.md."
    )
    assert address.startswith("- The repository's address is not known: https://a.example stands for it.")


def test_what_is_undecided_is_refused_with_a_tag(tool: Any, make: Make) -> None:
    root = make(changelog="# Changelog\n", source="https://a.example/b")
    with pytest.raises(SystemExit, match=r"(?s)No release: There is no entry;.*https://a\.example stands for it"):
        tool.main(["--dry-run", "--tag", "v0.1.0"], root)


def test_a_tree_that_is_ready_has_nothing_undecided(tool: Any, make: Make) -> None:
    root = make()
    assert tool.check_tree(root, tool.read_packages(root), "v0.1.0") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "0.1.1"}, r"The versions differ: first 0\.1\.0, second 0\.1\.1\."),
        ({"needs": "first>=0.2"}, r"second asks for first>=0\.2, but first is 0\.1\.0 here\."),
        (
            {"more": '[project.optional-dependencies]\nx = ["First<0.1"]\n'},
            r"asks for First<0\.1, but First is 0\.1\.0",
        ),
        ({"more": '[dependency-groups]\ntest = ["second!=0.1.0"]\n'}, r"first asks for second!=0\.1\.0, but"),
    ],
)
def test_packages_that_do_not_fit_each_other_are_refused(
    tool: Any, make: Make, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        tool.main(["--dry-run"], make(**changes))


def test_what_is_not_committed_is_refused(tool: Any, make: Make) -> None:
    root = make()
    (root / "core" / "new.py").touch()
    with pytest.raises(SystemExit, match=r"(?s)not committed:\n.*core/new\.py"):
        tool.main(["--dry-run"], root)


def test_another_tag_than_the_version_is_refused(tool: Any, make: Make) -> None:
    with pytest.raises(SystemExit, match=r"The tag is v0\.2\.0, but .* version 0\.1\.0: their tag is v0\.1\.0"):
        tool.main(["--dry-run", "--tag", "v0.2.0"], make())


def test_a_build_that_another_folder_changes_is_refused(tool: Any, make: Make) -> None:
    root = make(more="[tool.hatch.build.hooks.custom]\n")
    hook = """
from pathlib import Path
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        Path(self.root, "src", "where.txt").write_text(self.root)
"""
    (root / "core" / "hatch_build.py").write_text(hook)
    (root / "plugins" / "two" / "hatch_build.py").write_text(hook.replace("self.root)\n", "'here')\n"))
    for command in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-qm", "Hooks"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    with pytest.raises(
        SystemExit, match=r"Two builds of this commit differ: first-0\.1\.0-py3-none-any\.whl, first-0\.1"
    ):
        tool.main(["--dry-run"], root)


def test_a_page_that_an_index_cannot_show_is_refused(tool: Any, make: Make, tmp_path: Path) -> None:
    root = make(readme="")
    tool.git(root, "archive", f"--output={tmp_path}/commit.tar", "HEAD")
    files = tool.build(tmp_path / "commit.tar", tmp_path / "built", "1700000000", umask=0o022)
    with pytest.raises(tool.ReleaseError, match="An index would not take this"):
        tool.check_files(files, tool.read_packages(root))
    with pytest.raises(tool.ReleaseError, match="not a wheel and an sdist each: second"):
        tool.check_files(files[:-1], tool.read_packages(root))


def test_an_upload_is_left_to_the_workflow(tool: Any) -> None:
    with pytest.raises(SystemExit, match=r"\.github/workflows/release\.yml(?s:.*)git tag v\d") as end:
        tool.main([])
    assert end.value.code != 0
    assert (ROOT / ".github" / "workflows" / "release.yml").exists()


@pytest.mark.parametrize(
    ("changelog", "first"),
    [
        ("# Changelog\n", "There is no entry"),
        (f"# Changelog\n\n## Unreleased\n\n- Next.\n{READY}", "'## Unreleased' comes first"),
        (READY.replace("0.1.0", "0.0.9"), "'## 0.0.9 (2026-12-01)' comes first"),
        (READY, ""),
    ],
)
def test_changelog_is_ready_when_the_version_has_its_day(tool: Any, changelog: str, first: str) -> None:
    assert tool.missing_entry(changelog, "0.1.0").partition(";")[0] == first


@pytest.mark.soak
def test_two_builds_of_this_tree_have_the_same_bytes(tool: Any, tmp_path: Path) -> None:
    files = tool.build_twice(ROOT, tmp_path)
    tool.check_files(files, tool.read_packages(ROOT))
