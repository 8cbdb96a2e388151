"""The rules once more: what turns on one comparison alone. Mutation (`dev.py mutate`) finds what is not tried."""

from dataclasses import replace

import pytest

from rdzv.admission import AdmissionRule
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


class TestMembersThatAreBack:
    def test_a_member_that_is_back_and_goes_asks_for_no_world(self) -> None:
        there = [node("a", last_round=1, goes=True), node("b"), node("c")]
        assert held(decide(state("a", "b", "c"), *there)).status.waiting == 0

    def test_a_member_that_is_back_makes_its_group_whole(self) -> None:
        rule = AdmissionRule(group_by="rack", group_size=2)
        racks = dict(zip("abcd", ("x", "x", "y", "y"), strict=True))
        there = [node(name, last_round=int(name != "b"), rule=rule, labels={"rack": racks[name]}) for name in "abcd"]
        # The one that is back, and two of a rack that is not in the world; a third has no place.
        there.append(node("e", last_round=1, rule=rule, labels={"rack": "y"}))
        assert held(decide(state("a", "b", rule=rule), *there)).status.waiting == 3


class TestAttempts:
    def test_after_closing_a_member_without_a_record_is_not_waited_for(self) -> None:
        new = published(decide(SUPERSEDED, *(node(name, attempt=1) for name in "cdef"), trusted=False))
        assert (new.attempt, new.world) == (1, ("c", "d", "e", "f"))

    def test_an_attempt_whose_nodes_are_all_gone_needs_no_closing(self) -> None:
        new = published(decide(state("a", "b"), *(node(name, attempt=1) for name in "cdef")))
        assert (new.attempt, new.round, new.closed) == (1, 2, None)

    @pytest.mark.parametrize("leader", ["the same", "another"])
    def test_members_that_have_left_are_waited_for_by_no_leader_of_the_next_attempt(self, leader: str) -> None:
        left = tuple(Departure(name, rank, True, "requeued") for rank, name in enumerate("ab"))
        known = RunStatus(1, Phase.ABANDONED, 0, 0, left)
        # Their records are gone, and what is not written down of them is not certain yet.
        first = held(decide(state("a", "b"), node("c", attempt=1), known=known, trusted=False)).status
        assert (first.phase, first.present, first.departures) == (Phase.GATHERING, 1, left)
        read = first if leader == "the same" else first.shortened(None)
        nodes = [node(name, attempt=1) for name in "cdef"]
        assert published(decide(state("a", "b"), *nodes, known=read, trusted=False)).world == ("c", "d", "e", "f")

    def test_those_of_a_closed_attempt_are_no_news_to_the_next(self) -> None:
        known = RunStatus(1, Phase.RUNNING, 1, 0, (Departure("a", 0, True, "drained"),))
        assert held(decide(SUPERSEDED, node("c", attempt=1), known=known)).status.departures == ()

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
    @pytest.mark.parametrize("order", ["a", "abcda", "abcx", "aabc"])
    def test_an_order_of_other_nodes_is_none_for_this_world(self, order: str) -> None:
        publish = decide(None, *map(node, "abcd"))
        assert isinstance(publish, Publish)
        assert publish.with_ranks(list(order)) is None

    def test_who_is_gone_fills_no_hole(self) -> None:
        assert rules.sticky_ranks([node("b"), node("x")], list("abcd")) == ["x", "b"]


class TestStanding:
    def test_a_later_world_without_the_node_means_waiting(self) -> None:
        assert rules.membership(state("b", round=4), None, attempt=0, last_round=3) is MembershipState.WAITING


class TestClosing:
    def test_what_closes_a_run_without_a_node_is_empty(self) -> None:
        closed = Closed("b", "enough", False)
        assert rules.close(None, closed, LIMITS) == State(0, 0, (), "", 0, 2, 4, closed)
