"""What a node waits for, in words, where the table of docs/cli.md shows one case of several. That one is tested by
docs/test_waits.py."""

import math
import time
from dataclasses import replace

import pytest
from rdzv_core.backend import STATE_KEY
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv.admission import AdmissionRule, Limits
from rdzv.engine.node_view import NodeView
from rdzv.engine.records import LEADER_KEY, NAMED, STATUS_KEY, Departure, LeaderRecord, Phase, RunStatus, State
from rdzv.engine.waits import Wait, in_words

from .coroutines import Harness
from .situations import SITUATIONS

SIZES = AdmissionRule(sizes=(1, 2))

NAMES = tuple(f"n{rank}" for rank in range(100))
TWENTY = ", ".join(f"n{rank} (rank {rank})" for rank in range(1, 21))
WAIT = Wait("n0", 0, Limits(2, 100), 15.0, last_round=7, state=State(0, 7, NAMES, "host", 1, 2, 100))


def re_forming(*awaited: str, departures: tuple[Departure, ...] = (), lost: int = 0) -> Wait:
    """The round has ended for this node."""
    status = RunStatus(7, Phase.RE_FORMING, 1, 1, departures, more_lost=lost, awaited=awaited or None)
    return replace(WAIT, status=status)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_in_each_situation_it_says_what_ends_the_wait(situation: str) -> None:
    wait, line = SITUATIONS[situation]
    assert in_words(wait) == line


@pytest.mark.parametrize(
    ("forms_in", "soon"), [(-1.0, "soon"), (0.0, "soon"), (0.1, "in 1 s"), (30.0, "in 30 s"), (math.inf, "soon")]
)
def test_a_last_call_counts_down(forms_in: float, soon: str) -> None:
    wait = Wait("n0", 0, Limits(2, 3), 15.0, status=RunStatus(0, Phase.LAST_CALL, 2, 0), forms_in=forms_in)
    assert in_words(wait) == f"last call, 2 here: the round begins {soon}, or at once with 3"


@pytest.mark.parametrize("rule", [None, SIZES])
@pytest.mark.parametrize(("here", "line"), [(0, ", 1 more needed"), (1, ""), (2, "")])
def test_where_they_are_enough_none_is_missing(rule: AdmissionRule | None, here: int, line: str) -> None:
    wait = Wait("n0", 0, Limits(1, 2, rule), 15.0, status=RunStatus(0, Phase.GATHERING, here, 0))
    assert in_words(wait) == f"gathering, {here} here{line}"


def test_where_the_smallest_world_is_the_largest_it_is_known() -> None:
    wait = Wait("n0", 0, Limits(3, 3), 15.0, status=RunStatus(0, Phase.GATHERING, 1, 0))
    assert in_words(wait) == "gathering, 1 here, 2 more needed"


def test_a_service_that_has_never_answered_may_have_no_error() -> None:
    wait = Wait("n0", 0, Limits(3, 3), 15.0, seconds=2.0, silence=math.inf)
    assert in_words(wait) == "no call to the service has succeeded for 2 s: no error yet"


def test_the_leader_of_the_round_before_looks_for_the_others() -> None:
    line = in_words(replace(WAIT, leader="n0"))
    assert line == "round 7 is over for this node; this node leads, and looks for the others"


@pytest.mark.parametrize("status", [None, RunStatus(7, Phase.RUNNING, 100, 0)])
def test_a_round_beside_which_there_is_no_news_is_named(status: RunStatus | None) -> None:
    wait = replace(WAIT, last_round=0, attempt=1, status=status)
    assert in_words(wait) == "round 7 of attempt 0 has 100; no node leads yet"


@pytest.mark.parametrize(
    ("count", "named"),
    [
        (1, "n1 (rank 1)"),
        (2, "n1 (rank 1), n2 (rank 2)"),
        (20, TWENTY),
        (21, f"{TWENTY}, and 1 more"),
        (NAMED - 2, f"{TWENTY}, and 10 more"),
        # No status names more, and this node may have been one of them.
        (NAMED - 1, f"{TWENTY}, and 11 more at least"),
        (NAMED, f"{TWENTY}, and 12 more at least"),
    ],
)
def test_of_many_that_are_awaited_the_first_are_named(count: int, named: str) -> None:
    line = in_words(re_forming(*NAMES[1 : count + 1]))
    assert line == f"re-forming: round 7 still has {named}, until each leaves it or is silent for 15 s"


def test_a_node_does_not_wait_for_itself() -> None:
    assert in_words(re_forming("n0", "n1")).startswith("re-forming: round 7 still has n1 (rank 1), until")
    assert in_words(re_forming("n0")) == "re-forming, 1 here, 1 more needed"


def test_of_a_large_world_ranks_are_not_known() -> None:
    wait = replace(re_forming("n1"), state=replace(WAIT.state, world=()))
    assert in_words(wait).startswith("re-forming: round 7 still has n1, until")


def test_of_many_that_are_gone_the_first_are_named_and_all_are_counted() -> None:
    gone = tuple(Departure(name, rank, False, "why") for rank, name in enumerate(NAMES[:NAMED]))
    line = in_words(re_forming(departures=gone, lost=60))
    assert line.endswith("; gone: n0 (rank 0), " + TWENTY.replace(", n20 (rank 20)", "") + ", and 72 more")


def test_that_those_of_an_earlier_attempt_are_gone_is_nothing_to_wait_for() -> None:
    status = RunStatus(7, Phase.GATHERING, 1, 0, (Departure("n1", 1, False, "why"),), missing=("n1",))
    assert in_words(replace(WAIT, attempt=1, status=status)) == "gathering, 1 here, 1 more needed; missing: n1"


def test_of_many_that_are_missing_the_first_are_named_and_all_are_counted() -> None:
    status = RunStatus(7, Phase.GATHERING, 1, 0, missing=NAMES).shortened(None)
    line = in_words(replace(WAIT, status=status))
    assert line == f"gathering, 1 here, 1 more needed; missing: {', '.join(NAMES[:20])}, and 80 more"
    status = RunStatus(7, Phase.LAST_CALL, 99, 0, missing=NAMES[:1])
    assert in_words(replace(WAIT, status=status)).endswith("or at once with 100; missing: n0")


@pytest.mark.parametrize("round", [6, 8])
def test_news_of_another_round_are_not_believed(round: int) -> None:
    wait = replace(WAIT, status=RunStatus(round, Phase.RE_FORMING, 1, 1), leader="n3")
    assert in_words(wait).startswith("round 7 is over for this node; no news yet from n3, which leads")


@pytest.mark.parametrize(
    ("last_round", "attempt", "is_news"), [(0, 0, True), (6, 0, True), (7, 0, False), (8, 0, False), (0, 1, False)]
)
def test_that_a_round_runs_is_believed_by_those_that_are_not_of_it(
    last_round: int, attempt: int, is_news: bool
) -> None:
    wait = replace(WAIT, last_round=last_round, attempt=attempt, status=RunStatus(7, Phase.RUNNING, 101, 0))
    assert (wait.news is not None) is is_news


@pytest.mark.parametrize(
    ("silence", "line"),
    [
        (14.9, "for 15 s, from 15 s on the others may go on without this node: away"),
        (15.0, "for 15 s, the others may have gone on without this node: away"),
        (math.inf, "for 20 s: away"),
    ],
)
def test_silence_costs_the_place_after_a_time_to_live(silence: float, line: str) -> None:
    wait = replace(WAIT, seconds=20.0, silence=silence, error=RendezvousConnectionError("away"))
    assert in_words(wait) == f"no call to the service has succeeded {line}"


def test_who_is_quarantined_hears_of_the_others_too() -> None:
    wait = replace(re_forming("n1"), quarantine="quarantined for another 42 s: it failed")
    assert in_words(wait).startswith("quarantined for another 42 s: it failed; re-forming: round 7 still has n1")


def test_a_node_knows_it_by_what_it_has_seen() -> None:
    harness = Harness()
    node = harness.registered()
    view = NodeView(node, node.member_until)
    assert view.waits_for(1.0) == "no node leads yet"
    harness.put(LEADER_KEY, LeaderRecord("b", 0, 1, 4).encode())
    harness.show(node)
    assert view.waits_for(1.0) == f"no news yet from b, which leads; if it is dead, another leads after {node.ttl:g} s"
    harness.put(STATUS_KEY, RunStatus(0, Phase.LAST_CALL, 2, 0).encode())
    harness.show(node)
    # The view goes by the machine's clock.
    node.countdown.forms_at = time.monotonic() + 30.0
    most = node.settings.max_nodes
    assert view.waits_for(1.0) == f"last call, 2 here: the round begins in 30 s, or at once with {most}"
    harness.put(STATE_KEY, State(0, 1, ("b", "c"), "host", 1, 1, 4).encode())
    harness.show(node)
    record, node.registration.record = node.registration.record, None
    assert view.waits_for(1.0).startswith("round 1 has 2; no news yet from b")
    assert record is not None
    node.registration.record = replace(record, last_round=1)
    assert view.waits_for(1.0).startswith("round 1 is over for this node; no news yet from b")
    node.connection.error = RendezvousDeniedError("no")
    assert view.waits_for(1.0) == "the service refuses this node: no"
