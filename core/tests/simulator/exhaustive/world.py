"""The whole of a run as one small value, and all that can happen next."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from ..invariants import Violation
from ..plan import Plan
from .judge import Judge, Shown
from .learnt_node import SILENCE, Answer, LearntNode, Memory, Request
from .learnt_service import Content, LearntService

__all__ = ["Bounds", "Mode", "NodeAt", "World", "WorldAt"]


@dataclass(frozen=True)
class Bounds:
    nodes: int = 3
    min_nodes: int = 2
    rounds: int = 2
    happens: dict[str, int] = field(default_factory=dict)
    most: int = 99


class Mode(IntEnum):
    RUNS = 0
    PAUSED = 1
    CUT_OFF = 2
    DEAD = 3


_ON_ITS_WAY: Final = -1
_HELD: Final = 1 << 30


class NodeAt(NamedTuple):
    memory: int
    mode: Mode
    disturbed: bool
    statuses: tuple[int, ...]


class WorldAt(NamedTuple):
    content: int
    judged: int
    happened: tuple[int, ...]
    late: tuple[tuple[int, int], ...]
    nodes: tuple[NodeAt, ...]


class Next(NamedTuple):
    words: tuple[Any, ...]
    then: WorldAt | None
    violation: Violation | None
    lines: tuple[str, ...]


class World:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.plan = Plan("exhaustive", bounds.min_nodes, bounds.nodes, last_call=1.0, ttl=2.0)
        self.nodes = [LearntNode(f"n{number}", self.plan) for number in range(1, bounds.nodes + 1)]
        self.service = LearntService()
        self.judge = Judge(self.plan)
        self.kinds = tuple(bounds.happens)
        self._answers: list[Answer] = [SILENCE]
        self._numbers: dict[Answer, int] = {SILENCE: 0}
        self._requests: dict[Request, int] = {}
        self._late: list[Request] = []

    def first(self) -> WorldAt:
        nodes = tuple(
            NodeAt(0, Mode.RUNS, False, (_ON_ITS_WAY,) * len(one.first.requests)) for one in self.nodes
        )
        return WorldAt(0, 0, (0,) * len(self.kinds), (), nodes)

    def nexts(self, at: WorldAt) -> Iterator[Next]:
        if self.is_over(at):
            return
        content = self.service.contents[at.content]
        busy = False
        for index, node in enumerate(at.nodes):
            if node.mode in (Mode.DEAD, Mode.CUT_OFF):
                continue
            requests = self.nodes[index].memories[node.memory].requests
            for place, status in enumerate(node.statuses):
                if status == _ON_ITS_WAY:
                    request = requests[place]
                    if self.can_be_answered(at, content, index, request):
                        busy = True
                        called = self.call(at, index, place, request)
                        yield from self.settle(called)
        for lease, _, left in content.leases:
            if left <= 0:
                busy = True
                yield Next(("ends", lease), at._replace(content=self.service.end(content, lease).number), None, ())
        for number, (index, request) in enumerate(at.late):
            yield self._apply(at._replace(late=at.late[:number] + at.late[number + 1 :]), index, self._late[request], ("late", index, self._late[request]))
        if not busy and (tick := self.tick(at, content)) is not None:
            yield from self.settle(tick)
        for index, node in enumerate(at.nodes):
            if node.mode is Mode.PAUSED:
                yield from self.settle(Next((index, "goes on"), self.put(at, index, node._replace(mode=Mode.RUNS)), None, ()))
            if node.mode is Mode.CUT_OFF and not any(lease[0] == self.nodes[index].name for lease, _, _ in content.leases):
                yield Next((index, "healed"), self.put(at, index, node._replace(mode=Mode.RUNS)), None, ())
            for place, status in enumerate(node.statuses):
                if status >= _HELD and node.mode in (Mode.RUNS, Mode.CUT_OFF):
                    yield from self.settle(self.status(at, index, place, status - _HELD, (index, "arrives", self.request(at, index, place))))
        if sum(at.happened) < self.bounds.most:
            for kind, name in enumerate(self.kinds):
                if at.happened[kind] < self.bounds.happens[name]:
                    happened = (*at.happened[:kind], at.happened[kind] + 1, *at.happened[kind + 1 :])
                    for index, node in enumerate(at.nodes):
                        if node.mode is Mode.RUNS and (not busy or self._acts(at, content, index)):
                            for found in HAPPENS[name](self, at._replace(happened=happened), index, node):
                                yield from self.settle(found)

    def is_over(self, at: WorldAt) -> bool:
        """Whether the run has come to the end of what is looked at: its last round is there, or one more."""
        state = self.judge.state(at.judged)
        rounds = 0 if state is None else state.round
        return rounds > self.bounds.rounds or (rounds == self.bounds.rounds and self.is_settled(at))

    def is_settled(self, at: WorldAt) -> bool:
        """Whether as many as possible work in one world, all others wait, and nothing is going on."""
        content, state = self.service.contents[at.content], self.judge.state(at.judged)
        living = [(index, node) for index, node in enumerate(at.nodes) if node.mode is not Mode.DEAD]
        if at.late or any(left <= 0 for _, _, left in content.leases):
            return False
        working = []
        for index, node in living:
            memory = self.nodes[index].memories[node.memory]
            if node.mode is not Mode.RUNS or memory.due:
                return False
            for request, status in zip(memory.requests, node.statuses, strict=True):
                if status != _ON_ITS_WAY or request[0] != "wait" or self.service.sees(content, request):
                    return False
            if memory.facts.working:
                working.append((self.nodes[index].name, memory.facts))
        possible = len(living) if len(living) >= self.bounds.min_nodes else 0
        if len(working) != possible or (working and state is None):
            return False
        return all(
            facts.round == state.round and name in state.world and len(state.world) == possible and not facts.waiting
            for name, facts in working
        )

    def can_be_answered(self, at: WorldAt, content: Content, index: int, request: Request) -> bool:
        """Whether the service can answer a request now."""
        if request[0] == "wait":
            return self.service.sees(content, request)
        return not self.is_early(at, content, index, request)

    def _acts(self, at: WorldAt, content: Content, index: int) -> bool:
        """Whether something of a node is next: what happens to it before that might as well happen now."""
        node = at.nodes[index]
        requests = self.nodes[index].memories[node.memory].requests
        return any(
            status == _ON_ITS_WAY and self.can_be_answered(at, content, index, request)
            for request, status in zip(requests, node.statuses, strict=True)
        )

    def is_early(self, at: WorldAt, content: Content, index: int, request: Request) -> bool:
        """Whether a node would come before one whose name is first: nodes are named in the order in which they come."""
        if any(at.happened) or request[0] != "put" or not request[1].startswith("nodes/"):
            # What has happened to a node may have made it late.
            return False
        return any(f"nodes/0/{node.name}" not in content.versions for node in self.nodes[:index])

    def settle(self, found: Next) -> Iterator[Next]:
        """Let all pieces run that can, in any order of those of one node."""
        ahead, seen = [found], {found.then}
        while ahead:
            found = ahead.pop()
            nexts = None if found.violation else self._pieces(found.then)
            if nexts is None:
                yield found
                continue
            for each in nexts:
                if each.violation or each.then not in seen:
                    seen.add(each.then)
                    ahead.append(self._after(found, each))

    def _pieces(self, at: WorldAt) -> list[Next] | None:
        """What comes of each piece of one node that can run; None: there is none."""
        for index, node in enumerate(at.nodes):
            if node.mode not in (Mode.RUNS, Mode.CUT_OFF):
                continue
            memory = self.nodes[index].memories[node.memory]
            places = [place for place, status in enumerate(node.statuses) if 0 <= status < _HELD]
            if memory.due or places:
                only = memory.due + len(places) == 1
                wakes = [("wake", 0)] if memory.due else []
                replies = [(place, memory.requests[place], node.statuses[place]) for place in places[:1]]
                return [self.input(at, index, wake, wake, None, only) for wake in wakes] + [
                    self.input(at, index, ("reply", request, self._answers[status]), ("reply", request), place, only)
                    for place, request, status in replies
                ]
        return None

    def _after(self, first: Next, second: Next) -> Next:
        return second._replace(words=(*first.words, second.words), lines=first.lines + second.lines)

    def request(self, at: WorldAt, index: int, place: int) -> Request:
        return self.nodes[index].memories[at.nodes[index].memory].requests[place]

    def status(self, at: WorldAt, index: int, place: int, status: int, words: tuple[Any, ...]) -> Next:
        node = at.nodes[index]
        statuses = (*node.statuses[:place], status, *node.statuses[place + 1 :])
        return Next(words, self.put(at, index, node._replace(statuses=statuses)), None, ())

    def put(self, at: WorldAt, index: int, node: NodeAt) -> WorldAt:
        return at._replace(nodes=(*at.nodes[:index], node, *at.nodes[index + 1 :]))

    def tick(self, at: WorldAt, content: Content) -> Next | None:
        moments = [content.next]
        for index, node in enumerate(at.nodes):
            if node.mode in (Mode.RUNS, Mode.CUT_OFF):
                moments.append(self.nodes[index].memories[node.memory].next)
        seconds = min((moment for moment in moments if moment is not None), default=None)
        if seconds is None:
            return None
        nodes = []
        for index, node in enumerate(at.nodes):
            if node.mode is not Mode.DEAD:
                real = self.nodes[index]
                node = node._replace(memory=real.on(real.memories[node.memory], ("tick", seconds)).memory.number)
            nodes.append(node)
        return Next(("tick", seconds), at._replace(content=self.service.tick(content, seconds).number, nodes=tuple(nodes)), None, ())

    def shown(self, at: WorldAt) -> tuple[Shown, ...]:
        found = []
        for index, node in enumerate(at.nodes):
            real = self.nodes[index]
            facts = real.memories[node.memory].facts
            if node.mode is Mode.DEAD:
                facts = facts._replace(alive=False, working=False, joining=False)
            found.append(Shown(real.name, facts, node.disturbed))
        return tuple(found)

    def call(self, at: WorldAt, index: int, place: int, request: Request) -> Next:
        node = at.nodes[index]
        reply = self.service.call(self.service.contents[at.content], self.nodes[index].name, request)
        status = self._numbers.setdefault(reply.answer, len(self._answers))
        if status == len(self._answers):
            self._answers.append(reply.answer)
        statuses = (*node.statuses[:place], status, *node.statuses[place + 1 :])
        then = self.put(at, index, node._replace(statuses=statuses))._replace(content=reply.content.number)
        return self.judged(then, (index, "call", request), reply.wrote)

    def _apply(self, at, index, request, words):
        reply = self.service.call(self.service.contents[at.content], self.nodes[index].name, request)
        return self.judged(at._replace(content=reply.content.number), words, reply.wrote)

    def judged(self, at: WorldAt, words, wrote) -> Next:
        lines: tuple[str, ...] = ()
        violation = None
        judged = at.judged
        for key, value in wrote:
            verdict = self.judge.on(judged, self.shown(at), "wrote", key, value)
            judged, lines, violation = verdict.number, lines + verdict.lines, violation or verdict.violation
        return Next(words, at._replace(judged=judged), violation, lines)

    def input(self, at: WorldAt, index: int, given, words, place: int | None = None, only: bool = False) -> Next:
        node, real = at.nodes[index], self.nodes[index]
        before = real.memories[node.memory]
        outcome = real.on(before, given, only)
        after = outcome.memory
        if after.requests == before.requests and place is None:
            statuses = node.statuses
        else:
            kept = {request: status for number, (request, status) in enumerate(zip(before.requests, node.statuses, strict=True)) if number != place}
            statuses = tuple(kept.get(request, _ON_ITS_WAY) for request in after.requests)
        then = self.put(at, index, node._replace(memory=after.number, statuses=statuses))
        judged, lines, violation = at.judged, (), None
        for what, *arguments in outcome.told:
            facts = arguments.pop() if what == "stepped" else after.facts
            shown = Shown(real.name, facts, node.disturbed)
            verdict = self.judge.on(judged, (shown,), what, *arguments)
            judged, lines, violation = verdict.number, lines + verdict.lines, violation or verdict.violation
        return Next((index, *words), then._replace(judged=judged), violation, lines)


def _crash(world: World, at: WorldAt, index: int, node: NodeAt) -> Iterator[Next]:
    yield Next((index, "crash"), world.put(at, index, NodeAt(node.memory, Mode.DEAD, True, ())), None, ())


def _pause(world: World, at: WorldAt, index: int, node: NodeAt) -> Iterator[Next]:
    yield Next((index, "pause"), world.put(at, index, node._replace(mode=Mode.PAUSED, disturbed=True)), None, ())


def _cut(world: World, at: WorldAt, index: int, node: NodeAt) -> Iterator[Next]:
    yield Next((index, "cut"), world.put(at, index, node._replace(mode=Mode.CUT_OFF, disturbed=True)), None, ())


def _answered(change: Callable[[int], int], words: str) -> Callable[[World, WorldAt, int, NodeAt], Iterator[Next]]:
    def happens(world: World, at: WorldAt, index: int, node: NodeAt) -> Iterator[Next]:
        content = world.service.contents[at.content]
        for place, status in enumerate(node.statuses):
            request = world.request(at, index, place)
            if status == _ON_ITS_WAY and world.can_be_answered(at, content, index, request):
                called = world.call(at, index, place, request)
                assert called.then is not None
                answered = called.then.nodes[index].statuses[place]
                then = world.put(called.then, index, called.then.nodes[index]._replace(disturbed=True))
                after = world.status(then, index, place, change(answered), (index, words, request))
                yield after._replace(lines=called.lines, violation=called.violation)

    return happens


def _late(method: str) -> Callable[[World, WorldAt, int, NodeAt], Iterator[Next]]:
    def late(world: World, at: WorldAt, index: int, node: NodeAt) -> Iterator[Next]:
        memory = world.nodes[index].memories[node.memory]
        for place, status in enumerate(node.statuses):
            if status == _ON_ITS_WAY and memory.requests[place][0] == method:
                request = memory.requests[place]
                number = world._requests.setdefault(request, len(world._late))
                if number == len(world._late):
                    world._late.append(request)
                statuses = (*node.statuses[:place], 0, *node.statuses[place + 1 :])
                then = world.put(at, index, node._replace(statuses=statuses))
                yield Next((index, "late", request), then._replace(late=(*at.late, (index, number))), None, ())

    return late


def _fail(world: World, at: WorldAt, index: int, node: NodeAt) -> Iterator[Next]:
    if world.nodes[index].memories[node.memory].facts.working:
        yield world.input(at, index, ("order", "fail"), ("fails",))


HAPPENS: Final[dict[str, Callable[[World, WorldAt, int, NodeAt], Iterator[Next]]]] = {
    "crash": _crash,
    "pause": _pause,
    "lost reply": _answered(lambda status: 0, "lost reply"),
    "late reply": _answered(lambda status: status + _HELD, "late reply"),
    "ended lease": _cut,
    "late delete": _late("delete"),
    "fail": _fail,
}
