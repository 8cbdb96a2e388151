"""The coroutine by which nodes report failures, effect by effect: one of them is the first."""

import math
from typing import Any

import pytest
from rdzv_core.errors import RendezvousConnectionError

from rdzv.engine import report
from rdzv.engine.codec import decode
from rdzv.engine.effects import Emit
from rdzv.engine.node import Node
from rdzv.engine.notices import Failure, Verdict, failure_key
from rdzv.engine.records import State
from rdzv.hooks import EventKind
from rdzv.outcome import Ending, Outcome

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


def test_its_record_will_say_that_it_has_failed(harness: Harness) -> None:
    a, outside = member(harness, "a"), member(harness, "b", 0)
    for node in (a, outside):
        harness.run(report.report_failure(node, "exit code 7", False, harness.now + 5.0))
    assert a.reckoning.outcome == Outcome()
    assert outside.reckoning.outcome is None


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


class TestVerdict:
    """What a node that is in the next world has to pay for the one before."""

    def learn(self, harness: Harness, node: Node, outcome: Outcome | None, number: int = 1) -> list[Any]:
        """Let a node learn the verdict on a round; returns what it has asked for."""
        node.reckoning.outcome = outcome
        learns = harness.stepper(report.learn_verdict(node, number, harness.now + 5.0))
        learns.end()
        assert node.reckoning.outcome is None
        return learns.taken

    @pytest.mark.parametrize("shown", [True, False])
    def test_one_that_has_failed_pays_unless_that_is_explained(self, harness: Harness, shown: bool) -> None:
        a = member(harness, "a")
        for verdict, pays in ((Verdict.FIRST, True), (Verdict.EXPLAINED, False)):
            failure = Failure("b", "exit code 7", False, verdict=verdict, because="that is why")
            harness.put(failure_key(1), failure.encode())
            if shown:
                harness.show(a)
            a.reckoning.pays = False
            assert len(self.learn(harness, a, Outcome())) == (0 if shown else 1)
            assert (a.reckoning.pays, a.reckoning.ended_by) == (pays, failure)

    def test_one_that_was_behind_pays_though_the_watch_has_not_shown_that(self, harness: Harness) -> None:
        a = member(harness, "a")
        harness.put(failure_key(1), Failure("b", "it hangs", False).encode())
        harness.show(a)
        behind = Failure("a", "it was behind", False, verdict=Verdict.BEHIND)
        harness.put(failure_key(1), behind.encode())
        self.learn(harness, a, Outcome(Ending.CHANGED, 19, 2.0))
        assert (a.reckoning.pays, a.reckoning.ended_by) == (True, behind)
        # A world that it could not enter came in between: it is not forgotten.
        self.learn(harness, a, None, number=2)
        assert (a.reckoning.pays, a.reckoning.ended_by) == (True, behind)

    @pytest.mark.parametrize("outcome", [None, Outcome(Ending.CHANGED)])
    def test_one_whose_program_worked_asks_for_nothing_if_it_has_heard_of_no_failure(
        self, harness: Harness, outcome: Outcome | None
    ) -> None:
        a = member(harness, "a")
        assert self.learn(harness, a, outcome) == []
        assert not a.reckoning.pays

    def test_where_the_service_does_not_answer_each_failure_is_its_own(self, harness: Harness) -> None:
        a = member(harness, "a")
        a.reckoning.outcome = Outcome()
        harness.stepper(report.learn_verdict(a, 1, harness.now + 5.0)).throw(RendezvousConnectionError("away"))
        assert a.reckoning.pays


@pytest.mark.parametrize(("lease", "until"), [(None, 17.0), (10.0, 17.0), (20.0, 22.0)])
def test_one_that_is_out_waits_for_a_time_to_live_and_two_seconds(
    harness: Harness, lease: float | None, until: float
) -> None:
    a = member(harness, "a")
    a.registration.lease = None if lease is None else harness.client.open_lease(lease, harness.now)
    assert report.out_until(a) == math.inf
    a.reckoning.observe(True, 0.0)
    a.reckoning.observe(True, 5.0)
    assert report.out_until(a) == until
    a.reckoning.observe(False, 6.0)
    assert report.out_until(a) == math.inf


def test_a_service_that_is_away_is_an_error_of_the_caller(harness: Harness) -> None:
    a = member(harness, "a")
    with pytest.raises(RendezvousConnectionError):
        harness.stepper(report.report_failure(a, "exit code 7", False, harness.now + 5.0)).throw(
            RendezvousConnectionError("away")
        )
    assert not a.run.notices.failures
