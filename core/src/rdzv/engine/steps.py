"""What a node may ask of the outside world, one step at a time.

A *lane* is a generator that yields steps and is sent their results. Everything that a lane does
between two steps is one atomic piece: the driver runs it under the node's lock, the simulator
in virtual time. So the code that is simulated is the code that runs.

Deadlines and moments are seconds on the node's own monotonic clock.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from ..backend import Lease
from ..hooks import Event
from .service import Held, View

__all__ = [
    "Changed",
    "Delete",
    "KeepAlive",
    "Lane",
    "Lead",
    "OpenLease",
    "Put",
    "Read",
    "ReadAll",
    "Revoke",
    "Sleep",
    "Step",
    "Tell",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Read:
    """Read one key; answers ``Held | None``."""

    key: str
    deadline: float


@dataclass(frozen=True, slots=True)
class ReadAll:
    """Read a prefix; answers a `View`."""

    prefix: str
    deadline: float
    before: View | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a prefix to change, not retried; answers a `View`, `since` itself if time ran out."""

    prefix: str
    since: View
    deadline: float


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key under a condition; answers ``(won, Held | None)``. See `Service.put`."""

    key: str
    payload: bytes
    deadline: float
    after: Held | None
    lease: Lease | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a prefix."""

    prefix: str
    deadline: float


@dataclass(frozen=True, slots=True)
class OpenLease:
    """Open a lease; answers a `Lease`."""

    ttl: float
    deadline: float


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Renew a lease; answers False if it has ended."""

    lease: Lease
    deadline: float


@dataclass(frozen=True, slots=True)
class Revoke:
    """End a lease and remove its keys."""

    lease: Lease
    deadline: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Go on at that moment, or as soon as the node closes."""

    until: float


@dataclass(frozen=True, slots=True)
class Changed:
    """Go on when what this node knows has changed, at that moment at the latest."""

    until: float


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the plugins what happened."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Lead:
    """Start the leader's lane for this term."""

    term: int


Step = Read | ReadAll | Wait | Put | Delete | OpenLease | KeepAlive | Revoke | Sleep | Changed | Tell | Lead

_R = TypeVar("_R")

Lane = Generator[Step, Any, _R]
"""A piece of a node's behaviour: yields steps, is sent their results, returns ``_R``."""
