"""The whole of a run as one small value, and everything that can happen next.

What nodes share is the service alone. So runs differ in the order of the calls there, in what happens to nodes between
two calls, and in which answer comes first to a node that waits for several. Calls take no time: as long as any can be
answered, no moment passes; what takes longer is something that happens. See `Bounds`, and docs/simulator.md.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from ..invariants import Violation
from .bounds import Bounds
from .judge import Judge, Shown
from .learnt_node import SILENCE, Answer, LearntNode, Memory, Request
from .learnt_service import Content, LearntService
from .numbering import Numbering

__all__ = ["HELD", "ON_ITS_WAY", "SILENT", "Happening", "Mode", "Next", "NodeAt", "World", "WorldAt"]

ON_ITS_WAY: Final = -1
"""The status of a call that the service has not answered yet; otherwise it is the number of the answer."""

SILENT: Final = 0
"""The number of the answer that never comes."""

HELD: Final = 1 << 30
"""Added to the number of an answer that is on its way for longer."""


class Mode(IntEnum):
    """What the operating system and the network let a node do."""

    RUNS = 0
    PAUSED = 1
    CUT_OFF = 2
    DEAD = 3


class NodeAt(NamedTuple):
    """One node at a moment.

    Attributes:
        memory: The number of its memory.
        mode: What it can do.
        disturbed: It could not once, or a message was late.
        statuses: What became of its calls, in the order of `Memory.requests`.
    """

    memory: int
    mode: Mode
    disturbed: bool
    statuses: tuple[int, ...]


class WorldAt(NamedTuple):
    """Everything at a moment: two runs that are here have the same future.

    Attributes:
        content: The number of what the service holds.
        judged: The number of what the invariants remember.
        happened: How often each kind of thing has happened.
        late: The requests that will be applied at some time: a node, and the number of what it asked.
        nodes: The nodes.
    """

    content: int
    judged: int
    happened: tuple[int, ...]
    late: tuple[tuple[int, int], ...]
    nodes: tuple[NodeAt, ...]


class Next(NamedTuple):
    """What comes of one thing that can happen.

    Attributes:
        then: Everything after it.
        what: What has happened, in words; None: time has passed.
        seconds: How much.
        lines: What the trace of the simulator says.
        violation: What was violated.
        by_itself: Whether it happens without a fault, or a program that does something.
    """

    then: WorldAt
    what: tuple[Any, ...] | None = None
    seconds: float = 0.0
    lines: tuple[str, ...] = ()
    violation: Violation | None = None
    by_itself: bool = True


class Happening(Protocol):
    """Something that happens beside the run itself; it comes to nothing where it cannot happen."""

    def to_node(self, world: "World", at: WorldAt, index: int) -> Iterator[Next]:
        """What comes of it for a node."""

    def to_call(self, world: "World", at: WorldAt, index: int, place: int) -> Iterator[Next]:
        """What comes of it for a call of a node that the service can answer."""


class World:
    """What can happen within some bounds.

    Attributes:
        bounds: What is looked at.
        nodes: The nodes, as far as they were learnt.
        service: The service, as far as it was.
    """

    def __init__(self, bounds: Bounds, happenings: Mapping[str, "Happening"]) -> None:
        """Know nothing but the beginning.

        Args:
            bounds: What is looked at.
            happenings: What can happen, by its name in the bounds.
        """
        self.bounds = bounds
        self.nodes = [LearntNode(number, bounds.plan) for number in range(bounds.nodes)]
        self.service = LearntService()
        self._judge = Judge(bounds.plan)
        self._limits = bounds.plan.limits
        self._answers = Numbering[Answer](SILENCE)
        self._late = Numbering[Request]()
        most = {**bounds.faults, **bounds.programs}
        self._happenings = [(happenings[name], name in bounds.faults, number) for name, number in most.items()]

    def first(self) -> WorldAt:
        """The beginning: all nodes have come, and ask for the first time; or they have formed a round."""
        nodes = (NodeAt(0, Mode.RUNS, False, (ON_ITS_WAY,) * len(node.first.requests)) for node in self.nodes)
        at = WorldAt(0, 0, (0,) * len(self._happenings), (), tuple(nodes))
        while self.bounds.begins_together and not (self.is_settled(at) and self._judge.state(at.judged)):
            at = next(step.then for step in self.nexts(at) if step.by_itself)
        return at

    def nexts(self, at: WorldAt) -> Iterator[Next]:
        """Everything that can happen next; nothing after the last round."""
        if self.is_over(at):
            return
        steps = list(self._calls(at)) + list(self._endings(at))
        is_idle = not steps
        if is_idle and (tick := self._tick(at)) is not None:
            steps.append(tick)
        steps += self._recoveries(at)
        steps += self._happens(at, is_idle)
        for step in steps:
            yield from self._settle(step)

    # When it is over.

    def is_over(self, at: WorldAt) -> bool:
        """Whether the last round has settled, or one more was published."""
        state = self._judge.state(at.judged)
        rounds = 0 if state is None else state.round
        return rounds > self.bounds.rounds or (rounds == self.bounds.rounds and self.is_settled(at))

    def is_settled(self, at: WorldAt) -> bool:
        """Whether as many as possible work in one world, all others wait, and nothing is going on."""
        if at.late or any(self._is_busy(at, index) for index in range(len(at.nodes))) or any(self._endings(at)):
            return False
        state = self._judge.state(at.judged)
        facts = {
            self.nodes[index].name: self.memory(at, index).facts
            for index, node in enumerate(at.nodes)
            if node.mode is not Mode.DEAD
        }
        living = [one for one in facts.values() if one.alive]
        if any(one.drains for one in living):
            return False
        if state is not None and state.closed is not None:
            return not living
        working = {name: one for name, one in facts.items() if one.alive and one.working}
        if len(working) != self._limits.largest(len(living)):
            return False
        return (
            state is None
            or not working
            or (
                working.keys() == set(state.world)
                and all(one.round == state.round and not one.waiting for one in working.values())
            )
        )

    def _is_busy(self, at: WorldAt, index: int) -> bool:
        """Whether a node can do something now, or will be able to."""
        node = at.nodes[index]
        if node.mode is Mode.DEAD:
            return False
        return (
            node.mode is not Mode.RUNS or any(status > ON_ITS_WAY for status in node.statuses) or self.acts(at, index)
        )

    # What happens by itself.

    def _calls(self, at: WorldAt) -> Iterator[Next]:
        """The service answers a call; a node that stands still gets the answer later."""
        for index, node in enumerate(at.nodes):
            if node.mode in (Mode.RUNS, Mode.PAUSED):
                for place in self.answerable(at, index):
                    yield self.call(at, index, place)

    def _endings(self, at: WorldAt) -> Iterator[Next]:
        """A lease ends whose time is over."""
        content = self.service.contents[at.content]
        for lease, _, left in content.leases:
            if left <= 0:
                then = at._replace(content=self.service.end(content, lease).number)
                yield Next(then, ("a lease of {} runs out", lease[0]))

    def _tick(self, at: WorldAt) -> Next | None:
        """Time passes, until the next moment of a node or a lease; None: there is none."""
        content = self.service.contents[at.content]
        acting = [index for index, node in enumerate(at.nodes) if node.mode in (Mode.RUNS, Mode.CUT_OFF)]
        moments = [content.next, *(self.memory(at, index).next for index in acting)]
        seconds = min((moment for moment in moments if moment is not None), default=None)
        if seconds is None:
            return None
        nodes = [
            node
            if node.mode is Mode.DEAD
            else node._replace(memory=self.nodes[index].on(self.memory(at, index), ("tick", seconds)).memory.number)
            for index, node in enumerate(at.nodes)
        ]
        content = self.service.tick(content, seconds)
        judged = self._judge.passes(at.judged, seconds)
        return Next(at._replace(content=content.number, judged=judged, nodes=tuple(nodes)), None, seconds)

    def _recoveries(self, at: WorldAt) -> Iterator[Next]:
        """What was held up goes on, at any time."""
        content = self.service.contents[at.content]
        for index, node in enumerate(at.nodes):
            name = self.nodes[index].name
            if node.mode is Mode.PAUSED:
                yield Next(self.put(at, index, node._replace(mode=Mode.RUNS)), ("{} goes on", name))
            if node.mode is Mode.CUT_OFF and all(lease[0] != name for lease, _, _ in content.leases):
                yield Next(self.put(at, index, node._replace(mode=Mode.RUNS)), ("{} is in reach again", name))
            for place, status in enumerate(node.statuses):
                if status >= HELD:
                    then = self.put(at, index, with_status(node, place, status - HELD))
                    yield Next(then, ("{} gets the answer to {}", name, self.memory(at, index).requests[place]))
        for number, (index, request) in enumerate(at.late):
            then = at._replace(late=at.late[:number] + at.late[number + 1 :])
            yield self._applied(then, index, self._late[request], "what {} has asked for long ago is done: {}")[0]

    def _happens(self, at: WorldAt, is_idle: bool) -> Iterator[Next]:
        """Faults, and what programs do. To a node it happens just before that acts: earlier would be the same."""
        for happen, after in self._possible(at):
            for index, node in enumerate(at.nodes):
                if node.mode is Mode.RUNS and (is_idle or self.acts(at, index)):
                    for found in happen.to_node(self, after, index):
                        yield found._replace(by_itself=False)
                    for place in self.answerable(at, index):
                        for found in happen.to_call(self, after, index, place):
                            yield found._replace(by_itself=False)

    def _happens_to(self, at: WorldAt, index: int, place: int) -> Iterator[Next]:
        """What goes wrong with a call."""
        for happen, after in self._possible(at):
            for found in happen.to_call(self, after, index, place):
                yield found._replace(by_itself=False)

    def _possible(self, at: WorldAt) -> Iterator[tuple["Happening", WorldAt]]:
        """What may happen within the bounds, and everything after that is counted."""
        faults = sum(times for times, (_, is_fault, _) in zip(at.happened, self._happenings, strict=True) if is_fault)
        for kind, (happen, is_fault, most) in enumerate(self._happenings):
            if at.happened[kind] < most and not (is_fault and faults == self.bounds.most):
                happened = (*at.happened[:kind], at.happened[kind] + 1, *at.happened[kind + 1 :])
                yield happen, at._replace(happened=happened)

    # What nodes do then.

    def _settle(self, found: Next) -> Iterator[Next]:
        """Let all pieces of nodes run that can. The pieces of different nodes do not touch each other: one order will
        do; of those of one node, answers and moments come in any order."""
        ahead, seen, settles = [found], {found.then}, False
        while ahead:
            found = ahead.pop()
            nexts = None if found.violation else self._pieces(found.then)
            if nexts is None:
                settles = True
                yield found
                continue
            for each in nexts:
                if each.violation or each.then not in seen:
                    seen.add(each.then)
                    ahead.append(_after(found, each))
        if not settles:
            yield found._replace(violation=Violation(0, "nodes run on and on while no time passes"))

    def _pieces(self, at: WorldAt) -> list[Next] | None:
        """What comes of the next answer, and of the next moment, of one node; None: all have settled."""
        for index, node in enumerate(at.nodes):
            if node.mode not in (Mode.RUNS, Mode.CUT_OFF):
                continue
            memory = self.memory(at, index)
            places = [place for place, status in enumerate(node.statuses) if ON_ITS_WAY < status < HELD]
            if memory.due or places:
                only = memory.due + len(places) == 1
                found = [self.given(at, index, ("wake", 0), only)] if memory.due else []
                if places:
                    answer = self._answers[node.statuses[places[0]]]
                    given = "reply", memory.requests[places[0]], answer
                    found.append(self.given(at, index, given, only, places[0]))
                return found
            if node.mode is Mode.RUNS and (found := self._at_once(at, index)):
                return found
        return None

    def _at_once(self, at: WorldAt, index: int) -> list[Next]:
        """A call that concerns a lease alone is answered at once: no other node sees when. Or its answer gets lost."""
        content = self.service.contents[at.content]
        over = [lease for lease, _, left in content.leases if left <= 0]
        for place, request in enumerate(self.memory(at, index).requests):
            is_harmless = request[0] == "open_lease" or (request[0] == "renew" and request[1] not in over)
            if is_harmless and at.nodes[index].statuses[place] == ON_ITS_WAY:
                return [self.call(at, index, place), *self._happens_to(at, index, place)]
        return []

    # Of what that is made.

    def memory(self, at: WorldAt, index: int) -> Memory:
        """What a node knows."""
        return self.nodes[index].memories[at.nodes[index].memory]

    def put(self, at: WorldAt, index: int, node: NodeAt) -> WorldAt:
        """The same with another node."""
        return at._replace(nodes=(*at.nodes[:index], node, *at.nodes[index + 1 :]))

    def acts(self, at: WorldAt, index: int) -> bool:
        """Whether the service can answer a node now."""
        return next(self.answerable(at, index), None) is not None

    def answerable(self, at: WorldAt, index: int) -> Iterator[int]:
        """The places of the calls of a node that the service can answer now."""
        content = self.service.contents[at.content]
        requests = self.memory(at, index).requests
        for place, status in enumerate(at.nodes[index].statuses):
            if status == ON_ITS_WAY and self._can_answer(at, content, index, requests[place]):
                yield place

    def _can_answer(self, at: WorldAt, content: Content, index: int, request: Request) -> bool:
        if request[0] == "wait":
            return self.service.sees(content, request)
        if request[0] != "put" or any(at.happened):
            return True
        # Nodes are named in the order in which they come, unless something has happened: all else is the same by
        # other names.
        is_first = request[1] == self.nodes[index].key
        return not (is_first and any(node.key not in content.versions for node in self.nodes[:index]))

    def call(self, at: WorldAt, index: int, place: int) -> Next:
        """The service answers a call."""
        done, answer = self._applied(at, index, self.memory(at, index).requests[place], "{} asks: {}")
        node = with_status(at.nodes[index], place, self._answers.number(answer))
        return done._replace(then=self.put(done.then, index, node))

    def late(self, at: WorldAt, index: int, place: int) -> WorldAt:
        """A call breaks, and will be applied at some time."""
        number = self._late.number(self.memory(at, index).requests[place])
        then = self.put(at, index, with_status(at.nodes[index], place, SILENT))
        return then._replace(late=tuple(sorted((*at.late, (index, number)))))

    def _applied(self, at: WorldAt, index: int, request: Request, words: str) -> tuple[Next, Answer]:
        """The service does what a node has asked for."""
        name = self.nodes[index].name
        reply = self.service.call(self.service.contents[at.content], name, request)
        found = Next(at._replace(content=reply.content.number), (words, name, request))
        shown = tuple(self._shown(at, each) for each in range(len(at.nodes))) if reply.wrote else ()
        for key, value in reply.wrote:
            found = self._judged(found, shown, "wrote", key, value)
        return found, reply.answer

    def given(self, at: WorldAt, index: int, given: tuple[Any, ...], only: bool, place: int | None = None) -> Next:
        """Something comes to a node: by itself, or while there is more; the answer to the call at a place."""
        node, real, before = at.nodes[index], self.nodes[index], self.memory(at, index)
        outcome = real.on(before, given, only)
        after = outcome.memory
        known = {
            request: status
            for number, (request, status) in enumerate(zip(before.requests, node.statuses, strict=True))
            if number != place
        }
        statuses = tuple(known.get(request, ON_ITS_WAY) for request in after.requests)
        found = Next(self.put(at, index, node._replace(memory=after.number, statuses=statuses)))
        for what, *arguments in outcome.told:
            facts = arguments.pop() if what == "stepped" else after.facts
            found = self._judged(found, (Shown(real.name, facts, node.disturbed),), what, *arguments)
        return found

    def _judged(self, found: Next, shown: tuple[Shown, ...], what: str, *arguments: Any) -> Next:
        verdict = self._judge.on(found.then.judged, shown, what, *arguments)
        return found._replace(
            then=found.then._replace(judged=verdict.number),
            lines=found.lines + verdict.lines,
            violation=found.violation or verdict.violation,
        )

    def _shown(self, at: WorldAt, index: int) -> Shown:
        node, facts = at.nodes[index], self.memory(at, index).facts
        if node.mode is Mode.DEAD:
            facts = facts._replace(alive=False, working=False, joining=False)
        return Shown(self.nodes[index].name, facts, node.disturbed)


def _after(first: Next, second: Next) -> Next:
    """What comes of the second, said of both."""
    what = first.what if second.by_itself else second.what
    return first._replace(
        then=second.then,
        what=what,
        lines=first.lines + second.lines,
        violation=second.violation,
        by_itself=first.by_itself and second.by_itself,
    )


def with_status(node: NodeAt, place: int, status: int) -> NodeAt:
    """The same node, of which one call is answered, or lost."""
    return node._replace(statuses=(*node.statuses[:place], status, *node.statuses[place + 1 :]))
