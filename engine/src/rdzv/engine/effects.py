"""What a node may ask of the outside world, one effect at a time.

A *coroutine* is a generator that yields effects and is sent their results. Everything that it does
between two effects is one atomic piece: the runner runs it under the node's lock, the simulator
in virtual time. So the code that is simulated is the code that runs.

Deadlines and moments are seconds on the node's own monotonic clock.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from rdzv_core.backend import Lease

from ..hooks import Event
from .client import DecodedSnapshot, RetryingClient, VersionedValue
from .records import NodeRecord


class Call(ABC):
    """A call to the service: retried until its deadline, and settled if a reply is lost.

    Attributes:
        is_contact: Whether an answer shows that the service is there.
    """

    __slots__ = ()

    is_contact: ClassVar[bool] = True

    @abstractmethod
    def perform(self, client: RetryingClient) -> Any:
        """Make the call; returns its answer."""


@dataclass(frozen=True, slots=True)
class Read(Call):
    """Read one key; answers ``VersionedValue | None``."""

    key: str
    deadline: float

    def perform(self, client: RetryingClient) -> VersionedValue | None:
        return client.read(self.key, self.deadline)


@dataclass(frozen=True, slots=True)
class ReadAll(Call):
    """Read a prefix; answers a `DecodedSnapshot`."""

    prefix: str
    deadline: float
    before: DecodedSnapshot | None = None

    def perform(self, client: RetryingClient) -> DecodedSnapshot:
        return client.read_all(self.prefix, self.deadline, self.before)


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a prefix to change, not retried; answers a `DecodedSnapshot`, `since` itself if time ran out."""

    prefix: str
    since: DecodedSnapshot
    deadline: float


@dataclass(frozen=True, slots=True)
class Put(Call):
    """Write a key under a condition; answers ``(applied, VersionedValue | None)``. See `RetryingClient.put`."""

    key: str
    payload: bytes
    deadline: float
    previous: VersionedValue | None
    lease: Lease | None = None
    deleted: bool = False

    def perform(self, client: RetryingClient) -> tuple[bool, VersionedValue | None]:
        return client.put(
            self.key, self.payload, self.deadline, previous=self.previous, lease=self.lease, deleted=self.deleted
        )


@dataclass(frozen=True, slots=True)
class CreateAll(Call):
    """Make keys of which none exists in one step; answers whether that is known to be done. See
    `RetryingClient.create_all`."""

    payloads: Mapping[str, bytes]
    deadline: float

    def perform(self, client: RetryingClient) -> bool:
        return client.create_all(self.payloads, self.deadline)


@dataclass(frozen=True, slots=True)
class Delete(Call):
    """Remove a prefix."""

    prefix: str
    deadline: float

    def perform(self, client: RetryingClient) -> None:
        return client.delete(self.prefix, self.deadline)


@dataclass(frozen=True, slots=True)
class OpenLease(Call):
    """Open a lease; answers a `Lease`. A heartbeat lease asks nothing for it: the write that follows tells."""

    is_contact: ClassVar[bool] = False

    ttl: float
    deadline: float

    def perform(self, client: RetryingClient) -> Lease:
        return client.open_lease(self.ttl, self.deadline)


@dataclass(frozen=True, slots=True)
class KeepAlive(Call):
    """Renew a lease; answers False if it has ended."""

    lease: Lease
    deadline: float

    def perform(self, client: RetryingClient) -> bool:
        return client.keep_alive(self.lease, self.deadline)


@dataclass(frozen=True, slots=True)
class Revoke(Call):
    """End a lease and remove its keys."""

    lease: Lease
    deadline: float

    def perform(self, client: RetryingClient) -> None:
        return client.revoke(self.lease, self.deadline)


AT_ONCE: Final = 8
"""Calls of one node that are on their way at once, at most: each is a connection to the service."""


@dataclass(frozen=True, slots=True)
class Together:
    """Make calls side by side, at most `AT_ONCE` at a time; answers their answers, in the order of the calls.

    What one raises is raised once all are over that have begun; then no further one begins.
    """

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Go on at that moment, or as soon as the node stops."""

    until: float


@dataclass(frozen=True, slots=True)
class WaitForChange:
    """Go on when what this node knows has changed, at that moment at the latest."""

    until: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Emit events to the plugins."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class AssignRanks:
    """Let the plugins order the ranks of a new world; answers the ids in rank order, None: the default holds."""

    arrived: tuple[NodeRecord, ...]
    previous: tuple[str, ...]
    deadline: float


@dataclass(frozen=True, slots=True)
class SpawnLeader:
    """Start the leader's coroutine for this term."""

    term: int


Effect = Call | Together | Wait | Sleep | WaitForChange | Emit | AssignRanks | SpawnLeader


def waits_on(before: Effect | None, effect: Effect | None) -> bool:
    """Whether a coroutine that is woken by a change only looked, and waits on: then it has changed nothing itself. Were
    the others woken, two such coroutines would wake each other for ever."""
    return isinstance(before, WaitForChange) and isinstance(effect, WaitForChange)


_R = TypeVar("_R")

Coroutine = Generator[Effect, Any, _R]
"""A piece of a node's behaviour: yields effects, is sent their results, returns ``_R``."""
