"""Bugs that are put back on purpose are found, within the time that CI gives, and reported as a short trace."""

import itertools
import re
import time
from typing import Final

import pytest

from .bugs import BUGS, draw, put_back
from .command import tell
from .shrink import Failure, shrink, try_out

RARE: Final = {
    "announced-when-gone": 164,
    "believes-an-old-answer": 250,
    "drain-again": 79,
    "drowsy-observer": 41,
    "elected-when-gone": 411,
    "forgotten-election": 109,
    "garbage-of-the-next-attempt": 193,
    "hasty-removal": 18,
    "keep-ends": 39,
    "late-closing": 282,
    "late-record-believed": 91,
    "leader-without-grace-period": 95,
    "pardon-unheard": 185,
    "quarantine-by-the-watch": 95,
    "records-by-name": 523,
    "removal-by-the-lease": 93,
    "shared-pages-removed": 153,
    "spares-take-places-of-silent-members": 205,
    "unseen-removal": 96,
    "unverified-lease": 31,
}
"""Bugs that take more than a second to find, and the seed that showed each last: the hunt begins there. The soak begins
with the first seed."""


def hunt(name: str, first: int = 0) -> Failure:
    """What a seed shows of a bug, within 90 s of one core's work: an invariant that it may violate."""
    ends = time.process_time() + 90
    for seed in itertools.chain([first], itertools.count()):
        with put_back(name):
            failure = try_out(draw(seed, name))
        if failure is not None:
            assert failure.violation.number in BUGS[name].breaks, failure.violation
            assert BUGS[name].says in str(failure.violation)
            return failure
        if time.process_time() >= ends:
            break
    raise AssertionError(f"{BUGS[name].what} No check noticed in {seed} seeds.")


@pytest.mark.soak
@pytest.mark.parametrize("name", RARE)
def test_rare_bug_is_found_from_the_first_seed_on(name: str) -> None:
    hunt(name)


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_found(name: str) -> None:
    found = hunt(name, RARE.get(name, 0))
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


@pytest.mark.soak
def test_failing_run_is_reported_as_a_short_trace() -> None:
    found = hunt("no-exclusivity", 4)
    with put_back("no-exclusivity"):
        small = shrink(found)
    assert small.violation.number == found.violation.number
    # The second one comes when the first is at work: less does not violate anything.
    assert [event.fault for event in small.plan.events] == ["come", "come"]
    told = tell(found, small, "no-exclusivity").splitlines()
    assert len(told) < 20, told
    assert re.fullmatch(r"invariant 2: n\d is in round 1 while round 2 exists: .*", told[0])
    assert told[-1] == f"Again: python3 dev.py simulate --seed {found.plan.seed} --bug no-exclusivity"
