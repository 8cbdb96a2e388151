"""One machine: a real node, and the program that uses it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Protocol

from rdzv import Event, EventKind, RendezvousError, RendezvousSettings, RendezvousTimeout
from rdzv.admission import AdmissionRule
from rdzv.engine import drain, join, keep_alive, leave, report, watch
from rdzv.engine.effects import Coroutine, Put
from rdzv.engine.node import Node
from rdzv.engine.notices import DrainNotice
from rdzv.engine.reckoning import PATIENCE
from rdzv.engine.records import NodeRecord, State, round_folder
from rdzv.engine.rules import sticky_ranks
from rdzv.outcome import Ending, Outcome

from .clock import NodeClock, Timeline
from .connection import connect
from .fiber import Fibers
from .network import NetworkConditions, NetworkLink
from .plan import Plan, chance
from .process import Process
from .runner import RunningCoroutine, SimulatedRunner, raise_error
from .service import SimulatedService
from .trace import Trace

__all__ = ["HANGS", "Machine", "SimulationContext", "Watcher"]

HANGS = "its program hangs"
"""What a node says first of which it is not known whether it waits for another."""

_SLACK = 0.1
"""Seconds that a node may take longer than it should, for it has a clock of its own."""

_LOOK = 0.3
"""Seconds between two looks of a program."""

_NEWS = (EventKind.EVICTED, EventKind.NODE_LOST, EventKind.NODE_LEFT, EventKind.NODE_QUARANTINED)


class Watcher(Protocol):
    """What gets to know what machines do."""

    def stepped(self, machine: "Machine") -> None:
        """A coroutine has run a piece."""

    def returned(self, machine: "Machine", state: State, rank: int) -> None:
        """The program got a world."""

    def overdue(self, machine: "Machine") -> None:
        """The program still waits for a world although its time is over."""

    def refused(self, machine: "Machine", error: BaseException) -> None:
        """The program got an error."""

    def stays(self, machine: "Machine") -> None:
        """The program still works although its drain is over."""

    def stays_waiting(self, machine: "Machine") -> None:
        """The program still waits for a world although its drain is over."""

    def left(self, machine: "Machine") -> None:
        """The node has left, and the service has confirmed all of that."""

    def heard(self, machine: "Machine", event: Event) -> None:
        """The node has announced an event."""


class Machine:
    """A node, and a program that joins, works until the world changes, and joins again.

    Attributes:
        name: The node's id. (And `id`, and `order`, by which it came: what the rule of admission asks for.)
        labels: What it says of itself.
        disturbed: It was paused or cut off once, so it may have lost its lease.
        round: The round that its program works in, or worked in last.
        place: The address and the port that it offers in its record; others whenever it joins.
        places: All that it has offered.
        outcome: How its last round has ended, as it says when it joins again.
        before: That round.
        gives_up_at: The moment on its clock from which on it may give up to join.
        ended: It has ended by itself, and the service has confirmed all of that.
        unheard: It ended, and the service did not take in time what it had to say.
        drains_at: The moment on its clock at which its drain is over; infinite: it does not drain.
        ready_for: The nodes that drain for which its program has said in this round that it is ready.
        failing: How often its program will fail at once, in this world and in those after it.
        spent: Its program has no restart left.
        died_in: The round in which its program worked when it was killed; 0: it was not, or did not work.
        step: The step that its program stopped at, and the moment on its clock; None: it reports none, or goes on.
        stored: What its program has written into that round's store, and the service has confirmed; empty: nothing yet.
    """

    def __init__(self, context: "SimulationContext", watcher: Watcher, name: str) -> None:
        """Start the node, and let its program join."""
        self.name = self.id = name
        self.order = len(context.machines)
        self.labels = {"rack": context.rack(self.order)}
        self.disturbed = False
        self.round = 0
        self.place = ("", 0)
        self.places: set[tuple[str, int]] = set()
        self.stored = ""
        self.ended = False
        self.unheard = False
        self.gives_up_at = 0.0
        self.drains_at = math.inf
        self.ready_for: frozenset[str] = frozenset()
        self.failing = 0
        self.spent = False
        self.died_in = 0
        self.step: tuple[int, float] | None = None
        self.process = Process()
        self._context = context
        self._watcher = watcher
        self._rng = chance(context.plan.seed, name)
        self.outcome: Outcome | None = None
        self.before = 0
        self._joining = True
        self._waiting_coroutine: RunningCoroutine | None = None
        self._ending = False
        self._looks = False
        self.settings = self._settings()
        self._set_up()
        self.runner.start(watch.watch_loop(self.node), raise_error, kind="watch")
        self.runner.start(keep_alive.keep_alive_loop(self.node), raise_error, kind="keep")
        self.join()

    def _settings(self) -> RendezvousSettings:
        plan = self._context.plan
        return RendezvousSettings(
            "run",
            plan.min_nodes,
            plan.max_nodes,
            RendezvousTimeout(
                join=timedelta(seconds=self._rng.choice(plan.patience)),
                last_call=timedelta(seconds=plan.last_call),
                alone=timedelta(seconds=3 * plan.ttl),
            ),
            timedelta(seconds=plan.ttl / 3),
            3,
            attempt=self._context.attempt,
            labels=self.labels if plan.rule is not None and plan.rule.group_by else {},
            wanted_timeout=timedelta(seconds=plan.wanted_timeout),
            grow_delay=timedelta(seconds=plan.grow_delay),
            quarantine_after=plan.quarantine_after,
            quarantine_cooldown=timedelta(seconds=plan.cooldown),
            **({} if plan.rule is None else _options(plan.rule)),
        )

    def _set_up(self) -> None:
        context, rng = self._context, self._rng
        drift = context.plan.drift
        self.clock = NodeClock(
            context.timeline, rng.uniform(-1e6, 1e6), rng.uniform(-drift, drift), skew=rng.uniform(-7200, 7200)
        )
        self.link = NetworkLink(self.process, context.service, context.timeline, context.conditions, rng)
        self.node = Node(self.settings, "simulated", self.clock, rng=rng, id=self.name)
        connection = connect(
            context.plan.level, self.link, context.fibers, self.clock, self.settings, self.node.observers
        )
        self.node.creates_at_once = connection.backend.creates_at_once
        self.runner = SimulatedRunner(
            self.node,
            self.clock,
            self.process,
            connection,
            context.timeline,
            emit=self._hear,
            assign=self._assign,
            stepped=self._stepped,
        )

    @property
    def alive(self) -> bool:
        """Whether it takes part in the run: it runs, and is not just leaving."""
        return self.process.alive and not self._ending

    @property
    def joining(self) -> bool:
        """Whether its program waits for a world."""
        return self.alive and self._joining

    @property
    def working(self) -> bool:
        """Whether its program believes to be in a world."""
        return self.alive and not self._joining

    # What its program does.

    def join(self, ending: Ending = Ending.CHANGED) -> None:
        """Call ``next_rendezvous``."""
        step, since = self.step or (None, self.clock())
        heard = self.round in self.node.run.notices.failures
        self.outcome = Outcome(ending, step, self.clock() - since, self.spent, heard) if self.round else None
        self.step = None
        self._context.joins += 1
        deadline = self.clock() + self.settings.timeout.join.total_seconds()
        # What does not fit in before the deadline is not tried again.
        self.gives_up_at = deadline - 1.0
        number = self.place[1] + 1
        self.place = place = (f"{self.name}.host{number}", number)
        self.places.add(place)

        def coroutine() -> Coroutine[tuple[State, int]]:
            yield from join.look_first(self.node, deadline)
            joined = yield from join.join(self.node, *place, deadline, self.outcome)
            # It had given up already, and its lease: the others may have missed it.
            self.disturbed |= self.clock() >= deadline
            return joined

        self.before = self.round
        self._joining = True
        self._waiting_coroutine = running = self.runner.start(coroutine(), self._joined, kind="join")
        if self.is_out:
            self._context.timeline.after(self._context.plan.ttl, self._see_that_it_waits_for_nothing, running)
        seconds = self.clock.seconds_until(deadline + self.node.interval) + _SLACK
        self._context.timeline.after(seconds, self._see_that_it_has_ended, running, self.process.stops)

    def _see_that_it_has_ended(self, running: RunningCoroutine, stops: int) -> None:
        """Find out whether ``next_rendezvous`` still waits after its time is over, although the process runs."""
        if self.joining and running is self._waiting_coroutine and stops == self.process.stops:
            self._watcher.overdue(self)

    @property
    def is_out(self) -> bool:
        """Whether it takes part in the next world only if its failure is not its own."""
        outcome = self.outcome
        return outcome is not None and outcome.spent and outcome.ending is not Ending.CHANGED

    def _see_that_it_waits_for_nothing(self, running: RunningCoroutine) -> None:
        """Find out whether it still waits to hear who has failed, although a loss would be known by now."""
        if self.joining and self.is_out and running is self._waiting_coroutine:
            since = self.node.reckoning.out_since
            if since is not None and self.clock() > since + self._context.plan.ttl + PATIENCE + self.node.interval:
                self._watcher.overdue(self)
            self._context.timeline.after(self._context.plan.ttl, self._see_that_it_waits_for_nothing, running)

    def fail(self, ending: Ending = Ending.FAILED) -> None:
        """Fail in its work, and want the next world."""
        if self.working:
            patience = self.clock() + self.node.interval
            reason = HANGS if ending is Ending.HUNG else "its program failed"
            self.runner.start(report.report_failure(self.node, reason, False, patience), _tolerate)
            self.join(ending)

    def stop_at(self, step: int, number: int, seconds: float) -> None:
        """Make no progress any more in this round, and fail after so many seconds, unless the round ends before."""

        def hang() -> None:
            if self.working and self.round == number:
                self.fail(Ending.HUNG)

        if self.working and self.round == number:
            self.step = step, self.clock()
            self._context.timeline.after(seconds, self.process.does, hang)

    def drain(self, seconds: float) -> None:
        """Call ``drain``, and end when that is over."""
        self.drains_at = min(self.drains_at, self.clock() + seconds)
        notice = DrainNotice(seconds, "its machine ends")
        self.runner.start(drain.announce(self.node, notice, self.clock() + seconds), _tolerate)
        self._context.timeline.after(self.clock.seconds_until(self.drains_at), self.process.does, self._see_the_end)

    def _see_the_end(self) -> None:
        """The drain is over: programs look from time to time."""
        self._look_soon()
        self._context.timeline.after(_LOOK + _SLACK, self.process.does, self._see_that_it_is_drained)
        # A call that was on its way before goes on, and then the record is taken back.
        patience = self.node.background_deadline() - self.clock() + self.node.interval + _SLACK
        self._context.timeline.after(patience, self._see_that_it_waits_no_more, self.process.stops)

    def _see_that_it_is_drained(self) -> None:
        if self.working and self.clock() >= self.drains_at:
            self._watcher.stays(self)

    def _see_that_it_waits_no_more(self, stops: int) -> None:
        if self.joining and stops == self.process.stops and self.clock() >= self.drains_at:
            self._watcher.stays_waiting(self)

    def interrupt(self) -> None:
        """Get Ctrl-C while it waits."""
        if self.joining and self._waiting_coroutine is not None:
            self.runner.interrupt(self._waiting_coroutine)

    def close(self, reason: str) -> None:
        """Call ``set_closed``."""
        self._context.closers.add(self.name)
        self.runner.start(leave.close(self.node, reason, False, self._soon()), _tolerate)

    def shut_down(self) -> None:
        """Call ``shutdown``: from a member, the job is done."""
        if self.node.in_running_round():
            self._context.closers.add(self.name)
            self._end(leave.close(self.node, "the job is done", True, self._soon()))
        else:
            self.leave("it has shut down")

    def leave(self, reason: str) -> None:
        """Call ``leave``."""
        self._end(None, reason)

    def kill(self) -> None:
        """kill -9."""
        self.died_in = self.round if self.working else 0
        self.runner.kill()

    def _end(self, first: Coroutine[None] | None, reason: str = "it has shut down") -> None:
        if not self.alive:
            return
        self._ending = True

        def coroutine() -> Coroutine[None]:
            if first is not None:
                yield from first
            yield from leave.leave(self.node, reason, self._soon())

        self.runner.start(coroutine(), self._ended)

    def _ended(self, result: Any, error: BaseException | None) -> None:
        _tolerate(result, error)
        self.ended, self.unheard = error is None, error is not None
        self.runner.stop()
        if self.ended:
            self._watcher.left(self)

    def _soon(self) -> float:
        return self.clock() + 5.0

    def _joined(self, joined: tuple[State, int] | None, error: BaseException | None) -> None:
        self._joining = False
        if self._ending:
            return
        if joined is None:
            assert error is not None
            self._context.trace.log("{} does not join: {!r}", self.name, error)
            self._watcher.refused(self, error)
            self.leave("it failed to join")
            return
        state, rank = joined
        self.round = state.round
        self.step = None
        self.ready_for = frozenset()
        self.stored = ""
        self._watcher.returned(self, state, rank)
        if self.failing:
            self.failing -= 1
            self._context.timeline.after(_LOOK, self.process.does, self.fail)
        if self._context.stores:
            self.runner.start(self._store(f"{round_folder(state.round)}/store/{self.name}"), _tolerate)

    def _store(self, key: str) -> Coroutine[None]:
        """Write something into the round's store, as long as this is the round."""
        number = self.round
        won, _ = yield Put(key, b"here", self._soon(), previous=None)
        if won and self.round == number:
            self.stored = key

    def _stepped(self) -> None:
        self._watcher.stepped(self)
        if (
            self.working
            and not self._looks
            and (self.node.waiting() or self.node.closed() or self.node.failures.lasting)
        ):
            # Programs look from time to time. As long as there is nothing to see, no look is simulated.
            self._look_soon()

    def _look_soon(self) -> None:
        self._looks = True
        self._context.timeline.after(self._rng.uniform(0.0, _LOOK), self.process.does, self._look)

    def _look(self) -> None:
        """What a program does from time to time."""
        self._looks = False
        if not self.working:
            return
        if self.node.failures.lasting is not None:
            self._watcher.refused(self, self.node.failures.lasting)
            self.leave("it has a problem")
        elif self.node.closed():
            self._context.trace.log("{} sees that the run is closed, and ends", self.name)
            self.leave("the run is closed")
        elif self.node.is_drained():
            self._context.trace.log("{} is drained, and ends", self.name)
            self.leave(self.node.countdown.drain_reason())
        elif self.node.waiting():
            self._context.trace.log("{} sees {} waiting, and joins again", self.name, self.node.waiting())
            self.join()

    def _assign(self, arrived: Sequence[NodeRecord], previous: Sequence[str]) -> tuple[float, Sequence[str] | None]:
        """What a plugin says of the ranks of a new world, and after how many seconds."""
        most = self._context.plan.assigning
        if most is None:
            return 0.0, None
        seconds = most if math.isinf(most) else self._rng.uniform(0.0, most)
        # Whole groups stay together.
        return seconds, list(reversed(sticky_ranks(arrived, previous)))

    def _hear(self, event: Event) -> None:
        if event.kind in _NEWS:
            self._context.trace.log("{} hears: {} {} ({})", self.name, event.kind.value, event.node, event.cause)
        if event.kind is EventKind.NODE_DRAINS:
            self._get_ready()
        self._watcher.heard(self, event)

    def _get_ready(self) -> None:
        """Save the work after a while, and say so; or never."""
        if (seconds := self._time_to_save()) is not None:
            self._context.timeline.after(seconds, self.process.does, self._say_ready)

    def _time_to_save(self) -> float | None:
        """Seconds that its program takes to save its work; None: it does not."""
        return self._rng.uniform(0.0, 2.0) if self._rng.random() < 0.7 else None

    def _say_ready(self) -> None:
        if self.alive:
            ready_for = frozenset(self.node.countdown.drains)
            # Where it waits for a world, that does not count for the next one.
            self.ready_for = ready_for if self.working else frozenset()
            self.runner.start(drain.get_ready(self.node, ready_for, self._soon()), _tolerate)


def _options(rule: AdmissionRule) -> dict[str, Any]:
    """The settings that make a rule."""
    given = {field.name: getattr(rule, field.name) for field in fields(rule)}
    return {name: value for name, value in given.items() if value != getattr(AdmissionRule(), name)}


def _tolerate(result: Any, error: BaseException | None) -> None:
    """For coroutines that may fail for want of a service."""
    del result
    if error is not None and not isinstance(error, RendezvousError):
        raise error


@dataclass
class SimulationContext:
    """The context of one run.

    Attributes:
        plan: What the run is to be.
        timeline: Virtual time.
        service: The service.
        conditions: How bad the network is.
        trace: What has happened.
        fibers: What blocks.
        machines: Every node there ever was.
        by_id: The same, by their ids, so that a check of one node does not go through all.
        attempt: The attempt that new nodes belong to.
        unreliable: The network is, or was, such that even a node that was never disturbed may have been
            out of touch for a time to live.
        corrupt: The state was overwritten for a while, so nodes may have to say so.
        notices_garbled: A notice was overwritten, so what it said is not known any more.
        litter: The keys that another client has left.
        closers: The ids of the nodes that had orders to close the run.
        data_lost: The service has forgotten what it had confirmed: who relied on it may be wrong.
        purged: The state was removed, and the numbers of rounds began anew.
        hangs: In which rounds programs have hung, and the nodes that may be named for it: the one that the others
            waited for, if any; each one where a node stood still then.
        stores: Whether programs use the store of their round.
        joins: How often programs have called ``next_rendezvous``.
        arrive: Lets a new node come.
        rack: The label of the node that comes as that one.
    """

    plan: Plan
    timeline: Timeline
    service: SimulatedService
    conditions: NetworkConditions
    trace: Trace
    fibers: Fibers = field(default_factory=Fibers)
    machines: list["Machine"] = field(default_factory=list)
    by_id: dict[str, "Machine"] = field(default_factory=dict)
    attempt: int = 0
    unreliable: bool = False
    corrupt: bool = False
    litter: set[str] = field(default_factory=set)
    closers: set[str] = field(default_factory=set)
    notices_garbled: bool = False
    data_lost: bool = False
    purged: bool = False
    hangs: dict[int, set[str]] = field(default_factory=dict)
    stores: bool = True
    joins: int = 0
    arrive: Callable[[], None] = lambda: None
    rack: Callable[[int], str] = "r{}".format

    @classmethod
    def of(cls, plan: Plan) -> "SimulationContext":
        """Make the context of a plan."""
        timeline = Timeline()
        service = SimulatedService(
            timeline, leases_sleep=plan.leases_sleep, lag=plan.lag, creates_at_once=plan.creates_at_once
        )
        conditions = NetworkConditions(plan.delay, plan.lost, plan.late, plan.mute)
        conditions.watch_lag, conditions.watch_goes_on = plan.watch_lag, plan.watch_goes_on
        # A slow network leaves too little of a time to live for two attempts.
        unreliable = plan.lost > 0 or plan.late > 0 or plan.watch_lag > 0 or plan.delay * 100 > plan.ttl / 3
        context = cls(plan, timeline, service, conditions, Trace(timeline), unreliable=unreliable)
        context.rack = lambda order: f"r{order % plan.racks}"
        return context

    def add(self, machine: "Machine") -> None:
        """Let a node be there."""
        self.machines.append(machine)
        self.by_id[machine.name] = machine

    def living(self, attempt: int | None = None) -> list["Machine"]:
        """The nodes that run, of one attempt or of all."""
        return [one for one in self.machines if one.alive and attempt in (None, one.settings.attempt)]
