"""When a run has ended, its closed state is all that stays, whatever has happened before."""

import re
from dataclasses import replace

import pytest

from . import Plan, Simulation


@pytest.mark.parametrize("level", ["leases", "heartbeats"])
@pytest.mark.parametrize("seeds", [range(30), range(30, 60)], ids=str)
def test_closed_state_is_all_that_stays(level: str, seeds: range) -> None:
    left = {}
    for seed in seeds:
        # What the network delivers after everything was removed stays: see guarantee 13. So it does if the last node to
        # leave gets no answer in the time that it has: where the network is slow, three late messages take that long.
        simulation = Simulation(replace(Plan.draw(seed), level=level, late=0.0, delay=0.002))
        simulation.run()
        # Without leases, only the next attempt's leader tidies up after an attempt that was superseded.
        earlier = re.compile(rf"(nodes|heartbeats)/(?!{simulation.context.attempt}/)")
        left[seed] = {key for key in simulation.left if not (level == "heartbeats" and earlier.match(key))}
        # Who is quarantined stays so in the next attempt.
        left[seed] = {key for key in left[seed] if not key.startswith("control/quarantines/")}
    assert left == {seed: {"control/state"} for seed in seeds}
