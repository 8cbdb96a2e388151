"""Every table of states: no line contradicts another, and no state is there for nothing."""

from enum import Enum
from typing import Any

import pytest

from rdzv.engine import lease_observer, registration
from rdzv.engine.lease_observer import LeaseState
from rdzv.engine.registration import NodeState

TABLES = [(registration.TRANSITIONS, NodeState.NEW), (lease_observer.TRANSITIONS, LeaseState.UNSEEN)]
"""Each with its first state."""


@pytest.mark.parametrize(("table", "first"), TABLES)
def test_a_state_and_a_trigger_have_one_line_at_most(table: Any, first: Enum) -> None:
    assert len({(line.source, line.trigger) for line in table}) == len(table)


@pytest.mark.parametrize(("table", "first"), TABLES)
def test_every_state_is_reached_from_the_first(table: Any, first: Enum) -> None:
    reached = {first}
    for _ in type(first):
        reached |= {line.target for line in table if line.source in reached}
    assert reached == set(type(first))
