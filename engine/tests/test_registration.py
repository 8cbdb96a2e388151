"""The table of a node's states: what it allows, and what it does not."""

from itertools import product

import pytest

from rdzv.engine.registration import TRANSITIONS, NodeState, Registration, Trigger

TABLE = {(line.source, line.trigger): line.target for line in TRANSITIONS}


def after(*triggers: Trigger, state: NodeState = NodeState.NEW) -> NodeState:
    """The state that some triggers lead to, one after the other."""
    registration = Registration(state)
    for trigger in triggers:
        registration.on(trigger)
    return registration.state


@pytest.mark.parametrize(("state", "trigger"), [*product(NodeState, Trigger)])
def test_what_is_not_in_the_table_changes_nothing(state: NodeState, trigger: Trigger) -> None:
    assert after(trigger, state=state) is TABLE.get((state, trigger), state)


def test_the_last_state_is_reached_from_every_other_and_has_no_way_out() -> None:
    assert {source for (source, _), target in TABLE.items() if target is NodeState.STOPPED} == set(NodeState) - {
        NodeState.STOPPED
    }
    assert NodeState.STOPPED not in {source for source, _ in TABLE}


def test_a_first_record_needs_no_fence() -> None:
    assert after(Trigger.SENT, Trigger.WRITTEN) is NodeState.REGISTERED


@pytest.mark.parametrize(
    "before",
    [
        (Trigger.SENT, Trigger.WRITTEN, Trigger.LEASE_LOST),
        (Trigger.SENT, Trigger.LEASE_LOST),
        (Trigger.SENT, Trigger.WRITTEN, Trigger.WITHDRAWN),
        (Trigger.SENT, Trigger.WRITTEN, Trigger.LEASE_LOST, Trigger.SENT, Trigger.LEASE_LOST),
    ],
    ids=["lease lost", "lost before it was written", "withdrawn", "lost again"],
)
def test_a_record_that_was_there_before_is_fenced(before: tuple[Trigger, ...]) -> None:
    assert after(*before, Trigger.SENT, Trigger.WRITTEN) is NodeState.REREGISTERING
    assert after(*before, Trigger.SENT, Trigger.FENCED) is NodeState.REGISTERED


def test_a_node_that_never_sent_a_record_has_none_to_withdraw() -> None:
    assert after(Trigger.WITHDRAWN) is NodeState.NEW
