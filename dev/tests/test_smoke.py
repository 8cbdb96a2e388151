"""What CI runs of the soak: the first case of each test or class, whichever process of pytest-xdist it falls to."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_quick(): pass

@pytest.mark.soak
@pytest.mark.parametrize("number", range(3))
def test_each(number): pass

@pytest.mark.parametrize("number", [1, pytest.param(1000, marks=pytest.mark.soak)])
def test_large(number): pass

@pytest.mark.soak
class TestAll:
    def test_one(self): pass
    def test_two(self): pass
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """With tests, and a way to the plugin for the processes of pytest-xdist."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makepyprojecttoml('[tool.pytest]\nmarkers = ["soak: takes long"]\n')
    pytester.makepyfile(test_it=TESTS)
    return pytester


@pytest.mark.parametrize("how", [(), ("--numprocesses", "2")], ids=["alone", "shared"])
def test_the_first_case_of_each_test_or_class_runs(folder: pytest.Pytester, how: tuple[str, ...]) -> None:
    result = folder.runpytest_subprocess("-p", "tools.smoke", *how, "--smoke", "-rA")
    result.assert_outcomes(passed=3, deselected=5 if not how else 0)
    passed = {line.rpartition("::")[2] for line in result.outlines if line.startswith("PASSED")}
    assert passed == {"test_each[0]", "test_large[1000]", "test_one"}


def test_without_the_option_all_run(folder: pytest.Pytester) -> None:
    folder.runpytest_subprocess("-p", "tools.smoke").assert_outcomes(passed=8)
