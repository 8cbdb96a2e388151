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
    assert "only mutants whose name has this in it" in capsys.readouterr().out
