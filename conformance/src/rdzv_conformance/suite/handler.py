"""The rendezvous itself on this backend: its invariants, with nodes in processes of their own."""

import time
from collections import Counter
from typing import Final

from rdzv_core.backend import ANY, STATE_KEY

from ..deadlines import eventually
from .base import CALL, Clients
from .nodes import FORM, Node, Nodes, NodesConformance, assert_calm, gather

_HOUR: Final = 3600.0
_JOIN_CALLS: Final = 6
"""So many calls a node may need to join, in the mean."""
_LEAD_CALLS: Final = 12
"""And so many more are for all together: to elect a leader, and to form the world."""
_IDLE_INTERVALS: Final = 3
_SPARE_CALLS: Final = 3
"""So many calls may be late."""


class HandlerConformance(NodesConformance):
    """What the nodes of a run are promised, whatever the service."""

    def test_all_nodes_agree(self, nodes: Nodes) -> None:
        """Invariant 1: one world, size, bootstrap address; ranks from 0, each once; one store."""
        four = nodes(4)
        worlds = gather(four)
        assert sorted(world["rank"] for world in worlds) == [0, 1, 2, 3], "the ranks are not 0 to 3"
        assert len({str(world["shared"]) for world in worlds}) == 1, f"the nodes disagree: {worlds}"
        assert sorted(node.ask("add") for node in four) == [1, 2, 3, 4], "the nodes do not share one store"

    def test_a_late_node_waits_until_all_make_room(self, nodes: Nodes) -> None:
        """Invariants 2 and 5: no node gets a world beside a running one; all members see that a node waits."""
        old, (late,) = nodes(2, 2, 3), nodes(1, 2, 3)
        first = gather(old)
        late.tell("join")
        eventually(lambda: all(node.ask("waiting") == 1 for node in old), "the members to see a late node", FORM)
        assert [node.ask("round") for node in old] == [world["round"] for world in first]
        worlds = [*gather(old), late.world()]
        assert {world["size"] for world in worlds} == {3}, "the late node is not in the next world"
        assert [world["rank"] for world in worlds[:2]] == [world["rank"] for world in first], "ranks changed hands"

    def test_a_spare_ends_when_the_job_is_done(self, nodes: Nodes) -> None:
        """Invariant 3: no world is larger than max; a node that is left over disturbs no other and ends with a graceful
        exit."""
        members, (spare,) = nodes(2, 2, 2), nodes(1, 2, 2)
        gather(members)
        spare.tell("join")
        eventually(lambda: members[0].ask("nodes") == 3, "the spare to be there", FORM)
        assert members[0].ask("waiting") == 0, "a spare that cannot be used is announced"
        assert members[0].ask("shutdown")
        assert "GracefulExit" in spare.refusal(), "the spare does not end with a graceful exit"

    def test_the_others_go_on_when_a_member_is_killed(self, nodes: Nodes) -> None:
        """Invariants 4 and 7: the survivors learn of it and form a new world."""
        members = nodes(3, 2, 3)
        gather(members)
        members[0].kill()
        rest = members[1:]
        eventually(lambda: all(node.ask("waiting") for node in rest), "the survivors to notice the death", FORM)
        assert [world["size"] for world in gather(rest)] == [2, 2]

    def test_gathering_survives_the_death_of_any_node(self, nodes: Nodes) -> None:
        """Invariant 4: if any node dies while all gather, the leader too, the others get their world."""
        doomed, *rest = nodes(4, 3, 3)
        doomed.tell("join")
        # If another node led, it could form a world with the doomed one before that one's lease ends.
        eventually(lambda: rest[0].ask("leader") is not None, "the first node to lead", FORM)
        rest[1].tell("join")
        eventually(lambda: rest[0].ask("nodes") == 2, "the second node to be there", FORM)
        # Before there are three, which would be a world with it.
        doomed.kill()
        for node in (rest[0], rest[2]):
            node.tell("join")
        assert [node.world()["size"] for node in rest] == [3, 3, 3], "a death while gathering was not survived"

    def test_the_first_reason_of_closing_stands(self, nodes: Nodes) -> None:
        """Invariant 6: closed stays closed."""
        members, (late,) = nodes(2, 2, 2), nodes(1, 2, 2)
        gather(members)
        members[0].ask("close", "first")
        members[1].ask("close", "second")
        for node in members:
            eventually(lambda node=node: node.ask("closed") == "first", "the first reason to be known", FORM)  # type: ignore[misc]
        late.tell("join")
        assert "first" in late.refusal(), "a closed run lets a node in, or hides the reason"

    def test_leaving_and_giving_up_close_nothing(self, nodes: Nodes) -> None:
        """Invariant 7: a node that leaves, or whose time runs out, takes nothing from the others."""
        members, (hasty,) = nodes(3, 2, 3), nodes(1, 2, 3, join=1.0)
        gather(members)
        hasty.tell("join")
        assert "Timeout" in hasty.refusal(), "a node whose time ran out gets another error"
        assert members[0].ask("leave", "drained")
        rest = members[1:]
        eventually(
            lambda: all(node.ask("lost") == ["drained"] for node in rest), "the reason of leaving to be known", FORM
        )
        # A write that was on its way when its time ran out may come late, and counts until the lease is over.
        eventually(lambda: rest[0].ask("nodes") == 2, "the record of the node whose time ran out to be gone", FORM)
        assert [world["size"] for world in gather(rest)] == [2, 2]
        assert [node.ask("closed") for node in rest] == [None, None], "one node's leaving closed the run"

    def test_wrong_clocks_change_nothing(self, nodes: Nodes) -> None:
        """Invariant 8: a wall clock that is hours off is of no importance."""
        members = [*nodes(1, 2, 2, clock=-2 * _HOUR), *nodes(1, 2, 2, clock=_HOUR)]
        assert [world["size"] for world in gather(members)] == [2, 2]
        assert_calm(members, 1.5 * nodes.ttl, "a node was given up because of its clock")

    def test_foreign_bytes_are_one_clear_error(self, nodes: Nodes, clients: Clients) -> None:
        """Invariant 9: what rdzv did not write is refused as such, never executed."""
        (node,) = nodes(1)
        clients().put(STATE_KEY, b"\x80\x04\x95 hostile", expect=ANY, timeout=CALL)
        node.tell("join")
        assert "RendezvousStateError" in node.refusal(), "hostile bytes are not refused clearly"

    def test_a_member_that_was_paused_comes_back_or_gets_an_error(self, nodes: Nodes) -> None:
        """Invariants 2 and 10: after a pause beyond its time to live a node is back, or knows that it is not."""
        members = nodes(3, 2, 3)
        gather(members)
        paused, *rest = members
        with paused.frozen():
            eventually(lambda: all(node.ask("waiting") for node in rest), "the others to notice the silence", FORM)
            gather(rest)
        eventually(lambda: paused.ask("waiting"), "the node to learn that it was left behind", FORM)
        paused.tell("join")
        eventually(lambda: all(node.ask("waiting") for node in rest), "the node that came back to be announced", FORM)
        assert [world["size"] for world in gather(rest)] == [3, 3]
        assert paused.world()["size"] == 3

    def test_joining_takes_few_calls_and_idling_one_keep_alive(self, nodes: Nodes) -> None:
        """Invariant 11: few calls to join, one write of the state per round, then one keep-alive per interval."""
        four = nodes(4, 4, 4)
        began = time.monotonic()
        gather(four)
        joined = [_without_waits(node) for node in four]
        assert sum(joined, Counter())["state"] == 1, "the state is not written once"
        intervals = 2 * (time.monotonic() - began) / nodes.interval
        allowed = (_JOIN_CALLS + intervals) * len(four) + _LEAD_CALLS
        assert sum(joined, Counter()).total() <= allowed, f"joining is dear: {joined}"
        began = time.monotonic()
        calm = began + _IDLE_INTERVALS * nodes.interval
        eventually(lambda: time.monotonic() > calm, "calm", FORM)
        idled = [_without_waits(node) - before for node, before in zip(four, joined, strict=True)]
        signs = (time.monotonic() - began) / nodes.interval + _SPARE_CALLS
        for calls in idled:
            assert calls["keep_alive"] + calls["put"] <= signs, f"an idle node writes too often: {calls}"
            assert calls["state"] == 0, f"an idle node writes the state: {calls}"

    def test_a_run_that_ended_leaves_one_key(self, nodes: Nodes, clients: Clients) -> None:
        """When all have gone, what stays is that the run is closed: no record, no lead, no store."""
        members = nodes(2, 2, 2)
        gather(members)
        for node in members:
            node.ask("add")
        assert [node.ask("shutdown") for node in members] == [True, True]
        client = clients()

        def left() -> set[str]:
            return {
                name
                for prefix in ("control", "nodes", "rounds", "heartbeats")
                for name in client.read_all(prefix, timeout=CALL).entries
            }

        eventually(lambda: left() == {STATE_KEY}, "everything but the state to be gone", FORM)


def _without_waits(node: Node) -> Counter[str]:
    """What a node has asked of the service so far, but for waits."""
    calls: Counter[str] = Counter(node.ask("calls"))
    del calls["wait"]
    return calls
