"""An entry for each test of the suite, made of the test."""

import pytest

from rdzv_conformance import catalogue
from rdzv_conformance.suite.traps import LOOK_AT

ENTRIES = {entry.name: entry for entry in catalogue.entries()}


@pytest.mark.parametrize("name", ENTRIES)
def test_each_test_says_what_it_checks_and_where_to_look(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.checks
    assert entry.look_at


def test_what_is_looked_at_is_of_tests_and_topics_that_exist() -> None:
    assert LOOK_AT.keys() <= ENTRIES.keys() | {entry.topic for entry in ENTRIES.values()}


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("calls_end_in_time_and_the_client_goes_on", "1.5: So many seconds later a call on a busy machine may end."),
        ("close_ends_a_connection_that_is_being_made", "1.5: Within so many seconds they end, on a busy machine."),
    ],
    ids=["its own", "of what it calls"],
)
def test_entry_has_the_numbers_of_its_test(name: str, limit: str) -> None:
    assert limit in ENTRIES[f"test_{name}"].limits


def test_entry_has_what_an_author_brings() -> None:
    entry = ENTRIES["test_put_of_unknown_outcome_goes_to_no_other_endpoint"]
    assert entry.needs == ("`MULTI_ENDPOINT`", "the fixture `server`")


def test_topics_stand_in_the_order_in_which_they_run() -> None:
    topics = list(dict.fromkeys(entry.topic for entry in ENTRIES.values()))
    assert topics[:4] == ["capabilities", "register", "fencing", "keys"]
    assert topics[-1] == "network"
