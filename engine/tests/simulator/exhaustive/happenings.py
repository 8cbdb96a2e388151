"""What can happen to a node beside the run itself: faults, and what its program does. Each is a line of the table."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .world import HELD, SILENT, Happening, Mode, Next, NodeAt, World, WorldAt, with_status

__all__ = ["HAPPENINGS"]


class _ToNode:
    """It concerns all of a node, and none of its calls in particular."""

    def to_call(self, world: World, at: WorldAt, index: int, place: int) -> Iterator[Next]:
        """See `Happening`."""
        return iter(())


class _ToCall:
    """It concerns one call."""

    def to_node(self, world: World, at: WorldAt, index: int) -> Iterator[Next]:
        """See `Happening`."""
        return iter(())


class _Crash(_ToNode):
    """kill -9. What it has sent by then is lost: if the service gets it, that is a crash a moment later."""

    def to_node(self, world: World, at: WorldAt, index: int) -> Iterator[Next]:
        """See `Happening`."""
        yield Next(world.put(at, index, NodeAt(0, Mode.DEAD, True, ())), ("{} is killed", world.nodes[index].name))


@dataclass(frozen=True)
class _Stop(_ToNode):
    """The node cannot go on, or not reach the service, until it recovers."""

    mode: Mode
    words: str

    def to_node(self, world: World, at: WorldAt, index: int) -> Iterator[Next]:
        """See `Happening`."""
        node = at.nodes[index]._replace(mode=self.mode, disturbed=True)
        yield Next(world.put(at, index, node), (self.words, world.nodes[index].name))


@dataclass(frozen=True)
class _Answer(_ToCall):
    """The service does what a node asks for, and the answer does not come, or later."""

    is_lost: bool
    words: str

    def to_call(self, world: World, at: WorldAt, index: int, place: int) -> Iterator[Next]:
        """See `Happening`."""
        request = world.memory(at, index).requests[place]
        if request[0] == "wait":
            return
        called = world.call(at, index, place)
        node = called.then.nodes[index]
        status = SILENT if self.is_lost else node.statuses[place] + HELD
        then = world.put(called.then, index, with_status(node, place, status)._replace(disturbed=True))
        yield called._replace(then=then, what=(self.words, world.nodes[index].name, request))


@dataclass(frozen=True)
class _Late(_ToCall):
    """A request hangs in a connection that breaks, and is applied at some time."""

    method: str

    def to_call(self, world: World, at: WorldAt, index: int, place: int) -> Iterator[Next]:
        """See `Happening`."""
        request = world.memory(at, index).requests[place]
        if request[0] == self.method:
            what = ("the connection of {} breaks, with {}", world.nodes[index].name, request)
            yield Next(world.late(at, index, place), what)


@dataclass(frozen=True)
class _Program(_ToNode):
    """A program that works does something: a method of `Machine`."""

    order: str
    words: str
    arguments: tuple[str | float, ...] = ()

    def to_node(self, world: World, at: WorldAt, index: int) -> Iterator[Next]:
        """See `Happening`."""
        facts = world.memory(at, index).facts
        if facts.alive and facts.working:
            found = world.given(at, index, ("order", self.order, *self.arguments), True)
            yield found._replace(what=(self.words, world.nodes[index].name))


HAPPENINGS: Final[dict[str, Happening]] = {
    "crash": _Crash(),
    "pause": _Stop(Mode.PAUSED, "{} stands still"),
    "lost reply": _Answer(True, "{} gets no answer to {}"),
    "late reply": _Answer(False, "{} waits for the answer to {}"),
    "ended lease": _Stop(Mode.CUT_OFF, "{} is cut off until its lease has ended"),
    "late delete": _Late("delete"),
    "late put": _Late("put"),
    "fail": _Program("fail", "the program of {} fails, and joins again"),
    "leave": _Program("leave", "{} leaves", ("it had orders to",)),
    "drain": _Program("drain", "{} drains: it goes in three seconds, and all are ready before", (3.0,)),
    "short drain": _Program("drain", "{} drains: it goes in one second, before all are ready", (1.0,)),
    "close": _Program("close", "{} closes the run", ("enough",)),
    "shutdown": _Program("shut_down", "{} shuts down"),
}
"""By name; `Bounds` says how often."""
