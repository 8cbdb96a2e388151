"""Whose failure it was that ended a round: what the leader makes of the records, and what a node has to pay."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from rdzv.engine.eligibility import is_out, pays
from rdzv.engine.notices import Failure, Notices, Verdict
from rdzv.engine.records import Departure, LeaderRecord, NodeRecord, Phase, RunStatus, State
from rdzv.engine.rules import Defer, Publish, Situation, decide
from rdzv.engine.verdicts import has_failed, judged
from rdzv.outcome import Ending, Outcome

LIMITS = LeaderRecord("a", 0, 2, 4)
STATE = State(0, 7, ("a", "b", "c"), "a.host", 1, 2, 4)
FIRST = Failure("a", "exit code 1", False)
FAILED, CHANGED = Outcome(), Outcome(Ending.CHANGED)


def back(name: str, outcome: Outcome | None = CHANGED, last_round: int = 7, left: str | None = None) -> NodeRecord:
    order = ord(name)
    return NodeRecord(name, 0, last_round, 2, 4, f"{name}.host", 1, outcome=outcome, left=left, order=order)


def inside(name: str) -> NodeRecord:
    # What it says of the round before does not count for this one.
    return back(name, FAILED, last_round=6)


def hung(step: int | None, age: float = 2.0, ending: Ending = Ending.HUNG, *, heard: bool = True) -> Outcome:
    return Outcome(ending, step, age, heard=heard)


def situation(nodes: Collection[NodeRecord], trusted: bool = True, known: RunStatus | None = None) -> Situation:
    return Situation(STATE, nodes, LIMITS, 30.0, trusted, known=known, notices=Notices(failures={7: FIRST}))


def verdict(
    *nodes: NodeRecord, first: str = "a", trusted: bool = True, known: RunStatus | None = None
) -> Failure | None:
    return judged(replace(FIRST, node=first), situation(nodes, trusted, known))


class TestJudged:
    def test_while_a_member_is_in_the_round_nothing_is_said(self) -> None:
        assert verdict(back("a", FAILED), inside("b"), inside("c")) is None
        assert verdict(back("a", FAILED), back("b"), inside("c")) is None

    def test_all_are_back(self) -> None:
        assert verdict(back("a", FAILED), back("b"), back("c", FAILED)) == replace(FIRST, verdict=Verdict.FIRST)

    @pytest.mark.parametrize("others", [[inside("b")], [back("b")], []])
    def test_a_member_that_is_lost_explains_it_at_once(self, others: list[NodeRecord]) -> None:
        found = verdict(back("a", FAILED), *others)
        assert found is not None
        assert found.verdict is Verdict.EXPLAINED
        lost = "c" if others else "b"
        assert found.because == f"'{lost}' was lost: its lease ran out: it died, hangs or is cut off"

    def test_as_long_as_that_is_not_certain_nothing_is_said(self) -> None:
        assert verdict(back("a", FAILED), back("b"), trusted=False) is None

    @pytest.mark.parametrize(
        ("outcome", "explains"), [(None, True), (CHANGED, True), (FAILED, False), (hung(3), False)]
    )
    def test_a_member_that_left_explains_it_unless_it_has_failed(self, outcome: Outcome | None, explains: bool) -> None:
        found = verdict(back("a", FAILED), back("b"), back("c", outcome, 6, left="drained: spot"))
        assert found is not None
        assert (found.verdict is Verdict.EXPLAINED) == explains
        if explains:
            assert found.because == "'c' has left: drained: spot"

    def test_of_one_that_left_long_before_it_is_not_known_whether_it_explains_the_failure(self) -> None:
        known = RunStatus(7, Phase.RE_FORMING, 2, 1, (Departure("c", 2, True, "exit code 1"),))
        found = verdict(back("a", FAILED), back("b"), known=known)
        assert found == replace(FIRST, verdict=Verdict.UNCLEAR, because="'c' has left long before")

    @pytest.mark.parametrize("first", ["a", "b"])
    def test_of_those_that_hang_the_one_that_is_behind_has_failed(self, first: str) -> None:
        found = verdict(back("a", hung(20)), back("b", hung(19)), back("c", hung(20, 1.5, Ending.CHANGED)), first=first)
        assert found is not None
        assert (found.node, found.verdict) == ("b", Verdict.BEHIND)
        assert found.because == "'b' had come to step 19, the others to step 20"
        if first == "a":
            assert found.reason == "when 'a' hung, it had come to step 19, the others to step 20"
        else:
            assert found.reason == FIRST.reason

    def test_one_whose_agent_heard_of_it_before_it_hung_may_be_behind(self) -> None:
        found = verdict(back("a", hung(20)), back("b", hung(19, 1.9, Ending.CHANGED)), back("c", hung(20)))
        assert found is not None
        assert (found.node, found.verdict) == ("b", Verdict.BEHIND)

    def test_one_that_was_away_meanwhile_makes_the_others_no_less_idle(self) -> None:
        found = verdict(back("a", hung(20)), back("b", hung(19, 30.0)), back("c", hung(20, 2.5)))
        assert found is not None
        assert (found.node, found.verdict) == ("b", Verdict.BEHIND)

    def test_one_whose_last_step_is_half_as_old_as_that_of_one_that_hangs_waits_too(self) -> None:
        found = verdict(back("a", hung(20)), back("b", hung(19, 1.0, Ending.CHANGED)), back("c", hung(1, 0.9)))
        assert found is not None
        assert (found.node, found.verdict) == ("c", Verdict.BEHIND)
        found = verdict(
            back("a", hung(20)), back("b", hung(19, 1.0, Ending.CHANGED)), back("c", hung(1, 0.9, Ending.CHANGED))
        )
        assert found is not None
        assert (found.node, found.because) == ("b", "'b' had come to step 19, the others to step 20")

    def test_of_the_one_that_said_so_first_it_may_not_be_known_how_it_ended(self) -> None:
        found = verdict(back("a", None), back("b", hung(19)), back("c", hung(20)))
        assert found == replace(FIRST, verdict=Verdict.UNCLEAR, because="the step of 'a' is not known")

    @pytest.mark.parametrize("there", [3, 20])
    def test_one_that_works_on_at_a_lower_step_or_the_same_is_not_behind(self, there: int) -> None:
        found = verdict(
            back("a", hung(20)), back("b", hung(there, 0.9, Ending.CHANGED)), back("c", hung(20, 0.1, Ending.CHANGED))
        )
        assert found is not None
        assert (found.node, found.verdict) == ("a", Verdict.BEHIND)
        assert found.because == "'a' had come to step 20, and the others went on"

    @pytest.mark.parametrize("there", [Outcome(Ending.CHANGED, 19, 1.2), Outcome(Ending.CHANGED, 21, 0.1)])
    def test_none_is_behind_where_one_left_before_that_was_known(self, there: Outcome) -> None:
        # One that was cut off, and did not learn that the others left for a larger world, waited for them.
        found = verdict(back("a", hung(20)), back("b", there), back("c", hung(20, 0.1, Ending.CHANGED, heard=False)))
        assert found == replace(FIRST, verdict=Verdict.UNCLEAR, because="'b' had left the round before that")

    @pytest.mark.parametrize(
        ("steps", "because"),
        [
            ((20, 20, 20), "3 nodes had come to step 20"),
            ((19, 19, 20), "2 nodes had come to step 19"),
            ((20, 19, None), "the step of 'c' is not known"),
            ((None, None, None), "the step of 'a' is not known"),
        ],
    )
    def test_of_equals_none_is_named(self, steps: tuple[int | None, ...], because: str) -> None:
        found = verdict(*(back(name, hung(step)) for name, step in zip("abc", steps, strict=True)))
        assert found == replace(FIRST, verdict=Verdict.UNCLEAR, because=because)

    def test_one_whose_outcome_is_not_known_may_be_behind(self) -> None:
        found = verdict(back("a", hung(20)), back("b", hung(21)), back("c", None))
        assert found is not None
        assert found.verdict is Verdict.UNCLEAR

    def test_steps_say_nothing_of_a_program_that_failed_while_it_worked(self) -> None:
        found = verdict(back("a", Outcome(step=20, age=0.1)), back("b", hung(19)), back("c", hung(20)))
        assert found == replace(FIRST, verdict=Verdict.FIRST)
        found = verdict(back("a", Outcome(step=20, age=1.0)), back("b", hung(19)), back("c", hung(20)))
        assert found is not None
        assert (found.node, found.verdict) == ("b", Verdict.BEHIND)

    def test_without_a_state_there_is_nothing_to_judge(self) -> None:
        empty = replace(situation([back("a", FAILED)]), state=None)
        assert judged(FIRST, empty) is None
        assert not has_failed(empty)


def test_a_report_is_looked_for_if_a_record_says_that_a_program_failed() -> None:
    assert has_failed(situation([back("a", FAILED)]))
    assert has_failed(situation([back("a", hung(1))]))
    assert not has_failed(situation([back("a"), back("b", None), inside("c"), back("d", FAILED)]))


@pytest.mark.parametrize(
    ("verdict", "outcome", "expected"),
    [
        (None, FAILED, True),
        (None, CHANGED, False),
        (None, None, False),
        (Verdict.FIRST, FAILED, True),
        (Verdict.FIRST, CHANGED, False),
        (Verdict.UNCLEAR, hung(20), True),
        (Verdict.UNCLEAR, CHANGED, False),
        (Verdict.EXPLAINED, FAILED, False),
        (Verdict.EXPLAINED, None, False),
        (Verdict.BEHIND, hung(20), False),
    ],
)
def test_who_pays(verdict: Verdict | None, outcome: Outcome | None, expected: bool) -> None:
    assert pays("b", outcome, replace(FIRST, verdict=verdict)) is expected


@pytest.mark.parametrize("outcome", [None, CHANGED, hung(19)])
def test_who_was_behind_pays_even_if_its_program_worked(outcome: Outcome | None) -> None:
    assert pays("a", outcome, replace(FIRST, verdict=Verdict.BEHIND))


def test_without_a_report_each_pays_for_itself() -> None:
    assert pays("a", FAILED, None)
    assert not pays("a", CHANGED, None)


class TestSpent:
    """A node without a restart left."""

    def world(self, first: Failure | None, *nodes: NodeRecord) -> Publish | Defer:
        notices = Notices(failures={} if first is None else {7: first})
        return decide(replace(situation(nodes), notices=notices))

    def spent(self, name: str, ending: Ending = Ending.FAILED) -> NodeRecord:
        return back(name, Outcome(ending, spent=True))

    def test_it_is_in_the_next_world_if_a_loss_explains_its_failure(self) -> None:
        explained = replace(FIRST, verdict=Verdict.EXPLAINED)
        found = self.world(explained, self.spent("a"), self.spent("b"))
        assert isinstance(found, Publish)
        assert found.state.world == ("a", "b")

    @pytest.mark.parametrize("verdict", [None, Verdict.FIRST, Verdict.UNCLEAR])
    def test_the_others_go_on_without_it(self, verdict: Verdict | None) -> None:
        first = replace(FIRST, verdict=verdict)
        found = self.world(first, self.spent("a"), self.spent("b", Ending.CHANGED), back("c"))
        assert isinstance(found, Publish)
        assert set(found.state.world) == {"b", "c"}

    def test_the_others_go_on_without_the_one_that_was_behind(self) -> None:
        first = replace(FIRST, node="b", verdict=Verdict.BEHIND)
        found = self.world(first, self.spent("a"), self.spent("b", Ending.CHANGED), back("c"))
        assert isinstance(found, Publish)
        assert set(found.state.world) == {"a", "c"}

    def test_that_it_is_back_ends_the_round_of_the_others(self) -> None:
        found = self.world(FIRST, self.spent("a"), inside("b"), inside("c"))
        assert isinstance(found, Defer)
        assert (found.status.waiting, found.status.present) == (1, 2)

    def test_what_another_round_has_cost_is_over(self) -> None:
        first = replace(FIRST, verdict=Verdict.FIRST)
        assert is_out(self.spent("a"), Notices(failures={7: first}))
        assert is_out(self.spent("a"), Notices(failures={}))
        assert not is_out(
            replace(self.spent("a"), last_round=8), Notices(failures={8: replace(first, verdict=Verdict.EXPLAINED)})
        )
