"""Which keys are garbage: no node will need them again. Pure functions.

Three ask: the leader, the last node that leaves, and a purge. Each removes what it learns, in that order. Only names
that are never used again: even a request that is applied too late does no harm. (At worst a leader of the next
attempt publishes its status again, or another is elected.)
"""

from collections.abc import Iterable
from typing import Final

from rdzv_core.errors import RendezvousStateError

from ..settings import ROUNDS_KEPT
from . import records, worlds
from .client import DecodedSnapshot
from .notices import DRAINS, FAILURES, QUARANTINES, drain_key, notice_keys
from .records import LeaderRecord, State, number_of, numbered, read_record

SWEPT: Final = 10
"""Rounds, and attempts, back to which a leader removes what it, or one before it, could not remove before."""


def of_pending_rounds(control: DecodedSnapshot, state: State, until: int) -> list[str]:
    """The garbage that pending rounds up to a round name, whichever leader has declared them.

    Args:
        control: What stands there: the pending rounds are read, the rest is not.
        state: The state.
        until: The last round that needs no pending round any more.

    Returns:
        Prefixes in the order in which to remove them: a pending round goes last, since it names the others.
    """
    found = []
    for key, number in numbered(control, records.PENDING):
        if number is None or number > until:
            continue
        try:
            pending = read_record(LeaderRecord, control.get(key))
        except RendezvousStateError:
            pending = None
        before = state.attempt if pending is None else pending.attempt
        if before < state.attempt:
            # Attempts between the two had no state, so no pending round names them; of many the latest are removed.
            between = range(max(before + 1, state.attempt - SWEPT), state.attempt)
            found += _of_attempts([before, *between])
        found.append(key)
    return found


def _of_attempts(attempts: Iterable[int]) -> list[str]:
    """Where the service has no leases, what is dead stays, and is not seen: in folders of each attempt."""
    return [f"{folder}/{attempt}" for attempt in attempts for folder in (records.NODES, records.HEARTBEATS)]


# What the leader removes.


def of_notices(control: DecodedSnapshot, state: State, gone: Iterable[str]) -> list[str]:
    """The notices that no node needs any more, while the run goes on.

    Args:
        control: What stands there.
        state: The state.
        gone: The ids of the nodes that drained, and are gone.
    """
    last = state.round - ROUNDS_KEPT
    failures = [key for key, number in numbered(control, FAILURES) if number is not None and number <= last]
    return failures + [drain_key(node) for node in gone]


def old_rounds(state: State, swept: int) -> range:
    """The rounds of which a leader removes what is left: before the running one, and over for every node.

    The leaders that published the last ones may have died before they removed anything. After a service has forgotten
    its data the numbers jump: there is nothing far back. After a purge they begin anew.

    Args:
        state: The state.
        swept: The last round of which all was removed; 0: of none.
    """
    until = state.round - worlds.rounds_needed(state)
    return range(min(max(swept, state.round - SWEPT), max(0, until)) + 1, until + 1)


# What the last node removes.


def of_ended_round(state: State) -> list[str]:
    """The garbage of an open run into whose round no member comes back.

    Not the records of those that have left: a write that was on its way would make one anew.
    """
    # As long as the state names it, the world stays.
    world = state.round if state.pages is None else state.pages.round
    return [records.store_folder(one) if one == world else records.round_folder(one) for one in _last_rounds(state)]


def of_closed_attempt(state: State, attempt: int, pending: DecodedSnapshot, pages: Iterable[str]) -> list[str]:
    """The garbage of a closed attempt: all but the state, and notices.

    Args:
        state: The state.
        attempt: The attempt of the last node, which may be the one before.
        pending: The pending rounds.
        pages: The pages of worlds that were not published; see `unpublished_rounds`.
    """
    rounds = [records.round_folder(one) for one in _last_rounds(state)]
    own = [records.LEADER_KEY, records.STATUS_KEY, *_of_attempts(sorted({attempt, state.attempt}))]
    return [*rounds, *pages, *own, *of_pending_rounds(pending, state, state.round + 1)]


def unpublished_rounds(state: State, pending: DecodedSnapshot) -> list[int]:
    """The further rounds for which leaders of a closed attempt may have written pages."""
    if state.max_nodes <= worlds.PAGE:
        return []
    # Usually the next one. A leader that still knew a state that was purged has gone on from its number.
    later = {number for _, number in numbered(pending, records.PENDING) if number is not None and number > state.round}
    return sorted(later | {state.round + 1})


def unpublished_pages(state: State, number: int, pages: DecodedSnapshot) -> list[str]:
    """The pages of a further round that leaders of this attempt, which is closed, and of those before have written.

    Args:
        state: The state.
        number: The round.
        pages: What stands in the folder of its worlds.
    """
    folder = records.world_folder(number)
    found = {key.removeprefix(f"{folder}/").split("/")[0] for key in pages.names()}
    attempts = {name: number_of(name.partition(".")[0]) for name in found}
    return [f"{folder}/{name}" for name, one in attempts.items() if one is not None and one <= state.attempt]


def of_closed_notices(control: DecodedSnapshot) -> list[str]:
    """The notices of a closed run. Who is quarantined stays so in the next attempt."""
    return notice_keys(control, DRAINS, FAILURES)


def _last_rounds(state: State) -> range:
    """The rounds of which something may stand there: the last leader may not have removed anything."""
    return range(max(1, state.round - worlds.rounds_needed(state)), state.round + 1)


# What a purge removes.


def folders_until(snapshot: DecodedSnapshot, number: int) -> list[str]:
    """What stands under the prefix of a snapshot, one level deep, without the folders of later numbers."""
    folders = {"/".join(key.split("/")[:2]) for key in snapshot.names()}
    numbers = {folder: number_of(folder.partition("/")[2]) or 0 for folder in folders}
    # What stands at the prefix itself goes with all that is under it.
    numbers |= {folder: max(numbers.values()) for folder in folders if "/" not in folder}
    return sorted(folder for folder in folders if numbers[folder] <= number)


def beside_state(control: DecodedSnapshot, state: State) -> list[str]:
    """What stands beside the state of a closed attempt, without the pending rounds of the next one."""
    old = [key for key, number in numbered(control, records.PENDING) if number is None or number <= state.round + 1]
    # At worst the leader of the next attempt loses the lead, and another is elected.
    return [*old, *notice_keys(control, DRAINS, FAILURES, QUARANTINES), records.STATUS_KEY, records.LEADER_KEY]
