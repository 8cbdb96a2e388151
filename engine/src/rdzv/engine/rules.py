"""The rules of rendezvous: which nodes the service shows, and for how long, decides what is published.

Pure functions: no I/O, no clock, no threads, so that every interleaving can be tested. Two sides
ask them: the leader (`decide`) and each node for itself (`membership`).
"""

import ipaddress
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Final

from . import eligibility
from .missing import missing_in_attempt
from .notices import NONE, Notices
from .records import NO_STATE, Closed, Departure, LeaderRecord, NodeRecord, Phase, RunStatus, State, named_departures

_AFTER_ARRIVAL: Final = 1 / 4
"""The part of a last call that is left, at least, after each arrival: nodes seldom come alone."""

_LONGEST: Final = 2
"""So many times its length a last call lasts at most, however many arrive."""

_SHORT: Final = (Phase.GATHERING, Phase.RE_FORMING)
"""Nodes may be missing."""

_RAN_OUT: Final = "its lease ran out: it died, hangs or is cut off"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the leader knows when it decides.

    Attributes:
        state: The published state, None before the first.
        nodes: Every node record in the service.
        limits: The leader's own attempt and limits, which hold until a world is published.
        last_call: Seconds that stragglers get once there are enough; those who arrive near its end extend it.
        trusted: The leader has been in touch with the service for so long that a member without a
            record is gone. After an outage it might only not have come back yet.
        quorum_for: Seconds since there have been nodes enough for a world (0: there are not, or just now).
        since_arrival: Seconds since a node arrived last.
        wanted: Seconds for which a world waits for its wanted size, if there is one.
        known: The status published before: which members were already known to be gone.
        due: The ids of the nodes for which a running world is asked to grow by now; None: of all.
        notices: Who drains, and who is quarantined.
        expected: The names of the machines that are expected; none: they are not known.
    """

    state: State | None
    nodes: Collection[NodeRecord]
    limits: LeaderRecord
    last_call: float
    trusted: bool
    quorum_for: float = 0.0
    since_arrival: float = math.inf
    wanted: float = 0.0
    known: RunStatus | None = None
    due: Collection[str] | None = None
    notices: Notices = NONE
    expected: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Publish:
    """Replace the state by this one.

    Attributes:
        state: The new state.
        evicted: The members of the world before that have not left, and that the new one is formed without.
            One of them might be coming back at this very moment, so the leader says first what it
            is about to do, and then looks once more.
        objections: What speaks against nodes that the new one has because the others are too few, by their ids.
        arrived: The nodes of the new world, in arrival order; none: there is no new world.
    """

    state: State
    evicted: tuple[Departure, ...] = ()
    objections: Mapping[str, str] = field(default_factory=dict)
    arrived: tuple[NodeRecord, ...] = field(default=(), compare=False)

    def with_ranks(self, order: Sequence[str] | None) -> "Publish | None":
        """The same world with its nodes in this order of ids, None: the default; None if they are others."""
        if order is None:
            return self
        if sorted(order) != sorted(node.id for node in self.arrived):
            return None
        return replace(self, state=_with_ranks(self.state, self.arrived, order))


@dataclass(frozen=True, slots=True)
class Defer:
    """Publish nothing now.

    Attributes:
        status: The news that nodes should know meanwhile.
        recheck_after: There are nodes enough for a world, and the last call is running: the seconds that are left of
            it. None: only news can change the decision.
    """

    status: RunStatus
    recheck_after: float | None = None


class MembershipState(Enum):
    """What the state means to one node that wants to be in a world."""

    WAITING = "no world includes it yet"
    MEMBER = "a new world includes it"
    CLOSED = "its attempt is closed"
    SUPERSEDED = "a newer attempt has taken over"


def membership(state: State | None, rank: int | None, attempt: int, last_round: int) -> MembershipState:
    """What `state` means to a node with that rank in it (None: it is no member), whose last round was `last_round`."""
    if state is None or state.attempt < attempt:
        return MembershipState.WAITING
    if state.attempt > attempt:
        return MembershipState.SUPERSEDED
    if state.closed:
        return MembershipState.CLOSED
    if state.round > last_round and rank is not None:
        return MembershipState.MEMBER
    return MembershipState.WAITING


def close(state: State | None, closed: Closed, limits: LeaderRecord) -> State | None:
    """The state that closes the attempt of `limits`; None if there is nothing left to close."""
    if state is None or state.attempt < limits.attempt:
        # The world stays: some of the attempt before may still be in it.
        return replace(
            state or NO_STATE,
            attempt=limits.attempt,
            min_nodes=limits.min_nodes,
            max_nodes=limits.max_nodes,
            rule=limits.rule,
            policy=limits.policy,
            closed=closed,
        )
    # The first reason is kept, and a newer attempt is not ours to close.
    return None if state.closed or state.attempt > limits.attempt else replace(state, closed=closed)


def has_ended(state: State, nodes: Iterable[NodeRecord], status: RunStatus | None, leaver: str) -> bool:
    """Whether no member can come back into the round, now that `leaver` goes: each has said that it left.

    One without a record may only be cut off. That a leader has declared it lost changes nothing: as long as no other
    round is formed, it comes back into this one.
    """
    if state.closed:
        return True
    left = {node.id for node in nodes if node.left is not None}
    # The record of one that left long ago is gone with its lease.
    left |= {departure.node for departure in named_departures(status, state.round) if departure.left}
    return left | {leaver} >= set(state.world)


def last_status(
    state: State, nodes: Collection[NodeRecord], known: RunStatus | None, leaver: str, reason: str
) -> RunStatus:
    """The news that the last one to leave an open run leaves behind: what is known of why its world fell apart."""
    departed = departures(state, nodes, known, None)
    if leaver in state.world:
        departed[leaver] = Departure(leaver, state.world.index(leaver), True, reason)
    lost = sorted(departed.values(), key=lambda departure: departure.rank)
    return RunStatus(state.round, Phase.ABANDONED, 0, 0, tuple(lost))


def is_alone(state: State | None, status: RunStatus | None, rank: int | None) -> bool:
    """Whether all others of the world of the node with that rank have left for good, no other node is there, and one is
    too few.

    A member that is lost may only be cut off, or be replaced soon.
    """
    if state is None or status is None or status.round != state.round or state.closed or state.limits.largest(1):
        return False
    return status.present <= 1 and rank is not None and status.left == state.size - 1


def decide(situation: Situation) -> Publish | Defer:
    """What the leader does."""
    live = [node for node in situation.nodes if node.left is None]
    newest = max((node.attempt for node in live), default=0)
    state = situation.state
    if state is None:
        state = _initial_state(min((node.attempt for node in live), default=0), 0, live, situation.limits)
    departed = departed_from(state, situation)
    if newest > state.attempt:
        if not state.closed and any(node.attempt < newest for node in live):
            rival = min((node for node in live if node.attempt == newest), key=_arrival)
            reason = f"superseded by attempt {newest}"
            return Publish(replace(state, closed=Closed(rival.id, reason, done=False)))
        # Exclusivity holds per run, whatever the attempt.
        if not is_in_use(state, live, departed):
            # The news still names who has left the world before: the next leader would wait for them again.
            departed = {} if state.closed else departed
            state = _initial_state(newest, state.round, live, situation.limits)
    status = _status(state, live, departed, situation)
    if state.closed or is_in_use(state, live, departed):
        return Defer(status)
    return _next_world(state, live, departed, status, situation)


def departed_from(state: State, situation: Situation) -> dict[str, Departure]:
    """The members that are certainly not coming back into this round, by their ids, as far as the leader can tell."""
    is_certain = situation.trusted or state.closed is not None
    return departures(state, situation.nodes, situation.known, _RAN_OUT if is_certain else None)


def _next_world(
    state: State,
    live: Collection[NodeRecord],
    departed: Mapping[str, Departure],
    status: RunStatus,
    situation: Situation,
) -> Publish | Defer:
    """What the leader does now that no member is in the running round any more."""
    notices = situation.notices
    waiting = eligibility.eligible(state.limits, _candidates(state, live, notices), state.world, notices)
    chosen = state.limits.choose(waiting, state.world)
    if not chosen:
        return Defer(status)
    remaining = _remaining(state, waiting, len(chosen), situation)
    if remaining > 0:
        return Defer(replace(status, phase=Phase.LAST_CALL, ends_in=float(remaining)), recheck_after=remaining)
    evicted = tuple(departure for departure in departed.values() if not departure.left)
    objections = {node.id: why for node in chosen if (why := eligibility.objection(node, notices))}
    arrived = tuple(sorted(chosen, key=_arrival))
    return Publish(_next_round(state, waiting, arrived), evicted, objections, arrived)


def _remaining(state: State, waiting: Sequence[NodeRecord], size: int, situation: Situation) -> float:
    """Seconds for which a possible world of that size still waits for more nodes; 0 or less: it is formed."""
    limits, last_call, quorum_for = state.limits, situation.last_call, situation.quorum_for
    is_wanted = limits.rule is None or size >= limits.rule.wanted
    # The last call is for nodes that may or may not come. When the survivors of a world suffice, and are a world
    # without any of them waiting outside, every node that is expected is here.
    members = frozenset(state.world)
    survivors = sum(node.id in members for node in waiting)
    is_largest = size == limits.largest(limits.max_nodes)
    if is_wanted and (is_largest or state.min_nodes <= survivors <= size):
        return 0.0
    ends_in = (last_call if is_wanted else max(situation.wanted, last_call)) - quorum_for
    extended = min(_AFTER_ARRIVAL * last_call - situation.since_arrival, _LONGEST * last_call - quorum_for)
    return max(ends_in, extended)


def _next_round(state: State, waiting: Sequence[NodeRecord], arrived: Sequence[NodeRecord]) -> State:
    # No node has left behind a later round than the state's, unless the service has forgotten everything.
    number = 1 + max(state.round, *(node.last_round for node in waiting))
    return _with_ranks(replace(state, round=number), arrived, sticky_ranks(arrived, state.world))


def _with_ranks(state: State, arrived: Sequence[NodeRecord], order: Sequence[str]) -> State:
    """The state whose world is these nodes in this order of their ids, but with a rank 0 that the others can reach."""
    by_id = {node.id: node for node in arrived}
    addresses = [by_id[node].address for node in order]
    rule = arrived[0].rule
    world = _with_first(order, _reachable(addresses), rule.group_size if rule is not None else 1)
    first = by_id[world[0]]
    return replace(state, world=tuple(world), address=first.address, port=first.port)


def _reachable(addresses: Sequence[str]) -> int:
    """The place of the first address that leads all to the same node; 0 if none does: then one machine has them all."""
    return next((place for place, address in enumerate(addresses) if not is_loopback(address)), 0)


@lru_cache
def is_loopback(host: str) -> bool:
    """Whether a host is one by which every machine finds itself: 127.0.0.1 and its kind, ::1, localhost.

    Parsing an address takes longer than the rest of what a rule asks of a node, and nodes of one machine have the same.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.removesuffix(".").lower().split(".")[-1] == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _with_first(order: Sequence[str], place: int, group_size: int) -> list[str]:
    """The same order with the one at `place` in the first place: its group changes places, and then it in its group."""
    world = list(order)
    start, within = place - place % group_size, place % group_size
    world[:group_size], world[start : start + group_size] = world[start : start + group_size], world[:group_size]
    world[0], world[within] = world[within], world[0]
    return world


def sticky_ranks(arrived: Sequence[NodeRecord], previous: Sequence[str]) -> Sequence[str]:
    """The default ranks: survivors keep theirs, newcomers fill the holes in natural order.

    Survivors whose rank is too high for a smaller world fill holes first, the lowest rank first. Where there are
    groups, the ranks of each are contiguous; groups keep their places in the same way, and so do nodes within a group.
    """
    rule = arrived[0].rule
    if rule is None or not rule.group_by:
        return _kept_places([node.id for node in arrived], previous)
    group_of = {node.id: node.labels.get(rule.group_by, "") for node in arrived}
    blocks = [previous[at : at + rule.group_size] for at in range(0, len(previous), rule.group_size)]
    # A group that is gone leaves its place to another.
    places: list[str] = []
    before: dict[str, Sequence[str]] = {}
    for block in blocks:
        group = next((group_of[node] for node in block if node in group_of), "")
        places.append("" if group in before else group)
        before.setdefault(group, block)
    members: dict[str, list[str]] = {}
    for node, group in group_of.items():
        members.setdefault(group, []).append(node)
    return [
        node
        for group in _kept_places(list(members), places)
        for node in _kept_places(members[group], before.get(group, ()))
    ]


def _kept_places(names: Sequence[str], previous: Sequence[str]) -> list[str]:
    """Names in an order in which those that were there before keep their places; others fill the holes."""
    size, live = len(names), set(names)
    kept = {place: name for place, name in enumerate(previous) if name in live and place < size}
    moved = [name for place, name in enumerate(previous) if name in live and place >= size]
    new = sorted(live.difference(previous), key=_natural)
    fillers = iter(moved + new)
    return [kept[place] if place in kept else next(fillers) for place in range(size)]


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort key by which node2 comes before node10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"([0-9]+)", name)]


def _arrival(node: NodeRecord) -> int:
    return node.order


def _initial_state(attempt: int, before: int, live: Iterable[NodeRecord], limits: LeaderRecord) -> State:
    """The state of an attempt that has no world yet; the limits of its first node hold."""
    first = min((node for node in live if node.attempt == attempt), key=_arrival, default=None)
    source = limits if limits.attempt == attempt or first is None else first
    lowest, highest = source.min_nodes, source.max_nodes
    return State(attempt, before, (), "", 0, lowest, highest, rule=source.rule, policy=source.policy)


def active_members(state: State, nodes: Iterable[NodeRecord]) -> list[NodeRecord]:
    """The members that are in the running round: their record lives and says a round before it."""
    members = frozenset(state.world)
    return [node for node in nodes if node.id in members and node.last_round < state.round]


def departures(
    state: State, nodes: Iterable[NodeRecord], known: RunStatus | None, cause: str | None
) -> dict[str, Departure]:
    """The members that are certainly not coming back into this round, by their ids, in rank order.

    Args:
        state: The state.
        nodes: Every node record in the service.
        known: The status published before: why members are gone whose records are, too.
        cause: Why the others are gone that have no record; None: that is not certain of any.
    """
    records = {node.id: node for node in nodes}
    before = {departure.node: departure for departure in named_departures(known, state.round)}
    departed = {}
    for rank, member in enumerate(state.world):
        record = records.get(member)
        if record is None and member in before:
            departed[member] = before[member]
        elif record is None and cause is not None:
            departed[member] = Departure(member, rank, False, cause)
        elif record is not None and record.left is not None:
            departed[member] = Departure(member, rank, True, record.left)
    return departed


def is_in_use(state: State, nodes: Iterable[NodeRecord], departed: Collection[str]) -> bool:
    """Whether a member is, or may still be, in the running round."""
    return any(_in_use(state, nodes, departed))


def _in_use(state: State, nodes: Iterable[NodeRecord], departed: Collection[str]) -> Iterator[str]:
    """The members that are, or may still be, in the running round."""
    back = {node.id for node in nodes if node.last_round >= state.round}
    return (member for member in state.world if member not in departed and member not in back)


def _candidates(state: State, nodes: Iterable[NodeRecord], notices: Notices) -> list[NodeRecord]:
    """The nodes that a new world may have, in arrival order."""
    members = frozenset(state.world)
    asked = (state.attempt, state.min_nodes, state.max_nodes, state.rule, state.policy)
    fitting = [one for one in nodes if (one.attempt, one.min_nodes, one.max_nodes, one.rule, one.policy) == asked]
    waiting = [node for node in fitting if node.id not in members or node.last_round >= state.round]
    return sorted((node for node in waiting if not (node.goes or eligibility.is_out(node, notices))), key=_arrival)


def phase(state: State, inside: Collection[NodeRecord]) -> Phase:
    """What a run is doing, by its state and by the members that are in its round; see `active_members`."""
    if state.closed:
        return Phase.CLOSED
    if not state.world:
        return Phase.GATHERING
    return Phase.RUNNING if len(inside) == len(state.world) else Phase.RE_FORMING


def _status(
    state: State, live: Collection[NodeRecord], departed: Mapping[str, Departure], situation: Situation
) -> RunStatus:
    inside = active_members(state, live)
    waiting = _candidates(state, live, situation.notices)
    drained = frozenset[str]() if state.closed else eligibility.drained(inside, situation.notices)
    news = 0 if state.closed or not state.world else _news(state, live, waiting, departed, drained, situation)
    # Nodes that leave a closed run are not reported as lost.
    lost = () if state.closed else tuple(departed.values())
    present, doing = len(inside) + len(waiting), phase(state, inside)
    awaited = tuple(_in_use(state, live, departed)) if doing is Phase.RE_FORMING else ()
    goes, away = tuple(sorted(drained)), None
    if doing in _SHORT:
        named = [*departed, *awaited]
        away = missing_in_attempt(state.attempt, situation.state or state, situation.expected, live, named) or None
    return RunStatus(state.round, doing, present, news, lost, drained=goes, awaited=awaited or None, missing=away)


def _news(
    state: State,
    live: Collection[NodeRecord],
    waiting: Sequence[NodeRecord],
    departed: Collection[str],
    drained: Collection[str],
    situation: Situation,
) -> int:
    """How many nodes wait for a new world that would differ from the running one; a loss counts as one of them."""
    members = frozenset(state.world)
    # One that takes no further part has ended the round as well.
    back = [node for node in live if node.id in members and node.last_round >= state.round and not node.goes]
    returned = [node for node in waiting if node.id in members]
    staying = [node for node in active_members(state, live) if node.id not in drained]
    # One that is only silent keeps its place: it may come back, and then no other has to move.
    kept = len(state.world) - len(departed) - len(drained)
    preferred = [node for node in waiting if eligibility.objection(node, situation.notices) is None]
    counts = [node for node in preferred if situation.due is None or node.id in situation.due]
    new = [node for node in counts if node.id not in members]
    arrivals = _room_for(state, [*staying, *returned, *new], len(new), kept)
    # Spares beyond the room disturb no member; a loss counts when the others can go on without.
    goes_on = (departed or drained) and staying and state.limits.choose([*staying, *waiting], state.world)
    return arrivals + len(back) + (1 if goes_on else 0)


def _room_for(state: State, present: Sequence[NodeRecord], new: int, kept: int) -> int:
    """How many of so many new nodes a world could take that keeps so many of its members."""
    limits = state.limits
    if limits.rule is None:
        return min(new, state.max_nodes - kept)
    # To which group one that is only silent belongs, its record would tell.
    larger = len(limits.choose(present, state.world)) if limits.rule.group_by else limits.largest(kept + new)
    return max(0, larger - kept)
