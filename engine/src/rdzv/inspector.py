"""Looking at a run from outside, without joining it: what ``rdzv status`` and ``rdzv close`` do."""

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Final, Self

from rdzv_core.backend import STATE_KEY
from rdzv_core.envelope import OtherVersionError
from rdzv_core.errors import (
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousParameterError,
)
from rdzv_core.handler import Drain
from rdzv_core.keys import unescape
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.plugins import load_backend_plugin
from rdzv_core.text import listed, printable

from .admission import Limits
from .engine import records, rules
from .engine.client import DecodedSnapshot, Pauses, RetryingClient
from .engine.codec import Record
from .engine.handler import with_keys, with_leases
from .engine.notices import (
    DrainNotice,
    Notices,
    drain_key,
    drain_notice,
    first_drain,
    name_in_id,
    name_of,
    pardon,
    quarantine_key,
    read_notices,
)
from .engine.purge import Purge
from .engine.records import NO_STATE, Closed, LeaderRecord, NodeRecord, Phase, RunStatus, State, read_record
from .engine.run_view import RunView
from .engine.worlds import with_world
from .registry import create_backend
from .settings import RendezvousSettings

__all__ = ["MissingNode", "NodeStatus", "RunInspector", "Status"]

_WAITING: Final = "waiting"
_RECORD_GONE: Final = "its record is gone: it died, gave up or is cut off"


@dataclass(frozen=True)
class NodeStatus:
    """One node that is there, or has just left.

    Attributes:
        id: Its id.
        rank: Its rank in the running round; None if it is not in it.
        address: Where it can be reached.
        doing: ``in the round``, ``waiting``, or ``left:`` and why.
        left: Why it has left: it is shown for as long as its record says so; None: it is here.
        drains: How long it stays, counted by itself from the announcement on, and why it goes; None: it stays.
        version: The version of rdzv that it runs; None: one that did not say so.
    """

    id: str
    rank: int | None
    address: str
    doing: str
    left: str | None
    drains: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class MissingNode:
    """A member of the round that is gone, and whose record is, too.

    Attributes:
        id: Its id.
        rank: Its rank in the round.
        doing: ``left:`` and why, or ``missing:`` and what is known of it.
        left: Why it has left; None: it was lost.
    """

    id: str
    rank: int
    doing: str
    left: str | None


@dataclass(frozen=True)
class Status:
    """What a run is doing.

    Attributes:
        run_id: Which run.
        phase: ``unknown`` (no node is here, and none of those that came, if any, had a world),
            ``gathering``, ``last call``, ``running``, ``re-forming``, ``abandoned`` (no node is left of an open run
            that had a world) or ``closed``.
        attempt: The scheduler's restart count.
        round: How many worlds there were.
        min_nodes: The smallest world; 0 while unknown.
        max_nodes: The largest.
        takes: Which sizes a world has, in words, such as ``a world takes 8 or 16 nodes``; empty while unknown.
        leader: The id of the node that leads; None if none does.
        nodes: Those that are there or have just left, in rank order, then in arrival order.
        missing: The members of the round that are gone, without those among `nodes`.
        waiting: How many of `nodes` wait: for the next world, or as spares.
        closed_by: The node that closed the run.
        closed_reason: Why; None while it is open.
        failed_first: Which node failed first, or was behind, in each of the last rounds that ended so, and why: as
            ``round 4: node failed first: reason``; a failure that was that of no node is left out.
        quarantines: Which nodes are quarantined, by name, for how long from when they learn of it, and why, in words.
        unreadable: Which nodes another version of rdzv runs, whose records this one cannot read, in words. In the phase
            ``unknown`` they are all that is known.
        absent: Which machines are expected and not here, in words, as the node that leads has said last; None: none, or
            it has not.
    """

    run_id: str
    phase: str
    attempt: int
    round: int
    min_nodes: int
    max_nodes: int
    takes: str
    leader: str | None
    nodes: tuple[NodeStatus, ...]
    missing: tuple[MissingNode, ...]
    waiting: int
    closed_by: str | None
    closed_reason: str | None
    failed_first: tuple[str, ...] = ()
    quarantines: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    absent: str | None = None


class RunInspector:
    """Reads a run's status, and may close or purge it, without being a node of it."""

    def __init__(self, params: RendezvousParameters) -> None:
        """Look at the run that `params` describe.

        Raises:
            RendezvousParameterError: A parameter cannot be used.
        """
        settings = RendezvousSettings.from_parameters(params)
        backend, _ = create_backend(load_backend_plugin(params.backend).as_client(params))
        self._run_id, self._attempt = params.run_id, settings.attempt
        keys = with_keys(backend)
        pauses = partial(Pauses, random.Random(), refused=lambda: 0.0)  # noqa: S311 - jitter is no secret
        self._client = RetryingClient(with_leases(keys, settings), "observer", pauses=pauses)
        # The keys whether their leases live or not, and a round's store, whose keys have none.
        self._raw = RetryingClient(keys, "observer", pauses=pauses)
        self._control: DecodedSnapshot | None = None
        self._nodes_seen: DecodedSnapshot | None = None

    def status(self, timeout: float) -> Status:
        """Read what the run is doing.

        Args:
            timeout: Seconds.

        Raises:
            RendezvousConnectionError: The service could not be reached.
            RendezvousStateError: The state is not readable.
        """
        deadline = time.monotonic() + timeout
        status = self._look(deadline)
        if status.phase != Phase.ABANDONED:
            return status
        # Between the reading of the nodes and that of the state a world may have been formed: then it is not abandoned.
        try:
            return self._look(deadline)
        except RendezvousConnectionError as error:
            # If that world has a leader, the answer would be wrong.
            if isinstance(error, RendezvousDeniedError) or status.leader is not None:
                raise
            return status

    def _look(self, deadline: float) -> Status:
        # In this order: nodes that go after the run is closed are not missed.
        nodes = self._nodes(deadline)
        control = self._control = self._client.read_all(records.CONTROL, deadline, self._control)
        state = read_record(State, control.get(STATE_KEY))
        if state is not None and state.pages is not None:
            state = with_world(state, self._client.read_all(state.pages.folder, deadline))
        unreadable = tuple(f"{node}: {error}" for node, error in sorted(self._others().items()))
        return replace(_describe(self._run_id, control, state, nodes), unreadable=unreadable)

    def closed(self, timeout: float) -> Closed | None:
        """Why the attempt of the parameters is over: it is closed, or a higher one has begun; None: it is not.

        Args:
            timeout: Seconds.

        Raises:
            RendezvousConnectionError: The service could not be reached.
            RendezvousStateError: The state is not readable.
        """
        versioned = self._client.read(STATE_KEY, time.monotonic() + timeout)
        return RunView(state=read_record(State, versioned)).closed(self._attempt)

    def wait(self, timeout: float) -> None:
        """Wait until the run's state, leader or status is another than at the last `status`, at most `timeout` seconds.

        Without a `status` before it returns at once.

        A service that is away is tried again until then; whether it is back, the next `status` tells.

        Raises:
            RendezvousDeniedError: The service refuses.
        """
        if (seen := self._control) is None:
            return
        until = time.monotonic() + timeout
        try:
            self._client.wait_for(lambda now: now.encoded.entries != seen.encoded.entries, records.CONTROL, seen, until)
        except RendezvousConnectionError as error:
            if isinstance(error, RendezvousDeniedError):
                raise

    def close(self, by: str, reason: str, timeout: float) -> Closed:
        """Close the attempt that the run is at; returns who closed it first, and why.

        Raises:
            RendezvousConnectionError: The service could not be reached.
            RendezvousStateError: The state is not readable; `purge` removes it all the same.
        """
        return self._close(Closed(by, reason, done=False), time.monotonic() + timeout)

    def _close(self, mine: Closed, deadline: float) -> Closed:
        while True:
            # A tombstone is what a purge that broke off has left: the state is written over it.
            versioned = self._client.read_all(STATE_KEY, deadline).raw(STATE_KEY)
            state = read_record(State, versioned)
            if state and state.closed:
                return state.closed
            source = state or next(iter(self._nodes(deadline)), NO_STATE)
            limits = LeaderRecord("", source.attempt, source.min_nodes, source.max_nodes, source.rule, source.policy)
            closed = rules.close(state, mine, limits)
            assert closed is not None  # noqa: S101 - an open state can be closed
            applied, _ = self._client.put(STATE_KEY, closed.encode(), deadline, previous=versioned)
            if applied:
                return mine

    def drain(self, node: str, seconds: float, reason: str, timeout: float) -> tuple[Drain, ...]:
        """Have a node leave, after so many seconds or as soon as all members of its world are ready for it.

        Args:
            node: Its id, or its name, which several nodes may have.
            seconds: From the moment at which each node learns of it.
            reason: What the others read.
            timeout: Seconds to try.

        Returns:
            The nodes that drain, each with the announcement that counts: what was announced before and takes no longer
            than this stands, with its own seconds, of which some have passed.

        Raises:
            RendezvousParameterError: No such node is here, the text is empty, no clock counts so many seconds, or the
                reason is too long.
            RendezvousStateError: Another version of rdzv has written the node's record.
            RendezvousConnectionError: The service could not be reached.
        """
        notice = drain_notice(seconds, reason)
        _check_name(node)
        deadline = time.monotonic() + timeout
        live = [one.id for one in self._nodes(deadline) if one.left is None]
        others = self._others()
        here = [*live, *others]
        drained = tuple(one for one in here if node == one or name_of(one) in (node, name_in_id(node)))
        if not drained:
            there = f"here are: {', '.join(map(printable, here))}" if here else "none is here, or its id is another"
            raise RendezvousParameterError(
                f"No node '{printable(node)}' is in the run '{printable(self._run_id)}'; {there}."
            )
        if unread := next((others[one] for one in drained if one in others), None):
            raise unread
        return tuple(self._announce(one, notice, deadline) for one in drained)

    def _announce(self, node: str, notice: DrainNotice, deadline: float) -> Drain:
        applied, there = self._client.put(drain_key(node), notice.encode(), deadline, previous=None)
        while not applied and (known := first_drain(notice, there)) is notice:
            applied, there = self._client.put(drain_key(node), notice.encode(), deadline, previous=there)
        counts = notice if applied else known
        return Drain(node, counts.seconds, counts.reason)

    def await_departure(
        self, nodes: Collection[str], timeout: float, tell: Callable[[tuple[str, ...]], None] = lambda still_here: None
    ) -> tuple[str, ...]:
        """Wait until nodes have left, or are gone.

        Args:
            nodes: Their ids.
            timeout: Seconds to wait.
            tell: Gets those that are still here, at each change.

        Returns:
            Those that are still here after `timeout` seconds.

        Raises:
            RendezvousConnectionError: The service could not be reached.
        """

        def here(snapshot: DecodedSnapshot) -> tuple[str, ...]:
            live = {node.id for node in records.nodes_in(snapshot) if node.left is None}
            tell(still_here := tuple(node for node in nodes if node in live))
            return still_here

        deadline = time.monotonic() + timeout
        snapshot = self._client.read_all(records.NODES, deadline)
        return here(self._client.wait_for(lambda now: not here(now), records.NODES, snapshot, deadline))

    def pardon(self, node: str, by: str, timeout: float) -> None:
        """Lift the quarantine of a node, even if it has waited that out; what it has failed does not count any more.

        Args:
            node: Its name, or the id of one of its handlers.
            by: Who lifts it.
            timeout: Seconds to try.

        Raises:
            RendezvousParameterError: No such node was quarantined, or the text is empty.
            RendezvousConnectionError: The service could not be reached.
        """
        _check_name(node)
        deadline = time.monotonic() + timeout
        control = self._client.read_all(records.CONTROL, deadline)
        state, there = read_record(State, control.get(STATE_KEY)), read_notices(control).quarantines
        # A name may look like an id: one that is known is meant.
        names = [name for name in there if name in (node, name_in_id(node))]
        names = names or [name for name in there if name == name_of(node)]
        if not names:
            raise RendezvousParameterError(
                f"No node '{printable(node)}' is quarantined in the run '{printable(self._run_id)}'; quarantined are: "
                f"{', '.join(printable(unescape(name)) for name, one in there.items() if not one.over) or 'none'}."
            )
        for name in names:
            self._write(quarantine_key(name), pardon(state.round if state else 0, by), deadline)

    def _write(self, key: str, record: Record, deadline: float) -> None:
        """Write over whatever is there."""
        applied, there = self._client.put(key, record.encode(), deadline, previous=None)
        while not applied:
            applied, there = self._client.put(key, record.encode(), deadline, previous=there)

    def purge(self, timeout: float) -> tuple[str, ...]:
        """Remove every key of the run, once no node is left. A run that is open is closed before.

        What cannot be read is removed, too: bytes that are not rdzv's, or another version's.

        A node that comes meanwhile learns that the run is closed. One of a higher attempt keeps what it has
        written: only what belongs to this attempt and those before it is removed.

        Args:
            timeout: Seconds for the nodes to go, and for removing the keys.

        Returns:
            The ids of the nodes that are still there after `timeout` seconds; nothing was removed then.

        Raises:
            RendezvousParameterError: A higher attempt has begun, so the run goes on.
            RendezvousConnectionError: The service could not be reached.
        """
        return self._purge(time.monotonic() + timeout).run()

    def _purge(self, deadline: float) -> Purge:
        return Purge(self._run_id, self._client, self._raw, self._close, deadline)

    def _nodes(self, deadline: float) -> list[NodeRecord]:
        self._nodes_seen = self._client.read_all(records.NODES, deadline, self._nodes_seen)
        return records.nodes_in(self._nodes_seen)

    def _others(self) -> dict[str, OtherVersionError]:
        """See `records.of_another_version`: of the nodes that were read last."""
        return {} if self._nodes_seen is None else records.of_another_version(self._nodes_seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._client.close()


def _check_name(node: str) -> None:
    if not node:
        raise RendezvousParameterError("An empty text names no node; give a node's name, or its id.")


def _describe(run_id: str, control: DecodedSnapshot, found: State | None, nodes: list[NodeRecord]) -> Status:
    leader = read_record(LeaderRecord, control.get(records.LEADER_KEY))
    published = read_record(RunStatus, control.get(records.STATUS_KEY))
    notices = read_notices(control)
    state = found or NO_STATE
    source = found or leader or next(iter(nodes), NO_STATE)
    ranks = {node: rank for rank, node in enumerate(state.world)}
    known = sorted((_describe_node(node, state.round, ranks, notices) for node in nodes), key=_by_rank)
    return Status(
        run_id,
        _phase(state, published, nodes).value,
        source.attempt,
        state.round,
        source.min_nodes,
        source.max_nodes,
        _takes(source.limits) if source is not NO_STATE else "",
        leader.node if leader else None,
        tuple(known),
        _missing(state, published, nodes),
        sum(node.doing == _WAITING for node in known),
        state.closed.by if state.closed else None,
        state.closed.reason if state.closed else None,
        tuple(
            f"round {number}: {one.node} {one.how}: {one.reason}"
            for number, one in sorted(notices.failures.items())
            if one.counts or one.verdict is None
        ),
        tuple(
            f"{unescape(name)}: quarantine {one.times}, {one.cooldown:g} s from when it learns of that: {one.reason}"
            for name, one in sorted(notices.quarantines.items())
            if not one.over
        ),
        absent=_absent(state, published) if leader else None,
    )


def _absent(state: State, published: RunStatus | None) -> str | None:
    if published is None or published.round != state.round:
        return None
    return listed(published.missing or (), total=published.absent) or None


def _takes(limits: Limits) -> str:
    wanted = f", {limits.rule.wanted} wanted" if limits.rule is not None and limits.rule.wanted else ""
    return f"{limits.takes()}{wanted}"


def _phase(state: State, published: RunStatus | None, nodes: list[NodeRecord]) -> Phase:
    live = [node for node in nodes if node.left is None]
    phase = rules.phase(state, rules.active_members(state, live))
    if phase is Phase.GATHERING and not live:
        return Phase.UNKNOWN
    if phase is Phase.GATHERING and published is not None and published.phase is Phase.LAST_CALL:
        # A leader that died has left its last status.
        return Phase.LAST_CALL
    return Phase.ABANDONED if phase in (Phase.RUNNING, Phase.RE_FORMING) and not live else phase


def _describe_node(node: NodeRecord, number: int, ranks: dict[str, int], notices: Notices) -> NodeStatus:
    rank = ranks.get(node.id) if node.last_round < number else None
    doing = f"left: {node.left}" if node.left is not None else _WAITING if rank is None else "in the round"
    drain = notices.drains.get(node.id)
    drains = None
    if drain is not None and node.left is None:
        # What is left of it, only the node's own clock tells.
        drains = f"drains within {drain.seconds:g} s of the announcement: {drain.reason}"
    return NodeStatus(node.id, rank, node.address, doing, node.left, drains, node.version)


def _missing(state: State, published: RunStatus | None, nodes: list[NodeRecord]) -> tuple[MissingNode, ...]:
    # A status also names those that a service has lost with the pages of their world.
    losses = {departure.node: departure for departure in records.named_departures(published, state.round)}
    losses |= rules.departures(state, nodes, published, None if state.closed else _RECORD_GONE)
    # The record of one that has left stays for a while, and one that was cut off may be back.
    recorded = {node.id for node in nodes}
    return tuple(
        MissingNode(
            gone.node,
            gone.rank,
            f"{'left' if gone.left else 'missing'}: {gone.cause}",
            gone.cause if gone.left else None,
        )
        for gone in sorted(losses.values(), key=lambda gone: gone.rank)
        if gone.node not in recorded
    )


def _by_rank(node: NodeStatus) -> tuple[bool, int]:
    return node.rank is None, node.rank or 0
