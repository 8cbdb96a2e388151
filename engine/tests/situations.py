"""Situations of a node that waits."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv.admission import AdmissionRule, Limits
from rdzv.engine.records import Departure, Phase, RunStatus, State
from rdzv.engine.waits import Wait

FIRST: Final = Wait("a.4c", 0, Limits(2, 4), 15.0)
"""A node that has just come."""

LATER: Final = replace(FIRST, state=State(0, 1, ("a.4c", "b.91", "c.e0"), "10.0.0.1", 29500, 2, 4), leader="b.91")
"""Round 1 has three nodes."""

MANY: Final = tuple(f"n{number}" for number in range(1, 24))

AWAY: Final = RendezvousConnectionError("timed out")


def gathering(phase: Phase, present: int, **more: Any) -> RunStatus:
    """News before the first round."""
    return RunStatus(0, phase, present, 0, **more)


def news(phase: Phase, present: int, waiting: int = 0, **more: Any) -> RunStatus:
    """News of round 1."""
    return RunStatus(1, phase, present, waiting, **more)


SITUATIONS: Final[Mapping[str, tuple[Wait, str]]] = {
    "the first node has come": (
        FIRST,
        "no node leads yet",
    ),
    "the one that leads has just been elected": (
        replace(FIRST, leader="a.4c"),
        "this node leads, and looks for the others",
    ),
    "there are too few nodes": (
        replace(FIRST, status=gathering(Phase.GATHERING, 1)),
        "gathering, 1 here, 1 more needed",
    ),
    "the platform has told which there are": (
        replace(FIRST, status=gathering(Phase.GATHERING, 1, missing=("b", "c", "d"))),
        "gathering, 1 here, 1 more needed; missing: b, c, d",
    ),
    "it has told of many": (
        replace(FIRST, limits=Limits(99, 99), status=gathering(Phase.GATHERING, 76, missing=MANY)),
        "gathering, 76 here, 23 more needed; missing: n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, "
        "n15, n16, n17, n18, n19, n20, and 3 more",
    ),
    "a world takes a multiple of 4 nodes": (
        replace(FIRST, limits=Limits(4, 8, AdmissionRule(node_unit=4)), status=gathering(Phase.GATHERING, 3)),
        "gathering, 3 here, 1 more needed",
    ),
    "a world takes whole groups, and none is whole": (
        replace(
            FIRST,
            limits=Limits(2, 4, AdmissionRule(group_by="rack", group_size=2)),
            status=gathering(Phase.GATHERING, 3),
        ),
        "gathering, 3 here, too few of any group",
    ),
    "there are enough, others may still come": (
        replace(FIRST, status=gathering(Phase.LAST_CALL, 3), forms_in=2.6),
        "last call, 3 here: the round begins in 3 s, or at once with 4",
    ),
    "that is over in this moment": (
        replace(FIRST, status=gathering(Phase.LAST_CALL, 3)),
        "last call, 3 here: the round begins soon, or at once with 4",
    ),
    "a spare beside a round": (
        replace(LATER, node="s.07", limits=Limits(2, 3), status=news(Phase.RUNNING, 4), last_round=0),
        "running, 4 here: round 1 has all 3 that it takes, this node is a spare",
    ),
    "one that the round has room for": (
        replace(LATER, node="s.07", status=news(Phase.RUNNING, 4, 1)),
        "running, 4 here: round 1 ends, and another begins",
    ),
    "the same before `grow_delay` is over": (
        replace(LATER, node="s.07", status=news(Phase.RUNNING, 4)),
        "running, 4 here: round 1 has 3, and takes in no other yet",
    ),
    "one node has died, the others have begun to wait": (
        replace(LATER, last_round=1, status=news(Phase.RE_FORMING, 3, 2, awaited=("c.e0",))),
        "re-forming: round 1 still has c.e0 (rank 2), until each leaves it or is silent for 15 s",
    ),
    "it is lost, and the others are too few": (
        replace(
            LATER,
            limits=Limits(3, 4),
            last_round=1,
            status=news(Phase.RE_FORMING, 2, 2, departures=(Departure("c.e0", 2, False, "its lease ran out"),)),
        ),
        "re-forming, 2 here, 1 more needed; gone: c.e0 (rank 2)",
    ),
    "the leader has died, too": (
        replace(LATER, last_round=1),
        "round 1 is over for this node; no news yet from b.91, which leads; if it is dead, another leads after 15 s",
    ),
    "all have died, and the next attempt begins": (
        replace(LATER, node="d.55", attempt=1),
        "round 1 of attempt 0 has 3; no news yet from b.91, which leads; if it is dead, another leads after 15 s",
    ),
    "a new leader has seen that": (
        replace(LATER, node="d.55", attempt=1, status=news(Phase.RE_FORMING, 0, 0, awaited=("a.4c", "b.91", "c.e0"))),
        "re-forming: round 1 of attempt 0 still has a.4c (rank 0), b.91 (rank 1), c.e0 (rank 2), until each "
        "leaves it or is silent for 15 s",
    ),
    "that attempt has begun, and one has not come again": (
        replace(LATER, node="d.55", attempt=1, status=news(Phase.GATHERING, 1, missing=("c",))),
        "gathering, 1 here, 1 more needed; missing: c",
    ),
    "all have left, and others come": (
        replace(LATER, node="d.55", status=news(Phase.ABANDONED, 0), leader=None, last_round=0),
        "all nodes of round 1 have gone; no node leads yet",
    ),
    "this node is quarantined": (
        replace(
            LATER,
            last_round=1,
            status=RunStatus(2, Phase.RUNNING, 3, 0),
            state=State(0, 2, ("b.91", "c.e0"), "10.0.0.2", 29500, 2, 4),
            quarantine="quarantined for another 42 s: it failed first in 3 consecutive rounds",
        ),
        "quarantined for another 42 s: it failed first in 3 consecutive rounds; running, 3 here: round 2 has 2",
    ),
    "the service has never answered": (
        replace(FIRST, seconds=12.0, silence=math.inf, error=AWAY),
        "no call to the service has succeeded for 12 s: timed out",
    ),
    "it does not answer any more": (
        replace(LATER, last_round=1, seconds=20.0, silence=8.0, error=AWAY),
        "no call to the service has succeeded for 8 s, from 15 s on the others may go on without this node: timed out",
    ),
    "it has not for a time to live": (
        replace(LATER, last_round=1, seconds=40.0, silence=28.0, error=AWAY),
        "no call to the service has succeeded for 28 s, the others may have gone on without this node: timed out",
    ),
    "it refuses the password": (
        replace(FIRST, error=RendezvousDeniedError("wrong password"), is_refused=True),
        "the service refuses this node: wrong password",
    ),
    "this machine has no room for a thread": (
        replace(FIRST, shortage=RendezvousConnectionError("The thread 'rdzv-watch' cannot start (ulimit -u).")),
        "this machine lacks what the node needs: The thread 'rdzv-watch' cannot start (ulimit -u).",
    ),
}
"""What a node knows, and what it says then. The table of docs/cli.md is made of them."""
