"""The life of a node's record in the service: the states, and the table of what leads from one to another."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rdzv_core.backend import Lease

from . import transitions
from .client import VersionedValue
from .records import NodeRecord


class NodeState(Enum):
    """What the service holds of a node, as far as the node knows."""

    NEW = "the service never had its record"
    REGISTERING = "its first record is on its way"
    REGISTERED = "its record is there, on a lease that it keeps alive"
    LOST = "its lease has ended, and its record with it; it has not sent it again"
    REREGISTERING = "its record is on its way on a new lease; it trusts no world until that is fenced"
    DEREGISTERED = "it has taken its record back"
    LEFT = "it leaves, or has left: it sends its record no more"
    STOPPED = "its handler has shut down; every coroutine ends"


class Trigger(Enum):
    """What changes the state of a node."""

    SENT = "it sends its record"
    WRITTEN = "its record is written"
    FENCED = "no world can be formed without it any more"
    LEASE_LOST = "its lease ends"
    WITHDRAWN = "it gives up waiting"
    LEFT = "it leaves for good"
    STOPPED = "its handler shuts down"


Transition = transitions.Transition[NodeState, Trigger]

_WITHDRAW: Final = "Revoke, or Put of the reason"
_LIVING: Final = tuple(state for state in NodeState if state not in (NodeState.LEFT, NodeState.STOPPED))

TRANSITIONS: Final = (
    Transition(NodeState.NEW, Trigger.SENT, NodeState.REGISTERING, "OpenLease, Put"),
    Transition(NodeState.REGISTERING, Trigger.WRITTEN, NodeState.REGISTERED),
    Transition(NodeState.REGISTERING, Trigger.LEASE_LOST, NodeState.LOST, "KeepAlive, or Put"),
    Transition(NodeState.REGISTERED, Trigger.LEASE_LOST, NodeState.LOST, "KeepAlive, or Put"),
    Transition(NodeState.LOST, Trigger.SENT, NodeState.REREGISTERING, "OpenLease, Put"),
    Transition(NodeState.REREGISTERING, Trigger.LEASE_LOST, NodeState.LOST, "KeepAlive, or Put"),
    Transition(NodeState.REREGISTERING, Trigger.FENCED, NodeState.REGISTERED, "ReadAll, Put of the state"),
    Transition(NodeState.REGISTERING, Trigger.WITHDRAWN, NodeState.DEREGISTERED, _WITHDRAW),
    Transition(NodeState.REGISTERED, Trigger.WITHDRAWN, NodeState.DEREGISTERED, _WITHDRAW),
    Transition(NodeState.LOST, Trigger.WITHDRAWN, NodeState.DEREGISTERED, _WITHDRAW),
    Transition(NodeState.REREGISTERING, Trigger.WITHDRAWN, NodeState.DEREGISTERED, _WITHDRAW),
    Transition(NodeState.DEREGISTERED, Trigger.SENT, NodeState.REREGISTERING, "OpenLease, Put"),
    *(Transition(state, Trigger.LEFT, NodeState.LEFT, _WITHDRAW) for state in _LIVING),
    *(Transition(state, Trigger.STOPPED, NodeState.STOPPED) for state in (*_LIVING, NodeState.LEFT)),
)
"""What is not in the table changes nothing."""

_NEXT: Final = {(line.source, line.trigger): line.target for line in TRANSITIONS}


@dataclass
class Registration:
    """A node's record, and the lease that it belongs to.

    Attributes:
        state: See `NodeState`.
        record: What the node wants to be written of itself; None: nothing.
        version: What the service holds of it, as far as the node knows.
        lease: The lease that the record belongs to.
        unrevoked: The lease of a node that has deregistered, until the service confirms that it is over.
        lease_since: The moment at which the lease was opened.
        written_at: The moment since which the record is known to be there, on that lease.
        lease_until: The moment until which the lease certainly lives.
        writing: A coroutine writes the record: a second one waits for it.
    """

    state: NodeState = NodeState.NEW
    record: NodeRecord | None = None
    version: VersionedValue | None = None
    lease: Lease | None = None
    unrevoked: Lease | None = None
    lease_since: float = -math.inf
    written_at: float = -math.inf
    lease_until: float = -math.inf
    writing: bool = False

    @property
    def has_left(self) -> bool:
        """Whether the node leaves, or has left, for good."""
        return self.state in (NodeState.LEFT, NodeState.STOPPED)

    def on(self, trigger: Trigger) -> None:
        """Go to the next state."""
        self.state = _NEXT.get((self.state, trigger), self.state)

    def lose_lease(self) -> None:
        """Trust nothing that belonged to the lease."""
        self.lease, self.lease_until = None, -math.inf
        self.on(Trigger.LEASE_LOST)

    def withdraw(self) -> None:
        """Want nothing to be written any more."""
        self.record = None
        self.on(Trigger.WITHDRAWN)
