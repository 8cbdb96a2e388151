"""What can happen to a node beside the run itself: faults, and what its program does. Each is a line of the table."""

from collections.abc import Callable, Iterator
from typing import Final

from .world import HELD, ON_ITS_WAY, SILENT, Mode, Next, NodeAt, World, WorldAt, with_status

__all__ = ["HAPPENINGS"]

Happening = Callable[[World, WorldAt, int], Iterator[Next]]
"""What comes of it where a node is: nothing where it cannot happen, or something in several ways."""


def crash(world: World, at: WorldAt, index: int) -> Iterator[Next]:
    """kill -9. What it has sent before, and the service gets, is the same as a crash a moment later."""
    dead = NodeAt(0, Mode.DEAD, True, ())
    yield Next(world.put(at, index, dead), ("{} is killed", world.nodes[index].name))


def _stops(mode: Mode, words: str) -> Happening:
    def stops(world: World, at: WorldAt, index: int) -> Iterator[Next]:
        node = at.nodes[index]._replace(mode=mode, disturbed=True)
        yield Next(world.put(at, index, node), (words, world.nodes[index].name))

    return stops


def _answers(change: Callable[[int], int], words: str) -> Happening:
    """The service does what a node asks for, and the answer does not come, or not now."""

    def answers(world: World, at: WorldAt, index: int) -> Iterator[Next]:
        for place in world.answerable(at, index):
            request = world.memory(at, index).requests[place]
            called = world.call(at, index, place)
            if request[0] != "wait":
                node = called.then.nodes[index]
                changed = with_status(node, place, change(node.statuses[place]))._replace(disturbed=True)
                what = (words, world.nodes[index].name, request)
                yield called._replace(then=world.put(called.then, index, changed), what=what)

    return answers


def _late(method: str) -> Happening:
    """A request hangs in a connection that breaks, and is applied at some time."""

    def late(world: World, at: WorldAt, index: int) -> Iterator[Next]:
        requests = world.memory(at, index).requests
        for place, status in enumerate(at.nodes[index].statuses):
            if status == ON_ITS_WAY and requests[place][0] == method:
                what = ("the connection of {} breaks, with {}", world.nodes[index].name, requests[place])
                yield Next(world.late(at, index, place), what)

    return late


def _program(order: str, words: str, *arguments: str) -> Happening:
    def does(world: World, at: WorldAt, index: int) -> Iterator[Next]:
        facts = world.memory(at, index).facts
        if facts.alive and facts.working:
            found = world.given(at, index, ("order", order, *arguments), True)
            yield found._replace(what=(words, world.nodes[index].name))

    return does


HAPPENINGS: Final[dict[str, Happening]] = {
    "crash": crash,
    "pause": _stops(Mode.PAUSED, "{} stands still"),
    "lost reply": _answers(lambda status: SILENT, "{} gets no answer to {}"),
    "late reply": _answers(lambda status: status + HELD, "{} waits for the answer to {}"),
    "ended lease": _stops(Mode.CUT_OFF, "{} is cut off until its lease has ended"),
    "late delete": _late("delete"),
    "late put": _late("put"),
    "fail": _program("fail", "the program of {} fails, and joins again"),
    "leave": _program("leave", "{} leaves", "it had orders to"),
    "close": _program("close", "{} closes the run", "enough"),
    "shutdown": _program("shut_down", "{} shuts down"),
}
