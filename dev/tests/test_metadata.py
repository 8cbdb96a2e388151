"""What an index shows of each package is whole and true, and the packages of one tree fit each other."""

import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.licenses import canonicalize_license_expression
from packaging.version import Version

from .matrix import matrix

ROOT = Path(__file__).parents[2]
PROJECTS: dict[str, dict[str, Any]] = {
    str(path.parent.relative_to(ROOT)): tomllib.loads(path.read_text())["project"]
    for folder in ("*", "plugins/*", "launchers/*")
    for path in sorted(ROOT.glob(f"{folder}/pyproject.toml"))
}
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]

PYTHON = "Programming Language :: Python :: "
CLASSIFIERS = {
    "Development Status :: 3 - Alpha",
    "Intended Audience :: Developers",
    "Operating System :: POSIX :: Linux",
    f"{PYTHON}3 :: Only",
    "Topic :: System :: Distributed Computing",
    "Typing :: Typed",
}
"""What is true of every package; the Pythons are the matrix's."""

KEYWORDS = {"distributed", "elastic", "rendezvous"}


def wrong_fields(folder: str, project: Mapping[str, Any], pythons: set[str]) -> Iterator[str]:
    """The fields that are missing or wrong."""
    minors = sorted(int(python.removeprefix("py3")) for python in pythons)
    blob = f"{SOURCE}/blob/main"
    expected = {
        "readme": "README.md",
        "license": "Apache-2.0",
        "license-files": ["LICENSE"],
        "authors": [{"name": "The rdzv authors"}],
        "requires-python": ">=3.11",
        "urls": {
            "Source": SOURCE,
            "Documentation": f"{blob}/docs/index.md",
            "Issues": f"{SOURCE}/issues",
            "Changelog": f"{blob}/{folder}/CHANGELOG.md",
        },
    }
    yield from (name for name, value in expected.items() if project.get(name) != value)
    description = project.get("description", "")
    if not 10 <= len(description) <= 100 or description.endswith("."):
        yield "description"
    keywords = project.get("keywords", [])
    if not set(keywords) > KEYWORDS or keywords != sorted(set(keywords)):
        yield "keywords"
    classifiers = project.get("classifiers", [])
    general = {name for name in classifiers if not name.startswith("Framework :: ")}
    if general != CLASSIFIERS | {f"{PYTHON}3.{minor}" for minor in minors} or classifiers != sorted(classifiers):
        yield "classifiers"


def pythons_of(folder: str) -> set[str]:
    """Where the matrix tries a package."""
    return matrix()[Path(folder).name]


@pytest.mark.parametrize("folder", PROJECTS)
def test_each_package_says_all_that_an_index_shows(folder: str) -> None:
    project = PROJECTS[folder]
    assert [*wrong_fields(folder, project, pythons_of(folder))] == []
    assert canonicalize_license_expression(project["license"]) == project["license"]
    assert str(Version(project["version"])) == project["version"]
    assert "dynamic" not in project


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("urls", None),
        ("urls", {"Source": SOURCE}),
        ("authors", []),
        ("keywords", ["rendezvous"]),
        ("license", "Apache 2"),
        ("license-files", None),
        ("description", "A backend."),
        ("requires-python", ">=3.10"),
        ("classifiers", None),
        ("classifiers", [*PROJECTS["plugins/sqlite"]["classifiers"], f"{PYTHON}3.99"]),
        (
            "classifiers",
            [*PROJECTS["plugins/sqlite"]["classifiers"], "License :: OSI Approved :: Apache Software License"],
        ),
        ("classifiers", PROJECTS["plugins/sqlite"]["classifiers"][1:]),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(field: str, value: object) -> None:
    project = {**PROJECTS["plugins/sqlite"], field: value}
    if value is None:
        del project[field]
    assert [*wrong_fields("plugins/sqlite", project, pythons_of("sqlite"))] == [field]


def test_packages_of_one_tree_fit_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "dev" / "tools")
    release = import_module("release")
    assert [*release.contradictions(release.read_packages(ROOT))] == []


@pytest.mark.parametrize("folder", PROJECTS)
def test_each_sdist_says_how_its_tests_run(folder: str) -> None:
    settings = (ROOT / folder / "sdist" / "pytest.toml").read_bytes()
    assert settings == (ROOT / "core" / "sdist" / "pytest.toml").read_bytes()
    hatch = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["tool"]["hatch"]
    sdist = hatch["build"]["targets"]["sdist"]
    assert sdist["sources"] == {"sdist": ""}
    assert [path for path in sdist.get("force-include", {}) if not (ROOT / folder / path).is_file()] == []
