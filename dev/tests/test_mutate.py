"""The mutation task: it changes what it should, and says what is wrong. (What the tests notice: `dev.py mutate`.)"""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = "mutate"


def changed(tool: Any, expression: str) -> list[str]:
    """What becomes of an expression."""
    source = f"def f(a, b):\n    return {expression}"
    return [ast.unparse(mutant.changed).partition("return ")[2] for mutant in tool.mutants("m", source)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a == b", ["a != b"]),
        ("a is None", ["a is not None"]),
        ("a in b", ["a not in b"]),
        ("a and b", ["a or b", "b", "a"]),
        ("not a", ["a"]),
        ("a + b", ["a - b"]),
        ("a[1:]", ["a", "a[2:]"]),
        ("7", ["8"]),
        ("True", ["False"]),
        ("any(a)", ["all(a)"]),
        ("min(a)", ["max(a)"]),
        ("a if b else 'c'", ["a if True else 'c'", "a if False else 'c'"]),
        ("[a for a in b if a]", ["[a for a in b if True]", "[a for a in b if False]"]),
        ("f'{a < b}'", []),
    ],
)
def test_decisions_are_changed(tool: Any, expression: str, expected: list[str]) -> None:
    assert changed(tool, expression) == expected


def test_each_mutant_has_a_name_of_its_own_and_one_change(tool: Any) -> None:
    found = list(tool.mutants("m", "def f(a):\n    return a < 1 or a < 1\nX = 1 < 2"))
    sources = [ast.unparse(mutant.changed) for mutant in found]
    assert len({mutant.name for mutant in found}) == len(found)
    assert "m.f: a < 1 -> a <= 1 (2)" in {mutant.name for mutant in found}
    assert all(source.endswith("X = 1 < 2") for source in sources)
    assert len(set(sources)) == len(found) - 1  # either part may be the one that is dropped


def test_what_is_explained_exists(tool: Any) -> None:
    explained = tomllib.loads(tool.EXPLAINED.read_text())
    every = [mutant for group in tool.GROUPS for mutant in tool.all_mutants(group)]
    found = {mutant.name: tool.Noticed.BY_TESTS for mutant in every}
    assert len(found) == len(every)
    assert not [complaint for complaint in tool.complaints(found, explained) if "but noticed" not in complaint]


def test_complaints(tool: Any) -> None:
    nothing, tests = tool.Noticed.BY_NOTHING, tool.Noticed.BY_TESTS
    found = {"lives": nothing, "explained": nothing, "killed": tests, "killed, explained": tests}
    explained = {"explained": "equal", "killed, explained": "equal", "gone": "equal"}
    assert tool.complaints(found, explained) == [
        "noticed by nothing: lives",
        "explained, but noticed: killed, explained",
        "explained, but there is no such mutant: gone",
    ]
    assert tool.complaints({"lives": nothing}, {"lives": " "}) == ["explained without a reason: lives"]


@pytest.fixture
def group(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with two functions and its tests, elsewhere, where nothing is on record."""
    (tmp_path / "m.py").write_text(TWO_FUNCTIONS)
    (tmp_path / "test_m.py").write_text("import m")
    (tmp_path / "record.toml").touch()
    for name, path in (("SOURCES", (tmp_path,)), ("TESTS", (tmp_path,)), ("RECORD", tmp_path / "record.toml")):
        monkeypatch.setattr(tool, name, path)
    return tool.Group(("m",), ("m",))


TWO_FUNCTIONS = """
LIMIT = 1

def f(a):
    return a < LIMIT or a == 7

class C:
    @property
    def g(self):
        return not self.h
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("m.py", "LIMIT = 1", "LIMIT = 2  # and one line more\n", set()),
        ("m.py", "a < LIMIT", "a <= LIMIT", {"m.f"}),
        ("m.py", "@property", "@cached_property", {"m.C.g"}),
        ("test_m.py", "import m", "import m as tested", {"m.f", "m.C.g"}),
    ],
)
def test_a_fingerprint_is_of_a_function_and_its_tests(
    tool: Any, group: Any, tmp_path: Path, file: str, old: str, new: str, changes: set[str]
) -> None:
    before = tool.fingerprints(group, [])
    (tmp_path / file).write_text((tmp_path / file).read_text().replace(old, new))
    after = tool.fingerprints(group, [])
    assert before.keys() == after.keys() == {"m.f", "m.C.g"}
    assert {name for name in after if after[name] != before[name]} == changes


def test_a_fingerprint_is_of_what_is_explained(tool: Any, group: Any) -> None:
    plain, explained = tool.fingerprints(group, []), tool.fingerprints(group, ["m.f: 7 -> 8", "n.C.g: 7 -> 8"])
    assert (plain["m.f"] == explained["m.f"], plain["m.C.g"] == explained["m.C.g"]) == (False, True)


def test_on_record_is_who_was_tried_whole_and_found_right(tool: Any, group: Any) -> None:
    tests, nothing = tool.Noticed.BY_TESTS, tool.Noticed.BY_NOTHING
    there = ["m.f: 1 -> 2", "m.f: 2 -> 3", "m.C.g: 1 -> 2"]
    now = {"m.f": "mark f", "m.C.g": "mark g"}

    def on_record(*known: str) -> dict[str, Any]:
        found = {name: nothing if name in living else tests for name in known}
        tool.record(found, tool.complaints(found, {}), there, now)
        return tomllib.loads(tool.RECORD.read_text())

    living: set[str] = set()
    assert on_record("m.f: 1 -> 2") == {}
    assert on_record(*there[:2]) == {"m.f": "mark f"}
    assert on_record("m.C.g: 1 -> 2") == now
    now["m.C.g"] = "another mark"
    assert on_record("m.f: 1 -> 2") == {"m.f": "mark f", "m.C.g": "mark g"}
    living.add("m.f: 2 -> 3")
    assert on_record(*there) == {"m.C.g": "another mark"}
    now.clear()
    assert on_record() == {}


def test_of_those_on_record_only_the_changed_are_tried(
    tool: Any, group: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def try_all(chosen: Any, group: Any) -> dict[str, Any]:
        tried.extend(mutant.name for mutant in chosen)
        return {mutant.name: tool.Noticed.BY_TESTS for mutant in chosen}

    def run(*arguments: str) -> set[str]:
        tried.clear()
        with pytest.raises(SystemExit, match="0"):
            tool.main(arguments)
        return {tool.function_of(name) for name in tried}

    explained = tool.SOURCES[0] / "explained.toml"
    explained.touch()
    for name, value in (("GROUPS", (group,)), ("EXPLAINED", explained), ("try_all", try_all)):
        monkeypatch.setattr(tool, name, value)
    monkeypatch.chdir(tool.ROOT)
    assert run("m.f", "--changed") == {"m.f"}
    assert run("--changed") == {"m.C.g"}
    assert run("--changed") == set()
    assert "0 mutants" in capsys.readouterr().out
    source = tool.SOURCES[0] / "m.py"
    source.write_text(source.read_text().replace("not self.h", "not self.hash"))
    assert run("--changed") == {"m.C.g"}
    assert run() == {"m.f", "m.C.g"}


def test_a_mutant_is_tried_in_the_place_of_its_module() -> None:
    one = "worlds.read_page: state.pages is None -> state.pages is not None"
    command = [sys.executable, "dev/tools/mutate.py", one]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 by tests" in done.stdout


def test_what_no_mutant_is_called_is_refused(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main(["nosuch.thing"])
    said = capsys.readouterr().err
    assert "no mutant has 'nosuch.thing' in its name" in said
    assert "rules.decide" in said


def test_help_says_how_to_choose(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        tool.main(["--help"])
    said = capsys.readouterr().out
    assert "only mutants whose name has this in it" in said
    assert "--changed" in said
