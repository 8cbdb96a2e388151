"""Coroutines of nodes, taken effect by effect beside a service in this process, on a clock that only tests move."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

from rdzv_core.backend import ABSENT, Snapshot
from rdzv_core.envelope import Envelope

from rdzv.engine import effects
from rdzv.engine.client import DecodedSnapshot, RetryingClient, VersionedValue
from rdzv.engine.effects import Call, Coroutine, Effect, Put
from rdzv.engine.node import Node
from rdzv.engine.records import LEADER_KEY, NodeRecord, State
from rdzv.engine.registration import NodeState
from rdzv.settings import RendezvousSettings, RendezvousTimeout

from .memory import MemoryBackend, MemoryService

__all__ = ["INTERVAL", "TTL", "Harness", "Stepper"]

INTERVAL = 5.0
TTL = 15.0
LONG_AGO = -1e6
"""When the clock begins: every deadline is over on the real one, so `RetryingClient` tries nothing a second time."""
SOON = LONG_AGO
MANY = 10_000
"""Effects that no test takes."""

_R = TypeVar("_R")


class Harness:
    """A service, and the clock of its nodes.

    Attributes:
        now: What the clock shows.
        memory: The service.
        backend: How nodes reach it.
        service: The same, with envelopes.
        nodes: All that were made; an answer to one is a contact of all.
    """

    def __init__(self) -> None:
        self.now = LONG_AGO
        self.memory = MemoryService()
        self.backend = MemoryBackend(self.memory)
        self.client = RetryingClient(self.backend, "service")
        self.nodes: list[Node] = []

    def clock(self) -> float:
        """What time it is."""
        return self.now

    def node(self, name: str = "a", low: int = 2, high: int = 4, join: float = 600.0, **more: Any) -> Node:
        """A node that has looked at the service once."""
        timeout = RendezvousTimeout(timedelta(seconds=join))
        settings = RendezvousSettings("run", low, high, timeout, timedelta(seconds=INTERVAL), 3, **more)
        node = Node(settings, "memory", self.clock, id=name)
        self.nodes.append(node)
        self.show(node)
        return node

    def registered(self, name: str = "a", **more: Any) -> Node:
        """A registered node: the service has its record, on a lease that lives."""
        node = self.node(name, **more)
        mine = node.registration
        mine.record = NodeRecord(name, node.settings.attempt, 0, 2, 4, f"{name}.host", 1)
        mine.state = NodeState.REGISTERED
        mine.lease = self.client.open_lease(TTL, SOON)
        mine.lease_until = self.now + TTL
        mine.version = self.put(mine.record.key, mine.record.encode(), lease=mine.lease)
        return node

    def show(self, node: Node) -> None:
        """Show a node what the service holds."""
        node.connection.on_contact()
        node.connection.on_renewal(self.now)
        node.apply_snapshot(self.client.read_all("control", SOON, node.run.snapshot))

    def put(self, key: str, payload: bytes, *, previous: Any = ABSENT, **more: Any) -> VersionedValue:
        """Write as another node would: over any value that exists."""
        previous = self.client.read(key, SOON) if previous is ABSENT else previous
        applied, versioned = self.client.put(key, payload, SOON, previous=previous, **more)
        assert applied
        assert versioned is not None
        return versioned

    def publish(self, state: State) -> VersionedValue:
        """Write a state."""
        return self.put("control/state", state.encode())

    def lead(self, node: Node) -> None:
        """Make a node the leader."""
        self.put(LEADER_KEY, node.limits().encode(), lease=node.registration.lease)
        self.show(node)
        node.candidacy.begin_term()

    def read(self, key: str) -> VersionedValue | None:
        """What a key holds."""
        return self.client.read(key, SOON)

    def writes(self, key: str) -> int:
        """How often a key was written since it was made."""
        entry = self.memory.entries.get(f"run/{key}")
        return 0 if entry is None else Envelope.unpack(entry.value).epoch

    def names(self) -> set[str]:
        """Everything that the service holds, but tombstones."""
        entries = {key.removeprefix("run/"): entry for key, entry in self.memory.entries.items()}
        return set(DecodedSnapshot(Snapshot(entries)).valid_entries())

    def end_leases(self) -> None:
        """Let every lease end."""
        with self.memory.changed:
            for lease in list(self.memory.leases):
                self.memory.end(lease)

    def forget(self) -> None:
        """Let the service lose all that it holds."""
        self.end_leases()
        with self.memory.changed:
            self.memory.remove("run")

    def stepper(self, coroutine: Coroutine[_R]) -> "Stepper[_R]":
        """Take a coroutine effect by effect."""
        return Stepper(self, coroutine)

    def run(self, coroutine: Coroutine[_R]) -> _R:
        """Take a coroutine to its end."""
        return Stepper(self, coroutine).end()

    def perform(self, effect: Effect) -> Any:
        """Do what an effect asks for. Time passes where it asks for that, and nowhere else."""
        match effect:
            case effects.Sleep(until) | effects.WaitForChange(until):
                self.now = max(self.now, until)
                return None
            case effects.Emit(events):
                return [None for _ in events]
            case effects.SpawnLeader() | effects.AssignRanks():
                return None
            case effects.Wait(prefix, since, deadline):
                snapshot = self.client.read_all(prefix, SOON, since)
                if snapshot.encoded.entries != since.encoded.entries:
                    return snapshot
                self.now = max(self.now, deadline)
                return since
            case effects.Together(calls):
                return [self.perform(call) for call in calls]
            case Call():
                answer = effect.perform(self.client)
            case _:
                raise TypeError(f"{effect!r} is for a runner")
        for node in self.nodes:
            node.connection.on_contact()
            node.connection.on_renewal(self.now)
        return answer


class Stepper(Generic[_R]):
    """A coroutine between two of its effects.

    Attributes:
        effect: What it asks for now; None: it has ended.
        taken: What it has asked for before, and got.
    """

    def __init__(self, harness: Harness, coroutine: Coroutine[_R]) -> None:
        self.effect: Effect | None = None
        self.taken: list[Effect] = []
        self._harness = harness
        self._coroutine = coroutine
        self._returned: Any = None
        self._resume(lambda: next(coroutine))

    def to(self, *kinds: type[Effect]) -> Any:
        """Go on to the next effect of such a kind, and stop before it; fails if there is none."""
        while not isinstance(self.effect, kinds):
            assert self.effect is not None, f"it has ended: {self.taken}"
            self.go()
        return self.effect

    def to_write(self, key: str) -> Put:
        """Go on to the next write of a key, and stop before it."""
        while not (isinstance(self.effect, Put) and self.effect.key == key):
            assert self.effect is not None, f"it has ended: {self.taken}"
            self.go()
        return self.effect

    def go(self) -> Effect | None:
        """Do what it asks for now; returns what it asks for next."""
        assert self.effect is not None
        try:
            answer = self._harness.perform(self.effect)
        except Exception as error:
            return self.throw(error)
        return self.send(answer)

    def send(self, answer: Any) -> Effect | None:
        """Answer what it asks for now; returns what it asks for next."""
        return self._resume(lambda: self._coroutine.send(answer))

    def throw(self, error: BaseException) -> Effect | None:
        """Let what it asks for now fail; returns what it asks for next."""
        return self._resume(lambda: self._coroutine.throw(error))

    def end(self) -> _R:
        """Go on to its end; returns what it returns."""
        while self.effect is not None:
            self.go()
        returned: _R = self._returned
        return returned

    def _resume(self, take: Callable[[], Effect]) -> Effect | None:
        if self.effect is not None:
            self.taken += self.effect.calls if isinstance(self.effect, effects.Together) else [self.effect]
        assert len(self.taken) < MANY, f"it goes round in circles: {self.taken[-10:]}"
        self.effect = None
        try:
            self.effect = take()
        except StopIteration as stop:
            self._returned = stop.value
        return self.effect
