"""The suite catches what is wrong, and says what it is."""

from pathlib import Path

import pytest

from ..faults import FAULTS

pytest_plugins = ["pytester"]

FILE = """
import pytest
from rdzv_conformance import BackendConformance
from {package}.faults import FAULTS
from {package}.reference import OnMemory

FAULT = FAULTS["{fault}"]

class TestFaulty(OnMemory, BackendConformance):
    backend = FAULT.backend
    service = FAULT.service
"""


LONG = {
    "HoldsALock-test_fork_amid_calls_and_waits",
    "GivesUp-test_wait_goes_on_when_its_line_breaks",
    "GivesUp-test_calls_end_in_time_and_the_client_goes_on",
    "IgnoresItsTimeout-test_calls_end_in_time_and_the_client_goes_on",
    "ForgetsItsCalls-test_close_ends_a_connection_that_is_being_made",
    "SleepsOn-test_lease_ends_within_a_second_of_its_time",
    "Truncates-test_many_large_values_are_read_and_waited_for",
}
"""A hang is one after half a minute, and what has not come is missed after ten seconds or twenty."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in LONG else ()) for name in FAULTS]
)
def test_fault_is_caught_and_named(pytester: pytest.Pytester, name: str) -> None:
    tests = Path(__file__).parent.parent
    pytester.syspathinsert(tests.parent)
    pytester.makepyfile(test_faulty=FILE.format(package=tests.name, fault=name))
    fault = FAULTS[name]
    result = pytester.runpytest("-x", f"test_faulty.py::TestFaulty::{fault.test}")
    assert result.parseoutcomes().get("failed", 0) >= 1, f"{fault.faulty.__doc__} No test noticed."
    result.stdout.fnmatch_lines(f"*{fault.words}*")
    result.stdout.fnmatch_lines('What is usually behind it: *, in "Writing a backend".')
