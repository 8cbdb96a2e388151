"""Which nodes a new world should have, and who has to wait."""

from collections.abc import Sequence
from typing import Any

import pytest

from rdzv.admission import AdmissionRule, Limits
from rdzv.engine import rules
from rdzv.engine.eligibility import drained, eligible, objection
from rdzv.engine.notices import NONE, DrainNotice, Notices, Quarantine
from rdzv.engine.records import Closed, LeaderRecord, NodeRecord, State

DRAIN = DrainNotice(60.0, "spot")


def node(name: str, order: int = 0, **fields: Any) -> NodeRecord:
    given = {"last_round": 0, "order": order or ord(name[0]), **fields}
    return NodeRecord(name, 0, min_nodes=2, max_nodes=4, address="host", port=1, **given)


def nodes(names: str, **fields: Any) -> list[NodeRecord]:
    return [node(name, **fields) for name in names]


def quarantine(times: int = 1) -> Quarantine:
    return Quarantine(times, 3 * times, 60.0, "it failed")


def names(found: Sequence[NodeRecord]) -> str:
    return "".join(record.id[0] for record in found)


class TestEligible:
    def test_without_notices_all_are(self) -> None:
        given = nodes("abc")
        assert eligible(Limits(2, 4), given, (), NONE) is given

    @pytest.mark.parametrize(
        ("notices", "low", "found"),
        [
            (Notices(drains={"b": DRAIN}), 2, "ac"),
            (Notices(quarantines={"b": quarantine()}), 2, "ac"),
            (Notices(drains={"b": DRAIN}), 3, "abc"),
            # Of those that one would rather do without, as few as needed: the least quarantined first, a drain last.
            (Notices(quarantines={"a": quarantine(2), "b": quarantine(1)}), 2, "bc"),
            (Notices(quarantines={"a": quarantine(2), "b": quarantine(1)}), 3, "abc"),
            (Notices(drains={"a": DRAIN}, quarantines={"b": quarantine(9)}), 2, "bc"),
            (Notices(drains={"a": DRAIN, "b": DRAIN, "c": DRAIN}), 2, "ab"),
            # All together are too few: they wait for others.
            (Notices(drains={"a": DRAIN}), 4, "abc"),
        ],
    )
    def test_who_is_taken(self, notices: Notices, low: int, found: str) -> None:
        assert names(eligible(Limits(low, 4), nodes("abc"), (), notices)) == found

    def test_what_is_needed_is_asked_of_the_rule(self) -> None:
        limits = Limits(1, 4, AdmissionRule(node_unit=2))
        assert names(eligible(limits, nodes("abc"), (), Notices(drains={"b": DRAIN}))) == "ac"
        assert names(eligible(limits, nodes("ab"), (), Notices(drains={"b": DRAIN}))) == "ab"

    def test_what_speaks_against_a_node(self) -> None:
        notices = Notices(drains={"a": DRAIN, "b": DRAIN}, quarantines={"b": quarantine(), "c": quarantine()})
        assert [objection(one, notices) for one in nodes("abcd")] == [
            "it drains", "it drains", "it is quarantined", None,
        ]  # fmt: skip

    def test_nothing_speaks_against_one_that_has_waited_out_its_quarantine(self) -> None:
        notices = Notices(quarantines={"a": quarantine(2)})
        assert objection(node("a", served=5), notices) == "it is quarantined"
        assert objection(node("a", served=6), notices) is None


class TestDrained:
    def test_one_whose_time_is_over_goes(self) -> None:
        assert drained([node("a"), node("b", goes=True)], NONE) == {"b"}

    def test_all_must_be_ready_the_node_itself_as_well(self) -> None:
        notices = Notices(drains={"b": DRAIN})
        ready = [node("a", ready=("b",)), node("b", ready=("b", "c"))]
        assert drained(ready, notices) == {"b"}
        assert drained([*ready, node("c")], notices) == frozenset()
        assert drained(ready, NONE) == frozenset()


class TestDecisions:
    """What the rules make of it."""

    STATE = State(0, 1, ("a", "b", "c"), "host", 1, 2, 4)

    def decide(self, records: list[NodeRecord], notices: Notices, state: State = STATE) -> Any:
        limits = LeaderRecord("a", 0, 2, 4)
        situation = rules.Situation(state, records, limits, last_call=9.0, trusted=True, notices=notices)
        return rules.decide(situation)

    def test_drain_disturbs_no_world_before_its_time(self) -> None:
        status = self.decide(nodes("abc"), Notices(drains={"b": DRAIN})).status
        assert (status.waiting, status.drained, status.phase) == (0, (), "running")

    def test_members_hear_of_one_that_goes(self) -> None:
        status = self.decide([*nodes("ac"), node("b", goes=True)], Notices(drains={"b": DRAIN})).status
        assert (status.waiting, status.drained) == (1, ("b",))

    def test_members_that_cannot_go_on_without_hear_nothing(self) -> None:
        state = State(0, 1, ("a", "b"), "host", 1, 2, 4)
        alone = self.decide([node("a"), node("b", goes=True)], Notices(drains={"b": DRAIN}), state).status
        assert (alone.waiting, alone.drained) == (0, ("b",))
        spare = node("s", last_round=1)
        both = self.decide([node("a"), node("b", goes=True), spare], Notices(drains={"b": DRAIN}), state).status
        assert (both.waiting, both.drained) == (2, ("b",))

    def test_place_of_one_that_goes_is_free(self) -> None:
        state = State(0, 1, ("a", "b"), "host", 1, 2, 4)
        there = [node("a"), node("b", goes=True), *nodes("stu", last_round=1)]
        # Three that come, and one that goes.
        assert self.decide(there, Notices(drains={"b": DRAIN}), state).status.waiting == 4

    def test_world_waits_until_one_that_goes_has_left(self) -> None:
        there = [*nodes("ac", last_round=1), node("b", goes=True)]
        notices = Notices(drains={"b": DRAIN})
        assert isinstance(self.decide(there, notices), rules.Defer)
        left = self.decide([*nodes("ac", last_round=1), node("b", goes=True, left="drained")], notices)
        assert isinstance(left, rules.Publish)
        assert left.state.world == ("a", "c")
        assert left.evicted == ()

    def test_world_is_formed_at_once_without_one_that_drains_and_waits(self) -> None:
        decision = self.decide(nodes("abc", last_round=1), Notices(drains={"b": DRAIN}))
        assert isinstance(decision, rules.Publish)
        assert (decision.state.world, decision.objections) == (("a", "c"), {})

    def test_spare_takes_the_rank_of_one_that_drained(self) -> None:
        there = [*nodes("ac", last_round=1), node("b", goes=True, left="drained"), node("s", last_round=1)]
        decision = self.decide(there, Notices(drains={"b": DRAIN}))
        assert isinstance(decision, rules.Publish)
        assert decision.state.world == ("a", "s", "c")

    def test_one_that_goes_is_in_no_world_even_if_the_others_are_too_few(self) -> None:
        there = [node("a", last_round=1), node("b", last_round=1, goes=True), node("c", left="done")]
        assert isinstance(self.decide(there, NONE), rules.Defer)

    def test_quarantined_node_is_taken_if_the_others_are_too_few_and_named(self) -> None:
        there = [*nodes("ab", last_round=1), node("c", left="done")]
        notices = Notices(quarantines={"b": quarantine()})
        decision = self.decide(there, notices)
        assert isinstance(decision, rules.Publish)
        assert (decision.state.world, decision.objections) == (("a", "b"), {"b": "it is quarantined"})

    def test_no_world_is_asked_to_grow_for_a_quarantined_node(self) -> None:
        there = [*nodes("abc"), node("d", last_round=1)]
        assert self.decide(there, Notices(quarantines={"d": quarantine()})).status.waiting == 0
        assert self.decide(there, NONE).status.waiting == 1

    def test_closed_run_drains_nothing(self) -> None:
        state = rules.close(self.STATE, Closed("a", "done", True), LeaderRecord("a", 0, 2, 4))
        assert state is not None
        assert self.decide([*nodes("ac"), node("b", goes=True)], NONE, state).status.drained == ()
