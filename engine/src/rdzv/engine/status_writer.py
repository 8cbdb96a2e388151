"""How a leader publishes the status of its run: over what it knows, at its pace, and again if it is gone."""

from enum import Enum

from rdzv_core.backend import STATE_KEY

from .client import VersionedValue, same_version
from .effects import Coroutine, Put, Read
from .node import Node
from .pace import Pace
from .records import STATUS_KEY, Phase, RunStatus, read_record
from .register import apply_and_emit


class Standing(Enum):
    """Whether the status that the leader knows is the one in the service."""

    STANDS = "it is, as far as the leader knows"
    UNSURE = "a write over it has failed, and may have been applied all the same"
    GONE = "it is not there any more: a delete was applied too late, or the service has lost its data"


class StatusWriter:
    """Publishes a status if it is worth waking every node.

    Args:
        node: The node that leads.

    Attributes:
        last: The status that was published last, by this leader or one before it, as far as it knows; None: none was.
    """

    def __init__(self, node: Node) -> None:
        run = node.run
        self.last = run.status
        self._node = node
        self._pace = Pace(node.clock())
        # With what it knows, and no later: what an earlier leader publishes since is known before it is written over.
        self._version = run.snapshot.raw(STATUS_KEY) if run.snapshot is not None else None
        self._written = Standing.STANDS

    def publish(self, status: RunStatus, version: VersionedValue | None) -> Coroutine[float]:
        """Publish the status if it is worth waking every node; returns seconds until it may be.

        Args:
            status: What was decided.
            version: The value of the state on which it was decided.
        """
        node, known, now = self._node, self._known(status), self._node.clock()
        standing = self._standing(now)
        # That a run is closed the state says; a status might be written after the last node has removed it.
        if status.phase is Phase.CLOSED or (status == known and standing is Standing.STANDS):
            self._pace.on_nothing_new()
            return node.interval
        if (due := self._pace.pause(known, status, now, node.connection.round_trip)) > 0:
            return due
        new = set(status.departures) - set(known.departures)
        # A member may have closed the run before it left, and the watch be late.
        if any(not departure.left for departure in new) and (yield from self._is_outdated(version)):
            return 0.0
        return (yield from self._write(status, None if standing is Standing.GONE else self._version))

    def _known(self, status: RunStatus) -> RunStatus:
        """What the nodes know, to be compared with this status."""
        if self.last is not None and self.last.round == status.round:
            return self.last
        # What nodes take for granted: all of the world are there.
        state = self._node.run.state
        return RunStatus(status.round, Phase.RUNNING, state.size if state else 0, 0)

    def _standing(self, now: float) -> Standing:
        is_missing = self.last is not None and self._node.run.status is None
        # The watch may be late. The service may have lost it just before this term began.
        if is_missing and now - self._pace.written_at > self._node.interval:
            return Standing.GONE
        return self._written

    def _is_outdated(self, version: VersionedValue | None) -> Coroutine[bool]:
        """Read the state again; returns whether it is another than what was decided on, or this node leads no more."""
        node, deadline = self._node, self._node.background_deadline()
        yield from apply_and_emit(node, (yield Read(STATE_KEY, deadline)), deadline)
        return not same_version(node.run.version, version) or not node.leading

    def _write(self, status: RunStatus, previous: VersionedValue | None) -> Coroutine[float]:
        node = self._node
        payload = status.shortened(node.run.status).encode()
        self._written = Standing.UNSURE
        applied, self._version = yield Put(STATUS_KEY, payload, node.background_deadline(), previous=previous)
        self._pace.on_written(node.clock())
        self._written = Standing.STANDS
        if applied:
            self.last = status
            return node.interval
        # An earlier leader published last: know what it knew, then publish over it.
        self.last = read_record(RunStatus, self._version)
        return 0.0
