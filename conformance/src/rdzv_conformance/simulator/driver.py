"""Runs the real lanes of one node in virtual time, over a network that delays and loses."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rdzv import Event, RendezvousConnectionError, RendezvousDeniedError, Snapshot
from rdzv.dynamic import steps
from rdzv.dynamic.driver import call
from rdzv.dynamic.leader import lead
from rdzv.dynamic.node import Node
from rdzv.dynamic.steps import Lane, Step
from rdzv.service import ATTEMPT, Service, View, backoff

from .clock import Timeline
from .service import SimulatedService, Waiter

__all__ = ["Network", "SimulatedDriver"]


@dataclass
class Network:
    """How bad the way to the service is.

    Attributes:
        rng: Where all chance comes from.
        delay: The usual seconds one way; one in twenty takes up to fifty times as long.
        lost: The probability that a request, or a reply, is lost.
        late: The probability that a request is applied long after its sender has given up.
    """

    rng: random.Random
    delay: float = 0.002
    lost: float = 0.0
    late: float = 0.0

    def takes(self) -> float:
        """Seconds for one way."""
        slow = 50.0 if self.rng.random() < 0.05 else 1.0
        return self.rng.uniform(0.2, 1.8) * self.delay * slow

    def loses(self) -> bool:
        """Whether this message is lost."""
        return self.rng.random() < self.lost


@dataclass(frozen=True)
class _Planned:
    attempt: Callable[[float], Any]
    deadline: float


class _PlanningService(Service):
    """The core's own service, but each call is handed out instead of made."""

    def _patiently(self, call: Callable[[float], Any], deadline: float) -> Any:
        return _Planned(call, deadline)


@dataclass(eq=False)
class _Running:
    """A lane and what it waits for."""

    lane: Lane[Any]
    ended: Callable[[Any, BaseException | None], None]
    step: Step | None = None
    turn: int = 0


class SimulatedDriver:
    """What `rdzv.dynamic.driver.Driver` does with threads, done in virtual time."""

    def __init__(
        self,
        node: Node,
        service: SimulatedService,
        timeline: Timeline,
        network: Network,
        tell: Callable[[Event], None],
        after_each: Callable[[], None],
    ) -> None:
        """Drive `node`; `after_each` is called whenever one of its lanes has run a piece."""
        self.node = node
        self.cut_off = False
        self._service = service
        self._timeline = timeline
        self._network = network
        self._tell = tell
        self._after_each = after_each
        self._planning = _PlanningService(service, node.id)
        self._lanes: list[_Running] = []
        self._dead = False
        self._paused = False
        self._held_back: list[Callable[[], None]] = []

    def start(self, lane: Lane[Any], ended: Callable[[Any, BaseException | None], None] | None = None) -> None:
        """Begin a lane; `ended` gets its result or its error."""
        running = _Running(lane, ended or (lambda result, error: None))
        self._lanes.append(running)
        self._resume(running, running.turn, None, None)

    def kill(self) -> None:
        """End the node as kill -9 does."""
        self._dead = True

    def stop(self) -> None:
        """End every lane, as the handler does at its end."""
        self.node.closing = True
        self._notify()
        self._dead = True

    def pause(self) -> None:
        """Hold the node back, as SIGSTOP does."""
        self._paused = True

    def unpause(self) -> None:
        """Let it go on; whatever it missed happens now."""
        self._paused = False
        waiting, self._held_back = self._held_back, []
        for go_on in waiting:
            self._timeline.after(0.0, go_on)

    def _resume(
        self, running: _Running, turn: int, result: Any, error: BaseException | None, contact: bool = False
    ) -> None:
        """Run one piece of a lane, unless it has gone on already."""
        if self._dead or turn != running.turn:
            return
        if self._paused:
            self._held_back.append(lambda: self._resume(running, turn, result, error, contact))
            return
        if contact:
            self.node.contacted()
        running.turn += 1
        before, running.step = running.step, None
        try:
            running.step = running.lane.send(result) if error is None else running.lane.throw(error)
        except StopIteration as stop:
            self._lanes.remove(running)
            self._notify()
            running.ended(stop.value, None)
        except Exception as raised:
            self._lanes.remove(running)
            self._notify()
            running.ended(None, raised)
        else:
            if not (isinstance(before, steps.Changed) and isinstance(running.step, steps.Changed)):
                self._notify(but=running)
            self._perform(running, running.step)
        self._after_each()

    def _notify(self, but: _Running | None = None) -> None:
        for other in self._lanes:
            if other is not but and isinstance(other.step, steps.Changed):
                self._later(other, 0.0)

    def _later(self, running: _Running, seconds: float, result: Any = None, error: BaseException | None = None) -> None:
        turn = running.turn
        self._timeline.after(seconds, lambda: self._resume(running, turn, result, error))

    def _until(self, moment: float) -> float:
        """Seconds until a moment on the node's clock."""
        return max(0.0, moment - self.node.clock())

    def _perform(self, running: _Running, step: Step) -> None:
        match step:
            case steps.Sleep(until) | steps.Changed(until):
                self._later(running, self._until(until))
            case steps.Tell(events):
                for event in events:
                    self._tell(event)
                self._later(running, 0.0)
            case steps.Lead(term):
                self.start(lead(self.node, term))
                self._later(running, 0.0)
            case steps.Wait(prefix, since, deadline):
                self._wait(running, prefix, since, self._until(deadline))
            case _:
                self._call(running, call(self._planning, step))

    def _wait(self, running: _Running, prefix: str, since: View, seconds: float) -> None:
        turn = running.turn

        def answer(now: Snapshot | None, error: BaseException | None = None) -> None:
            self._service.forget(waiter)
            view = since if now is None else View(now, since)
            if self.cut_off and error is None and now is not None:
                # A cut-off node hears nothing; it finds out when it asks again.
                return
            self._timeline.after(self._network.takes(), lambda: self._resume(running, turn, view, error))

        waiter = Waiter(prefix, since.snapshot, lambda: answer(self._service.snapshot(prefix)))
        if self.cut_off or self._service.down:
            answer(None, RendezvousConnectionError("The watch broke."))
            return
        self._service.wait_later(waiter)
        # A broken connection is noticed some time, a silent one at the end of the slice.
        self._timeline.after(min(seconds, 2.0), lambda: turn == running.turn and answer(None))

    def _call(self, running: _Running, planned: _Planned) -> None:
        pauses = backoff(self._network.rng)
        turn = running.turn

        def attempt() -> None:
            if self._dead or turn != running.turn:
                return
            if self._paused:
                self._held_back.append(attempt)
                return
            timeout = min(ATTEMPT, max(0.001, self._until(planned.deadline)))
            request, reply = self._network.takes(), self._network.takes()
            if self.cut_off or self._network.loses():
                self._timeline.after(self._network.rng.uniform(0.01, timeout), fail)
                return
            if self._network.rng.random() < self._network.late:
                self._timeline.after(self._network.rng.uniform(0.0, 5.0), apply_unheard)
                self._timeline.after(self._network.rng.uniform(0.01, timeout), fail)
                return
            self._timeline.after(request, lambda: apply(timeout, reply))

        def apply_unheard() -> None:
            try:
                planned.attempt(1.0)
            except RendezvousConnectionError:
                return

        def apply(timeout: float, reply: float) -> None:
            try:
                result = planned.attempt(timeout)
            except RendezvousDeniedError:
                self._timeline.after(reply, lambda: self._resume(running, turn, None, error))
            except RendezvousConnectionError:
                self._timeline.after(reply, fail)
            except Exception as error:
                self._timeline.after(reply, lambda error=error: self._resume(running, turn, None, error))  # type: ignore[misc]
            else:
                if self.cut_off or self._network.loses():
                    self._timeline.after(self._network.rng.uniform(0.01, timeout), fail)
                else:
                    self._timeline.after(reply, lambda: succeed(result))

        def succeed(result: Any) -> None:
            self._resume(running, turn, result, None, contact=True)

        def fail() -> None:
            pause = next(pauses)
            if self._until(planned.deadline) <= pause:
                self._resume(running, turn, None, RendezvousConnectionError("No answer until the deadline."))
            else:
                self._timeline.after(pause, attempt)

        attempt()
