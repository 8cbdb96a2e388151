"""The coroutines of a drain, effect by effect: a node announces it, gets ready for others, and goes."""

from dataclasses import replace

import pytest
from rdzv_core.errors import RendezvousConnectionError, RendezvousGracefulExitError

from rdzv.engine import drain, join, leave, register
from rdzv.engine.codec import decode
from rdzv.engine.effects import Call, Put, WaitForChange
from rdzv.engine.node import Node
from rdzv.engine.notices import DrainNotice, drain_key
from rdzv.engine.records import NodeRecord, State, node_key

from .coroutines import Harness, Stepper

AWAY = RendezvousConnectionError("away")


@pytest.fixture
def harness() -> Harness:
    return Harness()


def notice_of(harness: Harness, node: str = "a") -> DrainNotice:
    """The drain that the service has."""
    versioned = harness.read(drain_key(node))
    assert versioned is not None
    return decode(DrainNotice, versioned.payload)


def record_of(harness: Harness, node: str = "a") -> NodeRecord:
    """The record that the service has."""
    versioned = harness.read(node_key(0, node))
    assert versioned is not None
    return decode(NodeRecord, versioned.payload)


def member(harness: Harness) -> Node:
    """A node in a round."""
    harness.publish(State(0, 1, ("a", "b"), "a.host", 1, 2, 4))
    node = harness.registered()
    harness.show(node)
    node.round = 1
    return node


def fail(coroutine: Stepper[None]) -> None:
    """Let no call succeed until it gives up."""

    def without_the_service() -> None:
        while coroutine.effect is not None:
            coroutine.throw(AWAY) if isinstance(coroutine.effect, Call) else coroutine.go()

    with pytest.raises(RendezvousConnectionError):
        without_the_service()


class TestAnnounce:
    def test_it_drains_from_the_first_moment_on(self, harness: Harness) -> None:
        node = harness.registered()
        announced = harness.stepper(drain.announce(node, DrainNotice(100.0, "spot"), harness.now + 100.0))
        # Whether the service takes it or not.
        assert isinstance(announced.effect, Put)
        assert (node.countdown.goes_at(), node.countdown.drain_reason()) == (harness.now + 100.0, "drained: spot")
        announced.end()
        assert notice_of(harness) == DrainNotice(100.0, "spot")

    def test_it_takes_the_place_of_what_an_operator_has_asked_for(self, harness: Harness) -> None:
        harness.put(drain_key("a"), DrainNotice(600.0, "the rack").encode())
        node = harness.registered()
        harness.run(drain.announce(node, DrainNotice(100.0, "spot"), harness.now + 100.0))
        assert notice_of(harness) == DrainNotice(100.0, "spot")
        assert node.countdown.goes_at() == harness.now + 100.0

    @pytest.mark.parametrize("seconds", [60.0, 100.0])
    def test_it_takes_no_place_of_what_ends_sooner(self, seconds: float, harness: Harness) -> None:
        before = DrainNotice(seconds, "the rack")
        harness.put(drain_key("a"), before.encode())
        node = harness.registered()
        harness.show(node)
        harness.now += 1.0
        harness.run(drain.announce(node, DrainNotice(100.0, "spot"), harness.now + 100.0))
        assert notice_of(harness) == before
        assert (node.countdown.goes_at(), node.countdown.drain_reason()) == (
            harness.now - 1.0 + seconds,
            "drained: the rack",
        )

    def test_it_takes_the_place_of_what_cannot_be_read(self, harness: Harness) -> None:
        harness.put(drain_key("a"), b"nonsense")
        node = harness.registered()
        harness.run(drain.announce(node, DrainNotice(100.0, "spot"), harness.now + 100.0))
        assert notice_of(harness) == DrainNotice(100.0, "spot")

    def test_it_goes_in_time_though_the_service_is_away(self, harness: Harness) -> None:
        node = harness.registered()
        announced = harness.stepper(drain.announce(node, DrainNotice(100.0, "spot"), harness.now + 100.0))
        fail(announced)
        assert not node.is_drained()
        harness.now += 100.0
        assert node.is_drained()

    def test_what_it_has_announced_goes_with_it(self, harness: Harness) -> None:
        node = harness.registered()
        harness.run(drain.announce(node, DrainNotice(100.0, "spot"), harness.now + 100.0))
        harness.run(leave.leave(node, "drained", harness.now + 5.0))
        assert drain_key("a") not in harness.names()


class TestReady:
    def test_it_is_ready_for_those_that_it_knows(self, harness: Harness) -> None:
        node = member(harness)
        for name in "cb":
            harness.put(drain_key(name), DrainNotice(60.0, "spot").encode())
        harness.show(node)
        harness.put(drain_key("d"), DrainNotice(60.0, "spot").encode())
        harness.run(drain.get_ready(node, node.countdown.drains, harness.now + 5.0))
        assert record_of(harness).ready == ("b", "c")

    def test_it_is_ready_for_no_others_than_it_says(self, harness: Harness) -> None:
        node = member(harness)
        for name in "bc":
            harness.put(drain_key(name), DrainNotice(60.0, "spot").encode())
        harness.show(node)
        harness.run(drain.get_ready(node, ["b"], harness.now + 5.0))
        assert record_of(harness).ready == ("b",)

    def test_one_that_waits_is_ready_for_nothing_in_the_next_world(self, harness: Harness) -> None:
        node = member(harness)
        node.round = 0
        assert harness.stepper(drain.get_ready(node, ["b"], harness.now + 5.0)).effect is None
        assert record_of(harness).ready == ()

    def test_it_says_so_once(self, harness: Harness) -> None:
        node = member(harness)
        harness.put(drain_key("b"), DrainNotice(60.0, "spot").encode())
        harness.show(node)
        harness.run(drain.get_ready(node, node.countdown.drains, harness.now + 5.0))
        assert harness.stepper(drain.get_ready(node, node.countdown.drains, harness.now + 5.0)).effect is None

    def test_one_whose_round_is_over_while_it_registers_again_keeps_its_record(self, harness: Harness) -> None:
        node = member(harness)
        again = harness.stepper(register.reregister(node, harness.now + 5.0))
        ready = harness.stepper(drain.get_ready(node, ["b"], harness.now + 5.0))
        assert isinstance(ready.effect, WaitForChange)
        harness.publish(State(0, 2, ("a", "c"), "a.host", 1, 2, 4))
        harness.show(node)
        again.end()
        ready.end()
        assert record_of(harness).ready == ()
        assert node.registration.record is not None

    def test_a_node_without_a_record_is_no_member(self, harness: Harness) -> None:
        assert harness.stepper(drain.get_ready(harness.node(), ["b"], harness.now + 5.0)).effect is None

    def test_what_failed_is_said_again(self, harness: Harness) -> None:
        node = member(harness)
        harness.put(drain_key("b"), DrainNotice(60.0, "spot").encode())
        harness.show(node)
        ready = harness.stepper(drain.get_ready(node, node.countdown.drains, harness.now + 5.0))
        fail(ready)
        assert record_of(harness).ready == ()
        harness.run(drain.get_ready(node, node.countdown.drains, harness.now + 5.0))
        assert record_of(harness).ready == ("b",)


class TestGo:
    def test_it_goes_at_the_end_and_not_before(self, harness: Harness) -> None:
        node = harness.registered()
        node.countdown.announce(DrainNotice(10.0, "spot"), harness.now)
        harness.now += 9.9
        assert harness.stepper(drain.go(node)).effect is None
        assert node.goes_at() == pytest.approx(harness.now + 0.1)
        harness.now += 0.1
        harness.run(drain.go(node))
        assert record_of(harness).goes
        # It has said so.
        assert harness.stepper(drain.go(node)).effect is None

    def test_it_waits_for_a_registration_that_ends_with_the_drain(self, harness: Harness) -> None:
        node = harness.node()
        joining = harness.stepper(join.join(node, "a.host", 1, harness.now + 600.0))
        joining.to(Put)
        node.countdown.announce(DrainNotice(3.0, "spot"), harness.now)
        # There is no reason to wait yet.
        assert harness.stepper(drain.go(node)).effect is None
        harness.now += 3.0
        goes = harness.stepper(drain.go(node))
        assert isinstance(goes.effect, WaitForChange)
        joining.throw(AWAY)
        with pytest.raises(RendezvousGracefulExitError, match="drained: spot"):
            joining.end()
        # There is nothing left to be said.
        assert goes.go() is None
        assert harness.read(node_key(0, "a")) is None

    def test_a_record_that_came_meanwhile_stays(self, harness: Harness) -> None:
        node = harness.registered()
        node.countdown.announce(DrainNotice(0.0, "spot"), harness.now)
        goes = harness.stepper(drain.go(node))
        later = replace(record_of(harness), last_round=7)
        node.registration.record = later
        fail(goes)
        assert node.registration.record is later

    def test_what_could_not_be_said_is_said_later(self, harness: Harness) -> None:
        node = harness.registered()
        node.countdown.announce(DrainNotice(0.0, "spot"), harness.now)
        fail(harness.stepper(drain.go(node)))
        assert not record_of(harness).goes
        # Its own caller knows, all the same.
        assert node.is_drained()
        assert node.waiting() == 1
        harness.run(drain.go(node))
        assert record_of(harness).goes
