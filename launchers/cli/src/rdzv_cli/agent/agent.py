"""What the agent of one node does: get a world, run the command in it, and again when it changes."""

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import rdzv
from rdzv.channel import Report
from rdzv.current import variables
from rdzv.outcome import Ending, Outcome
from rdzv.shortages import outlast
from rdzv_core.handler import RendezvousInfo
from rdzv_core.parameters import RendezvousParameters

from ..log import speak_in
from ..told import as_told
from .calls import unless_urgent, until_signalled
from .channels import Channels
from .drains import DrainNotices
from .ending import AgentResult, ExitStatus
from .failures import FailureDetection, WorkerFailure
from .guard import Guard, own_children
from .options import AgentOptions
from .outputs import Outputs, RoundOutput
from .processes import agree_on_processes
from .progress import HangDetection
from .restarts import Restarts
from .shortages import REPLACED, not_started
from .signals import Asked, Signals
from .speaker import Speaker
from .workers import Workers

logger = logging.getLogger(__name__)

_POLL = 0.05
"""Seconds between two looks at the workers; nothing on the network is asked."""


@dataclass(eq=False)
class Agent:
    """One node of a run.

    Attributes:
        handler: This node's handler; the agent shuts it down at the end.
        params: What the command may know of how the handler was made.
        command: The program and its arguments.
        options: What the user has decided.
        check: Called after the command has failed here, before this node takes part again; with a function that says
            whether to end at once. It returns why the node is not fit to, or None.
        environment: The variables of every process that is started, to which those of its world are added.
        waiting: Called several times a second while the node waits for a world, with the seconds so far.
        ending: The same while processes were asked to end and have not yet, with their local ranks.
        say: Takes what its user should know of every world.
        restarts: How often the command may fail here, and has failed.
        drain_at: When the node drains unasked, on the monotonic clock.
    """

    handler: rdzv.DynamicRendezvousHandler
    params: RendezvousParameters
    command: Sequence[str]
    options: AgentOptions
    _: KW_ONLY
    check: Callable[[Callable[[], bool]], str | None] = lambda is_over: None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    waiting: Callable[[float], None] = lambda seconds: None
    ending: Callable[[float, Sequence[int]], None] = lambda seconds, left: None
    say: Callable[[str], None] = logger.info
    restarts: Restarts = field(default_factory=Restarts)
    drain_at: float = math.inf
    _signals: Signals = field(init=False)
    _speaker: Speaker = field(init=False)
    _outputs: Outputs = field(init=False)
    _had_world: bool = field(default=False, init=False)
    _has_failed: bool = field(default=False, init=False)
    _outcome: Outcome | None = field(default=None, init=False)
    _step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Have taken no signal yet."""
        self._signals = Signals(self.options.drain is not None, self.options.signals_to_handle, drain_at=self.drain_at)
        self._speaker = Speaker(self.handler, self._signals, self.options.drain, self.say)
        self._outputs = Outputs(self.options, self.params.run_id, self.environment, self.say)

    def run(self) -> AgentResult:
        """Run to the end; call it on the main thread, since it takes the signals."""
        with self._signals.handled(), own_children():
            try:
                while (ending := self._one_round()) is None:
                    pass
            except rdzv.RendezvousError as error:
                ending = self._ended_by(error)
            except BaseException as error:
                self.handler.leave(f"its agent failed: {type(error).__name__}: {error}")
                raise
            self._shut_down(ending)
            self._outputs.finish(lambda: bool(self._signals.number))
            return ending

    def _one_round(self) -> AgentResult | None:
        if self._has_failed and (ending := self._check()):
            return ending
        self._has_failed = False
        # What is written is read to its end, and that comes with the guard's.
        with self._outputs.of_round(self._is_urgent) as output, contextlib.closing(_guard(self, output)) as keeper:
            joined, self._outcome = partial(self.handler.next_rendezvous, self._outcome), None
            info = until_signalled(self._speaker, joined, self.waiting)
            if info is None:
                return _signalled(self._signals)
            self._had_world = True
            if final := self.restarts.settle(self.handler):
                return self._failed_for_good(final)
            if not agree_on_processes(self._speaker, info, self.options.nproc_per_node, partial(self._has_ended, info)):
                return None
            with contextlib.closing(Channels(self.options.nproc_per_node, keeper)) as channels:
                return self._run_command(info, channels, keeper, output)

    def _check(self) -> AgentResult | None:
        """How this node ends instead of taking part again; None: it is fit to. Until then it stays in its world, and
        drains from that."""

        def is_over() -> bool:
            self._speaker.drain_if_asked()
            return self._ended_from_outside() is not None

        self._signals.in_world = True
        try:
            if unfit := self.check(is_over):
                # No other node explains that.
                failure = self.restarts.pending(self.handler)
                final = failure and self.restarts.pay(failure)
                return self._failed_for_good(final) if final else AgentResult(ExitStatus.UNFIT, unfit)
            # A signal has ended the check: whether it is fit is not known, and it goes.
            while self._signals.is_draining and not is_over():
                time.sleep(_POLL)
            return self._ended_from_outside()
        finally:
            self._signals.in_world = False

    def _run_command(
        self, info: RendezvousInfo, channels: Channels, keeper: Guard, output: RoundOutput
    ) -> AgentResult | None:
        environments = _environments(self, info, channels)
        notices = DrainNotices(channels, self.options.on_drain)
        speak_in(info.round, info.rank * self.options.nproc_per_node)
        self.say(_place_in(info, self.options.nproc_per_node))
        # From here on a signal asks a member: the command may be what sends it.
        self._signals.in_world = True
        try:
            start = partial(Workers, self.command, environments, keeper, output.start(info.round, environments))
            workers = outlast(start, partial(self._has_ended, info), passing=REPLACED)
        except OSError as error:
            self._signals.in_world = False
            if self._has_ended(info):
                return None
            failure = WorkerFailure(f"{self.command[0]} cannot be started: {not_started(error)}")
            self._outcome = Outcome(failure.ending, spent=self.restarts.are_spent)
            return self._failed(failure, info, progressed=False)
        try:
            ending = self._watch(workers, channels, notices, info, output)
        finally:
            self._signals.in_world = False
            number = self._signals.number or signal.SIGTERM
            if stuck := workers.stop(self.options.grace, number, force=self._is_urgent, waiting=self.ending):
                logger.error(stuck)
        # Another world must not find here what a former one has left.
        return AgentResult(ExitStatus.FAILED, f"cannot go on: {stuck}") if stuck and ending is None else ending

    def _has_ended(self, info: RendezvousInfo) -> bool:
        """Whether this world is over for this node, as far as it knows."""
        return bool(
            self._signals.number
            or self.handler.view.closed
            or self.handler.num_nodes_waiting()
            or _has_lost_member(self.handler, info)
        )

    def _watch(
        self, workers: Workers, channels: Channels, notices: DrainNotices, info: RendezvousInfo, output: RoundOutput
    ) -> AgentResult | None:
        """Watch one round; None when it is time for another."""
        hangs = HangDetection(self.options.hang_timeout)
        first = info.rank * self.options.nproc_per_node
        failures = FailureDetection(self.command[0], first, hangs, self.say, self._is_urgent, self._signals, output)
        done: AgentResult | None = None
        while (ending := self._ended_from_outside(done)) is None:
            self._speaker.drain_if_asked()
            seen, reports = workers.look(), channels.reports()
            # A world without one of its members is none, even if the others are too few for another.
            if self.handler.num_nodes_waiting() or _has_lost_member(self.handler, info):
                logger.info("round %d ends here: the world changes", info.round)
                self._outcome = _outcome_of(self, Ending.CHANGED, info, hangs.behind(reports))
                # One that drains has nothing left to save: to start the program anew would only put off its end.
                has_ended = all(worker.code is not None for worker in seen)
                return _drained_early(self.handler) if has_ended else None
            if failure := failures.look(seen, reports):
                self._outcome = _outcome_of(self, failure.ending, info, hangs.behind(reports))
                return self._failed(failure, info, progressed=self._progressed(reports))
            self._speaker.pass_on_drains(seen, notices)
            if done is None and all(worker.code == 0 for worker in seen):
                done = AgentResult.of_done(info.world_size, info.round)
                if self._is_last_to_finish(info):
                    return done
            time.sleep(_POLL)
        return ending

    def _ended_from_outside(self, done: AgentResult | None = None) -> AgentResult | None:
        """How this node ends by a signal, or by what the run says; None: it goes on.

        Args:
            done: How it ends if the job is done; None: its workers have not finished.
        """
        if self._signals.number:
            return _signalled(self._signals)
        if closed := self.handler.view.closed:
            return (closed.done and done) or self._finished_without() or AgentResult.of_closed(closed)
        return _drained(self.handler) if self.handler.view.is_drained else None

    def _is_last_to_finish(self, info: RendezvousInfo) -> bool:
        """Say that the workers of this node have finished, and see whether all others have."""
        count = until_signalled(
            self._speaker, lambda: info.store.add("rdzv.finished", 1), is_over=lambda: self.handler.view.is_drained
        )
        return count == info.world_size

    def _progressed(self, reports: Sequence[Report]) -> bool:
        """Whether a worker has come further than any has come on this node in the rounds before."""
        before, self._step = self._step, max([self._step, *(report.step for report in reports if report.calls)])
        return self._step > before

    def _failed(self, failure: WorkerFailure, info: RendezvousInfo, *, progressed: bool) -> AgentResult | None:
        if _loses_drained(self.handler, info):
            logger.info("%s, since a node has left the world as it said", failure.what)
            self._outcome = None
            return _drained_early(self.handler)
        unless_urgent(self._signals, lambda: self._speaker.report_failure(failure.what, progressed=progressed))
        if ending := self._gives_up():
            return ending
        self._has_failed = True
        # A program may end with any code once it has saved its work: a node that was asked to drain goes as drained.
        if info.world_size > 1 or self._signals.is_draining:
            self.restarts.fail(failure)
            return None
        # No other node can explain it: it is counted now, and not once more when the next world stands.
        self._outcome = Outcome(Ending.CHANGED)
        final = self.restarts.pay(failure)
        return self._failed_for_good(final) if final else None

    def _failed_for_good(self, failure: WorkerFailure) -> AgentResult:
        program = failure.code if self.options.pass_exit_code else 0
        return AgentResult(ExitStatus.FAILED, failure.after(self.restarts.count), program=program)

    def _gives_up(self) -> AgentResult | None:
        """Close the run if it makes no progress."""
        rounds = self.handler.view.rounds_without_progress
        if not self.options.give_up_after or len(rounds) < self.options.give_up_after:
            return None
        first = "; ".join(f"in round {number} '{one.node}' {one.how}: {one.reason}" for number, one in rounds)
        reason = f"{len(rounds)} round{'s' * (len(rounds) != 1)} without progress: {first}"
        unless_urgent(self._signals, lambda: self.handler.set_closed(reason, gave_up=True))
        return AgentResult(ExitStatus.GAVE_UP, reason)

    def _ended_by(self, error: rdzv.RendezvousError) -> AgentResult:
        if self.handler.view.is_drained:
            return _drained(self.handler)
        ending = self._failed_before() or self._finished_without()
        return ending or AgentResult.of_error(error, self.handler.view.closed)

    def _failed_before(self) -> AgentResult | None:
        """How this node ends if its program has failed, and may not fail any more; else None."""
        failure = self.restarts.pending(self.handler) if self.restarts.are_spent else None
        return self._failed_for_good(failure) if failure else None

    def _finished_without(self) -> AgentResult | None:
        """How this node ends if the others have finished, and it has failed for good or drains; None: as the run does.

        One that has had no world was not needed.
        """
        closed = self.handler.view.closed
        if closed is None or not closed.done or not self._had_world:
            return None
        return self._failed_before() or _drained_early(self.handler)

    def _is_urgent(self) -> bool:
        return self._signals.asked is Asked.END_AT_ONCE

    def _shut_down(self, ending: AgentResult) -> None:
        is_done = ending.exit_status is ExitStatus.DONE
        end = self.handler.shutdown if is_done else partial(self.handler.leave, ending.summary or ending.reason)
        unless_urgent(self._signals, end)


def _outcome_of(agent: Agent, ending: Ending, info: RendezvousInfo, behind: tuple[int | None, float]) -> Outcome:
    """How a round has ended here: the program that is behind was at this step for so many seconds."""
    heard = info.round in agent.handler.view.failures
    return Outcome(ending, *behind, spent=agent.restarts.are_spent, heard=heard)


def _loses_drained(handler: rdzv.DynamicRendezvousHandler, info: RendezvousInfo) -> bool:
    """Whether a node that drains goes now: the workers of the others fail when its workers end."""
    status = handler.view.status
    released = status.drained if status is not None and status.round == info.round else ()
    return bool(released) or any(not drain.seconds for drain in handler.view.drains)


def _signalled(signals: Signals) -> AgentResult:
    return AgentResult.of_signal(signals.number, "this node leaves the run")


def _has_lost_member(handler: rdzv.DynamicRendezvousHandler, info: RendezvousInfo) -> bool:
    """Whether a member of this world is gone, even if the others are too few for another one."""
    status = handler.view.status
    return status is not None and status.round == info.round and bool(status.departures)


def _drained_early(handler: rdzv.DynamicRendezvousHandler) -> AgentResult | None:
    """How a node ends whose command has nothing left to do, if it drains; None: it does not."""
    return _drained(handler) if any(drain.node == handler.view.node_id for drain in handler.view.drains) else None


def _drained(handler: rdzv.DynamicRendezvousHandler) -> AgentResult:
    return AgentResult(ExitStatus.DRAINED, handler.view.drain_reason)


def _guard(agent: Agent, output: RoundOutput) -> Guard:
    """Start a guard for one round: one that was killed is missed by no other. It begins while the node waits."""
    options = agent.options
    # A scheduler that has this node drain signals every process of its job.
    ignored = () if options.drain is None else (signal.SIGUSR1,)
    guard = partial(Guard, agent.environment, keep_detached=options.keep_detached, ignored=ignored, pipes=output.pipes)
    started = outlast(guard, passing=REPLACED)
    output.hand_over()
    return started


def _environments(agent: Agent, info: RendezvousInfo, channels: Channels) -> list[Mapping[str, str]]:
    """The variables of each process of this world."""
    own = {"processes": agent.options.nproc_per_node, "restarts": agent.restarts.count}
    places = (
        variables(agent.params, info, local_rank=rank, channel=channels.path(rank), **own)
        for rank in range(agent.options.nproc_per_node)
    )
    # As torchrun does: each of several processes would take all CPUs.
    threads = {"OMP_NUM_THREADS": "1"} if agent.options.nproc_per_node > 1 else {}
    told = (as_told(place | {"ROLE_NAME": agent.options.role}, agent.params, agent.environment) for place in places)
    return [{**threads, **agent.environment, **each} for each in told]


def _place_in(info: RendezvousInfo, each: int) -> str:
    first = info.rank * each
    if each == 1:
        return f"round {info.round}: world size {info.world_size}, rank {first}"
    world = f"world size {info.world_size * each} (nodes: {info.world_size}, processes on each: {each})"
    return f"round {info.round}: {world}, ranks {first} to {first + each - 1}"
