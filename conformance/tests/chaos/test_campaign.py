"""What happens between two phases."""

from types import SimpleNamespace
from typing import Any

import pytest

from rdzv_conformance.chaos.campaign import Campaign
from rdzv_conformance.chaos.plan import FaultSchedule


@pytest.mark.parametrize(
    ("healthy", "come", "go"), [([False] * 3, 3, 0), ([False, True, True], 1, 0), ([True] * 4, 0, 1)]
)
def test_as_many_stay_as_there_should_be(
    monkeypatch: pytest.MonkeyPatch, healthy: list[bool], come: int, go: int
) -> None:
    came: list[None] = []
    went: list[Any] = []
    testbed: Any = SimpleNamespace(
        size=3,
        handles={str(number): SimpleNamespace(healthy=one) for number, one in enumerate(healthy)},
        after=lambda seconds, action: None,
        nothing_is_due=lambda: True,
        pass_time=lambda until: None,
        arrive=lambda: came.append(None),
        leave=went.append,
    )
    campaign = Campaign(testbed, 1, 60.0, 30.0)
    monkeypatch.setattr(campaign, "_quiet_phase", lambda ended: None)
    campaign._fault_phase(FaultSchedule(10.0, ()))
    assert (len(came), len(went)) == (come, go)
