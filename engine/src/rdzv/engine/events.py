"""What has happened between two looks of one node at its run. Pure functions, from which the node's events are made."""

from collections.abc import Iterator

from ..hooks import EventKind
from .notices import Notices
from .records import RunStatus, State, named_departures

News = tuple[EventKind, str, str]
"""The kind of an event, the node that it is about, and its cause in words."""


def in_state(before: State | None, state: State) -> Iterator[News]:
    """What a state says that the one before did not."""
    if state.round > (before.round if before else 0) and state.size:
        cause = f"a world of {state.size}, with rank 0 at {state.address}:{state.port}"
        yield EventKind.ROUND_PUBLISHED, state.first, cause
    if state.closed and not (before and before.closed == state.closed):
        yield EventKind.CLOSED, state.closed.by, state.closed.reason


def in_status(before: RunStatus | None, status: RunStatus, own: str) -> Iterator[News]:
    """Which members are gone by a status, but not by the one before.

    Args:
        before: The status before; None: there was none.
        status: The status.
        own: The id of the node that looks: it comes back, or its caller learns that it was evicted.
    """
    known = frozenset(named_departures(before, status.round))
    for departure in status.departures:
        if departure not in known and departure.node != own:
            kind = EventKind.NODE_LEFT if departure.left else EventKind.NODE_LOST
            yield kind, departure.node, departure.cause


def in_notices(before: Notices, notices: Notices, number: int, own: str) -> Iterator[News]:
    """Who drains, has failed, or is quarantined, by notices, but not by those before.

    Args:
        before: The notices before.
        notices: The notices.
        number: The round that is known: failures of others are over.
        own: The id of the node that looks: of its own failure it knows.
    """
    for node, notice in notices.drains.items():
        if before.drains.get(node) != notice:
            yield EventKind.NODE_DRAINS, node, f"in {notice.seconds:g} s: {notice.reason}"
    failure = notices.failures.get(number)
    known = before.failures.get(number)
    # The verdict may name another node than the one that was first.
    if failure is not None and failure.node != own and (known is None or known.node != failure.node):
        yield EventKind.NODE_FAILED, failure.node, failure.reason
    for name, quarantine in notices.quarantines.items():
        if not quarantine.over and before.quarantines.get(name) != quarantine:
            yield EventKind.NODE_QUARANTINED, name, f"for {quarantine.cooldown:g} s: {quarantine.reason}"
