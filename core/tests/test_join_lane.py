"""The lane that joins, driven by hand: whatever comes between two of its steps is not slept through."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rdzv.backend import Entry, Lease, Snapshot
from rdzv.dynamic import member
from rdzv.dynamic.node import Node
from rdzv.dynamic.records import LEADER_KEY, NODES, STATE_KEY, Closed, NodeRecord, State, decode
from rdzv.dynamic.steps import Changed, Lane, OpenLease, Put, Read, ReadAll, Revoke, Sleep, Step, Tell
from rdzv.envelope import Envelope
from rdzv.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousTimeoutError
from rdzv.service import Held, View
from rdzv.settings import RendezvousSettings, RendezvousTimeout

OTHER = b'{"schema":1,"node":"other","attempt":0,"min_nodes":2,"max_nodes":2}'


class Granted(Lease):
    ttl = 15.0

    def keep_alive(self, timeout: float) -> bool:
        return True

    def revoke(self, timeout: float) -> None:
        """Nothing hangs on it."""


def held(payload: bytes) -> Held:
    return Held(Envelope.seal(payload, writer="service"), token=1, order=1)


def writing_its_record() -> tuple[Node, Lane[State], Put]:
    """A node whose record is on its way to the service."""
    settings = RendezvousSettings("run", 2, 2, RendezvousTimeout(), timedelta(seconds=5), 3)
    node = Node(settings, "memory", clock=lambda: 0.0)
    node.look(View(Snapshot()))
    lane = member.join(node, "127.0.0.1", 29500, 600.0)
    assert isinstance(next(lane), OpenLease)
    enrolled = lane.send(Granted())
    assert isinstance(enrolled, Put)
    return node, lane, enrolled


def asking_for_the_lead() -> tuple[Node, Lane[State]]:
    """A node whose record is written, and that has just asked to lead."""
    node, lane, enrolled = writing_its_record()
    asked = lane.send((True, held(enrolled.payload)))
    assert isinstance(asked, Put)
    assert asked.key == LEADER_KEY
    return node, lane


def another_leads(lane: Lane[State]) -> Step:
    """Tell the node that it did not win; what it asks for next, once the plugins have been told."""
    lane.send((False, held(OTHER)))
    return lane.send([None])


def test_world_that_comes_while_a_node_asks_to_lead_is_taken_at_once() -> None:
    node, lane = asking_for_the_lead()
    world = State(0, 1, ("other", node.id), "127.0.0.1", 29500, 2, 2)
    node.look_at_state(held(world.encode()))
    with pytest.raises(StopIteration) as end:
        another_leads(lane)
    assert end.value.value == world


def test_closing_that_comes_while_a_node_asks_to_lead_is_heard_at_once() -> None:
    node, lane = asking_for_the_lead()
    node.look_at_state(held(State(0, 0, (), "", 0, 2, 2, Closed("other", "enough", done=False)).encode()))
    lane.send((False, held(OTHER)))
    # The lease is revoked, for half an interval at most: the caller waits.
    revoked = lane.send([None])
    assert isinstance(revoked, Revoke)
    assert revoked.deadline == node.interval / 2
    with pytest.raises(RendezvousClosedError, match="enough"):
        lane.send(None)


def test_node_that_has_missed_nothing_waits() -> None:
    _, lane = asking_for_the_lead()
    assert another_leads(lane) == Changed(600.0)


@pytest.mark.parametrize(("now", "until"), [(0.0, member.LEADERLESS), (599.5, 600.0)])
def test_node_that_nobody_leads_looks_again_soon_and_at_its_deadline(now: float, until: float) -> None:
    node, lane = asking_for_the_lead()
    node.clock = lambda: now
    node.lease_until = 700.0
    assert lane.send((False, None)) == Changed(until)


def test_node_that_leaves_while_its_record_is_on_its_way_replaces_it() -> None:
    node, _, enrolled = writing_its_record()
    leaving = member.leave(node, "enough", 600.0)
    last = next(leaving)
    assert isinstance(last, Put)
    assert last.after is None
    arrived = held(enrolled.payload)
    again = leaving.send((False, arrived))
    assert isinstance(again, Put)
    assert again.after == arrived
    assert decode(NodeRecord, again.payload).left == "enough"


def test_node_that_leaves_while_it_is_elected_takes_that_back() -> None:
    node, _ = asking_for_the_lead()
    leaving = member.leave(node, "enough", 600.0)
    last = next(leaving)
    assert isinstance(last, Put)
    assert leaving.send((True, held(last.payload))) == Read(LEADER_KEY, 600.0)
    mine = held(node.limits().encode())
    resigned = leaving.send(mine)
    assert isinstance(resigned, Put)
    assert (resigned.key, resigned.after, resigned.deleted) == (LEADER_KEY, mine, True)
    assert resigned.lease is node.lease
    assert isinstance(leaving.send((True, mine)), ReadAll)


def resigning() -> tuple[Node, Lane[None]]:
    """A node that leaves, believes to lead, and has asked who does."""
    node, _ = asking_for_the_lead()
    node.leading = True
    leaving = member.leave(node, "enough", 600.0)
    last = next(leaving)
    assert isinstance(last, Put)
    assert leaving.send((True, held(last.payload))) == Read(LEADER_KEY, 600.0)
    return node, leaving


def test_node_that_only_believes_to_lead_leaves_the_key_of_another_alone() -> None:
    _, leaving = resigning()
    with pytest.raises(StopIteration):
        leaving.send(held(OTHER))


def test_node_whose_lead_is_taken_while_it_resigns_takes_nothing_back() -> None:
    node, leaving = resigning()
    mine = held(node.limits().encode())
    resigned = leaving.send(mine)
    assert isinstance(resigned, Put)
    assert resigned.after == mine
    with pytest.raises(StopIteration):
        leaving.send((False, replace(held(OTHER), token=2)))


def test_node_that_leaves_after_its_lease_was_lost_does_not_insist() -> None:
    node, _, _ = writing_its_record()
    leaving = member.leave(node, "enough", 600.0)
    next(leaving)
    assert not isinstance(leaving.send((False, None)), Put)


def given_up_when_its_world_came() -> tuple[Node, Lane[State], State]:
    """A node whose time was over when a world with it was published: it has registered again, and looks once more."""
    node, lane, enrolled = writing_its_record()
    node.clock = lambda: 600.0
    # Its caller waits, so all that is left takes half an interval of 5 s at most.
    assert lane.send((True, held(enrolled.payload))) == ReadAll(NODES, 601.25)
    revoked = lane.send(View(Snapshot()))
    assert isinstance(revoked, Revoke)
    assert revoked.deadline == 602.5
    assert lane.send(None) == Read(STATE_KEY, 602.5)
    world = State(0, 1, ("other", node.id), "127.0.0.1", 29500, 2, 2)
    step = lane.send(held(world.encode()))
    while isinstance(step, Tell):
        step = lane.send([None])
    assert isinstance(step, OpenLease)
    step = lane.send(Granted())
    assert isinstance(step, Put)
    assert isinstance(lane.send((True, held(step.payload))), ReadAll)
    return node, lane, world


def test_node_that_gives_up_alone_asks_for_nothing_more_and_names_no_error_that_there_was_not() -> None:
    node, lane, enrolled = writing_its_record()
    node.clock = lambda: 600.0
    lane.send((True, held(enrolled.payload)))
    assert isinstance(lane.send(View(Snapshot())), Revoke)
    assert isinstance(lane.send(None), Read)
    with pytest.raises(RendezvousTimeoutError) as late:
        lane.send(None)
    assert str(late.value).endswith("2 are missing.")


def test_node_that_has_left_is_not_named_among_those_who_are_here() -> None:
    node, lane, enrolled = writing_its_record()
    node.clock = lambda: 600.0
    lane.send((True, held(enrolled.payload)))
    assert node.record is not None
    records = {
        record.key: Entry(Envelope.seal(record.encode(), writer="other").pack(), 2, 1)
        for record in (node.record, replace(node.record, id="gone", left="enough"))
    }
    assert isinstance(lane.send(View(Snapshot(records))), Revoke)
    assert isinstance(lane.send(None), Read)
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes is here") as late:
        lane.send(None)
    assert "gone" not in str(late.value)


def control(state: State) -> View:
    """What a look at the run shows."""
    return View(Snapshot({STATE_KEY: Entry(Envelope.seal(state.encode(), writer="other").pack(), 2, 1)}))


def test_world_that_comes_while_a_node_gives_up_is_returned() -> None:
    _, lane, world = given_up_when_its_world_came()
    with pytest.raises(StopIteration) as end:
        lane.send(control(world))
    assert end.value.value == world


def test_world_that_is_over_before_a_node_is_back_in_it_is_not_returned() -> None:
    node, lane, world = given_up_when_its_world_came()
    assert isinstance(lane.send(control(replace(world, round=2, world=("other", "third")))), Tell)
    assert isinstance(lane.send([None]), Revoke)
    with pytest.raises(RendezvousTimeoutError, match="2 are missing"):
        lane.send(None)
    assert node.round == 0


def test_world_is_not_returned_while_the_lease_may_be_over() -> None:
    node, lane = asking_for_the_lead()
    node.clock = lambda: Granted.ttl
    node.look_at_state(held(State(0, 1, ("other", node.id), "127.0.0.1", 29500, 2, 2).encode()))
    assert isinstance(another_leads(lane), Put | Changed)
    assert not node.is_member()


def test_service_that_goes_away_after_a_node_has_given_up_is_not_waited_for() -> None:
    node, lane, enrolled = writing_its_record()
    now = 600.0
    node.clock = lambda: now
    step = lane.send((True, held(enrolled.payload)))
    assert isinstance(step, ReadAll)
    assert isinstance(lane.send(View(Snapshot())), Revoke)
    assert isinstance(lane.send(None), Read)
    # Its world was published at the last moment: it takes its withdrawal back, and the service is gone.
    step = lane.send(held(State(0, 1, ("other", node.id), "127.0.0.1", 29500, 2, 2).encode()))

    def go_on() -> None:
        nonlocal now, step
        while now < 3600:
            slept = isinstance(step, Sleep)
            now = max(now, step.until if isinstance(step, Sleep) else now + 0.5)
            step = lane.send(None) if slept else lane.throw(RendezvousConnectionError("gone"))

    with pytest.raises(RendezvousTimeoutError, match=r"'run' on backend 'memory' .* 600\.0 s.* The last error: gone"):
        go_on()
    assert now <= 600.0 + node.interval
