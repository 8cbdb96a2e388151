"""Why a caller gets no world: the errors of `next_rendezvous`, in words."""

from collections.abc import Collection
from typing import Final

from rdzv_core import errors
from rdzv_core.text import listed

from . import rules
from .missing import missing_in_attempt
from .node import Node
from .pace import status_interval
from .records import NO_STATE, NodeRecord, Phase, State, named_departures
from .report import is_out, out_until
from .run_view import Presence

READERS: Final = 64
"""Nodes up to which each that gives up reads all records, for its message: those that began together give up together.
"""


def raise_if_cannot_join(node: Node) -> None:
    """Raise what keeps a node from waiting for a world.

    Raises:
        RendezvousError: A loop of the node fails, and not just for a moment.
        RendezvousClosedError: The attempt is closed or superseded, the run was removed, or this node has left.
        RendezvousGracefulExitError: The job is done, and this node was never needed; or its drain is over.
        RendezvousParameterError: The run has other limits.
    """
    if node.run.state is not None:
        _refuse_what_is_over(node, node.run.state)
    if node.run.presence is Presence.DELETED:
        raise errors.RendezvousClosedError(
            f"The rendezvous '{node.settings.run}' was removed from the service while this node took part in it. "
            "Start the nodes again to begin anew."
        )
    raise_if_drained(node)
    node.failures.raise_lasting()
    _check_limits(node)
    if node.registration.has_left:
        raise errors.RendezvousClosedError(f"This node has left '{node.settings.run}' while it waited.")


def raise_if_drained(node: Node) -> None:
    """Raise that this node's drain is over, if it is.

    Raises:
        RendezvousGracefulExitError: It is.
    """
    if node.is_drained():
        reason = node.countdown.drain_reason()
        raise errors.RendezvousGracefulExitError(f"This node has left '{node.settings.run}': {reason}.")


def raise_if_out(node: Node) -> None:
    """Raise that this node takes no further part, once that is certain: it has failed, and has no restart left.

    Raises:
        RendezvousGracefulExitError: No loss explains its failure, or none has been seen in time.
    """
    # Where no node leads, none looks whether another was lost; what is refused may be the look at what it has found.
    is_watched = node.connection_error is None and node.run.leader is not None
    node.reckoning.observe(is_out(node) and is_watched, node.clock())
    failure = node.run.notices.failures.get(node.round)
    is_judged = failure is not None and failure.verdict is not None
    if is_out(node) and (is_judged or node.clock() >= out_until(node)):
        node.reckoning.pays, node.reckoning.ended_by = True, failure
        raise errors.RendezvousGracefulExitError(
            f"This node takes no further part in '{node.settings.run}': its program has failed, and may not be started "
            f"again ({'no other node was lost' if failure is None or not failure.because else failure.because})."
        )


def _refuse_what_is_over(node: Node, state: State) -> None:
    run = f"The rendezvous '{node.settings.run}'"
    mine, closed = node.settings.attempt, state.closed
    if state.attempt > mine:
        raise errors.RendezvousClosedError(
            f"{run} is at attempt {state.attempt}; this node belongs to attempt {mine}. "
            f"Start it with attempt {state.attempt} to join that one, with a higher one to supersede it, or "
            "under another run id."
        )
    if state.attempt == mine and closed is not None:
        if closed.done and node.is_waiting():
            member = f"was rank {node.run.rank} of round {state.round}, which has ended before this node learned of it"
            part = "was not needed" if node.run.rank is None else member
            raise errors.RendezvousGracefulExitError(f"{run} is done; this node {part} ({closed.reason}).")
        raise errors.RendezvousClosedError(
            f"{run} was closed by {closed.by}: {closed.reason}. To run it again, use a higher attempt "
            f"(`rdzv run --attempt {mine + 1}`) or another run id."
        )


def _check_limits(node: Node) -> None:
    settings, state = node.settings, node.run.state
    there = state if state is not None and state.attempt == settings.attempt else node.run.leader
    if there is None or there.attempt != settings.attempt or there.limits == settings.limits:
        return
    theirs, mine = there.limits.beside(settings.limits), settings.limits.beside(there.limits)
    raise errors.RendezvousParameterError(
        f"The rendezvous '{settings.run}' was started for {theirs}; "
        f"this node asks for {mine}. All nodes of a run need the same limits; to start the "
        f"run anew with others, use a higher attempt (`rdzv run --attempt {there.attempt + 1}`), or remove "
        "what its nodes have left behind with `rdzv close --purge`."
    )


def unreachable(node: Node, since: float) -> errors.RendezvousConnectionError:
    """The error for a service that has not answered since that moment."""
    refuses = isinstance(node.connection.error, errors.RendezvousDeniedError)
    kind = errors.RendezvousDeniedError if refuses else errors.RendezvousConnectionError
    error = kind(
        f"The service of the rendezvous '{node.settings.run}' on backend '{node.backend}' could not be reached "
        f"within {node.clock() - since:.1f} s: "
        f"{node.connection.error or 'no answer. Is it up, and is the endpoint right?'}"
    )
    error.__cause__ = node.connection.error
    return error


def unregistered(node: Node, since: float, error: errors.RendezvousError) -> errors.RendezvousTimeoutError:
    """The error for a record that the service has not taken since that moment, although it is there."""
    return errors.RendezvousTimeoutError(
        f"{_did_not_complete(node, node.clock() - since)}the record of node '{node.id}' could not be written: {error}"
    )


def _did_not_complete(node: Node, seconds: float) -> str:
    return f"The rendezvous '{node.settings.run}' on backend '{node.backend}' did not complete within {seconds:.1f} s: "


def timed_out(
    node: Node,
    live: Collection[NodeRecord] | None,
    running: State | None,
    waited: float,
    *,
    alone: bool,
    reason: Exception | None,
) -> errors.RendezvousTimeoutError:
    """The error for a world that did not come.

    Args:
        node: The node that gives up.
        live: The records of the nodes that have not left; None: they were not read, or could not be.
        running: The state with all members of its world, while a round runs.
        waited: For how many seconds the node has waited.
        alone: It ends because all others of its world are gone, and no other has come.
        reason: The last error; None: there was none.
    """
    because = f" The last error: {reason}" if reason else ""
    least, status = node.settings.min_nodes, node.run.status
    if live is None and status is not None:
        here = status.present
        # The news name no node that is here.
        what = f"by the last news {_counted(node, here)}, and the run is {status.phase}.{_absent(node, (), None)}"
    else:
        here = len(live or ())
        what = _missing_nodes(node, live or (), running, waited, alone=alone, failed=bool(reason))
    quarantined = f" This node is {quarantine}." if (quarantine := node.countdown.quarantined(node.clock())) else ""
    error = errors.RendezvousTimeoutError(f"{_did_not_complete(node, waited)}{what}{quarantined}{because}")
    short = here < least and (live is not None or status is not None)
    error.summary = f"gave up after {waited:.1f} s" + (f": {here} of at least {_nodes(least)}" * short)
    return error


def _counted(node: Node, here: int, names: str = "") -> str:
    needed = node.settings.min_nodes
    missing = needed - here
    lacks = f", {missing} {_are(missing)} missing" if missing > 0 else ""
    takes = f"; {node.settings.limits.takes()}" if node.settings.limits.rule is not None else ""
    return f"{here} of at least {_nodes(needed)} {_are(here)} here{names}{lacks}{takes}"


def _missing_nodes(
    node: Node, live: Collection[NodeRecord], running: State | None, waited: float, *, alone: bool, failed: bool
) -> str:
    inside = rules.active_members(running, live) if running is not None else []
    names = listed(sorted(record.id for record in live)) or "none"
    message = f"{_counted(node, len(live), f' ({names})')}."
    status = node.run.status
    if status is not None and status.present > len(live):
        # Those that began together give up together, and take their records back.
        message += f" By the last news {status.present} were here."
    message += _absent(node, live, running) + _what_runs(node, len(inside))
    if alone:
        seconds = node.settings.timeout.alone.total_seconds()
        message += (
            f" No other node has come for {seconds:g} s: look at why the others have left, then start the run again. "
            "Where a new node takes longer to come, give a longer alone_timeout (as long as join_timeout: no wait ends "
            "early)."
        )
    elif not inside and not failed and (size := len(node.settings.limits.choose(list(live), ()))):
        message += _why_no_world(node, len(live), size, waited)
    return message


def _absent(node: Node, live: Collection[NodeRecord], running: State | None) -> str:
    """Who is missing, in a sentence: of the machines that are expected, or of the world before."""
    status, state = node.run.status, running or node.run.state or NO_STATE
    if status is not None and status.present > len(live):
        away = listed(status.missing or (), total=status.absent)
    else:
        gone = [departure.node for departure in named_departures(status, state.round)]
        away = listed(missing_in_attempt(node.settings.attempt, state, node.expected, live, gone))
    return f" Missing: {away}." if away else ""


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _what_runs(node: Node, inside: int) -> str:
    state, status = node.run.running(), node.run.status
    if state is None:
        return ""
    departures = named_departures(status, state.round)
    causes = [f"'{one.node}' {'has left' if one.left else 'is gone'}: {one.cause}" for one in departures]
    gone = listed(causes, "; ", status.gone if status is not None and departures else 0)
    if not inside:
        return f" Of round {state.round}, {gone}." if gone else ""
    return f" Round {state.round} is running with {_nodes(inside)}{f' ({gone})' if gone else ''}."


def _why_no_world(node: Node, here: int, size: int, waited: float) -> str:
    """Why there is no world although one of that size is possible."""
    wanted = node.settings.wanted
    if wanted is not None and size < wanted:
        return (
            f" The wanted {wanted} nodes have {node.settings.wanted_timeout.total_seconds():g} s to come: "
            "give a longer join_timeout, or a shorter wanted_timeout."
        )
    seconds = node.settings.timeout.last_call.total_seconds()
    status = node.run.status
    is_full = size >= node.settings.limits.largest(node.settings.max_nodes)
    is_late = waited > seconds + status_interval(here) and (status is None or status.phase is not Phase.LAST_CALL)
    if is_full or is_late:
        return " No leader has published a world of them: the log of the node that leads says more."
    return (
        f" Up to {node.settings.max_nodes} are waited for during the last call of {seconds:g} s: "
        "give a longer join_timeout, or a shorter last_call_timeout."
    )
