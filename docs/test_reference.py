"""What the pages say of names, files and numbers is what there is."""

import pkgutil
import re
import runpy
from pathlib import Path
from typing import NamedTuple

import pytest
import rdzv
import rdzv_core
from rdzv.engine.registration import NodeState
from rdzv_conformance import BackendConformance
from rdzv_conformance.suite.network import NetworkConformance
from rdzv_conformance.suite.traps import LOOK_AT

DOCS = Path(__file__).parent
ROOT = DOCS.parent


def test_api_pages_have_every_public_name_once() -> None:
    users, authors = (
        re.findall(r"^\.\. (?:auto\w+|py:data):: (?:rdzv\.)?(\w+)$", (DOCS / page).read_text(), re.M)
        for page in ("api.md", "api-authors.md")
    )
    assert set(users) <= set(rdzv.__all__)
    assert set(authors) <= set(rdzv_core.__all__)
    assert sorted(users + authors) == sorted({*rdzv.__all__, *rdzv_core.__all__})


def test_pages_are_readable_as_they_stand() -> None:
    found = {page.name: re.findall(r"^(?:```|:::)\{([\w-]+)\}", page.read_text(), re.M) for page in DOCS.glob("*.md")}
    # The signatures and docstrings of the reference, and the order of the pages, are made when the pages are built.
    made = {page for page, directives in found.items() if directives}
    assert made == {"api.md", "api-authors.md", "api-testing.md", "index.md"}


class Row(NamedTuple):
    """A row of "To change X, open Y": the question, and the files and folders that it names."""

    question: str
    named: list[str]


def rows_to_open() -> list[Row]:
    """Each row, its files from the root of the repository: a path may begin in the folder that the heading names."""
    rows = []
    folder, tests = "", ""
    table = (DOCS / "architecture.md").read_text().partition("\n## To change X, open Y\n")[2].partition("\n## ")[0]
    for line in table.splitlines():
        if line.startswith("### "):
            (folder,) = re.findall(r": `(.+)`$", line) or [""]
        elif line.startswith("| to change"):
            (tests,) = re.findall(r"its tests, in `(.+)`", line) or [""]
        elif line.startswith("| "):
            question, files, *tried = line.strip("| ").split(" | ")
            begin = [(name, folder) for name in _files(files)] + [(name, tests) for name in _files(" ".join(tried))]
            rows.append(Row(question, [at + name if (ROOT / at / name).exists() else name for name, at in begin]))
    return rows


def _files(cell: str) -> list[str]:
    return re.findall(r"`([\w./-]*(?:/|\.py))`", cell)


def test_files_to_open_exist() -> None:
    paths = [name for row in rows_to_open() for name in row.named]
    assert len(paths) > 100
    # What each plugin has is named once for all.
    plugins = list(ROOT.glob("plugins/*/src/*/"))
    missing = [path for path in paths if not any((at / path).exists() for at in (ROOT, *plugins))]
    assert missing == []


@pytest.mark.parametrize("package", ["core/src/rdzv_core", "engine/src/rdzv"])
def test_each_file_of_the_foundations_has_a_row(package: str) -> None:
    named = {name for row in rows_to_open() for name in row.named}
    files = (path for path in (ROOT / package).rglob("*.py") if not path.name.startswith("__"))
    assert [path.name for path in files if str(path.relative_to(ROOT)) not in named] == []


@pytest.mark.parametrize(
    ("question", "file", "there"),
    [
        ("ranks", "engine/src/rdzv/engine/rules.py", "def sticky_ranks("),
        ("an option of a backend", "plugins/etcd-v3/src/rdzv_etcd_v3/options.py", "OPTIONS: Final = ("),
        ("a subcommand", "launchers/cli/src/rdzv_cli/command.py", "add_parser(commands)"),
        ("evicted", "engine/src/rdzv/engine/leader.py", "is formed without node"),
    ],
)
def test_a_newcomer_finds_the_file(question: str, file: str, there: str) -> None:
    assert "](docs/architecture.md#to-change-x-open-y)" in (ROOT / "README.md").read_text()
    (row,) = [row for row in rows_to_open() if question in row.question]
    assert file in row.named
    assert there in (ROOT / file).read_text()


def test_the_glossary_has_every_state_of_a_node() -> None:
    (row,) = [line for line in (DOCS / "glossary.md").read_text().splitlines() if line.startswith("| node state |")]
    states = [state.name.lower().replace("rereg", "re-reg") for state in NodeState]
    assert f": {', '.join(states[:-1])} or {states[-1]} |" in row


def _exists(name: str) -> bool:
    """Whether a dotted name of a module, or of what stands in one, leads to something."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_names_that_changed_are_gone_and_the_new_ones_exist() -> None:
    table = (DOCS / "writing-a-backend.md").read_text().partition("\n## Names that changed\n")[2]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| 0.")]
    old, new = (re.findall(r"`(rdzv\w*\.[\w.]+)`", " ".join(row[column] for row in rows)) for column in (1, 2))
    assert len(new) > 40
    assert [name for name in new if not _exists(name)] == []
    assert [name for name in old if _exists(name)] == []


def test_page_of_authors_has_every_heading_that_a_failure_names() -> None:
    headings = set(re.findall(r"^#{2,3} (.+)$", (DOCS / "writing-a-backend.md").read_text(), re.M))
    assert {heading for named in LOOK_AT.values() for heading in named} <= headings


def test_page_of_the_tests_has_an_entry_for_each() -> None:
    conf = runpy.run_path(str(DOCS / "conf.py"))
    source = [(DOCS / "tests-of-a-backend.md").read_text()]
    conf["list_tests"](None, "tests-of-a-backend", source)
    names = re.findall(r"^### (test_\w+)$", source[0], re.M)
    tests = {name for name in dir(BackendConformance) + dir(NetworkConformance) if name.startswith("test_")}
    assert set(names) == tests
    assert len(names) == len(tests)


def test_page_of_guarantees_has_the_defaults() -> None:
    page = (DOCS / "guarantees.md").read_text()
    default = {option.name: option.default for option in rdzv.HANDLER_OPTIONS}
    for name in ("join_timeout", "last_call_timeout", "close_timeout"):
        assert f"`{name}` ({default[name]:g} s)" in page
    interval, times = default["keep_alive_interval"], default["keep_alive_max_attempt"]
    assert f"{interval:g} s \N{MULTIPLICATION SIGN} {times} = {interval * times:g} s" in page
    assert f"{rdzv_core.MAX_PAYLOAD // 1024} KiB" in page
    assert f"a key {rdzv_core.backend.MAX_KEY} characters" in page


def test_page_of_guarantees_names_tests_that_exist_for_each_promise() -> None:
    promised, _, rest = (DOCS / "guarantees.md").read_text().partition("\n### Which tests say so\n")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", rest.partition("\n## ")[0], re.M)
    assert [number for number, _ in rows] == re.findall(r"^### (\d+)\. ", promised, re.M)
    files = (path for part in ("*/tests/**/test_*.py", "conformance/src/**/suite/*.py") for path in ROOT.glob(part))
    defined = {name for path in files for name in re.findall(r"^ *def (test_\w+)\(", path.read_text(), re.M)}
    assert [name for _, tests in rows for name in re.findall(r"`(\w+)`", tests) if name not in defined] == []
