"""Runs the real coroutines of one node in virtual time: what `rdzv.engine.runner.Runner` does with threads."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rdzv_core import Snapshot

from rdzv import Event, RendezvousConnectionError, RendezvousDeniedError, RendezvousError
from rdzv.engine import effects, leader
from rdzv.engine.client import ATTEMPT, DecodedSnapshot, RetryingClient
from rdzv.engine.effects import Coroutine, Effect
from rdzv.engine.node import Node
from rdzv.engine.records import NodeRecord

from .clock import NodeClock, Timeline
from .connection import Connection
from .process import Process

__all__ = ["FailPoint", "Hit", "RunningCoroutine", "SimulatedRunner", "raise_error"]

Ended = Callable[[Any, BaseException | None], None]
"""Takes what a coroutine returned, or what it raised."""


@dataclass
class FailPoint:
    """A fail point: something that happens to the node between two effects of one of its coroutines.

    Attributes:
        matches: Whether a step of a coroutine of some kind (``lead``, ``join``) brings it nearer.
        steps: How many such steps are left.
        sent: Whether the step after these is performed first: a request may be on its way.
        trigger: What happens.
    """

    matches: Callable[[str, Effect], bool]
    steps: int
    sent: bool
    trigger: Callable[[], None]


@dataclass
class Hit:
    """A call that raises what no backend should.

    Attributes:
        hits: Whether it is a step of a coroutine of some kind (``lead``, ``keep``).
        times: How many such steps are left.
        applied: Whether the service gets the request all the same.
    """

    hits: Callable[[str, Effect], bool]
    times: int
    applied: bool


@dataclass(frozen=True)
class _Planned:
    attempt: Callable[[float], Any]
    deadline: float


class _PlanningClient(RetryingClient):
    """The engine's own service, but each call is handed out instead of made."""

    def with_retries(self, call: Callable[[float], Any], deadline: float) -> Any:
        return _Planned(call, deadline)


@dataclass(eq=False)
class RunningCoroutine:
    """A coroutine and what it waits for.

    Attributes:
        coroutine: The generator.
        ended: Gets its result or its error.
        kind: Which of the node's coroutines it is.
        effect: What it waits for; None while it runs, and after its end.
        turn: Grows with each piece that has run: what answers an earlier step comes too late.
    """

    coroutine: Coroutine[Any]
    ended: Ended
    kind: str = ""
    effect: Effect | None = None
    turn: int = 0


class SimulatedRunner:
    """Drives the coroutines of one node.

    Attributes:
        fail_point: What will happen between two steps of a coroutine, if anything.
        hit: What calls will raise an unexpected error, if any.
        hits: How many have.
        pieces: How many pieces of coroutines have run.
    """

    def __init__(
        self,
        node: Node,
        clock: NodeClock,
        process: Process,
        connection: Connection,
        timeline: Timeline,
        emit: Callable[[Event], None],
        assign: Callable[[Sequence[NodeRecord], Sequence[str]], tuple[float, Sequence[str] | None]],
        stepped: Callable[[], None],
    ) -> None:
        """Drive `node`.

        Args:
            node: Whose coroutines.
            clock: Its clock.
            process: What it lives in.
            connection: Its way to the service.
            timeline: Virtual time.
            emit: Hears of every event.
            assign: The plugin that assigns ranks: after how many seconds it answers, and what; None: the default.
            stepped: Called whenever a coroutine has run a piece.
        """
        self.fail_point: FailPoint | None = None
        self.hit: Hit | None = None
        self.hits = 0
        self.pieces = 0
        self._node = node
        self._clock = clock
        self._process = process
        self._connection = connection
        self._client = _PlanningClient(connection.backend, node.id)
        self._timeline = timeline
        self._emit = emit
        self._assign = assign
        # A plugin that is asked, and hangs, is not asked again meanwhile.
        self._assigning_until = -math.inf
        self._stepped = stepped
        self._coroutines: dict[RunningCoroutine, None] = {}

    def start(self, coroutine: Coroutine[Any], ended: Ended, *, kind: str = "") -> RunningCoroutine:
        """Begin a coroutine."""
        running = RunningCoroutine(coroutine, ended, kind)
        self._coroutines[running] = None
        self._resume(running, running.turn, None, None)
        return running

    def interrupt(self, running: RunningCoroutine) -> None:
        """Throw Ctrl-C into a coroutine, whatever it waits for."""
        if running.effect is not None:
            self._resume(running, running.turn, None, KeyboardInterrupt())

    def stop(self) -> None:
        """End every coroutine, as the handler does at its end."""
        self._node.stop()
        self.kill()

    def kill(self) -> None:
        """End the node as kill -9 does."""
        self._process.kill()
        self._connection.drop()

    def _resume(self, running: RunningCoroutine, turn: int, result: Any, error: BaseException | None) -> None:
        """Run one piece of a coroutine, unless it has gone on already."""
        if turn != running.turn:
            return
        running.turn += 1
        self.pieces += 1
        before, running.effect = running.effect, None
        try:
            running.effect = running.coroutine.send(result) if error is None else running.coroutine.throw(error)
        except StopIteration as stop:
            self._end(running, stop.value, None)
        except (Exception, KeyboardInterrupt) as raised:
            self._end(running, None, raised)
        else:
            if not effects.waits_on(before, running.effect):
                self._notify(running)
            self._take(running, running.effect)
        self._stepped()

    def _end(self, running: RunningCoroutine, result: Any, error: BaseException | None) -> None:
        del self._coroutines[running]
        self._notify(running)
        running.ended(result, error)

    def _notify(self, changer: RunningCoroutine) -> None:
        for other in self._coroutines:
            if other is not changer and isinstance(other.effect, effects.WaitForChange):
                self._later(other, 0.0)

    def _later(
        self, running: RunningCoroutine, seconds: float, error: BaseException | None = None, *, answer: Any = None
    ) -> None:
        self._timeline.after(seconds, self._process.does, self._resume, running, running.turn, answer, error)

    def _take(self, running: RunningCoroutine, effect: Effect) -> None:
        """Perform an effect, and what the fail point does before or after it."""
        fail_point = self._reached(running.kind, effect)
        if fail_point is not None and not fail_point.sent:
            fail_point.trigger()
        hit, turn = self._taken_hit(running.kind, effect), running.turn
        if hit is None or hit.applied:
            self._process.does(self._perform, running, effect)
        if hit is not None:
            self.hits += 1
            # Whatever the service answers comes later, and is not heard. A wait may have failed at once: then it has.
            error = OSError("a bug of a backend")
            self._timeline.after(0.0, self._process.does, self._resume, running, turn, None, error)
        if fail_point is not None and fail_point.sent:
            fail_point.trigger()

    def _reached(self, kind: str, effect: Effect) -> FailPoint | None:
        fail_point = self.fail_point
        if fail_point is None or not fail_point.matches(kind, effect):
            return None
        fail_point.steps -= 1
        if fail_point.steps > 0:
            return None
        self.fail_point = None
        return fail_point

    def _taken_hit(self, kind: str, effect: Effect) -> Hit | None:
        hit, calls = self.hit, (effects.Wait, effects.Call, effects.Together)
        if hit is None or not isinstance(effect, calls) or not hit.hits(kind, effect):
            return None
        hit.times -= 1
        if hit.times == 0:
            self.hit = None
        return hit

    def _perform(self, running: RunningCoroutine, effect: Effect) -> None:
        match effect:
            case effects.Sleep(until) | effects.WaitForChange(until):
                self._later(running, self._clock.seconds_until(until))
            case effects.Emit(events):
                for event in events:
                    self._emit(event)
                self._later(running, 0.0)
            case effects.AssignRanks(arrived, previous, deadline):
                seconds, answer = self._ranks(arrived, previous, self._clock.seconds_until(deadline))
                self._later(running, seconds, answer=answer)
            case effects.SpawnLeader(term):
                self.start(leader.lead(self._node, term), raise_error, kind="lead")
                self._later(running, 0.0)
            case effects.Wait(prefix, since, deadline):
                self._wait(running, prefix, since, self._clock.seconds_until(deadline))
            case effects.Together(calls):
                self._call_all(running, calls)
            case effects.Call():
                self._call(running, effect, self._goes_on(running))

    def _ranks(
        self, arrived: Sequence[NodeRecord], previous: Sequence[str], most: float
    ) -> tuple[float, Sequence[str] | None]:
        """After how many seconds the plugins have assigned ranks, and which. They are asked one thing at a time."""
        if self._clock() < self._assigning_until:
            return 0.0, None
        seconds, order = self._assign(arrived, previous)
        self._assigning_until = self._clock() + seconds
        return min(seconds, most), order if seconds <= most else None

    def _wait(self, running: RunningCoroutine, prefix: str, since: DecodedSnapshot, seconds: float) -> None:
        turn = running.turn

        def answer(now: Snapshot | None, error: BaseException | None) -> None:
            view = since if now is None or now is since.encoded else DecodedSnapshot(now, since)
            self._resume(running, turn, view, error)

        self._connection.wait(prefix, since, seconds, answer)

    def _goes_on(self, running: RunningCoroutine) -> Ended:
        """What the answer to its effect leads to."""
        turn = running.turn

        def resume(result: Any, error: BaseException | None) -> None:
            self._resume(running, turn, result, error)

        return resume

    def _call_all(self, running: RunningCoroutine, calls: Sequence[effects.Call]) -> None:
        """Make calls side by side, as `Runner` does."""
        turn, left = running.turn, list(enumerate(calls))[::-1]
        answers: list[Any] = [None] * len(calls)
        errors: list[BaseException] = []
        under_way = 0

        def begin() -> None:
            nonlocal under_way
            while left and not errors and under_way < effects.AT_ONCE:
                number, call = left.pop()
                under_way += 1
                self._call(running, call, partial(end, number))
            if not under_way:
                self._resume(running, turn, answers, errors[0] if errors else None)

        def end(number: int, result: Any, error: BaseException | None) -> None:
            nonlocal under_way
            under_way -= 1
            answers[number] = result
            if error is not None:
                errors.append(error)
            begin()

        begin()

    def _call(self, running: RunningCoroutine, effect: effects.Call, then: Ended) -> None:
        """Make a call, again and again until its deadline, as `RetryingClient` does."""
        turn, pauses = running.turn, self._node.pauses()
        refused_until = self._clock() + pauses.refused()
        try:
            planned: _Planned = effect.perform(self._client)
        except RendezvousError as error:
            self._timeline.after(0.0, self._process.does, then, None, error)
            return

        def attempt() -> None:
            if turn == running.turn:
                seconds = self._clock.seconds_until(planned.deadline)
                self._connection.call(planned.attempt, min(ATTEMPT, max(0.001, seconds)), answer)

        def answer(result: Any, error: BaseException | None) -> None:
            if error is None:
                if effect.is_contact:
                    self._node.connection.on_contact()
            elif isinstance(error, RendezvousConnectionError):
                self._node.connection.on_error(error)
                until = planned.deadline
                if isinstance(error, RendezvousDeniedError):
                    until = min(until, refused_until)
                pause = pauses.within(self._clock.seconds_until(until), error)
                if pause is not None:
                    self._timeline.after(pause, self._process.does, attempt)
                    return
            then(result, error)

        attempt()


def raise_error(result: Any, error: BaseException | None) -> None:
    """For coroutines that must not fail."""
    del result
    if error is not None:
        raise error
