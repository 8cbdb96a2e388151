"""When a node is quarantined, and until when; and the rounds without progress, by which a run is given up."""

from dataclasses import replace

import pytest

from rdzv.engine.notices import Failure, Notices, Quarantine, Verdict
from rdzv.engine.progress import without_progress
from rdzv.engine.quarantine import is_suspect, lifted, quarantine_of, shared_names, waited_out, with_due
from rdzv.engine.records import NodeRecord


def node(name: str, served: int = 0) -> NodeRecord:
    return NodeRecord(name, 0, 0, 2, 4, "host", 1, served=served)


def quarantine(times: int = 1) -> Quarantine:
    return Quarantine(times, 3 * times, 60.0, "it failed")


def failures(*ids: str, progressed: bool = False, first: int = 1) -> dict[int, Failure]:
    return {
        number: Failure(name, f"exit {number}", progressed, verdict=Verdict.FIRST)
        for number, name in enumerate(ids, first)
    }


class TestQuarantineOf:
    def test_it_is_of_a_name(self) -> None:
        notices = Notices(quarantines={"host.example": quarantine()})
        assert quarantine_of("host.example.0123ab", 0, notices) == quarantine()
        assert quarantine_of("host.0123ab", 0, notices) is None

    def test_it_may_be_of_an_id_and_the_last_one_counts(self) -> None:
        notices = Notices(quarantines={"a.1": quarantine(2), "a": replace(quarantine(1), over=True)})
        assert quarantine_of("a.1", 0, notices) == quarantine(2)
        assert quarantine_of("a.2", 0, notices) is None
        assert waited_out([node("a.1", served=6)], notices) == {"a.1": replace(quarantine(2), over=True)}
        assert not waited_out([node("a.2", served=6)], notices)

    def test_one_of_a_name_that_several_have_is_lifted(self) -> None:
        notices = Notices(quarantines={"a": quarantine(), "b": quarantine(), "a.1": quarantine()})
        assert lifted(["a"], notices) == {"a": replace(quarantine(), over=True)}
        assert not lifted(["c"], notices)

    def test_one_that_is_over_is_not_lifted_again(self) -> None:
        assert not lifted(["a"], Notices(quarantines={"a": replace(quarantine(), over=True)}))

    @pytest.mark.parametrize(("served", "over", "is_one"), [(5, False, True), (6, False, False), (0, True, False)])
    def test_it_counts_until_it_is_over(self, served: int, over: bool, is_one: bool) -> None:
        there = replace(quarantine(2), over=over)
        assert quarantine_of("a.1", served, Notices(quarantines={"a": there})) == (there if is_one else None)


class TestDue:
    def due(self, notices: Notices, number: int, after: int = 3) -> Quarantine | None:
        found, name = with_due(notices, number, after, 10.0)
        assert (name is None) == (found is notices)
        return None if name is None else found.quarantines[name]

    @pytest.mark.parametrize("ids", [("a.1", "a.2"), ("a.1", "b.1", "a.1"), ("b.1", "a.1", "a.1")])
    def test_three_consecutive_failures_of_one_name(self, ids: tuple[str, ...]) -> None:
        assert self.due(Notices(failures=failures(*ids)), len(ids)) is None
        assert self.due(Notices(failures=failures("a.1", "a.2", "a.1")), 3) == Quarantine(
            1, 3, 10.0, "it failed first in 3 consecutive rounds: exit 3"
        )

    @pytest.mark.parametrize(
        ("behind", "how"), [((1, 2, 3), "was behind"), ((3,), "failed first or was behind"), ((), "failed first")]
    )
    def test_it_says_whether_the_node_failed_first_or_was_behind(self, behind: tuple[int, ...], how: str) -> None:
        there = failures("a.1", "a.1", "a.1")
        there |= {number: replace(there[number], verdict=Verdict.BEHIND) for number in behind}
        due = self.due(Notices(failures=there), 3)
        assert due is not None
        assert due.reason == f"it {how} in 3 consecutive rounds: exit 3"

    def test_later_round_does_not_count(self) -> None:
        assert self.due(Notices(failures=failures("a.1", "a.1", "a.1", "b.1")), 3) is not None

    def test_where_others_have_the_name_it_is_of_the_id(self) -> None:
        shared = shared_names([node("a.1"), node("a.2"), node("b.1"), replace(node("b.2"), left="done")])
        assert shared == {"a"}
        for ids, due in ((("a.1", "a.2", "a.1"), None), (("a.1", "a.1", "a.1"), "a.1"), (("b.1", "b.2", "b.1"), "b")):
            assert with_due(Notices(failures=failures(*ids)), 3, 3, 10.0, shared)[1] == due

    @pytest.mark.parametrize("key", ["a", "a.1"])
    def test_no_failure_counts_twice_by_name_and_by_id(self, key: str) -> None:
        counted = Quarantine(1, 3, 10.0, "", over=True)
        there = Notices(failures=failures("a.1", "a.1", "a.1"), quarantines={key: counted})
        assert with_due(there, 3, 3, 10.0, {"a"})[1] is None
        assert with_due(there, 3, 3, 10.0)[1] is None
        later = replace(there, failures=failures("a.1", "a.1", "a.1", first=4))
        found, name = with_due(later, 6, 3, 10.0, {"a"})
        assert (name, found.quarantines["a.1"].times) == ("a.1", 2)

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
        assert due == Quarantine(1, 2, 10.0, "it failed first in 2 consecutive rounds: exit 2")

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

    def test_failure_that_does_not_count_breaks_the_row(self) -> None:
        there = failures("a.1", "a.1")
        there[2] = replace(there[2], verdict=Verdict.UNCLEAR)
        assert not is_suspect(Notices(failures=there), 3, 3)


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


class TestWithoutProgress:
    def test_consecutive_rounds_that_end_with_this_one(self) -> None:
        there = failures("a", "b", "c", "d")
        assert [number for number, _ in without_progress(there, 0, 4)] == [1, 2, 3, 4]
        there[2] = Failure("b", "", True)
        assert [(number, one.node) for number, one in without_progress(there, 0, 4)] == [(3, "c"), (4, "d")]
        assert not without_progress(there, 0, 5)

    def test_rounds_of_an_earlier_attempt_do_not_count(self) -> None:
        there = failures("a", "b", "c")
        there[3] = Failure("c", "", False, attempt=1)
        assert [number for number, _ in without_progress(there, 1, 3)] == [3]
