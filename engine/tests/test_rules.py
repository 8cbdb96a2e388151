"""The rules, as tables: what the service holds, and what is published."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from rdzv.admission import AdmissionRule
from rdzv.engine import rules
from rdzv.engine.records import Closed, Departure, LeaderRecord, NodeRecord, Phase, RunStatus, State
from rdzv.engine.rules import Defer, MembershipState, Publish, Situation

LIMITS = LeaderRecord("a", 0, 2, 4)


def node(name: str, order: int = 0, last_round: int = 0, **more: Any) -> NodeRecord:
    """A record that waits, unless it is a member whose round is later than `last_round`."""
    fields = {"attempt": 0, "min_nodes": 2, "max_nodes": 4, "address": f"{name}.host", "port": 1, **more}
    return NodeRecord(name, last_round=last_round, order=order or ord(name[0]), **fields)


def state(*world: str, round: int = 1, **more: Any) -> State:
    """A running round."""
    fields = {"attempt": 0, "address": "x", "port": 1, "min_nodes": 2, "max_nodes": 4, **more}
    return State(round=round, world=world, **fields)


def decide(current: State | None, *nodes: NodeRecord, **more: Any) -> Publish | Defer:
    """Ask the rules with a last call of 30 s, of which none has passed."""
    asked: dict[str, Any] = {"last_call": 30.0, "trusted": True, **more}
    return rules.decide(Situation(current, nodes, LIMITS, **asked))


def published(decision: Publish | Defer) -> State:
    """The state that is published."""
    assert isinstance(decision, Publish), decision
    return decision.state


def held(decision: Publish | Defer) -> Defer:
    """The decision to publish nothing."""
    assert isinstance(decision, Defer), decision
    return decision


class TestGathering:
    def test_below_min_there_is_no_world_and_no_timer(self) -> None:
        hold = held(decide(None, node("a")))
        assert hold.recheck_after is None
        assert hold.status == RunStatus(0, Phase.GATHERING, 1, 0)

    def test_at_min_the_last_call_starts(self) -> None:
        hold = held(decide(None, node("a"), node("b")))
        assert hold.recheck_after == 30.0
        assert hold.status.phase == "last call"
        assert hold.status.ends_in == 30.0

    def test_the_last_call_counts_down(self) -> None:
        assert held(decide(None, node("a"), node("b"), quorum_for=29.0)).recheck_after == 1.0
        assert held(decide(None, node("a"), node("b"), quorum_for=29.0)).status.ends_in == 1.0

    def test_the_last_call_ends(self) -> None:
        new = published(decide(None, node("a"), node("b"), quorum_for=30.0))
        assert new == state("a", "b", address="a.host")

    @pytest.mark.parametrize(
        ("quorum_for", "since_arrival", "remaining"),
        [
            (0.0, 0.0, 30.0),
            (22.0, 0.0, 8.0),
            (23.0, 0.0, 7.5),
            (29.0, 2.0, 5.5),
            (36.0, 7.25, 0.25),
            (50.0, 0.0, 7.5),
            (53.0, 0.0, 7.0),
            (59.75, 0.0, 0.25),
        ],
    )
    def test_arrival_extends_the_last_call_to_twice_its_length_at_most(
        self, quorum_for: float, since_arrival: float, remaining: float
    ) -> None:
        asked = {"quorum_for": quorum_for, "since_arrival": since_arrival}
        assert held(decide(None, node("a"), node("b"), **asked)).recheck_after == remaining

    @pytest.mark.parametrize(
        ("quorum_for", "since_arrival"), [(30.0, 30.0), (30.0, 7.5), (37.5, 7.5), (60.0, 0.0), (99.0, 0.0)]
    )
    def test_last_call_that_was_extended_ends(self, quorum_for: float, since_arrival: float) -> None:
        asked = {"quorum_for": quorum_for, "since_arrival": since_arrival}
        assert published(decide(None, node("a"), node("b"), **asked)).world == ("a", "b")

    def test_arrival_holds_up_no_full_world_and_no_survivors(self) -> None:
        assert published(decide(None, *map(node, "abcd"), since_arrival=0.0)).size == 4
        back = [node("a", last_round=1), node("b", last_round=1)]
        assert published(decide(state("a", "b", "c"), *back, node("d"), since_arrival=0.0)).size == 3

    def test_at_max_the_world_is_formed_at_once(self) -> None:
        assert published(decide(None, *map(node, "abcd"))).world == ("a", "b", "c", "d")

    def test_above_max_the_first_to_arrive_are_in(self) -> None:
        late = node("a", order=999)
        assert published(decide(None, late, *map(node, "bcde"))).world == ("b", "c", "d", "e")

    def test_a_node_with_other_limits_is_not_counted(self) -> None:
        assert held(decide(None, node("a"), node("b", min_nodes=1))).recheck_after is None

    def test_a_node_that_left_is_not_counted(self) -> None:
        assert held(decide(None, node("a"), node("b", left="tired"))).recheck_after is None

    def test_the_world_names_the_address_of_rank_0(self) -> None:
        new = published(decide(None, node("b", port=7), node("c"), quorum_for=30.0))
        assert (new.address, new.port) == ("b.host", 7)

    @pytest.mark.parametrize(
        ("back", "address"),
        [
            (("a", "b", "c"), "a.new"),  # the same rank 0, with what it says now
            (("b", "c"), "c.new"),  # it is gone, and the last one takes its rank
            (("b", "c", "d"), "d.new"),  # a newcomer does
        ],
    )
    def test_the_next_world_names_the_address_of_its_own_rank_0(self, back: tuple[str, ...], address: str) -> None:
        before = state("a", "b", "c", address="a.host", port=7)
        again = [node(name, last_round=name in "abc", address=f"{name}.new", port=ord(name)) for name in back]
        new = published(decide(before, *again, quorum_for=30.0))
        assert (new.address, new.port) == (address, ord(address[0]))
        assert new.world[0] == address[0]

    def test_the_next_attempt_names_the_address_of_its_own_rank_0(self) -> None:
        before = state("a", "b", address="a.host", port=7, closed=Closed("a", "the end", done=True))
        new = published(decide(before, node("c", attempt=1, port=8), node("d", attempt=1, port=9), quorum_for=30.0))
        assert (new.world[0], new.address, new.port) == ("c", "c.host", 8)


class TestExclusivity:
    def test_no_node_gets_a_world_while_a_member_is_in_the_round(self) -> None:
        hold = held(decide(state("a", "b"), node("a"), *(node(name, last_round=1) for name in "bcde")))
        assert hold.status.phase == "re-forming"

    def test_when_all_are_back_the_next_round_is_formed_at_once(self) -> None:
        new = published(decide(state("a", "b"), node("a", last_round=1), node("b", last_round=1)))
        assert new.round == 2
        assert new.world == ("a", "b")

    def test_a_member_without_a_record_is_gone_for_a_leader_that_would_know(self) -> None:
        new = published(decide(state("a", "b", "c"), node("a", last_round=1), node("b", last_round=1)))
        assert new.world == ("a", "b")

    def test_a_member_without_a_record_may_come_back_for_a_leader_that_was_away(self) -> None:
        hold = held(decide(state("a", "b", "c"), node("a", last_round=1), node("b", last_round=1), trusted=False))
        assert hold.status.departures == ()

    def test_what_a_leader_before_found_out_still_holds(self) -> None:
        known = RunStatus(1, Phase.RUNNING, 2, 1, (Departure("c", 2, False, "dead"),))
        back = [node("a", last_round=1), node("b", last_round=1)]
        assert published(decide(state("a", "b", "c"), *back, trusted=False, known=known)).round == 2

    def test_what_was_found_out_about_another_round_does_not(self) -> None:
        known = RunStatus(0, Phase.RUNNING, 2, 1, (Departure("c", 2, False, "dead"),))
        back = [node("a", last_round=1), node("b", last_round=1)]
        held(decide(state("a", "b", "c"), *back, trusted=False, known=known))

    def test_survivors_below_min_wait_for_others_and_give_them_a_last_call(self) -> None:
        hold = held(decide(state("a", "b"), node("a", last_round=1)))
        assert hold.recheck_after is None
        assert held(decide(state("a", "b"), node("a", last_round=1), node("c"))).recheck_after == 30.0


class TestAwaited:
    """Which members the next round waits for."""

    def test_of_a_round_that_runs_there_are_none(self) -> None:
        assert held(decide(state("a", "b"), node("a"), node("b"), node("x", last_round=0))).status.awaited is None

    def test_they_are_those_that_have_not_left_the_round(self) -> None:
        hold = held(decide(state("a", "b", "c"), node("a", last_round=1), node("b"), node("c", last_round=1)))
        assert (hold.status.phase, hold.status.awaited) == ("re-forming", ("b",))

    @pytest.mark.parametrize(("trusted", "awaited"), [(False, ("b", "c")), (True, None)])
    def test_one_without_a_record_is_one_until_it_is_certainly_lost(
        self, trusted: bool, awaited: tuple[str, ...] | None
    ) -> None:
        hold = held(decide(state("a", "b", "c"), node("a", last_round=1), trusted=trusted))
        assert hold.status.awaited == awaited

    def test_one_that_has_left_is_none(self) -> None:
        hold = held(decide(state("a", "b", min_nodes=2), node("a", last_round=1), node("b", left="drained")))
        assert (hold.status.phase, hold.status.awaited) == ("re-forming", None)

    def test_the_next_attempt_waits_for_the_members_of_the_one_before(self) -> None:
        hold = held(decide(state("a", "b"), node("x", attempt=1), trusted=False))
        assert hold.status.awaited == ("a", "b")


class TestMissing:
    """Who is expected and not here: by a list of machines, or by the world before."""

    MACHINES = ("a", "b", "c", "d")

    def test_of_a_list_those_are_named_that_have_not_come(self) -> None:
        hold = held(decide(None, node("a"), expected=self.MACHINES))
        assert (hold.status.phase, hold.status.missing) == ("gathering", ("b", "c", "d"))
        hold = held(decide(None, node("a"), node("b"), expected=self.MACHINES))
        assert (hold.status.phase, hold.status.missing) == ("last call", ("c", "d"))

    def test_without_a_list_none_is_expected_in_a_first_world(self) -> None:
        assert held(decide(None, node("a"))).status.missing is None

    def test_when_all_are_here_none_is(self) -> None:
        hold = held(decide(None, node("a"), expected=("a",)))
        assert (hold.status.phase, hold.status.missing) == ("gathering", None)

    def test_of_a_round_that_runs_none_is(self) -> None:
        assert held(decide(state("a", "b"), node("a"), node("b"), expected=self.MACHINES)).status.missing is None

    def test_those_that_are_gone_or_awaited_are_not_named_twice(self) -> None:
        world = state("a", "b", "c", min_nodes=3)
        hold = held(decide(world, node("a", last_round=1), node("b"), expected=self.MACHINES))
        assert [one.node for one in hold.status.departures] == ["c"]
        assert (hold.status.awaited, hold.status.missing) == (("b",), ("d",))

    def test_the_next_attempt_expects_the_nodes_of_the_one_before(self) -> None:
        world = state("a.1", "b.2", "c.3", min_nodes=3)
        hold = held(decide(world, node("b.7", attempt=1)))
        assert (hold.status.phase, hold.status.missing) == ("gathering", ("a", "c"))
        # One of the attempt before has not come to this one.
        closed = replace(world, closed=Closed("a.1", "enough", False))
        hold = held(decide(closed, node("a.1", last_round=1), node("b.7", attempt=1)))
        assert hold.status.missing == ("a", "c")


class TestNews:
    def test_a_quiet_round_has_none(self) -> None:
        assert held(decide(state("a", "b"), node("a"), node("b"))).status == RunStatus(1, Phase.RUNNING, 2, 0)

    def test_a_newcomer_counts(self) -> None:
        assert held(decide(state("a", "b"), *map(node, "abc"))).status.waiting == 1

    def test_spares_beyond_max_do_not_count(self) -> None:
        full = state("a", "b", "c", "d")
        assert held(decide(full, *map(node, "abcdef"))).status.waiting == 0
        assert held(decide(state("a", "b", "c"), *map(node, "abcdef"))).status.waiting == 1

    def test_a_spare_does_not_count_for_the_place_of_a_silent_member(self) -> None:
        nodes = [node("a", max_nodes=2), node("c", max_nodes=2)]
        assert held(decide(state("a", "b", max_nodes=2), *nodes, trusted=False)).status.waiting == 0
        # It is gone for certain: one place, and the loss itself.
        assert held(decide(state("a", "b", max_nodes=2), *nodes)).status.waiting == 2

    def test_a_member_that_came_back_counts(self) -> None:
        assert held(decide(state("a", "b"), node("a"), node("b", last_round=1))).status.waiting == 1

    def test_a_lost_member_counts_if_the_others_can_go_on(self) -> None:
        status = held(decide(state("a", "b", "c"), node("a"), node("b"))).status
        assert status.waiting == 1
        assert [(departure.node, departure.rank, departure.left) for departure in status.departures] == [
            ("c", 2, False)
        ]

    def test_a_lost_member_does_not_count_if_they_cannot(self) -> None:
        status = held(decide(state("a", "b"), node("a"))).status
        assert status.waiting == 0
        assert len(status.departures) == 1

    def test_a_member_that_left_is_named_with_its_reason(self) -> None:
        status = held(decide(state("a", "b", "c"), node("a"), node("b"), node("c", left="drained"))).status
        assert status.departures == (Departure("c", 2, True, "drained"),)

    def test_a_lost_member_that_is_back_is_lost_no_more(self) -> None:
        known = RunStatus(1, Phase.RUNNING, 1, 0, (Departure("b", 1, False, "dead"),))
        assert held(decide(state("a", "b"), node("a"), node("b"), known=known)).status.departures == ()


class TestAttempts:
    def test_a_closed_attempt_forms_no_world(self) -> None:
        closed = state("a", "b", closed=Closed("a", "done", True))
        assert held(decide(closed, *(node(name, last_round=1) for name in "abcd"))).status.phase == "closed"

    def test_a_newer_attempt_closes_the_one_before(self) -> None:
        new = published(decide(state("a", "b"), node("a"), node("b"), node("c", attempt=1)))
        assert new.closed == Closed("c", "superseded by attempt 1", False)
        assert new.world == ("a", "b")

    def test_a_newer_attempt_waits_until_the_members_before_are_gone(self) -> None:
        closed = state("a", "b", closed=Closed("c", "superseded", False))
        held(decide(closed, node("a"), *(node(name, attempt=1) for name in "cdef")))

    def test_then_it_forms_its_world_in_the_next_round(self) -> None:
        closed = state("a", "b", closed=Closed("c", "superseded", False))
        new = published(decide(closed, *(node(name, attempt=1, max_nodes=3) for name in "cde")))
        assert (new.attempt, new.round, new.world, new.max_nodes, new.closed) == (1, 2, ("c", "d", "e"), 3, None)

    def test_nodes_of_two_attempts_that_gather_do_not_mix(self) -> None:
        new = published(decide(None, node("a"), node("b", attempt=1), node("c", attempt=1)))
        assert new.closed is not None
        assert new.attempt == 0

    def test_a_run_that_all_abandoned_can_be_taken_up_again(self) -> None:
        new = published(decide(state("a", "b", round=7), *map(node, "cdef")))
        assert (new.round, new.world) == (8, ("c", "d", "e", "f"))


class TestForgetfulService:
    def test_the_next_round_is_later_than_any_that_a_node_was_in(self) -> None:
        back = [node(name, last_round=5) for name in "ab"]
        assert published(decide(None, *back, quorum_for=30.0)).round == 6
        assert published(decide(state("c", "d"), *back, quorum_for=30.0)).round == 6


class TestRanks:
    @pytest.mark.parametrize(
        ("arrived", "previous", "expected"),
        [("abc", "", "abc"), ("cab", "cab", "cab"), ("acd", "abc", "adc"), ("bc", "abc", "cb"), ("xbc", "abc", "xbc")],
    )
    def test_survivors_keep_theirs_and_newcomers_fill_the_holes(
        self, arrived: str, previous: str, expected: str
    ) -> None:
        nodes = [node(name, order=order) for order, name in enumerate(arrived)]
        assert "".join(rules.sticky_ranks(nodes, list(previous))) == expected

    def test_newcomers_are_in_natural_order(self) -> None:
        names = ["node10.x", "node2.x", "node1.x"]
        assert rules.sticky_ranks([node(name) for name in names], []) == ["node1.x", "node2.x", "node10.x"]

    def test_an_order_makes_another_node_rank_0(self) -> None:
        publish = decide(None, *map(node, "abcd"))
        assert isinstance(publish, Publish)
        ordered = publish.with_ranks(["c", "a", "d", "b"])
        assert ordered is not None
        assert (ordered.state.world, ordered.state.address) == (("c", "a", "d", "b"), "c.host")
        assert ordered.state.round == publish.state.round
        assert publish.with_ranks(None) is publish

    @pytest.mark.parametrize(
        ("here", "previous", "expected"),
        [
            ("", "", "abcd"),
            ("a", "", "bacd"),
            ("ab", "", "cbad"),
            ("abcd", "", "abcd"),
            ("b", "", "abcd"),
            ("a", "ab", "bacd"),
        ],
    )
    def test_rank_0_is_at_an_address_by_which_others_reach_it(self, here: str, previous: str, expected: str) -> None:
        where = {name: "127.0.0.1" if name in here else f"{name}.host" for name in "abcd"}
        nodes = [node(name, address=address, last_round=1) for name, address in where.items()]
        world = published(decide(state(*previous) if previous else None, *nodes))
        assert "".join(world.world) == expected
        assert world.address == ("127.0.0.1" if len(here) == 4 else f"{expected[0]}.host")

    @pytest.mark.parametrize("order", list(permutations("abcd")))
    def test_the_order_of_a_plugin_has_such_a_rank_0_too(self, order: tuple[str, ...]) -> None:
        nodes = [node(name, address="localhost") if name in "ab" else node(name) for name in "abcd"]
        publish = decide(None, *nodes)
        assert isinstance(publish, Publish)
        ordered = publish.with_ranks(order)
        assert ordered is not None
        first, *rest = ordered.state.world
        assert first == next(name for name in order if name in "cd")
        assert sum(a == b for a, b in zip(ordered.state.world, order, strict=True)) == (4 if first == order[0] else 2)
        assert sorted([first, *rest]) == sorted(order)

    def test_its_group_goes_with_it(self) -> None:
        rule = AdmissionRule(1, (), "rack", 2)
        nodes = [
            node(
                name,
                address="10.0.0.7" if name == "d" else "::1",
                labels={"rack": rack},
                rule=rule,
                max_nodes=6,
            )
            for name, rack in zip("abcdef", "xxyyzz", strict=True)
        ]
        first = state(rule=rule, round=0, max_nodes=6)
        assert published(decide(first, *nodes)).world == ("d", "c", "a", "b", "e", "f")

    def test_former_members_come_before_those_who_arrived_earlier(self) -> None:
        back = [node(name, order=50, last_round=1) for name in "wxyz"]
        assert published(decide(state("w", "x", "y", "z"), node("a", order=1), *back)).world == ("w", "x", "y", "z")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(
            (host, True)
            for host in ("127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1", "localhost", "LocalHost.", "a.localhost")
        ),
        *(
            (host, False)
            for host in ("10.0.0.7", "::2", "fe80::1%eth0", "node1", "localhost.example.com", "128.0.0.1", "0.0.0.0")
        ),
    ],
)
def test_a_host_by_which_every_machine_finds_itself(host: str, expected: bool) -> None:
    assert rules.is_loopback(host) is expected


def rank_of_a(current: State | None) -> int | None:
    return current.world.index("a") if current is not None and "a" in current.world else None


class TestStanding:
    @pytest.mark.parametrize(
        ("current", "expected"),
        [
            (None, MembershipState.WAITING),
            (state("b"), MembershipState.WAITING),
            (state("a", round=3), MembershipState.WAITING),
            (state("b", "a", round=4), MembershipState.MEMBER),
            (state("a", round=4, closed=Closed("b", "done", True)), MembershipState.CLOSED),
            (state("a", round=4, attempt=1), MembershipState.SUPERSEDED),
        ],
    )
    def test_what_the_state_means_to_a_node(self, current: State | None, expected: MembershipState) -> None:
        assert rules.membership(current, rank_of_a(current), attempt=0, last_round=3) is expected

    def test_an_older_attempt_means_nothing(self) -> None:
        closed = state("a", closed=Closed("a", "done", True))
        assert rules.membership(closed, 0, attempt=1, last_round=0) is MembershipState.WAITING


class TestClosing:
    def test_the_first_reason_stands(self) -> None:
        first = state("a", closed=Closed("a", "first", False))
        assert rules.close(first, Closed("b", "second", False), LIMITS) is None

    def test_closing_keeps_the_world(self) -> None:
        closed = rules.close(state("a", "b"), Closed("b", "enough", False), LIMITS)
        assert closed == replace(state("a", "b"), closed=Closed("b", "enough", False))

    def test_a_run_without_a_node_can_be_closed(self) -> None:
        closed = rules.close(None, Closed("b", "enough", False), LIMITS)
        assert closed is not None
        assert (closed.round, closed.world) == (0, ())

    def test_closing_a_newer_attempt_keeps_the_world_that_some_may_still_be_in(self) -> None:
        newer = replace(LIMITS, attempt=1, max_nodes=9)
        closed = rules.close(state("a", "b", round=7), Closed("c", "enough", False), newer)
        assert closed == state("a", "b", round=7, attempt=1, max_nodes=9, closed=Closed("c", "enough", False))
        held(decide(closed, node("a", last_round=6), *(node(name, attempt=2) for name in "cdef")))

    def test_a_newer_attempt_is_not_closed_by_an_older_node(self) -> None:
        assert rules.close(state("a", attempt=1), Closed("b", "late", False), LIMITS) is None


class TestTheLastNews:
    def test_they_say_of_each_member_what_is_known(self) -> None:
        lost = RunStatus(1, Phase.RE_FORMING, 1, 1, (Departure("c", 2, False, "its lease ran out"),))
        left = [node("b", left="drained"), node("x", left="not needed")]
        losses = (
            Departure("a", 0, True, "SIGTERM"),
            Departure("b", 1, True, "drained"),
            Departure("c", 2, False, "its lease ran out"),
        )
        last = RunStatus(1, Phase.ABANDONED, 0, 0, losses)
        assert rules.last_status(state("a", "b", "c", "d"), left, lost, "a", "SIGTERM") == last

    def test_a_node_that_was_no_member_says_nothing_of_itself(self) -> None:
        lost = RunStatus(1, Phase.RE_FORMING, 1, 1, (Departure("a", 0, True, "drained"),))
        assert rules.last_status(state("a"), [], lost, "x", "SIGTERM") == RunStatus(
            1, Phase.ABANDONED, 0, 0, lost.departures
        )


class TestWhatALeaverMayTakeAway:
    def test_a_member_without_a_record_may_come_back(self) -> None:
        left = node("b", left="drained")
        lost = RunStatus(1, Phase.RE_FORMING, 1, 0, (Departure("a", 0, False, "its lease ran out"),))
        assert not rules.has_ended(state("a", "b", "c"), [left], lost, "c")

    def test_members_that_say_that_they_leave_do_not(self) -> None:
        left = RunStatus(1, Phase.RE_FORMING, 1, 0, (Departure("a", 0, True, "drained"),))
        assert rules.has_ended(state("a", "b", "c"), [node("b", left="drained")], left, "c")

    def test_news_of_another_round_says_nothing(self) -> None:
        left = RunStatus(1, Phase.RE_FORMING, 1, 0, (Departure("a", 0, True, "drained"),))
        assert not rules.has_ended(state("a", "b", round=2), [], left, "b")

    def test_a_member_that_is_here_has_not_left(self) -> None:
        assert not rules.has_ended(state("a", "b"), [node("a")], None, "b")

    def test_no_node_comes_back_to_a_closed_attempt(self) -> None:
        assert rules.has_ended(state("a", "b", closed=Closed("a", "enough", False)), [], None, "b")


class TestAlone:
    @staticmethod
    def status(*lost: str, present: int = 1, round: int = 1, left: bool = True) -> RunStatus:
        return RunStatus(
            round, Phase.RE_FORMING, present, 0, tuple(Departure(name, 0, left, "drained") for name in lost)
        )

    def test_a_member_is_once_all_others_have_left(self) -> None:
        assert rules.is_alone(state("a", "b", "c"), self.status("b", "c"), 0)

    @pytest.mark.parametrize(
        "status",
        [
            None,
            status("b"),
            status("b", "c", present=2),
            status("b", "c", round=2),
            status("a", "b", "c"),
            status("b", "c", left=False),
        ],
        ids=["no news", "one is left", "another has come", "another round", "itself is gone", "they are lost"],
    )
    def test_a_member_is_not_while_another_is_there_or_may_be(self, status: RunStatus | None) -> None:
        assert not rules.is_alone(state("a", "b", "c"), status, 0)

    def test_a_newcomer_is_not(self) -> None:
        assert not rules.is_alone(state("b", "c", "d"), self.status("b", "c"), None)

    def test_a_member_for_which_a_world_of_one_would_do_is_not(self) -> None:
        assert not rules.is_alone(state("a", "b", min_nodes=1), self.status("b"), 0)

    def test_a_member_is_not_in_a_closed_attempt_or_before_the_first_world(self) -> None:
        assert not rules.is_alone(state("a", "b", closed=Closed("a", "enough", False)), self.status("b"), 0)
        assert not rules.is_alone(None, self.status("b"), 0)
