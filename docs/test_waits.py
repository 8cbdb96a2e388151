"""The table of what a node waits for, in docs/cli.md, is made of the words that the node says."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from rdzv.admission import AdmissionRule, Limits
from rdzv.engine.records import Departure, Phase, RunStatus, State
from rdzv.engine.waits import Wait, in_words
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

PAGE: Final = Path(__file__).parent / "cli.md"

FIRST: Final = Wait("a.4c", 0, Limits(2, 4), 15.0)
"""A node that has just come."""

LATER: Final = replace(FIRST, state=State(0, 1, ("a.4c", "b.91", "c.e0"), "10.0.0.1", 29500, 2, 4), leader="b.91")
"""Round 1 has three nodes."""

AWAY: Final = RendezvousConnectionError("timed out")


def gathering(phase: Phase, present: int, **more: Any) -> RunStatus:
    """News before the first round."""
    return RunStatus(0, phase, present, 0, **more)


def news(phase: Phase, present: int, waiting: int = 0, **more: Any) -> RunStatus:
    """News of round 1."""
    return RunStatus(1, phase, present, waiting, **more)


SITUATIONS: Final[Mapping[str, Wait]] = {
    "the first node has come": FIRST,
    "the one that leads has just been elected": replace(FIRST, leader="a.4c"),
    "there are too few nodes": replace(FIRST, status=gathering(Phase.GATHERING, 1)),
    "a world takes a multiple of 4 nodes": replace(
        FIRST, limits=Limits(4, 8, AdmissionRule(node_unit=4)), status=gathering(Phase.GATHERING, 3)
    ),
    "a world takes whole groups, and none is whole": replace(
        FIRST,
        limits=Limits(2, 4, AdmissionRule(group_by="rack", group_size=2)),
        status=gathering(Phase.GATHERING, 3),
    ),
    "there are enough, others may still come": replace(FIRST, status=gathering(Phase.LAST_CALL, 3), forms_in=2.6),
    "that is over in this moment": replace(FIRST, status=gathering(Phase.LAST_CALL, 3)),
    "a spare beside a round": replace(
        LATER, node="s.07", limits=Limits(2, 3), status=news(Phase.RUNNING, 4), last_round=0
    ),
    "one that the round has room for": replace(LATER, node="s.07", status=news(Phase.RUNNING, 4, 1)),
    "the same before `grow_delay` is over": replace(LATER, node="s.07", status=news(Phase.RUNNING, 4)),
    "one node has died, the others have begun to wait": replace(
        LATER, last_round=1, status=news(Phase.RE_FORMING, 3, 2, awaited=("c.e0",))
    ),
    "it is lost, and the others are too few": replace(
        LATER,
        limits=Limits(3, 4),
        last_round=1,
        status=news(Phase.RE_FORMING, 2, 2, departures=(Departure("c.e0", 2, False, "its lease ran out"),)),
    ),
    "the leader has died, too": replace(LATER, last_round=1),
    "all have died, and the next attempt begins": replace(LATER, node="d.55", attempt=1),
    "a new leader has seen that": replace(
        LATER, node="d.55", attempt=1, status=news(Phase.RE_FORMING, 0, 0, awaited=("a.4c", "b.91", "c.e0"))
    ),
    "all have left, and others come": replace(
        LATER, node="d.55", status=news(Phase.ABANDONED, 0), leader=None, last_round=0
    ),
    "this node is quarantined": replace(
        LATER,
        last_round=1,
        status=news(Phase.RUNNING, 2),
        state=State(0, 2, ("b.91", "c.e0"), "10.0.0.2", 29500, 2, 4),
        quarantine="quarantined for another 42 s: it failed first in 3 consecutive rounds",
    ),
    "the service has never answered": replace(FIRST, seconds=12.0, silence=math.inf, error=AWAY),
    "it does not answer any more": replace(LATER, last_round=1, seconds=20.0, silence=8.0, error=AWAY),
    "it has not for a time to live": replace(LATER, last_round=1, seconds=40.0, silence=28.0, error=AWAY),
    "it refuses the password": replace(FIRST, error=RendezvousDeniedError("wrong password"), is_refused=True),
}


def test_the_table_of_waits_is_what_a_node_says() -> None:
    rows = [f"| {situation} | `{in_words(wait)}` |" for situation, wait in SITUATIONS.items()]
    made = "\n".join(["| situation | what is waited for |", "| --- | --- |", *rows])
    _, mark, rest = PAGE.read_text().partition("\n<!-- made by docs/test_waits.py -->\n")
    assert mark
    shown = rest.partition("\n\n")[0]
    if shown != made:
        pytest.fail(f"The table of {PAGE.name} has to be:\n{made}", pytrace=False)
