"""The rules once more: what turns on one comparison alone. Mutation (`dev.py mutate`) finds what is not tried."""

from dataclasses import replace

import pytest

from rdzv.engine import rules
from rdzv.engine.records import Closed, Departure, Phase, RunStatus, State
from rdzv.engine.rules import MembershipState, Publish, Situation

from .test_rules import LIMITS, decide, held, node, published, state

SUPERSEDED = state("a", "b", closed=Closed("c", "superseded", False))


class TestNoNode:
    def test_a_round_that_all_have_lost_is_reported(self) -> None:
        status = held(decide(state("a", "b"))).status
        assert (status.phase, status.present, status.waiting) == ("re-forming", 0, 0)
        assert [departure.node for departure in status.departures] == ["a", "b"]

    def test_a_leader_of_a_later_attempt_may_be_alone(self) -> None:
        later = replace(LIMITS, attempt=1)
        hold = rules.decide(Situation(None, [], later, last_call=30.0, trusted=True))
        assert held(hold).status == RunStatus(0, Phase.GATHERING, 0, 0)


class TestBereavement:
    @pytest.mark.parametrize(("left", "evicted"), [("c", ["d"]), ("", ["c", "d"]), ("cd", [])])
    def test_a_member_that_went_without_a_leave_record_is_evicted(self, left: str, evicted: list[str]) -> None:
        back = [node(name, last_round=1) for name in "ab"]
        decision = decide(state("a", "b", "c", "d"), *back, *(node(name, left="drained") for name in left))
        assert isinstance(decision, Publish)
        assert [departure.node for departure in decision.evicted] == evicted

    def test_a_first_world_is_not(self) -> None:
        assert decide(None, *map(node, "abcd")) == Publish(state(*"abcd", address="a.host"))


class TestAttempts:
    def test_after_closing_a_member_without_a_record_is_not_waited_for(self) -> None:
        new = published(decide(SUPERSEDED, *(node(name, attempt=1) for name in "cdef"), trusted=False))
        assert (new.attempt, new.world) == (1, ("c", "d", "e", "f"))

    def test_an_attempt_whose_nodes_are_all_gone_needs_no_closing(self) -> None:
        new = published(decide(state("a", "b"), *(node(name, attempt=1) for name in "cdef")))
        assert (new.attempt, new.round, new.closed) == (1, 2, None)

    def test_the_first_node_of_the_newest_attempt_supersedes(self) -> None:
        rivals = [node("c", order=7, attempt=2), node("d", order=6, attempt=2), node("e", order=5, attempt=1)]
        closed = published(decide(state("a", "b"), node("a"), *rivals)).closed
        assert closed == Closed("d", "superseded by attempt 2", False)

    def test_an_attempt_that_never_had_a_world_is_closed_without_one(self) -> None:
        new = published(decide(None, node("a"), node("b", attempt=1)))
        assert new == State(0, 0, (), "", 0, 2, 4, Closed("b", "superseded by attempt 1", False))

    def test_who_waits_for_an_older_attempt_is_not_in_the_world(self) -> None:
        new = published(decide(SUPERSEDED, node("z", order=1), *(node(name, attempt=1) for name in "cdef")))
        assert new.world == ("c", "d", "e", "f")


class TestLimits:
    def test_those_of_the_leader_come_before_those_of_the_first_node(self) -> None:
        other = node("a", min_nodes=1)
        new = published(decide(None, other, node("b"), node("c"), quorum_for=30.0))
        assert (new.world, new.min_nodes) == (("b", "c"), 2)

    def test_of_an_attempt_that_is_not_the_leaders_the_first_nodes_hold(self) -> None:
        older = node("z", order=1, max_nodes=9)
        first, *others = (node(name, attempt=1, max_nodes=3) for name in "cde")
        differs = node("f", attempt=1, max_nodes=2)
        new = published(decide(SUPERSEDED, differs, *others, first, older))
        assert (new.world, new.max_nodes) == (("c", "d", "e"), 3)


class TestNews:
    def test_a_closed_run_has_none(self) -> None:
        closed = state("a", "b", "c", closed=Closed("a", "done", True))
        status = held(decide(closed, node("a"), node("b", left="done"), *map(node, "de"))).status
        assert status == RunStatus(1, Phase.CLOSED, 3, 0)

    def test_who_came_back_takes_a_place_that_no_newcomer_gets(self) -> None:
        nodes = [node("a"), node("b"), node("c", last_round=1), *map(node, "def")]
        assert held(decide(state("a", "b", "c"), *nodes)).status.waiting == 2

    def test_a_loss_is_no_news_where_no_member_is_left_to_hear_it(self) -> None:
        hold = held(decide(state("a", "b"), node("a", last_round=1), node("c")))
        assert hold.status.waiting == 2
        assert hold.status.departures == (Departure("b", 1, False, "its lease ran out: it died, hangs or is cut off"),)


class TestRanks:
    @pytest.mark.parametrize("order", ["abcda", "abcx", "aabc"])
    def test_each_node_has_one(self, order: str) -> None:
        with pytest.raises(ValueError, match="each of"):
            decide(None, *map(node, "abcd"), assign=lambda arrived, previous: list(order))

    def test_who_is_gone_fills_no_hole(self) -> None:
        assert rules.sticky_ranks([node("b"), node("x")], list("abcd")) == ["x", "b"]


class TestStanding:
    def test_a_later_world_without_the_node_means_waiting(self) -> None:
        assert rules.membership(state("b", round=4), None, attempt=0, last_round=3) is MembershipState.WAITING


class TestClosing:
    def test_what_closes_a_run_without_a_node_is_empty(self) -> None:
        closed = Closed("b", "enough", False)
        assert rules.close(None, closed, LIMITS) == State(0, 0, (), "", 0, 2, 4, closed)
