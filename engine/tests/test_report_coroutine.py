"""The coroutine by which nodes report failures, effect by effect: one of them is the first."""

import pytest
from rdzv_core.errors import RendezvousConnectionError

from rdzv.engine import report
from rdzv.engine.codec import decode
from rdzv.engine.effects import Emit
from rdzv.engine.node import Node
from rdzv.engine.notices import Failure, failure_key
from rdzv.engine.records import State
from rdzv.hooks import EventKind

from .coroutines import Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()


def member(harness: Harness, name: str, number: int = 1) -> Node:
    """A node in round 1, which has joined the round `number` last."""
    harness.publish(State(0, 1, ("a", "b"), "a.host", 1, 2, 4))
    node = harness.registered(name)
    harness.show(node)
    node.round = number
    return node


def test_the_first_report_of_a_round_stands(harness: Harness) -> None:
    a, b = member(harness, "a"), member(harness, "b")
    assert harness.run(report.report_failure(a, "exit code 7", False, harness.now + 5.0))
    assert not harness.run(report.report_failure(b, "its peer is gone", True, harness.now + 5.0))
    first = Failure("a", "exit code 7", False)
    versioned = harness.read(failure_key(1))
    assert versioned is not None
    assert decode(Failure, versioned.payload) == first
    # Both know it at once: they may decide by it before the watch tells them.
    assert [dict(node.run.notices.failures) for node in (a, b)] == [{1: first}, {1: first}]


def test_node_that_reports_second_hears_who_was_first(harness: Harness) -> None:
    a, b = member(harness, "a"), member(harness, "b")
    harness.run(report.report_failure(a, "exit code 7", False, harness.now + 5.0))
    reports = harness.stepper(report.report_failure(b, "its peer is gone", True, harness.now + 5.0))
    heard = reports.to(Emit)
    assert [(event.kind, event.node) for event in heard.events] == [(EventKind.NODE_FAILED, "a")]


def test_of_two_at_the_same_time_one_is_first(harness: Harness) -> None:
    a, b = member(harness, "a"), member(harness, "b")
    one = harness.stepper(report.report_failure(a, "exit code 7", False, harness.now + 5.0))
    other = harness.stepper(report.report_failure(b, "exit code 7", False, harness.now + 5.0))
    assert (other.end(), one.end()) == (True, False)


def test_it_may_be_said_twice(harness: Harness) -> None:
    a = member(harness, "a")
    assert harness.run(report.report_failure(a, "exit code 7", False, harness.now + 5.0))
    assert harness.run(report.report_failure(a, "exit code 7", False, harness.now + 5.0))
    assert harness.writes(failure_key(1)) == 1


def test_a_node_that_has_heard_who_was_first_writes_nothing(harness: Harness) -> None:
    a, b = member(harness, "a"), member(harness, "b")
    harness.run(report.report_failure(a, "exit code 7", False, harness.now + 5.0))
    harness.show(b)
    with pytest.raises(StopIteration) as ended:
        next(report.report_failure(b, "its peer is gone", False, harness.now + 5.0))
    assert ended.value.value is False


def test_a_report_that_is_gone_at_once_is_none(harness: Harness) -> None:
    a = member(harness, "a")
    reports = harness.stepper(report.report_failure(a, "exit code 7", False, harness.now + 5.0))
    assert reports.send((False, None)) is None
    assert a.run.notices.failures == {}


@pytest.mark.parametrize("number", [0, 2])
def test_a_node_that_is_in_no_round_that_runs_reports_nothing(harness: Harness, number: int) -> None:
    a = member(harness, "a", number)
    assert not harness.run(report.report_failure(a, "exit code 7", False, harness.now + 5.0))
    assert failure_key(1) not in harness.names()


def test_a_service_that_is_away_is_an_error_of_the_caller(harness: Harness) -> None:
    a = member(harness, "a")
    with pytest.raises(RendezvousConnectionError):
        harness.stepper(report.report_failure(a, "exit code 7", False, harness.now + 5.0)).throw(
            RendezvousConnectionError("away")
        )
    assert not a.run.notices.failures
