"""Runs the real lanes of one node in virtual time: what `rdzv.engine.driver.Driver` does with threads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rdzv import Event, RendezvousConnectionError, RendezvousDeniedError, RendezvousError, Snapshot
from rdzv.deadline import pause_within
from rdzv.engine import leader, steps
from rdzv.engine.driver import call
from rdzv.engine.node import Node
from rdzv.engine.service import ATTEMPT, Service, View, backoff
from rdzv.engine.steps import Lane, Step

from .clock import NodeClock, Timeline
from .connection import Connection
from .process import Process

__all__ = ["Fuse", "Hit", "RunningLane", "SimulatedDriver", "raise_error"]

Ended = Callable[[Any, BaseException | None], None]
"""Takes what a lane returned, or what it raised."""


@dataclass
class Fuse:
    """Something that happens to the node between two steps of one of its lanes.

    Attributes:
        burns: Whether a step of a lane of some kind (``lead``, ``join``) makes it shorter.
        steps: How many such steps there still are.
        sent: Whether the step after these is performed first: a request may be on its way.
        blow: What happens.
    """

    burns: Callable[[str, Step], bool]
    steps: int
    sent: bool
    blow: Callable[[], None]


@dataclass
class Hit:
    """A call that raises what no backend should.

    Attributes:
        hits: Whether it is a step of a lane of some kind (``lead``, ``keep``).
        times: How many such steps there still are.
        applied: Whether the service gets the request all the same.
    """

    hits: Callable[[str, Step], bool]
    times: int
    applied: bool


@dataclass(frozen=True)
class _Planned:
    attempt: Callable[[float], Any]
    deadline: float


class _PlanningService(Service):
    """The core's own service, but each call is handed out instead of made."""

    def _patiently(self, call: Callable[[float], Any], deadline: float) -> Any:
        return _Planned(call, deadline)


@dataclass(eq=False)
class RunningLane:
    """A lane and what it waits for.

    Attributes:
        lane: The generator.
        ended: Gets its result or its error.
        kind: Which of the node's lanes it is.
        step: What it waits for; None while it runs, and after its end.
        turn: Grows with each piece that has run: what answers an earlier step comes too late.
    """

    lane: Lane[Any]
    ended: Ended
    kind: str = ""
    step: Step | None = None
    turn: int = 0


class SimulatedDriver:
    """Drives the lanes of one node.

    Attributes:
        fuse: What will happen between two steps of a lane, if anything.
        hit: What calls will raise an unexpected error, if any.
        pieces: How many pieces of lanes have run.
    """

    def __init__(
        self,
        node: Node,
        clock: NodeClock,
        process: Process,
        connection: Connection,
        timeline: Timeline,
        tell: Callable[[Event], None],
        stepped: Callable[[], None],
    ) -> None:
        """Drive `node`.

        Args:
            node: Whose lanes.
            clock: Its clock.
            process: What it lives in.
            connection: Its way to the service.
            timeline: Virtual time.
            tell: Hears of every event.
            stepped: Called whenever a lane has run a piece.
        """
        self.fuse: Fuse | None = None
        self.hit: Hit | None = None
        self.pieces = 0
        self._node = node
        self._clock = clock
        self._process = process
        self._connection = connection
        self._timeline = timeline
        self._tell = tell
        self._stepped = stepped
        self._service = _PlanningService(connection.backend, node.id)
        self._lanes: dict[RunningLane, None] = {}

    def start(self, lane: Lane[Any], ended: Ended, *, kind: str = "") -> RunningLane:
        """Begin a lane."""
        running = RunningLane(lane, ended, kind)
        self._lanes[running] = None
        self._resume(running, running.turn, None, None)
        return running

    def interrupt(self, running: RunningLane) -> None:
        """Throw Ctrl-C into a lane, whatever it waits for."""
        if running.step is not None:
            self._resume(running, running.turn, None, KeyboardInterrupt())

    def stop(self) -> None:
        """End every lane, as the handler does at its end."""
        self._node.closing = True
        self.kill()

    def kill(self) -> None:
        """End the node as kill -9 does."""
        self._process.kill()
        self._connection.drop()

    def _resume(self, running: RunningLane, turn: int, result: Any, error: BaseException | None) -> None:
        """Run one piece of a lane, unless it has gone on already."""
        if turn != running.turn:
            return
        running.turn += 1
        self.pieces += 1
        before, running.step = running.step, None
        try:
            running.step = running.lane.send(result) if error is None else running.lane.throw(error)
        except StopIteration as stop:
            self._end(running, stop.value, None)
        except (Exception, KeyboardInterrupt) as raised:
            self._end(running, None, raised)
        else:
            # As the real driver: who only looks and waits on has changed nothing.
            if not (isinstance(before, steps.Changed) and isinstance(running.step, steps.Changed)):
                self._notify(running)
            self._take(running, running.step)
        self._stepped()

    def _end(self, running: RunningLane, result: Any, error: BaseException | None) -> None:
        del self._lanes[running]
        self._notify(running)
        running.ended(result, error)

    def _notify(self, changer: RunningLane) -> None:
        for other in self._lanes:
            if other is not changer and isinstance(other.step, steps.Changed):
                self._later(other, 0.0)

    def _later(self, running: RunningLane, seconds: float, error: BaseException | None = None) -> None:
        self._timeline.after(seconds, self._process.does, self._resume, running, running.turn, None, error)

    def _take(self, running: RunningLane, step: Step) -> None:
        """Perform a step, and what the fuse has in mind before or after it."""
        fuse = self._burnt_down(running.kind, step)
        if fuse is not None and not fuse.sent:
            fuse.blow()
        hit = self._taken_hit(running.kind, step)
        if hit is None or hit.applied:
            self._process.does(self._perform, running, step)
        if hit is not None:
            # Whatever the service answers comes later, and is not heard.
            self._later(running, 0.0, OSError("a bug of a backend"))
        if fuse is not None and fuse.sent:
            fuse.blow()

    def _burnt_down(self, kind: str, step: Step) -> Fuse | None:
        fuse = self.fuse
        if fuse is None or not fuse.burns(kind, step):
            return None
        fuse.steps -= 1
        if fuse.steps > 0:
            return None
        self.fuse = None
        return fuse

    def _taken_hit(self, kind: str, step: Step) -> Hit | None:
        hit, harmless = self.hit, (steps.Sleep, steps.Changed, steps.Tell, steps.Lead)
        if hit is None or isinstance(step, harmless) or not hit.hits(kind, step):
            return None
        hit.times -= 1
        if hit.times == 0:
            self.hit = None
        return hit

    def _perform(self, running: RunningLane, step: Step) -> None:
        match step:
            case steps.Sleep(until) | steps.Changed(until):
                self._later(running, self._clock.seconds_until(until))
            case steps.Tell(events):
                for event in events:
                    self._tell(event)
                self._later(running, 0.0)
            case steps.Lead(term):
                self.start(leader.lead(self._node, term), raise_error, kind="lead")
                self._later(running, 0.0)
            case steps.Wait(prefix, since, deadline):
                self._wait(running, prefix, since, self._clock.seconds_until(deadline))
            case _:
                self._call(running, step)

    def _wait(self, running: RunningLane, prefix: str, since: View, seconds: float) -> None:
        turn = running.turn

        def answer(now: Snapshot | None, error: BaseException | None) -> None:
            view = since if now is None or now is since.snapshot else View(now, since)
            self._resume(running, turn, view, error)

        self._connection.wait(prefix, since, seconds, answer)

    def _call(self, running: RunningLane, step: Step) -> None:
        """Make a call, again and again until its deadline, as `Service` does."""
        turn, pauses = running.turn, backoff(self._node.rng)
        try:
            planned: _Planned = call(self._service, step)
        except RendezvousError as error:
            self._later(running, 0.0, error)
            return

        def attempt() -> None:
            if turn == running.turn:
                seconds = self._clock.seconds_until(planned.deadline)
                self._connection.call(planned.attempt, min(ATTEMPT, max(0.001, seconds)), answer)

        def answer(result: Any, error: BaseException | None) -> None:
            if error is None:
                self._node.contacted()
            elif isinstance(error, RendezvousConnectionError) and not isinstance(error, RendezvousDeniedError):
                self._node.troubled(error)
                pause = pause_within(self._clock.seconds_until(planned.deadline), next(pauses))
                if pause is not None:
                    self._timeline.after(pause, self._process.does, attempt)
                    return
            self._resume(running, turn, result, error)

        attempt()


def raise_error(result: Any, error: BaseException | None) -> None:
    """For lanes that must not fail."""
    del result
    if error is not None:
        raise error
