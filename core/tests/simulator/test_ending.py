"""When a run has ended, its closed state is all that stays, whatever has happened before."""

import re
from dataclasses import replace

import pytest

from . import Plan, Simulation


@pytest.mark.parametrize("level", ["leases", "heartbeats"])
@pytest.mark.parametrize("seeds", [range(20, 40), range(40, 60)], ids=str)
def test_closed_state_is_all_that_stays(level: str, seeds: range) -> None:
    left = {}
    for seed in seeds:
        simulation = Simulation(replace(Plan.draw(seed), level=level))
        simulation.run()
        # Without leases, only the next attempt's leader tidies up after an attempt that was superseded.
        earlier = re.compile(rf"(nodes|heartbeats)/(?!{simulation.context.attempt}/)")
        left[seed] = {key for key in simulation.left if not (level == "heartbeats" and earlier.match(key))}
    assert left == {seed: {"control/state"} for seed in seeds}
