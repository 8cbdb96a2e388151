"""What a node knows of itself and of its run: what a launcher asks between two calls of the handler."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError
from rdzv_core.handler import Drain

from .node import Node
from .notices import Failure
from .progress import without_progress
from .records import NO_STATE, Closed, NodeRecord, RunStatus
from .waits import Wait, in_words


class NodeView:
    """One node as it knows itself at the moment of the question; no question waits, calls the service or changes it."""

    def __init__(self, node: Node, member_until: Callable[[], float | None]) -> None:
        """See `DynamicRendezvousHandler.view`; the second is `Node.member_until` under the node's lock."""
        self._node = node
        self._member_until = member_until

    @property
    def node_id(self) -> str:
        """This node's id, under which the others know it."""
        return self._node.id

    @property
    def record(self) -> NodeRecord | None:
        """What this node tells the others of itself, such as its address and port as rank 0; None: it is not here."""
        return self._node.registration.record

    @property
    def status(self) -> RunStatus | None:
        """The latest news of the run; None if there was none."""
        return self._node.run.status

    @property
    def closed(self) -> Closed | None:
        """The node that closed the run, and why; None while it is open."""
        return self._node.closed()

    @property
    def member_until(self) -> float | None:
        """Until when this node is certainly a member of the world that it was given last: then its lease may end.

        A moment on the monotonic clock (`time.monotonic`); each keep-alive moves it on. None if the node cannot be
        sure now: it has no world, has left it, its lease may have ended, or a later round was formed without it.
        """
        return self._member_until()

    @property
    def connection_error(self) -> RendezvousConnectionError | None:
        """Why the service could not be reached lately, or refuses this node; None while it does neither."""
        return self._node.connection_error

    @property
    def refused_timeout(self) -> float | None:
        """Seconds for which this node goes on while the service refuses it, counted from the first refusal; None: it is
        not refused now."""
        return self._node.failures.patience() if isinstance(self.connection_error, RendezvousDeniedError) else None

    @property
    def refused(self) -> float | None:
        """Seconds for which the service has refused this node; None: it does not."""
        if not isinstance(self.connection_error, RendezvousDeniedError):
            return None
        # A call is tried again for a while before its loop knows of a refusal.
        since = self._node.failures.refused_since
        return self._node.connection.silence() if since == math.inf else self._node.clock() - since

    @property
    def since_last_contact(self) -> float:
        """Seconds since the service last answered; infinite if it never did."""
        return self._node.connection.since_last_contact()

    def waits_for(self, seconds: float) -> str:
        """What this node waits for, in one line, having waited for so many seconds. It is for people: the words may
        change."""
        node, run = self._node, self._node.run
        wait = Wait(
            node.id,
            node.settings.attempt,
            node.settings.limits,
            node.ttl,
            seconds=seconds,
            silence=self.since_last_contact,
            error=self.connection_error,
            is_refused=self.refused_timeout is not None,
            shortage=node.failures.shortage,
            quarantine=self.quarantine,
            last_round=self.record.last_round if self.record is not None else 0,
            state=run.state or NO_STATE,
            status=run.status,
            leader=run.leader.node if run.leader is not None else None,
            forms_in=node.countdown.forms_at - time.monotonic(),
        )
        return in_words(wait)

    @property
    def alone(self) -> float | None:
        """Seconds for which this node has waited alone: all others of its world have left. None: it is not so."""
        return self._node.countdown.alone_for(time.monotonic())

    @property
    def drains(self) -> Sequence[Drain]:
        """The members of this node's world that drain, with the seconds that each has left; this one, too.

        While the node is in no world, it is all nodes of the run; in one of more than 64 nodes, too: who is in it would
        have to be read.
        """
        now, drains = time.monotonic(), self._node.countdown.drains
        return tuple(
            Drain(node, max(0.0, end.moment - now), end.reason)
            for node, end in sorted(drains.items(), key=lambda item: item[1])
            if not self._node.is_outside(node)
        )

    @property
    def is_drained(self) -> bool:
        """Whether this node drains, and goes now."""
        return self._node.is_drained()

    @property
    def drain_reason(self) -> str:
        """Why this node drains, in words."""
        return self._node.countdown.drain_reason()

    @property
    def quarantine(self) -> str | None:
        """For how many more seconds this node is quarantined, and why, in words; None: it is not."""
        return self._node.countdown.quarantined(time.monotonic())

    @property
    def pays(self) -> bool:
        """Whether this node has to count the failure that ended its round before: no loss and no other explains it."""
        return self._node.reckoning.pays

    @property
    def ended_by(self) -> Failure | None:
        """The first failure of that round, with its verdict; None: there was none, or none is known."""
        return self._node.reckoning.ended_by

    @property
    def failures(self) -> Mapping[int, Failure]:
        """The first failure in each of the last rounds; a round without any is left out."""
        return self._node.run.notices.failures

    @property
    def rounds_without_progress(self) -> Sequence[tuple[int, Failure]]:
        """The consecutive rounds of this attempt without progress, up to the one that this node joined last; each with
        its first failure. At most `ROUNDS_KEPT` are known."""
        return without_progress(self.failures, self._node.settings.attempt, self._node.round)
