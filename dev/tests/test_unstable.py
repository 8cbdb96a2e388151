"""A test that fails in CI and passes alone fails no run, and is named; any other failure fails it as ever."""

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest
from tools import unstable

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

ALONE = ()
SHARED = ("-p", "xdist", "--numprocesses", "2", "--dist", "worksteal")
each_way = pytest.mark.parametrize("how", [ALONE, SHARED], ids=["in-one-process", "shared"])

HEAD = """
import os, pathlib, pytest

def runs(name):
    '''How many times it has run, this time included; where is noted.'''
    file = pathlib.Path(name)
    with file.open("a") as lines:
        print(os.environ.get("PYTEST_XDIST_WORKER", "alone"), file=lines)
    return len(file.read_text().splitlines())

def fails_first(name):
    print("what was written at first")
    assert runs(name) > 1, "only the first time"

def test_good():
    assert True
"""
FAILS_FIRST = """
def test_{0}():
    fails_first({0!r})
"""
FAILS_ALWAYS = """
def test_broken():
    assert runs("broken") < 0, "each time"
"""


@pytest.fixture(autouse=True)
def in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI of its own, whose runs load no plugin that they do not name."""
    monkeypatch.setenv("CI", "true")
    for name in (unstable.NOTES, "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, *options: str, **files: str) -> pytest.RunResult:
    """Run test files with the plugin."""
    pytester.makepyfile(**{name: HEAD + text for name, text in files.items()})
    return pytester.runpytest_inprocess("-p", "tools.unstable", *options)


def runs_of(pytester: pytest.Pytester, name: str) -> list[str]:
    """Where a test has run: in which process of pytest-xdist, or alone."""
    return (pytester.path / name).read_text().splitlines()


def last_lines(result: pytest.RunResult) -> list[str]:
    """From the first unstable test to the end."""
    lines = [re.sub(r" in [\d.]+s.*", "", line).strip("= ") for line in result.outlines]
    return lines[next(number for number, line in enumerate(lines) if line.startswith("UNSTABLE test_")) :]


@each_way
def test_one_that_passes_alone_fails_no_run_whichever_phase_failed(
    pytester: pytest.Pytester, how: tuple[str, ...]
) -> None:
    phases = """
    @pytest.fixture
    def begins():
        fails_first("setup")

    @pytest.fixture
    def ends():
        yield
        fails_first("teardown")

    def test_setup(begins): pass
    def test_call(): fails_first("call")
    def test_teardown(ends): pass
    """
    result = run(pytester, *how, test_it="\n".join(line.removeprefix("    ") for line in phases.splitlines()))
    assert result.ret == pytest.ExitCode.OK
    *named, summary = last_lines(result)
    assert summary == "1 passed, 3 unstable"
    assert sorted(named[::2]) == [
        f"UNSTABLE test_it.py::test_{phase} - passed alone; failed first: AssertionError: only the first time"
        for phase in ("call", "setup", "teardown")
    ]
    assert {line.strip() for line in named[1::2]} == {
        "Enter it into dev/unstable.toml with the date, and find its cause, in the product or in the test."
    }
    for phase in ("call", "setup", "teardown"):
        first, second = runs_of(pytester, phase)
        assert (first.startswith("gw"), second) == (how == SHARED, "alone")
    assert result.outlines.count("what was written at first") == 3
    assert sum('fails_first("call")' in line for line in result.outlines) == 1


@each_way
def test_one_that_fails_alone_too_fails_the_run(pytester: pytest.Pytester, how: tuple[str, ...]) -> None:
    result = run(pytester, *how, test_it=FAILS_FIRST.format("shaky") + FAILS_ALWAYS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert last_lines(result)[-1] == "1 failed, 1 passed, 1 unstable"
    assert "UNSTABLE test_it.py::test_shaky - passed alone" in "".join(last_lines(result))
    result.stdout.fnmatch_lines(["*Run again, alone, it failed again*", "*each time*", "FAILED *test_broken*each time"])
    assert len(runs_of(pytester, "broken")) == 2


@each_way
def test_of_more_than_three_none_is_run_again(pytester: pytest.Pytester, how: tuple[str, ...]) -> None:
    result = run(pytester, *how, test_it="".join(FAILS_FIRST.format(name) for name in "abcd"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=4)
    assert [len(runs_of(pytester, name)) for name in "abcd"] == [1, 1, 1, 1]


def test_parts_of_one_test_are_one_test(pytester: pytest.Pytester) -> None:
    parts = "def test_parts(subtests):\n    for part in 'abcd':\n        with subtests.test(part): fails_first(part)"
    *named, summary = last_lines(run(pytester, test_it=parts))
    assert (len(named), summary) == (2, "1 passed, 1 unstable")


def test_a_process_that_dies_under_its_test_is_a_failure_like_others(pytester: pytest.Pytester) -> None:
    result = run(pytester, *SHARED, test_it="def test_crash():\n    if runs('crash') == 1: os._exit(3)")
    assert result.ret == pytest.ExitCode.OK
    assert "test_crash - passed alone; failed first: worker 'gw" in last_lines(result)[0]


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("test_chaos", "a_fault"),
        ("test_conformance", "keys_are_linearizable_among_processes"),
        ("test_conformance", "all_nodes_agree"),
    ],
)
def test_what_searches_and_what_is_promised_is_not_run_again(pytester: pytest.Pytester, file: str, test: str) -> None:
    result = run(pytester, **{file: FAILS_FIRST.format(test)})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    assert runs_of(pytester, test) == ["alone"]


def test_nor_is_one_beside_it_since_the_run_has_failed(pytester: pytest.Pytester) -> None:
    result = run(pytester, test_it=FAILS_FIRST.format("shaky"), test_chaos=FAILS_FIRST.format("fault"))
    result.assert_outcomes(passed=2, failed=2)
    assert len(runs_of(pytester, "shaky")) == 1


@pytest.mark.parametrize("ci", [None, "", "false"])
def test_nothing_is_run_again_outside_of_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str | None
) -> None:
    monkeypatch.delenv("CI")
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    result = run(pytester, test_it=FAILS_FIRST.format("shaky"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len(runs_of(pytester, "shaky")) == 1


def test_nothing_is_run_again_where_the_run_broke_off(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--exitfirst", test_it=FAILS_FIRST.format("shaky") + "def test_untried(): pass")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len(runs_of(pytester, "shaky")) == 1


@each_way
def test_a_file_that_cannot_be_collected_fails_the_run(pytester: pytest.Pytester, how: tuple[str, ...]) -> None:
    options = ("--continue-on-collection-errors", *how)
    result = run(pytester, *options, test_it=FAILS_FIRST.format("shaky"), test_other="import nosuch")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1, errors=1)


def test_one_that_is_skipped_alone_has_not_passed(pytester: pytest.Pytester) -> None:
    result = run(pytester, test_it="def test_absent():\n    assert runs('absent') > 1\n    pytest.skip('not there')")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)


def test_what_is_known_of_one_that_is_listed_is_said(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed = tmp_path / "unstable.toml"
    listed.write_text('["test_it.py::test_shaky"]\nsince = 2026-11-25\nfailure = "late"\ncause = "a slow disk"\n')
    monkeypatch.setattr(unstable, "LISTED", listed)
    *_, what, _ = last_lines(run(pytester, test_it=FAILS_FIRST.format("shaky")))
    assert what.strip() == "In dev/unstable.toml since 2026-11-25; its cause: a slow disk"


def test_the_last_run_of_a_ci_names_those_of_the_earlier_ones(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(unstable.NOTES, str(tmp_path / "notes"))
    assert len(last_lines(run(pytester, test_it=FAILS_FIRST.format("shaky")))) == 3
    first, _, second, _, summary = last_lines(run(pytester, test_it=FAILS_FIRST.format("other")))
    assert ("test_shaky" in first, "test_other" in second, summary) == (True, True, "1 passed, 1 unstable")


def test_the_list_is_short_and_says_when_and_what() -> None:
    listed = tomllib.loads(unstable.LISTED.read_text())
    assert len(listed) <= 5, "mend some before more are added"
    for test, known in listed.items():
        assert known.keys() == {"since", "failure", "cause"}, test
        assert type(known["since"]) is date, test
        assert known["failure"].strip(), test
        assert known["cause"].strip(), test
        assert (ROOT / test.partition("::")[0]).is_file(), test
        assert not unstable.NEVER.search(test), f"{test} searches: what it finds once is found"
        assert not unstable.is_promised(test), f"docs/guarantees.md names {test}"


def test_every_test_that_searches_is_known_by_its_name() -> None:
    searches = re.compile(r"^\s*(?:from|import) .*(?:simulator|chaos|linearizability)|import_module\(.mutate.\)", re.M)
    tests = [path for folder in ("*", "plugins/*", "launchers/*") for path in ROOT.glob(f"{folder}/tests/**/test_*.py")]
    found = [str(path.relative_to(ROOT)) for path in tests if searches.search(path.read_text())]
    assert len(found) >= 8
    assert [file for file in found if not unstable.NEVER.search(file)] == []
    suite = ROOT / "conformance" / "src" / "rdzv_conformance" / "suite"
    for path in suite.glob("*.py"):
        for body in path.read_text().split("    def test_")[1:]:
            assert "assert_linearizable(" not in body or unstable.NEVER.search(body.partition("(")[0])
