"""Who has to leave a world, and who may not come in for a while, with nodes in processes of their own."""

from datetime import timedelta
from typing import Any, Final

from ..deadlines import eventually
from .base import feature
from .nodes import FORM, Node, Nodes, NodesConformance, gather

_LONG: Final = 600.0
"""Seconds that no test waits for."""


class FitnessConformance(NodesConformance):
    """What becomes of nodes that drain, and of those whose programs fail again and again."""

    @feature("drain", "a node that has to go says so; at its time the others go on, a spare in its place")
    def test_a_spare_takes_the_rank_of_a_node_that_drained(self, nodes: Nodes) -> None:
        """Invariant 14: no member is lost, and each learns who goes, and why."""
        members = nodes(2, 2, 2)
        ranks = [world["rank"] for world in gather(members)]
        (spare,) = nodes(1, 2, 2)
        spare.tell("join")
        eventually(lambda: members[0].ask("nodes") == 3, "the spare to be there", FORM)
        leaves = members.pop()
        leaves.ask("drain", 1.0, "spot instance ends")
        _all_know(["spot instance ends"], [*members, leaves])
        eventually(lambda: leaves.ask("drained"), "the drain to be over", FORM)
        eventually(lambda: all(node.ask("waiting") for node in members), "the others to hear of it", FORM)
        assert leaves.ask("leave", "drained"), "a node that drains cannot leave"
        assert [world["rank"] for world in [*gather(members), spare.world()]] == ranks
        assert members[0].ask("lost") in ([], ["drained"]), "a node that drained counts as lost"

    @feature("ready_to_drain", "it goes as soon as all members have saved their work")
    def test_a_node_goes_as_soon_as_all_are_ready(self, nodes: Nodes) -> None:
        """Invariant 14: before that, no member is disturbed."""
        members = nodes(3, 2, 3, node_name="worker")
        gather(members)
        assert members[0].ask("have_drained", "worker", _LONG) == 3, "an operator cannot have nodes drain by their name"
        _all_know(["the operator"] * 3, members)
        *others, last = members
        for node in others:
            node.ask("ready")
        assert not last.ask("drained"), "a node goes although it is not ready itself"
        last.ask("ready")
        eventually(lambda: all(node.ask("drained") for node in members), "the nodes to go", FORM)

    @feature("quarantine", "a node whose program fails first in three consecutive rounds waits, until it is pardoned")
    def test_a_node_that_fails_again_and_again_is_quarantined(self, nodes: Nodes) -> None:
        """Invariant 15: the others go on without it, and take it in again once it is pardoned."""
        rule: dict[str, Any] = {"quarantine_cooldown": timedelta(seconds=_LONG)}
        good, (bad,) = nodes(2, 2, 3, **rule), nodes(1, 2, 3, node_name="bad", **rule)
        failures: list[str] = []
        for number in range(1, 4):
            failures.append(f"failure {number}")
            worlds = gather([*good, bad])
            assert [world["size"] for world in worlds] == [3, 3, 3], f"no whole world after {number - 1} failures"
            assert bad.ask("fail", failures[-1]), "the first failure of a round is not the first"
            assert not good[0].ask("fail", "its consequence"), "two nodes fail first"
            eventually(lambda: good[1].ask("failures") == failures, "a failure to be seen", FORM)
        bad.tell("join")
        assert [world["size"] for world in gather(good)] == [2, 2], "a node that is quarantined is in the world"
        assert "failure 3" in str(good[0].ask("quarantined"))
        assert not any(node.ask("waiting") for node in good), "members are to take in a node that is quarantined"
        good[0].ask("pardon", "bad")
        eventually(lambda: all(node.ask("waiting") for node in good), "the members to hear of the pardoned node", FORM)
        assert [world["size"] for world in [*gather(good), bad.world()]] == [3, 3, 3]

    @feature("give_up_after", "a run without progress is closed, and says who failed first each time")
    def test_a_run_is_given_up(self, nodes: Nodes) -> None:
        """Invariant 6: every node learns that it was given up, and why."""
        members = nodes(2)
        gather(members)
        members[0].ask("fail", "exit code 1")
        eventually(lambda: members[1].ask("failures") == ["exit code 1"], "the failure to be seen", FORM)
        members[1].ask("give_up", "1 round without progress")
        eventually(lambda: all(node.ask("gave_up") for node in members), "the end to be seen", FORM)


def _all_know(reasons: list[str], members: list[Node]) -> None:
    """Wait until all members know why nodes drain."""
    eventually(lambda: all(node.ask("drains") == reasons for node in members), "the drains to be seen", FORM)
