"""Which worlds a run takes: sizes, units, groups and a wanted size, as tables."""

from dataclasses import replace
from typing import Any

import pytest
from rdzv_core.errors import RendezvousParameterError, RendezvousStateError

from rdzv.admission import AdmissionRule, Limits, Policy
from rdzv.engine import rules
from rdzv.engine.codec import decode
from rdzv.engine.records import Closed, Departure, LeaderRecord, NodeRecord, Phase, RunStatus, State

from .test_rules import held, published

UNIT = AdmissionRule(node_unit=4)
SIZES = AdmissionRule(sizes=(2, 5, 8))
RACKS = AdmissionRule(group_by="rack", group_size=2)


def node(name: str, limits: Limits, order: int = 0, last_round: int = 0) -> NodeRecord:
    """A record that waits; the first letter of its name is its rack."""
    place = (f"{name}.host", 1, {"rack": name[0]})
    at = order or 10 * ord(name[0]) + int(name[1:] or 0)
    return NodeRecord(name, 0, last_round, limits.min_nodes, limits.max_nodes, *place, rule=limits.rule, order=at)


def nodes(limits: Limits, *names: str, last_round: int = 0) -> list[NodeRecord]:
    """Records that wait, in the order of their arrival."""
    return [node(name, limits, number, last_round) for number, name in enumerate(names, start=1)]


def decide(current: State | None, limits: Limits, *there: NodeRecord, **more: Any) -> rules.Publish | rules.Defer:
    """Ask the rules with a last call of 30 s, of which none has passed, and 120 s for what is wanted."""
    leader = LeaderRecord("a", 0, limits.min_nodes, limits.max_nodes, limits.rule)
    asked: dict[str, Any] = {"last_call": 30.0, "wanted": 120.0, "trusted": True, **more}
    return rules.decide(rules.Situation(current, there, leader, **asked))


def running(limits: Limits, *world: str) -> State:
    """A running round."""
    return State(0, 1, world, "x", 1, limits.min_nodes, limits.max_nodes, rule=limits.rule)


@pytest.mark.parametrize(
    ("rule", "largest"),
    [
        (None, {1: 0, 2: 2, 99: 12}),
        (UNIT, {3: 0, 4: 4, 7: 4, 99: 12}),
        (SIZES, {1: 0, 4: 2, 5: 5, 99: 8}),
        (RACKS, {3: 2}),
        (replace(RACKS, node_unit=3), {7: 6}),
        (replace(SIZES, node_unit=4), {7: 0, 9: 8}),
    ],
)
def test_largest_world(rule: AdmissionRule | None, largest: dict[int, int]) -> None:
    """Of so many nodes."""
    assert {count: Limits(2, 12, rule).largest(count) for count in largest} == largest


class TestGrowDelay:
    LIMITS = Limits(2, 8)

    def test_nodes_that_do_not_count_yet_are_no_news(self) -> None:
        there = nodes(self.LIMITS, *"abcd")
        for due, news in ((None, 2), (set("abcd"), 2), (set("abd"), 1), (set(), 0)):
            decision = held(decide(running(self.LIMITS, "a", "b"), self.LIMITS, *there, due=due))
            assert decision.status.waiting == news
            assert decision.status.present == 4

    def test_loss_is_never_delayed(self) -> None:
        there = nodes(self.LIMITS, *"abd")
        decision = held(decide(running(self.LIMITS, *"abc"), self.LIMITS, *there, due=set()))
        assert decision.status.waiting == 1

    def test_member_that_comes_back_is_never_delayed(self) -> None:
        there = [*nodes(self.LIMITS, "a"), *nodes(self.LIMITS, "b", last_round=1), *nodes(self.LIMITS, "c")]
        decision = held(decide(running(self.LIMITS, "a", "b"), self.LIMITS, *there, due=set()))
        assert decision.status.waiting == 1

    def test_world_that_forms_anyway_takes_all(self) -> None:
        back = nodes(self.LIMITS, "a", "b", last_round=1)
        there = [*back, *nodes(self.LIMITS, "c")]
        assert published(decide(running(self.LIMITS, "a", "b"), self.LIMITS, *there, due=set())).world == (
            "a",
            "b",
            "c",
        )

    def test_next_attempt_is_not_delayed(self) -> None:
        next_attempt = [replace(node, attempt=1) for node in nodes(self.LIMITS, *"cd")]
        there = [*nodes(self.LIMITS, "a"), *next_attempt]
        world = replace(running(self.LIMITS, "a"), closed=Closed("x", "superseded", done=False))
        assert held(decide(world, self.LIMITS, *there, due=set())).status.phase == "closed"


class TestAlone:
    @pytest.mark.parametrize(
        ("limits", "alone"), [(Limits(1, 4), False), (Limits(1, 4, UNIT), True), (Limits(2, 4), True)]
    )
    def test_one_node_that_is_no_world_is_alone(self, limits: Limits, alone: bool) -> None:
        status = RunStatus(1, Phase.RUNNING, 1, 0, (Departure("b", 1, True, "drained"),))
        assert rules.is_alone(running(limits, "a", "b"), status, 0) is alone


@pytest.mark.parametrize("rule", [None, AdmissionRule(sizes=(1, 2)), AdmissionRule(7), AdmissionRule(1, (), "rack", 7)])
def test_numbers_that_another_client_wrote_take_no_time(rule: AdmissionRule | None) -> None:
    limits = Limits(10**40, 10**50, rule)
    assert limits.largest(8) == 0
    assert limits.largest(10**50) >= 0
    assert limits.takes().startswith("a world takes 1000000")


@pytest.mark.parametrize("name", ["node_unit", "group_size"])
def test_multiple_of_nothing_is_no_rule(name: str) -> None:
    wrong: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match="a multiple of 0 nodes"):
        AdmissionRule(**wrong)
    payload = running(Limits(2, 4, AdmissionRule(3, group_size=3)), "a", "b").encode()
    with pytest.raises(RendezvousStateError):
        decode(State, payload.replace(f'"{name}":3'.encode(), f'"{name}":0'.encode()))


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (
            Limits(5, 6, UNIT),
            r"No world of 5 to 6 nodes is a multiple of 4: change nnodes, or the options",
        ),
        (Limits(3, 4, SIZES), r"No world of 3 to 4 nodes is one of 2, 5, 8"),
        (Limits(2, 7, AdmissionRule(group_by="rack", group_size=8)), r"in groups of 8 with the same label 'rack'"),
        (Limits(2, 12, replace(SIZES, node_unit=3)), r"a multiple of 3 and one of 2, 5, 8"),
        (
            Limits(2, 12, replace(SIZES, wanted=7)),
            r"7 nodes, as wanted asks for, are no world: a world takes 2, 5 or 8 nodes",
        ),
        (Limits(2, 12, AdmissionRule(wanted=13)), r"13 nodes, as wanted asks for, are no world"),
    ],
)
def test_rule_that_no_world_meets_is_refused(limits: Limits, says: str) -> None:
    with pytest.raises(RendezvousParameterError, match=says):
        limits.check()


@pytest.mark.parametrize(
    ("limits", "takes", "text"),
    [
        (Limits(2, 4), "a world takes 2 to 4 nodes", "2 to 4 nodes"),
        (Limits(2, 8, SIZES), "a world takes 2, 5 or 8 nodes", "2 to 8 nodes, one of 2, 5, 8"),
        (Limits(2, 2), "a world takes 2 nodes", "2 nodes"),
        (Limits(4, 7, UNIT), "a world takes 4 nodes", "4 to 7 nodes, a multiple of 4"),
        (
            Limits(2, 12, AdmissionRule(node_unit=2)),
            "a world takes 2, 4, 6, 8, 10 or 12 nodes",
            "2 to 12 nodes, a multiple of 2",
        ),
        (
            Limits(2, 14, AdmissionRule(node_unit=2)),
            "a world takes 2 to 14 nodes, a multiple of 2",
            "2 to 14 nodes, a multiple of 2",
        ),
        (Limits(4, 64, UNIT), "a world takes 4 to 64 nodes, a multiple of 4", "4 to 64 nodes, a multiple of 4"),
        (
            Limits(2, 4, replace(RACKS, wanted=4)),
            "a world takes 2 or 4 nodes, in groups of 2 with the same label 'rack'",
            "2 to 4 nodes, in groups of 2 with the same label 'rack', 4 wanted",
        ),
    ],
)
def test_limits_in_words(limits: Limits, takes: str, text: str) -> None:
    assert limits.takes() == takes
    assert str(limits) == text


class TestSizes:
    LIMITS = Limits(2, 8, SIZES)

    def test_world_has_one_of_the_sizes(self) -> None:
        four = nodes(self.LIMITS, "a", "b", "c", "d")
        assert held(decide(None, self.LIMITS, *four)).recheck_after == 30.0
        assert published(decide(None, self.LIMITS, *four, quorum_for=30.0)).world == ("a", "b")

    def test_largest_size_is_not_waited_for(self) -> None:
        assert published(decide(None, self.LIMITS, *nodes(self.LIMITS, *"abcdefgh"))).size == 8

    def test_too_few_have_no_last_call(self) -> None:
        assert held(decide(None, self.LIMITS, *nodes(self.LIMITS, "a"))).recheck_after is None

    def test_survivors_that_are_no_world_have_a_last_call_and_then_the_first_ranks_go_on(self) -> None:
        world = running(self.LIMITS, *"abcde")
        left = [node for node in nodes(self.LIMITS, *"abcde", last_round=1) if node.id != "b"]
        assert held(decide(world, self.LIMITS, *left)).recheck_after == 30.0
        assert published(decide(world, self.LIMITS, *left, quorum_for=30.0)).world == ("a", "c")

    def test_survivors_and_a_spare_go_on_at_once(self) -> None:
        world = running(self.LIMITS, *"abcde")
        left = [node for node in nodes(self.LIMITS, *"abcdef", last_round=1) if node.id != "b"]
        assert published(decide(world, self.LIMITS, *left)).world == ("a", "f", "c", "d", "e")

    def test_members_hear_of_arrivals_only_when_a_larger_world_is_possible(self) -> None:
        world = running(self.LIMITS, "a", "b")
        members = nodes(self.LIMITS, "a", "b")
        for new, news in (("cd", 0), ("cde", 3), ("cdefg", 3), ("cdefgh", 6)):
            there = [*members, *nodes(self.LIMITS, *new)]
            assert held(decide(world, self.LIMITS, *there)).status.waiting == news, new

    def test_silent_member_keeps_its_place(self) -> None:
        world = running(self.LIMITS, "a", "b")
        there = [*nodes(self.LIMITS, "a"), *nodes(self.LIMITS, *"cde")]
        assert held(decide(world, self.LIMITS, *there, trusted=False)).status.waiting == 3

    def test_node_with_another_rule_is_not_counted(self) -> None:
        there = [*nodes(self.LIMITS, "a"), node("b", replace(self.LIMITS, rule=None))]
        assert held(decide(None, self.LIMITS, *there)).recheck_after is None


class TestWanted:
    LIMITS = Limits(2, 8, AdmissionRule(wanted=4))

    def test_wanted_size_is_waited_for_longer_than_the_last_call(self) -> None:
        three = nodes(self.LIMITS, *"abc")
        assert held(decide(None, self.LIMITS, *three, quorum_for=31.0)).recheck_after == 89.0
        assert published(decide(None, self.LIMITS, *three, quorum_for=120.0)).size == 3

    def test_wanted_size_has_a_last_call(self) -> None:
        four = nodes(self.LIMITS, *"abcd")
        assert held(decide(None, self.LIMITS, *four)).recheck_after == 30.0
        assert published(decide(None, self.LIMITS, *four, quorum_for=30.0)).size == 4

    def test_arrival_extends_the_last_call_and_not_the_wait_for_it(self) -> None:
        three, late = nodes(self.LIMITS, *"abc"), {"quorum_for": 119.0, "since_arrival": 0.0}
        assert held(decide(None, self.LIMITS, *three, **late)).recheck_after == 1.0
        short = late | {"quorum_for": 29.0, "wanted": 20.0}
        assert held(decide(None, self.LIMITS, *three, **short)).recheck_after == 7.5
        assert published(decide(None, self.LIMITS, *nodes(self.LIMITS, *"abcd"), **late)).size == 4

    def test_survivors_wait_for_it_too(self) -> None:
        world = running(self.LIMITS, *"abcd")
        left = nodes(self.LIMITS, *"abc", last_round=1)
        assert held(decide(world, self.LIMITS, *left)).recheck_after == 120.0
        assert published(decide(world, self.LIMITS, *left, quorum_for=120.0)).world == ("a", "b", "c")


class TestGroups:
    LIMITS = Limits(2, 6, RACKS)

    def test_group_takes_part_whole_or_waits(self) -> None:
        there = nodes(self.LIMITS, "a1", "b1", "c1", "b2", "c2")
        assert held(decide(None, self.LIMITS, *there)).recheck_after is not None
        assert published(decide(None, self.LIMITS, *there, quorum_for=30.0)).world == ("b1", "b2", "c1", "c2")

    def test_ranks_of_a_group_are_contiguous_and_groups_in_natural_order(self) -> None:
        limits = Limits(6, 6, replace(RACKS, group_by="domain"))
        labels = {"x": "n10", "y": "n2", "z": "n1"}
        there = [
            replace(node(f"{name}{number}", limits), labels={"domain": group})
            for number in (1, 2)
            for name, group in labels.items()
        ]
        assert published(decide(None, limits, *there)).world == ("z1", "z2", "y1", "y2", "x1", "x2")

    def test_spare_of_the_group_takes_the_dead_rank(self) -> None:
        world = running(self.LIMITS, "a1", "a2", "b1", "b2", "c1", "c2")
        there = nodes(self.LIMITS, "b2", "a1", "a2", "c1", "c2", "a3", "b9", last_round=1)
        assert published(decide(world, self.LIMITS, *there)).world == ("a1", "a2", "b9", "b2", "c1", "c2")

    def test_group_that_lost_a_node_makes_room_for_a_whole_one(self) -> None:
        world = running(self.LIMITS, "a1", "a2", "b1", "b2", "c1", "c2")
        there = nodes(self.LIMITS, "b2", "a1", "a2", "c1", "c2", "d1", "d2", last_round=1)
        assert published(decide(world, self.LIMITS, *there)).world == ("a1", "a2", "d1", "d2", "c1", "c2")

    def test_survivors_without_a_whole_group_wait_for_it_during_the_last_call(self) -> None:
        world = running(self.LIMITS, "a1", "a2", "b1", "b2")
        there = nodes(self.LIMITS, "a1", "a2", "b1", last_round=1)
        assert held(decide(world, self.LIMITS, *there)).recheck_after == 30.0
        assert published(decide(world, self.LIMITS, *there, quorum_for=30.0)).world == ("a1", "a2")

    def test_members_hear_of_whole_groups_only(self) -> None:
        world = running(self.LIMITS, "a1", "a2")
        members = nodes(self.LIMITS, "a1", "a2")
        for new, news in ((("b1", "c1", "a3"), 0), (("b1", "c1", "b2"), 2)):
            there = [*members, *nodes(self.LIMITS, *new)]
            assert held(decide(world, self.LIMITS, *there)).status.waiting == news

    def test_group_that_would_only_replace_a_silent_one_is_no_news(self) -> None:
        world = running(self.LIMITS, "a1", "a2")
        there = [*nodes(self.LIMITS, "a1"), *nodes(self.LIMITS, "b1", "b2")]
        assert held(decide(world, self.LIMITS, *there, trusted=False)).status.waiting == 0

    def test_loss_is_news_if_the_others_can_go_on(self) -> None:
        world = running(self.LIMITS, "a1", "a2", "b1", "b2")
        alive = held(decide(world, self.LIMITS, *nodes(self.LIMITS, "a1", "a2", "b1")))
        assert [departure.node for departure in alive.status.departures] == ["b2"]
        assert alive.status.waiting == 1
        dead = held(decide(world, self.LIMITS, *nodes(self.LIMITS, "a1", "b1")))
        assert dead.status.waiting == 0
        assert isinstance(dead.status.departures[0], Departure)

    def test_ranks_that_a_program_assigned_are_kept_as_far_as_groups_allow(self) -> None:
        world = running(self.LIMITS, "a1", "b1", "a2", "b2")
        there = nodes(self.LIMITS, "a1", "a2", "b1", "b2", last_round=1)
        assert published(decide(world, self.LIMITS, *there, quorum_for=30.0)).world == ("a1", "a2", "b1", "b2")


class TestPolicy:
    """What no size says, and all nodes have to ask for all the same: any of them may lead."""

    LIMITS = Limits(2, 4, policy=Policy(grow_delay=2.5, quarantine_after=0))

    def test_a_new_run_has_that_of_its_first_node(self) -> None:
        first = replace(node("a", self.LIMITS), policy=self.LIMITS.policy)
        other = replace(node("b", Limits(2, 4)), policy=None)
        alone = held(rules.decide(self.asked(None, first, other, "a")))
        # The other is not counted: it learns that it is refused.
        assert (alone.status.phase, alone.status.present) == (Phase.GATHERING, 1)
        both = replace(other, policy=self.LIMITS.policy)
        world = published(rules.decide(replace(self.asked(None, first, both, "a"), quorum_for=60.0)))
        assert (world.world, world.limits) == (("a", "b"), self.LIMITS)

    def test_the_next_attempt_may_have_another(self) -> None:
        closed = replace(running(Limits(2, 4), "x"), closed=Closed("x", "done", True))
        there = [replace(node(name, self.LIMITS), policy=self.LIMITS.policy, attempt=1) for name in "ab"]
        situation = replace(self.asked(closed, *there, "a"), quorum_for=60.0)
        assert published(rules.decide(situation)).limits == self.LIMITS

    def test_what_closes_an_attempt_without_a_world_keeps_it(self) -> None:
        leader = LeaderRecord("a", 0, 2, 4, policy=self.LIMITS.policy)
        closed = rules.close(None, Closed("a", "enough", False), leader)
        assert closed is not None
        assert closed.limits == self.LIMITS

    def test_words_name_what_differs(self) -> None:
        usual = Limits(2, 4)
        assert usual.beside(self.LIMITS) == "2 to 4 nodes, grow_delay=0, quarantine_after=3"
        assert self.LIMITS.beside(usual) == "2 to 4 nodes, grow_delay=2.5, quarantine_after=0"
        assert usual.beside(Limits(2, 5)) == str(usual)
        # A fraction, and a number that has many digits, are what they are.
        assert Limits(2, 4, policy=Policy(wanted_timeout=1234567.5)).beside(usual).endswith("wanted_timeout=1234567.5")

    def asked(self, state: State | None, *there: Any) -> rules.Situation:
        """A leader that asks for the same as the first node."""
        *nodes, leader = there
        attempt = nodes[0].attempt
        limits = LeaderRecord(leader, attempt, 2, 4, policy=self.LIMITS.policy)
        return rules.Situation(state, nodes, limits, last_call=30.0, wanted=120.0, trusted=True)
