"""What the agent of one node does: get a world, run the command in it, and again when it changes."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import rdzv
from rdzv.channel import Report
from rdzv.current import variables
from rdzv_core.handler import RendezvousInfo
from rdzv_core.parameters import RendezvousParameters

from ..told import as_told
from .calls import until_signalled
from .channels import Channels
from .drains import DrainNotices
from .ending import AgentResult, ExitStatus
from .failures import FailureDetection, WorkerFailure
from .guard import Guard, own_children
from .options import AgentOptions
from .processes import PROCESSES, processes_of_rank_0
from .progress import HangDetection
from .signals import Asked, Signals
from .speaker import Speaker
from .workers import Workers, signal_name

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
        say: Takes what its user should know of every world.
        restarts: How often the command has failed here and was to be started again.
    """

    handler: rdzv.DynamicRendezvousHandler
    params: RendezvousParameters
    command: Sequence[str]
    options: AgentOptions
    _: KW_ONLY
    check: Callable[[Callable[[], bool]], str | None] = lambda is_over: None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    waiting: Callable[[float], None] = lambda seconds: None
    say: Callable[[str], None] = logger.info
    restarts: int = 0
    _signals: Signals = field(init=False)
    _speaker: Speaker = field(init=False)
    _has_failed: bool = field(default=False, init=False)
    _step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Have taken no signal yet."""
        self._signals = Signals(self.options.drain is not None, self.options.signals_to_handle)
        self._speaker = Speaker(self.handler, self._signals, self.options.drain, self.say)

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
            return ending

    def _one_round(self) -> AgentResult | None:
        if self._has_failed and (unfit := self.check(lambda: bool(self._signals.number))):
            return AgentResult(ExitStatus.UNFIT, unfit)
        self._has_failed = False
        # A guard for each round: one that was killed is missed by no other. It begins while the node waits.
        # A scheduler that has this node drain signals every process of its job.
        ignored = () if self.options.drain is None else (signal.SIGUSR1,)
        guard = Guard(self.environment, keep_detached=self.options.keep_detached, ignored=ignored)
        with contextlib.closing(guard) as keeper:
            info = until_signalled(self._speaker, self.handler.next_rendezvous, self.waiting)
            if info is None:
                return self._signalled()
            if not self._agree_on_processes(info):
                return None
            with contextlib.closing(Channels(self.options.nproc_per_node, keeper)) as channels:
                return self._run_command(info, channels, keeper)

    def _run_command(self, info: RendezvousInfo, channels: Channels, keeper: Guard) -> AgentResult | None:
        own = {"processes": self.options.nproc_per_node, "restarts": self.restarts}
        own_of = [
            variables(self.params, info, local_rank=rank, channel=channels.path(rank), **own)
            for rank in range(self.options.nproc_per_node)
        ]
        environments = [{**self.environment, **as_told(each, self.environment)} for each in own_of]
        notices = DrainNotices(channels, self.options.on_drain)
        self.say(_place_in(info, self.options.nproc_per_node))
        try:
            workers = Workers(self.command, environments, keeper)
        except OSError as error:
            reason = f"cannot start {self.command[0]!r}: {error.strerror}"
            self._speaker.report_failure(reason, progressed=False)
            return AgentResult(ExitStatus.FAILED, reason)
        self._signals.in_world = True
        stuck = ""
        try:
            ending = self._watch(workers, channels, notices, info)
        finally:
            self._signals.in_world = False
            number = self._signals.number or signal.SIGTERM
            if stuck := workers.stop(self.options.grace, number, force=self._is_urgent):
                logger.error(stuck)
        # Another world must not find here what a former one has left.
        return AgentResult(ExitStatus.FAILED, f"cannot go on: {stuck}") if stuck and ending is None else ending

    def _agree_on_processes(self, info: RendezvousInfo) -> bool:
        """See to it that every node has as many processes, else the global ranks would not add up.

        Returns:
            False if the world ended before it was known.
        """
        if info.rank == 0:
            until_signalled(self._speaker, lambda: info.store.set(PROCESSES, str(self.options.nproc_per_node)))
            return not self._signals.number
        ended = threading.Event()
        try:
            first = until_signalled(
                self._speaker, lambda: processes_of_rank_0(info.store, ended), is_over=lambda: self._has_ended(info)
            )
        finally:
            ended.set()
        if first is None:
            return False
        if first != self.options.nproc_per_node:
            raise rdzv.RendezvousParameterError(
                f"This node runs {self.options.nproc_per_node} processes, but the node of rank 0 runs {first}: "
                "give all nodes the same --nproc-per-node."
            )
        return True

    def _has_ended(self, info: RendezvousInfo) -> bool:
        """Whether this world is over, as far as this node knows."""
        return bool(self.handler.view.closed or self.handler.num_nodes_waiting() or self._has_lost_member(info))

    def _has_lost_member(self, info: RendezvousInfo) -> bool:
        """Whether a member of this world is gone, even if the others are too few for another one."""
        status = self.handler.view.status
        return status is not None and status.round == info.round and bool(status.departures)

    def _watch(
        self, workers: Workers, channels: Channels, notices: DrainNotices, info: RendezvousInfo
    ) -> AgentResult | None:
        """Watch one round; None when it is time for another."""
        hangs = HangDetection(self.options.hang_timeout)
        failures = FailureDetection(
            self.command[0], info.rank * self.options.nproc_per_node, hangs, self.say, self._is_urgent, self._signals
        )
        finished = False
        while (ending := self._ended_from_outside(finished)) is None:
            self._speaker.drain_if_asked()
            # A world without one of its members is none, even if the others are too few for another.
            if self.handler.num_nodes_waiting() or self._has_lost_member(info):
                logger.info("round %d ends here: the world changes", info.round)
                return None
            seen, reports = workers.look(), channels.reports()
            if failure := failures.look(seen, reports):
                return self._failed(failure, info, progressed=self._progressed(reports))
            self._speaker.pass_on_drains(seen, notices)
            if not finished and all(worker.code == 0 for worker in seen):
                finished = True
                if self._is_last_to_finish(info):
                    return AgentResult(ExitStatus.DONE, "every node has finished")
            time.sleep(_POLL)
        return ending

    def _ended_from_outside(self, finished: bool) -> AgentResult | None:
        """How this node ends by a signal, or by what the run says; None: it goes on.

        Args:
            finished: Whether its workers have finished.
        """
        if self._signals.number:
            return self._signalled()
        if closed := self.handler.view.closed:
            if closed.done and finished:
                return AgentResult(ExitStatus.DONE, closed.reason)
            kind = ExitStatus.of_closed(done=closed.done, gave_up=closed.gave_up)
            return AgentResult(kind, f"closed by {closed.by or 'an unnamed node'}: {closed.reason}")
        return self._drained() if self.handler.view.is_drained else None

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
        what = failure.what
        if self._loses_drained(info):
            logger.info("%s, since a node has left the world as it said", what)
            return None
        self._speaker.report_failure(what, progressed=progressed)
        if ending := self._gives_up():
            return ending
        if self.restarts >= self.options.max_restarts:
            program = failure.code if self.options.pass_exit_code else 0
            reason = f"{what}, after {self.restarts} restart{'s' * (self.restarts != 1)}"
            return AgentResult(ExitStatus.FAILED, reason, program=program)
        self.restarts += 1
        self._has_failed = True
        logger.warning("%s; restart %d of %d", what, self.restarts, self.options.max_restarts)
        return None

    def _loses_drained(self, info: RendezvousInfo) -> bool:
        """Whether a node that drains goes now: the workers of the others fail when its workers end."""
        status = self.handler.view.status
        released = status.drained if status is not None and status.round == info.round else ()
        return bool(released) or any(not drain.seconds for drain in self.handler.view.drains)

    def _gives_up(self) -> AgentResult | None:
        """Close the run if it makes no progress."""
        rounds = self.handler.view.rounds_without_progress
        if not self.options.give_up_after or len(rounds) < self.options.give_up_after:
            return None
        first = "; ".join(f"in round {number} '{one.node}' failed first: {one.reason}" for number, one in rounds)
        reason = f"{len(rounds)} rounds without progress: {first}"
        self.handler.set_closed(reason, gave_up=True)
        return AgentResult(ExitStatus.GAVE_UP, reason)

    def _ended_by(self, error: rdzv.RendezvousError) -> AgentResult:
        if self.handler.view.is_drained:
            return self._drained()
        closed, kind = self.handler.view.closed, ExitStatus.of(error)
        if kind is ExitStatus.CLOSED and closed is not None:
            kind = ExitStatus.of_closed(done=closed.done, gave_up=closed.gave_up)
        return AgentResult(kind, str(error), summary=error.summary)

    def _is_urgent(self) -> bool:
        return self._signals.asked is Asked.END_AT_ONCE

    def _signalled(self) -> AgentResult:
        number = self._signals.number
        return AgentResult(ExitStatus.SIGNALLED, signal_name(number), number)

    def _drained(self) -> AgentResult:
        return AgentResult(ExitStatus.DRAINED, self.handler.view.drain_reason)

    def _shut_down(self, ending: AgentResult) -> None:
        if ending.exit_status is ExitStatus.DONE:
            self.handler.shutdown()
        else:
            self.handler.leave(ending.summary or ending.reason)


def _place_in(info: RendezvousInfo, each: int) -> str:
    first = info.rank * each
    if each == 1:
        return f"round {info.round}: world size {info.world_size}, rank {first}"
    world = f"world size {info.world_size * each} (nodes: {info.world_size}, processes on each: {each})"
    return f"round {info.round}: {world}, ranks {first} to {first + each - 1}"
