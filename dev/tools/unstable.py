"""A test that fails in CI is run again, alone: if it passes then, it is *unstable*, is named, and fails no run.

A pytest plugin, which the ``conftest.py`` of the workspace names. It acts where ``CI`` is true, at the end of a run in
which one to `MOST` tests failed: each of them runs once more, in a process of its own. More failures are no accident of
a busy machine, and are left as they are. So are those of `NEVER` and of the tests that docs/guarantees.md names:
what they find once is found.

``dev/unstable.toml`` lists the tests that are known to be unstable. To be listed excuses nothing.

(pytest-rerunfailures 16 runs a failed test again at once, beside the others that made the machine busy, and however
many have failed.)
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LISTED: Final = ROOT / "dev" / "unstable.toml"
PROMISES: Final = ROOT / "docs" / "guarantees.md"
NEVER: Final = re.compile("simulator|chaos|lineariz|mutate")
"""What the ids of tests have in them that search: of the simulator and its exhaustive search, of chaos, of histories of
concurrent calls, of mutants."""
MOST: Final = 3
"""How many tests of one run are run again, and how many may fail for any to be."""
PATIENCE: Final = 900.0
"""Seconds for a test that is run again, in which its process starts and ends, too."""
NOTES: Final = "UNSTABLE_NOTES"
"""The variable that names a file in which the runs of one CI note their unstable tests: each names all so far."""

_FAILED: Final = ("failed", "error")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Run again what failed, once no other test runs; what passes counts as unstable, and no more as failed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(session.config, "workerinput")  # of pytest-xdist: the run ends in the process that started it
    if is_worker or reporter is None or exitstatus != pytest.ExitCode.TESTS_FAILED or not _is_ci():
        return
    failed = _failures(reporter.stats)
    if session.shouldfail or len(failed) > MOST or not all(map(_may_be_unstable, failed.items())):
        return
    for test, report in failed.items():
        again = _run_alone(test, session.config.rootpath)
        if again is None:
            _count_as_unstable(test, report, reporter.stats)
        else:
            report.sections.append(("Run again, alone, it failed again", again))
    if not any(name in reporter.stats for name in _FAILED):
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Show the whole first failure of each unstable test; name them in the last lines, but for pytest's own."""
    unstable = terminalreporter.stats.get("unstable", [])
    for report in unstable:
        terminalreporter.write_sep("=", f"UNSTABLE: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_sep("-", title)
            terminalreporter.write_line(text)
    yield
    listed = tomllib.loads(LISTED.read_text())
    lines = [_in_short(report, listed) for report in unstable]
    if NOTES in os.environ:
        with open(os.environ[NOTES], "a+") as notes:
            notes.writelines(lines)
            notes.seek(0)
            lines = list(notes)
    terminalreporter.write("".join(lines))


def _is_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true"}


def _failures(stats: dict[str, list[Any]]) -> dict[str, Any]:
    """The first failure of each test; of a file that cannot be collected, the error."""
    failed: dict[str, Any] = {}
    for name in _FAILED:
        for report in stats.get(name, []):
            failed.setdefault(report.nodeid, report)
    return failed


def _may_be_unstable(failure: tuple[str, Any]) -> bool:
    test, report = failure
    return isinstance(report, pytest.TestReport) and not NEVER.search(test) and not is_promised(test)


def is_promised(test: str) -> bool:
    """Whether the page of guarantees names this test as one that shows a promise to hold."""
    function = test.partition("[")[0].rpartition("::")[2]
    return f"`{function}`" in PROMISES.read_text()


def _run_alone(test: str, root: Path) -> str | None:
    """Run one test in a process of its own: None if it passed, or what was said."""
    command = [sys.executable, "-m", "pytest", "-p", f"no:{__name__}", test]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"It has not ended within {PATIENCE:g} s."
    passed = done.returncode == 0 and re.search(r"\b1 passed\b", done.stdout)  # one that is skipped has not passed
    return None if passed else done.stdout + done.stderr


def _count_as_unstable(test: str, report: Any, stats: dict[str, list[Any]]) -> None:
    """Take a test out of what pytest counts, and count it once."""
    # One whose end failed has also passed.
    for name in (*_FAILED, "passed"):
        if name in stats:
            stats[name] = [other for other in stats[name] if other.nodeid != test]
            if not stats[name]:
                del stats[name]
    stats.setdefault("unstable", []).append(report)


def _in_short(report: Any, listed: dict[str, Any]) -> str:
    """Which test is unstable, the first line of its first failure, and what is to be done about it."""
    # Of a process that died there is only a sentence.
    said = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr))
    first, _, _ = said.strip().partition("\n")
    todo = "Enter it into dev/unstable.toml with the date, and find its cause, in the product or in the test."
    if known := listed.get(report.nodeid):
        todo = f"In dev/unstable.toml since {known['since']}; its cause: {known['cause']}"
    return f"UNSTABLE {report.nodeid} - passed alone; failed first: {first}\n    {todo}\n"
