"""Which worlds a run takes, and when it is asked to grow, with nodes in processes of their own."""

import time
from datetime import timedelta
from typing import Any, Final

from ..deadlines import eventually
from .base import feature
from .nodes import FORM, Nodes, NodesConformance, gather

_SOON: Final = 0.2
"""Seconds of a last call that the smallest world, which is the one that must form, needs no more nodes in."""


class AdmissionConformance(NodesConformance):
    """What a run may ask of its worlds."""

    @feature("node_unit", "a world has a multiple of so many nodes")
    def test_a_world_is_a_multiple_of_the_unit(self, nodes: Nodes) -> None:
        """Invariants 3 and 5: a node with which no larger world is possible waits, and is not announced."""
        _grow_by_two(nodes, node_unit=2)

    @feature("sizes", "a world has one of these numbers of nodes")
    def test_a_world_has_one_of_the_sizes(self, nodes: Nodes) -> None:
        """Invariants 3 and 5: a node with which no larger world is possible waits, and is not announced."""
        _grow_by_two(nodes, sizes=(2, 4))

    @feature("group_by", "a group takes part whole, and its spare takes the rank of a node that died")
    def test_a_spare_takes_the_rank_of_a_dead_node_of_its_group(self, nodes: Nodes) -> None:
        """Invariant 3: a group takes part whole, its ranks are contiguous, and no other rank moves."""
        racks = {rack: nodes(2, 4, 4, group_by="rack", group_size=2, labels={"rack": rack}) for rack in "ab"}
        members = [node for rack in racks.values() for node in rack]
        ranks = [world["rank"] for world in gather(members)]
        assert sorted(ranks[:2]) == [0, 1], f"the ranks of two groups of two are {ranks}"
        (spare,) = nodes(1, 4, 4, group_by="rack", group_size=2, labels={"rack": "b"})
        spare.tell("join")
        eventually(lambda: members[0].ask("nodes") == 5, "the spare to be there", FORM)
        members.pop().kill()
        eventually(lambda: all(node.ask("waiting") for node in members), "the others to notice the death", FORM)
        assert [world["rank"] for world in [*gather(members), spare.world()]] == ranks

    @feature("wanted", "a world waits longer for the number of nodes that one wants")
    def test_a_world_waits_for_the_wanted_size(self, nodes: Nodes) -> None:
        """Invariant 4: with fewer nodes than are wanted no world forms when the last call is over."""
        rule: dict[str, Any] = {"wanted": 3, "wanted_timeout": timedelta(seconds=FORM), "last_call": _SOON}
        early, (late,) = nodes(2, 2, 4, **rule), nodes(1, 2, 4, **rule)
        for node in early:
            node.tell("join")
        eventually(lambda: late.ask("nodes") == 2, "two nodes to be there", FORM)
        over = time.monotonic() + 4 * _SOON
        eventually(lambda: time.monotonic() > over, "the last call to be over")
        late.tell("join")
        sizes = [node.world()["size"] for node in [*early, late]]
        assert sizes == [3, 3, 3], "a world did not wait for the wanted size"

    @feature("grow_delay", "a world runs for so long before it is asked to let more nodes in")
    def test_a_world_is_asked_to_grow_after_the_delay(self, nodes: Nodes) -> None:
        """Invariant 5: members hear of a node that waits, and not before their world has run for the delay."""
        delay = 1.5
        rule: dict[str, Any] = {"grow_delay": timedelta(seconds=delay), "last_call": _SOON}
        members, (late,) = nodes(2, 2, 3, **rule), nodes(1, 2, 3, **rule)
        began = time.monotonic()
        gather(members)
        late.tell("join")
        eventually(lambda: all(node.ask("waiting") for node in members), "the members to hear of a node", FORM)
        assert time.monotonic() - began >= delay, "a world was asked to grow before its time"
        assert [world["size"] for world in [*gather(members), late.world()]] == [3, 3, 3]


def _grow_by_two(nodes: Nodes, **rule: Any) -> None:
    """Have a world of two grow, which the rule allows by two nodes only."""
    members, late = nodes(2, 2, 4, last_call=_SOON, **rule), nodes(2, 2, 4, last_call=_SOON, **rule)
    assert [world["size"] for world in gather(members)] == [2, 2]
    late[0].tell("join")
    eventually(lambda: members[0].ask("nodes") == 3, "a third node to be there", FORM)
    late[1].tell("join")
    heard = [0, 0]

    def hear() -> bool:
        heard[:] = [node.ask("waiting") for node in members]
        assert set(heard) <= {0, 2}, f"members hear of {heard} nodes, with which no world is possible"
        return heard == [2, 2]

    eventually(hear, "the members to hear of two nodes that wait", FORM)
    assert [world["size"] for world in [*gather(members), *(node.world() for node in late)]] == [4, 4, 4, 4]
