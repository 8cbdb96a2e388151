"""Which nodes a new world should have, and who has to wait."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rdzv.admission import AdmissionRule, Limits
from rdzv.engine import rules
from rdzv.engine.eligibility import drained, eligible, is_fit, is_suspect, waited_out, with_due, without_progress
from rdzv.engine.notices import NONE, DrainNotice, Failure, Notices, Quarantine
from rdzv.engine.records import Closed, LeaderRecord, NodeRecord, State

DRAIN = DrainNotice(60.0, "spot")


def node(name: str, order: int = 0, **fields: Any) -> NodeRecord:
    given = {"last_round": 0, "order": order or ord(name[0]), **fields}
    return NodeRecord(name, 0, min_nodes=2, max_nodes=4, address="host", port=1, **given)


def nodes(names: str, **fields: Any) -> list[NodeRecord]:
    return [node(name, **fields) for name in names]


def quarantine(times: int = 1) -> Quarantine:
    return Quarantine(times, 3 * times, 60.0, "it failed")


def failures(*ids: str, progressed: bool = False, first: int = 1) -> dict[int, Failure]:
    return {number: Failure(name, f"exit {number}", progressed) for number, name in enumerate(ids, first)}


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

    def test_one_that_has_waited_out_its_quarantine_is_fit(self) -> None:
        notices = Notices(quarantines={"a": quarantine(2)})
        assert not is_fit(node("a", served=5), notices)
        assert is_fit(node("a", served=6), notices)

    def test_quarantine_is_of_a_name(self) -> None:
        notices = Notices(quarantines={"host.example": quarantine()})
        assert not is_fit(node("host.example.0123ab"), notices)
        assert is_fit(node("host.0123ab"), notices)


class TestDrained:
    def test_one_whose_time_is_over_goes(self) -> None:
        assert drained([node("a"), node("b", goes=True)], NONE) == {"b"}

    def test_all_must_be_ready_the_node_itself_as_well(self) -> None:
        notices = Notices(drains={"b": DRAIN})
        ready = [node("a", ready=("b",)), node("b", ready=("b", "c"))]
        assert drained(ready, notices) == {"b"}
        assert drained([*ready, node("c")], notices) == frozenset()
        assert drained(ready, NONE) == frozenset()


class TestDue:
    def due(self, notices: Notices, number: int, after: int = 3) -> Quarantine | None:
        found, name = with_due(notices, number, after, 10.0)
        assert (name is None) == (found is notices)
        return None if name is None else found.quarantines[name]

    @pytest.mark.parametrize("ids", [("a.1", "a.2"), ("a.1", "b.1", "a.1"), ("b.1", "a.1", "a.1")])
    def test_three_failures_running_of_one_name(self, ids: tuple[str, ...]) -> None:
        assert self.due(Notices(failures=failures(*ids)), len(ids)) is None
        assert self.due(Notices(failures=failures("a.1", "a.2", "a.1")), 3) == Quarantine(
            1, 3, 10.0, "it failed first in 3 rounds running: exit 3"
        )

    def test_later_round_does_not_count(self) -> None:
        assert self.due(Notices(failures=failures("a.1", "a.1", "a.1", "b.1")), 3) is not None

    def test_round_without_a_failure_breaks_the_row(self) -> None:
        there = failures("a.1", "a.1", "a.1")
        assert self.due(Notices(failures=there), 4) is None
        del there[2]
        assert self.due(Notices(failures=there), 3) is None

    def test_no_failure_counts_twice(self) -> None:
        before = {"a": Quarantine(1, 3, 10.0, "")}
        assert self.due(Notices(failures=failures(*5 * ["a.1"]), quarantines=before), 5) is None
        again = self.due(Notices(failures=failures(*6 * ["a.1"]), quarantines=before), 6)
        assert again is not None
        assert (again.times, again.round, again.cooldown) == (2, 6, 20.0)

    def test_cooldown_doubles_up_to_eight_times(self) -> None:
        there = failures(*3 * ["a.1"], first=90)
        seconds = []
        for times in range(6):
            due = self.due(Notices(failures=there, quarantines={"a": Quarantine(times, 3, 0.0, "")}), 92)
            assert due is not None
            seconds.append(due.cooldown)
        assert seconds == [10.0, 20.0, 40.0, 80.0, 80.0, 80.0]

    def test_one_failure_may_be_enough(self) -> None:
        due = self.due(Notices(failures=failures("a.1")), 1, after=1)
        assert due == Quarantine(1, 1, 10.0, "it failed first in a round: exit 1")
        due = self.due(Notices(failures=failures("a.1", "a.1")), 2, after=2)
        assert due == Quarantine(1, 2, 10.0, "it failed first in 2 rounds running: exit 2")

    def test_after_a_pardon_the_first_one_is_due_again(self) -> None:
        pardon = {"a": Quarantine(0, 3, 0.0, "pardoned", over=True)}
        assert self.due(Notices(failures=failures(*5 * ["a.1"]), quarantines=pardon), 5) is None
        again = self.due(Notices(failures=failures(*6 * ["a.1"]), quarantines=pardon), 6)
        assert again is not None
        assert (again.times, again.over) == (1, False)

    def test_none_is_ever_due(self) -> None:
        assert self.due(Notices(failures=failures(*3 * ["a.1"])), 3, after=0) is None

    def test_others_stay_quarantined(self) -> None:
        found, name = with_due(Notices(failures=failures(*3 * ["a.1"]), quarantines={"b": quarantine()}), 3, 3, 10.0)
        assert name == "a"
        assert set(found.quarantines) == {"a", "b"}


class TestSuspect:
    @pytest.mark.parametrize(
        ("ids", "number", "after", "is_one"),
        [
            (("a.1", "a.2"), 3, 3, True),
            (("a.1", "b.1"), 3, 3, False),
            (("a.1", "a.1", "a.1"), 3, 3, False),
            (("a.1", "a.1"), 4, 3, False),
            (("a.1",), 2, 3, False),
            (("b.1", "a.1", "a.1"), 4, 3, True),
            ((), 7, 1, True),
            ((), 7, 0, False),
            (("a.1", "a.1"), 3, 0, False),
        ],
    )
    def test_last_failure_before_a_quarantine_may_be_unknown(
        self, ids: tuple[str, ...], number: int, after: int, is_one: bool
    ) -> None:
        assert is_suspect(Notices(failures=failures(*ids)), number, after) is is_one


class TestWaitedOut:
    def test_node_that_says_so_has_waited_it_out(self) -> None:
        notices = Notices(quarantines={"a": quarantine(1), "b": quarantine(1), "d": quarantine(2)})
        there = [
            node("a.1", served=3),
            node("a.2"),
            node("b.1", served=0),
            node("c.1", served=3),
            node("d.1", served=9),
        ]
        found = waited_out(there, notices)
        assert found == {name: replace(notices.quarantines[name], over=True) for name in "ad"}

    def test_earlier_one_does_not_count_and_what_is_over_stays_so(self) -> None:
        notices = Notices(quarantines={"a": quarantine(2)})
        assert waited_out([node("a.1", served=3)], notices) == {}
        over = Notices(quarantines={"a": Quarantine(2, 6, 60.0, "", over=True)})
        assert waited_out([node("a.1", served=6)], over) == {}
        assert is_fit(node("a.2"), over)


class TestWithoutProgress:
    def test_rounds_running_that_end_with_this_one(self) -> None:
        there = failures("a", "b", "c", "d")
        assert [number for number, _ in without_progress(there, 0, 4)] == [1, 2, 3, 4]
        there[2] = Failure("b", "", True)
        assert [(number, one.node) for number, one in without_progress(there, 0, 4)] == [(3, "c"), (4, "d")]
        assert not without_progress(there, 0, 5)

    def test_rounds_of_an_earlier_attempt_do_not_count(self) -> None:
        there = failures("a", "b", "c")
        there[3] = Failure("c", "", False, attempt=1)
        assert [number for number, _ in without_progress(there, 1, 3)] == [3]


class TestDecisions:
    """What the rules make of it."""

    STATE = State(0, 1, ("a", "b", "c"), "host", 1, 2, 4)

    def decide(self, records: list[NodeRecord], notices: Notices, state: State = STATE) -> Any:
        limits = LeaderRecord("a", 0, 2, 4)
        return rules.decide(state, records, limits, quorum_for=0.0, last_call=9.0, trusted=True, notices=notices)

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
        assert (decision.state.world, decision.unfit) == (("a", "c"), ())

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
        assert (decision.state.world, decision.unfit) == (("a", "b"), ("b",))

    def test_no_world_is_asked_to_grow_for_a_quarantined_node(self) -> None:
        there = [*nodes("abc"), node("d", last_round=1)]
        assert self.decide(there, Notices(quarantines={"d": quarantine()})).status.waiting == 0
        assert self.decide(there, NONE).status.waiting == 1

    def test_closed_run_drains_nothing(self) -> None:
        state = rules.close(self.STATE, Closed("a", "done", True), LeaderRecord("a", 0, 2, 4))
        assert state is not None
        assert self.decide([*nodes("ac"), node("b", goes=True)], NONE, state).status.drained == ()
