"""The first stage of the suite, `-m quick`: what a healthy service answers at once."""

import pytest

pytest_plugins = ["pytester"]

FILE = """
import pytest
from rdzv_conformance import BackendConformance
from rdzv_sqlite import SqliteBackend

class TestIt(BackendConformance):
    @pytest.fixture
    def connect(self, tmp_path):
        return lambda run_id: SqliteBackend(str(tmp_path / "db"), run_id)

    def test_of_its_own(self): pass
"""


def test_first_stage_has_its_topics_and_no_test_with_processes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FILE)
    result = pytester.runpytest("-m", "quick", "--strict-markers", "-n0")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 100
    assert outcomes["deselected"] > 100
    assert outcomes.keys() == {"passed", "deselected"}
    begin = next(number for number, line in enumerate(result.outlines) if "rdzv conformance" in line)
    topics = [line.split()[0] for line in result.outlines[begin + 1 : begin + 7]]
    assert topics == ["capabilities", "register", "fencing", "keys", "order", "store"]


@pytest.mark.parametrize("test", ["add_loses_no_count", "register_is_linearizable", "lease_ends", "of_its_own"])
def test_what_takes_longer_is_of_no_stage(pytester: pytest.Pytester, test: str) -> None:
    pytester.makepyfile(FILE)
    result = pytester.runpytest("-m", "quick", "-k", test, "--collect-only")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
