"""What a node waits for, in words: a pure function of what it knows.

The table of docs/cli.md is made of these words by `docs/test_waits.py`.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_core.text import listed

from ..admission import Limits
from .records import NAMED, NO_STATE, Phase, RunStatus, State


@dataclass(frozen=True, slots=True)
class Wait:
    """What a node knows while it waits.

    Attributes:
        node: Its id.
        attempt: The attempt that it belongs to.
        limits: Which worlds it takes.
        ttl: Seconds after which a silent node counts as dead.
        seconds: For how long it has waited.
        silence: Seconds since the service last answered; infinite: it never did.
        error: Why the service does not answer, or refuses this node; None: it does neither.
        is_refused: Whether that is a refusal.
        shortage: What this machine lacks for the node, as an error; None: nothing.
        quarantine: For how many more seconds this node is quarantined, and why, in words; None: it is not.
        last_round: The last round that it has left behind; 0: none.
        state: The published state; of round 0: there was none yet.
        status: The leader's news; None: there was none.
        leader: The id of the node that leads; None: none does.
        forms_in: Seconds until the last call is over, unless another node comes; infinite: its end is not known.
    """

    node: str
    attempt: int
    limits: Limits
    ttl: float
    seconds: float = 0.0
    silence: float = 0.0
    error: RendezvousConnectionError | None = None
    is_refused: bool = False
    shortage: RendezvousError | None = None
    quarantine: str | None = None
    last_round: int = 0
    state: State = NO_STATE
    status: RunStatus | None = None
    leader: str | None = None
    forms_in: float = math.inf

    @property
    def news(self) -> RunStatus | None:
        """The leader's news, if they are about what this node waits in; None: they are older."""
        status, state = self.status, self.state
        if status is None or status.round != state.round or status.phase is Phase.ABANDONED:
            return None
        # A round that this node has left, or that is of an earlier attempt, does not run as it did.
        is_over = self.last_round >= state.round or state.attempt < self.attempt
        return None if is_over and status.phase is Phase.RUNNING else status


def in_words(wait: Wait) -> str:
    """What the node waits for, in one line."""
    if wait.is_refused:
        what = f"the service refuses this node: {wait.error}"
    elif wait.shortage is not None:
        what = f"this machine lacks what the node needs: {wait.shortage}"
    elif wait.error is not None or wait.silence == math.inf:
        what = _service(wait)
    elif wait.news is not None:
        what = _others(wait, wait.news)
    else:
        what = _leader(wait)
    return f"{wait.quarantine}; {what}" if wait.quarantine else what


def _service(wait: Wait) -> str:
    """A service that does not answer."""
    if wait.silence == math.inf:
        return f"no call to the service has succeeded for {wait.seconds:.0f} s: {wait.error or 'no error yet'}"
    lasts = f"from {wait.ttl:g} s on the others may go" if wait.silence < wait.ttl else "the others may have gone"
    return f"no call to the service has succeeded for {wait.silence:.0f} s, {lasts} on without this node: {wait.error}"


def _leader(wait: Wait) -> str:
    """A leader that has said nothing yet of what this node waits in."""
    before = _before(wait)
    if wait.leader is None:
        return f"{before}no node leads yet"
    if wait.leader == wait.node:
        return f"{before}this node leads, and looks for the others"
    return f"{before}no news yet from {wait.leader}, which leads; if it is dead, another leads after {wait.ttl:g} s"


def _before(wait: Wait) -> str:
    """The round that was before, or runs beside."""
    state, status = wait.state, wait.status
    if not state.size:
        return ""
    if wait.last_round >= state.round:
        return f"round {state.round} is over for this node; "
    if status is not None and status.phase is Phase.ABANDONED:
        return f"all nodes of round {state.round}{_of_attempt(wait, state)} have gone; "
    return f"round {state.round}{_of_attempt(wait, state)} has {state.size}; "


def _others(wait: Wait, news: RunStatus) -> str:
    """Other nodes, by news of the leader's."""
    here, state = f"{news.phase}, {news.present} here", wait.state
    if news.phase is Phase.LAST_CALL:
        soon = f"in {math.ceil(wait.forms_in)} s" if 0 < wait.forms_in < math.inf else "soon"
        most = wait.limits.largest(wait.limits.max_nodes)
        return f"{here}: the round begins {soon}, or at once with {most}{_absent(wait, news)}"
    if news.phase is Phase.RUNNING:
        return f"{here}: {_running(wait, news)}"
    # This node has left the round; the news may be older.
    awaited = [node for node in news.awaited or () if node != wait.node]
    if awaited:
        there = f"round {state.round}{_of_attempt(wait, state)} still has {_named(state, awaited)}"
        return f"{news.phase}: {there}, until each leaves it or is silent for {wait.ttl:g} s"
    return f"{here}{_short(wait, news.present)}{_absent(wait, news)}"


def _absent(wait: Wait, news: RunStatus) -> str:
    """Who is not here: the members that are gone, and who is expected besides."""
    # That those of an earlier attempt are gone is what the wait was for.
    is_own = wait.state.attempt == wait.attempt
    gone = _named(wait.state, [one.node for one in news.departures], news.gone) if is_own else ""
    away = listed(news.missing or (), total=news.absent)
    return f"{f'; gone: {gone}' if gone else ''}{f'; missing: {away}' if away else ''}"


def _running(wait: Wait, news: RunStatus) -> str:
    """Why a node that waits is not in the round that runs."""
    state = wait.state
    if news.waiting:
        return f"round {state.round} ends, and another begins"
    if state.size >= wait.limits.largest(wait.limits.max_nodes):
        return f"round {state.round} has all {state.size} that it takes, this node is a spare"
    return f"round {state.round} has {state.size}{'' if wait.quarantine else ', and takes in no other yet'}"


def _short(wait: Wait, here: int) -> str:
    """How many nodes are missing to a world."""
    limits = wait.limits
    if limits.largest(here):
        return ", too few of any group" if limits.rule is not None and limits.rule.group_by else ""
    least = next(size for size in itertools.count(here) if limits.largest(size))
    return f", {least - here} more needed"


def _named(state: State, nodes: Sequence[str], count: int = 0) -> str:
    """Some members of a world, each with its rank; of many how many there are beside."""
    named = {node: f"{node} (rank {rank})" for rank, node in enumerate(state.world)}
    # A status names at most so many, and this node may have been one of them.
    at_least = " at least" if len(nodes) >= NAMED - 1 and not count else ""
    return f"{listed([named.get(node, node) for node in nodes], total=count)}{at_least}"


def _of_attempt(wait: Wait, state: State) -> str:
    return f" of attempt {state.attempt}" if state.attempt < wait.attempt else ""
