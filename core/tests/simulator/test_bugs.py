"""Bugs that are put back on purpose are found, within the time that CI gives, and reported as a short trace."""

import itertools
import re
import time

import pytest

from .bugs import BUGS, draw, put_back
from .command import tell
from .shrink import Failure, shrink, try_out


def hunt(name: str) -> Failure:
    """The first seed that shows a bug, within 90 s of one core's work."""
    ends = time.process_time() + 90
    for seed in itertools.count():
        with put_back(name):
            failure = try_out(draw(seed, name))
        if failure is not None:
            return failure
        if time.process_time() >= ends:
            break
    raise AssertionError(f"{BUGS[name].what} No check noticed in {seed} seeds.")


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_found(name: str) -> None:
    found = hunt(name)
    assert found.violation.number in BUGS[name].breaks, found.violation
    assert BUGS[name].says in str(found.violation)
    # The seed is all that one needs to see it again, and without the bug nothing is wrong with it.
    with put_back(name):
        again = try_out(found.plan)
    assert again is not None
    assert (again.trace, str(again.violation)) == (found.trace, str(found.violation))
    assert try_out(found.plan) is None


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_gone_afterwards(name: str) -> None:
    functions = [(change.where.__globals__, change.where.__name__) for change in BUGS[name].changes]
    before = [scope.get(function) for scope, function in functions]
    with put_back(name):
        pass
    assert [scope.get(function) for scope, function in functions] == before


def test_failing_run_is_reported_as_a_short_trace() -> None:
    found = hunt("no-exclusivity")
    with put_back("no-exclusivity"):
        small = shrink(found)
    assert small.violation.number == found.violation.number
    # The second one comes when the first is at work: less does not violate anything.
    assert [event.fault for event in small.plan.events] == ["come", "come"]
    told = tell(found, small, "no-exclusivity").splitlines()
    assert len(told) < 20, told
    assert re.fullmatch(r"invariant 2: n\d is in round 1 while round 2 exists: .*", told[0])
    assert told[-1] == f"Again: python3 dev.py simulate --seed {found.plan.seed} --bug no-exclusivity"
