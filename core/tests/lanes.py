"""Lanes of nodes, taken step by step beside a service in this process, on a clock that only tests move."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

from rdzv.backend import ABSENT, Snapshot
from rdzv.engine import steps
from rdzv.engine.driver import call
from rdzv.engine.envelope import Envelope
from rdzv.engine.node import Node
from rdzv.engine.records import LEADER_KEY, NodeRecord, State
from rdzv.engine.service import Held, Service, View
from rdzv.engine.steps import Lane, Put, Step
from rdzv.settings import RendezvousSettings, RendezvousTimeout

from .memory import MemoryBackend, MemoryService

__all__ = ["INTERVAL", "TTL", "Stage", "Walk"]

INTERVAL = 5.0
TTL = 15.0
LONG_AGO = -1e6
"""When the clock begins: every deadline is over on the real one, so `Service` tries nothing a second time."""
SOON = LONG_AGO
MANY = 10_000
"""Steps that no test takes."""

_R = TypeVar("_R")


class Stage:
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
        self.service = Service(self.backend, "service")
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
        self.look(node)
        return node

    def enrolled(self, name: str = "a", **more: Any) -> Node:
        """A node whose record the service holds, on a lease that lives."""
        node = self.node(name, **more)
        node.record = NodeRecord(name, node.settings.attempt, 0, 2, 4, f"{name}.host", 1)
        node.known = True
        node.lease = self.service.open_lease(TTL, SOON)
        node.lease_until = self.now + TTL
        node.written = self.put(node.record.key, node.record.encode(), lease=node.lease)
        return node

    def look(self, node: Node) -> None:
        """Show a node what is there."""
        node.contacted()
        node.look(self.service.read_all("control", SOON))

    def put(self, key: str, payload: bytes, *, after: Any = ABSENT, **more: Any) -> Held:
        """Write as another node would: over what is there, whatever it is."""
        before = self.service.read(key, SOON) if after is ABSENT else after
        won, held = self.service.put(key, payload, SOON, after=before, **more)
        assert won
        assert held is not None
        return held

    def publish(self, state: State) -> Held:
        """Write a state."""
        return self.put("control/state", state.encode())

    def lead(self, node: Node) -> None:
        """Make a node the leader."""
        self.put(LEADER_KEY, node.limits().encode(), lease=node.lease)
        self.look(node)
        node.leading = True

    def read(self, key: str) -> Held | None:
        """What a key holds."""
        return self.service.read(key, SOON)

    def writes(self, key: str) -> int:
        """How often a key was written since it was made."""
        entry = self.memory.entries.get(f"run/{key}")
        return 0 if entry is None else Envelope.unpack(entry.value).epoch

    def names(self) -> set[str]:
        """Everything that the service holds, but tombstones."""
        entries = {key.removeprefix("run/"): entry for key, entry in self.memory.entries.items()}
        return set(View(Snapshot(entries)).readable())

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

    def walk(self, lane: Lane[_R]) -> "Walk[_R]":
        """Take a lane step by step."""
        return Walk(self, lane)

    def run(self, lane: Lane[_R]) -> _R:
        """Take a lane to its end."""
        return Walk(self, lane).end()

    def perform(self, step: Step) -> Any:
        """Do what a step asks for. Time passes where it asks for that, and nowhere else."""
        match step:
            case steps.Sleep(until) | steps.Changed(until):
                self.now = max(self.now, until)
                return None
            case steps.Tell(events):
                return [None for _ in events]
            case steps.Lead():
                return None
            case steps.Wait(prefix, since, deadline):
                view = self.service.read_all(prefix, SOON, since)
                if view.snapshot.entries != since.snapshot.entries:
                    return view
                self.now = max(self.now, deadline)
                return since
            case _:
                answer = call(self.service, step)
        for node in self.nodes:
            node.contacted()
        return answer


class Walk(Generic[_R]):
    """A lane between two of its steps.

    Attributes:
        step: What it asks for now; None: it has ended.
        taken: What it has asked for before, and got.
    """

    def __init__(self, stage: Stage, lane: Lane[_R]) -> None:
        self.step: Step | None = None
        self.taken: list[Step] = []
        self._stage = stage
        self._lane = lane
        self._returned: Any = None
        self._resume(lambda: next(lane))

    def to(self, *kinds: type[Step]) -> Any:
        """Go on to the next step of such a kind, and stop before it; fails if there is none."""
        while not isinstance(self.step, kinds):
            assert self.step is not None, f"it has ended: {self.taken}"
            self.go()
        return self.step

    def to_write(self, key: str) -> Put:
        """Go on to the next write of a key, and stop before it."""
        while not (isinstance(self.step, Put) and self.step.key == key):
            assert self.step is not None, f"it has ended: {self.taken}"
            self.go()
        return self.step

    def go(self) -> Step | None:
        """Do what it asks for now; returns what it asks for next."""
        assert self.step is not None
        try:
            answer = self._stage.perform(self.step)
        except Exception as error:
            return self.throw(error)
        return self.send(answer)

    def send(self, answer: Any) -> Step | None:
        """Answer what it asks for now; returns what it asks for next."""
        return self._resume(lambda: self._lane.send(answer))

    def throw(self, error: BaseException) -> Step | None:
        """Let what it asks for now fail; returns what it asks for next."""
        return self._resume(lambda: self._lane.throw(error))

    def end(self) -> _R:
        """Go on to its end; returns what it returns."""
        while self.step is not None:
            self.go()
        returned: _R = self._returned
        return returned

    def _resume(self, take: Callable[[], Step]) -> Step | None:
        if self.step is not None:
            self.taken.append(self.step)
        assert len(self.taken) < MANY, f"it goes round in circles: {self.taken[-10:]}"
        self.step = None
        try:
            self.step = take()
        except StopIteration as stop:
            self._returned = stop.value
        return self.step
