"""What the agent of one node does: get a world, run the command in it, and again when it changes."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

import rdzv
from rdzv.channel import Report
from rdzv.current import variables
from rdzv_core.handler import RendezvousInfo
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.threads import start_thread

from .channels import Channels
from .drains import DrainNotices
from .ending import AgentResult, ExitStatus
from .failures import FailureDetection
from .processes import PROCESSES, processes_of_rank_0
from .progress import HangDetection
from .signals import Asked, Signals
from .workers import Guard, Worker, Workers, own_children, signal_name

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_POLL = 0.05
"""Seconds between two looks at the workers; nothing on the network is asked."""

_RETRY = 1.0
"""Seconds until what could not be said to the others is said again."""


@dataclass(eq=False)
class Agent:
    """One node of a run.

    Attributes:
        handler: This node's handler; the agent shuts it down at the end.
        params: What the command may know of how the handler was made.
        command: The program and its arguments.
        processes: How many of it each node runs.
        max_restarts: How often it may fail here before this node gives up. A new world costs none.
        grace: Seconds between asking the command to end and killing it.
        drain: Seconds for which this node stays in its world after the first SIGTERM or SIGUSR1; None: it goes at once.
        give_up_after: Consecutive rounds without progress after which the run is closed; 0: it never is.
        hang_timeout: Seconds after which a worker that has reported progress, and does so no more, has failed; None:
            it may take any time.
        on_drain: The signal that the workers are sent when another drain is known; 0: none.
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
    _: KW_ONLY
    processes: int = 1
    max_restarts: int = 0
    grace: float = 10.0
    drain: float | None = None
    give_up_after: int = 0
    hang_timeout: float | None = None
    on_drain: int = 0
    check: Callable[[Callable[[], bool]], str | None] = lambda is_over: None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    waiting: Callable[[float], None] = lambda seconds: None
    say: Callable[[str], None] = logger.info
    restarts: int = 0
    _signals: Signals = field(init=False)
    _has_failed: bool = field(default=False, init=False)
    _draining: threading.Thread | None = field(default=None, init=False)
    _answering: threading.Thread | None = field(default=None, init=False)
    _answers_from: float = field(default=0.0, init=False)
    _step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Have taken no signal yet."""
        self._signals = Signals(drains=self.drain is not None)

    def run(self) -> AgentResult:
        """Run to the end; call it on the main thread, since it takes the signals."""
        with self._signals.handled(), own_children(), contextlib.closing(Guard(self.environment)) as keeper:
            try:
                while (ending := self._one_round(keeper)) is None:
                    pass
            except rdzv.RendezvousError as error:
                ending = self._ended_by(error)
            except BaseException as error:
                self.handler.leave(f"its agent failed: {type(error).__name__}: {error}")
                raise
            self._shut_down(ending)
            return ending

    def _one_round(self, keeper: Guard) -> AgentResult | None:
        if self._has_failed and (unfit := self.check(lambda: bool(self._signals.number))):
            return AgentResult(ExitStatus.UNFIT, unfit)
        self._has_failed = False
        info = self._run_until_signalled(self.handler.next_rendezvous, self.waiting)
        if info is None:
            return self._signalled()
        if not self._agree_on_processes(info):
            return None
        with contextlib.closing(Channels(self.processes, keeper)) as channels:
            return self._run_command(info, channels, keeper)

    def _run_command(self, info: RendezvousInfo, channels: Channels, keeper: Guard) -> AgentResult | None:
        own = {"processes": self.processes, "restarts": self.restarts}
        environments = [
            {**self.environment, **variables(self.params, info, local_rank=rank, channel=channels.path(rank), **own)}
            for rank in range(self.processes)
        ]
        notices = DrainNotices(channels, self.on_drain)
        self.say(self._place_in(info))
        try:
            workers = Workers(self.command, environments, keeper)
        except OSError as error:
            reason = f"cannot start {self.command[0]!r}: {error.strerror}"
            self._report_failure(reason, progressed=False)
            return AgentResult(ExitStatus.FAILED, reason)
        self._signals.in_world = True
        try:
            return self._watch(workers, channels, notices, info)
        finally:
            self._signals.in_world = False
            workers.stop(self.grace, self._signals.number or signal.SIGTERM, force=self._is_urgent)

    def _place_in(self, info: RendezvousInfo) -> str:
        each, first = self.processes, info.rank * self.processes
        if each == 1:
            return f"round {info.round}: world size {info.world_size}, rank {first}"
        world = f"world size {info.world_size * each} (nodes: {info.world_size}, processes on each: {each})"
        return f"round {info.round}: {world}, ranks {first} to {first + each - 1}"

    def _run_until_signalled(
        self,
        call: Callable[[], _T],
        waiting: Callable[[float], None] = lambda seconds: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> _T | None:
        """What a call to the service returns; None if a signal came first, for which the node leaves.

        Args:
            call: The call.
            waiting: Called now and then with the seconds so far.
            is_over: Whether there is no point in waiting on, so that None is returned. The call then ends by itself.
        """
        if self._signals.number:
            # It came while nothing was asked, such as while the workers ended.
            return None
        started = time.monotonic()
        pool = ThreadPoolExecutor(1, "rdzv-agent")
        try:
            asked: Future[_T] = pool.submit(call)
            while not self._signals.number:
                if wait([asked], _POLL).done:
                    return asked.result()
                if is_over():
                    return None
                self._drain_if_asked()
                waiting(time.monotonic() - started)
            # Leaving ends the wait too.
            self.handler.leave(signal_name(self._signals.number))
            with contextlib.suppress(rdzv.RendezvousError):
                asked.result()
            return None
        finally:
            pool.shutdown(wait=False)

    def _agree_on_processes(self, info: RendezvousInfo) -> bool:
        """See to it that every node has as many processes, else the global ranks would not add up.

        Returns:
            False if the world ended before it was known.
        """
        if info.rank == 0:
            self._run_until_signalled(lambda: info.store.set(PROCESSES, str(self.processes)))
            return not self._signals.number
        ended = threading.Event()
        try:
            first = self._run_until_signalled(
                lambda: processes_of_rank_0(info.store, ended), is_over=lambda: self._has_ended(info)
            )
        finally:
            ended.set()
        if first is None:
            return False
        if first != self.processes:
            raise rdzv.RendezvousParameterError(
                f"This node runs {self.processes} processes, but the node of rank 0 runs {first}: "
                "give all nodes the same --nproc-per-node."
            )
        return True

    def _has_ended(self, info: RendezvousInfo) -> bool:
        """Whether this world is over, as far as this node knows."""
        return bool(self.handler.closed or self.handler.num_nodes_waiting() or self._has_lost_member(info))

    def _has_lost_member(self, info: RendezvousInfo) -> bool:
        """Whether a member of this world is gone, even if the others are too few for another one."""
        status = self.handler.status
        return status is not None and status.round == info.round and bool(status.departures)

    def _watch(
        self, workers: Workers, channels: Channels, notices: DrainNotices, info: RendezvousInfo
    ) -> AgentResult | None:
        """Watch one round; None when it is time for another."""
        finished = False
        failures = FailureDetection(
            self.command[0],
            info.rank * self.processes,
            HangDetection(self.hang_timeout),
            self.say,
            self._is_urgent,
        )
        while True:
            if self._signals.number:
                return self._signalled()
            if closed := self.handler.closed:
                if closed.done and finished:
                    return AgentResult(ExitStatus.DONE, closed.reason)
                kind = ExitStatus.GAVE_UP if closed.gave_up else ExitStatus.CLOSED
                return AgentResult(kind, f"closed by {closed.by or 'an unnamed node'}: {closed.reason}")
            if self.handler.is_drained:
                return self._drained()
            self._drain_if_asked()
            # A world without one of its members is none, even if the others are too few for another.
            if self.handler.num_nodes_waiting() or self._has_lost_member(info):
                logger.info("round %d ends here: the world changes", info.round)
                return None
            seen, reports = workers.look(), channels.reports()
            if failure := failures.look(seen, reports):
                return self._failed(failure, info, progressed=self._progressed(reports))
            self._pass_on_drains(seen, notices)
            if not finished and all(worker.code == 0 for worker in seen):
                finished = True
                count = self._run_until_signalled(
                    lambda: info.store.add("rdzv.finished", 1), is_over=lambda: self.handler.is_drained
                )
                if count == info.world_size:
                    return AgentResult(ExitStatus.DONE, "every node has finished")
            time.sleep(_POLL)

    def _progressed(self, reports: Sequence[Report]) -> bool:
        """Whether a worker has come further than any has come on this node in the rounds before."""
        before, self._step = self._step, max([self._step, *(report.step for report in reports if report.calls)])
        return self._step > before

    def _failed(self, what: str, info: RendezvousInfo, *, progressed: bool) -> AgentResult | None:
        if self._loses_drained(info):
            logger.info("%s, since a node has left the world as it said", what)
            return None
        self._report_failure(what, progressed=progressed)
        if ending := self._gives_up():
            return ending
        if self.restarts >= self.max_restarts:
            return AgentResult(ExitStatus.FAILED, f"{what}, after {self.restarts} restart{'s' * (self.restarts != 1)}")
        self.restarts += 1
        self._has_failed = True
        logger.warning("%s; restart %d of %d", what, self.restarts, self.max_restarts)
        return None

    def _loses_drained(self, info: RendezvousInfo) -> bool:
        """Whether a node that drains goes now: the workers of the others fail when its workers end."""
        status = self.handler.status
        released = status.drained if status is not None and status.round == info.round else ()
        return bool(released) or any(not drain.seconds for drain in self.handler.drains)

    def _report_failure(self, reason: str, *, progressed: bool) -> None:
        """Tell the run of the first failure on this node in this round.

        Args:
            reason: In words.
            progressed: Whether any worker of this node has made progress in this round.
        """
        try:
            self.handler.report_failure(reason, progressed)
        except rdzv.RendezvousError as error:
            logger.warning("the failure of this node's program could not be reported: %s", error)

    def _gives_up(self) -> AgentResult | None:
        """Close the run if it makes no progress."""
        rounds = self.handler.rounds_without_progress
        if not self.give_up_after or len(rounds) < self.give_up_after:
            return None
        first = "; ".join(f"in round {number} '{one.node}' failed first: {one.reason}" for number, one in rounds)
        reason = f"{len(rounds)} rounds without progress: {first}"
        self.handler.set_closed(reason, gave_up=True)
        return AgentResult(ExitStatus.GAVE_UP, reason)

    def _ended_by(self, error: rdzv.RendezvousError) -> AgentResult:
        if self.handler.is_drained:
            return self._drained()
        closed = self.handler.closed
        has_given_up = isinstance(error, rdzv.RendezvousClosedError) and closed is not None and closed.gave_up
        kind = ExitStatus.GAVE_UP if has_given_up else ExitStatus.of(error)
        return AgentResult(kind, str(error), summary=error.summary)

    def _is_urgent(self) -> bool:
        return self._signals.asked is Asked.END_AT_ONCE

    def _signalled(self) -> AgentResult:
        number = self._signals.number
        return AgentResult(ExitStatus.SIGNALLED, signal_name(number), number)

    def _drained(self) -> AgentResult:
        return AgentResult(ExitStatus.DRAINED, self.handler.drain_reason)

    def _drain_if_asked(self) -> None:
        """Announce that this node drains, beside the command: it goes in time, whether the service answers or not."""
        if self._signals.asked is not Asked.DRAIN or self._draining is not None:
            return
        limit = self.drain or 0.0
        # The time runs from the signal on; tenths are all that its users read.
        seconds = round(max(0.0, limit - (time.monotonic() - self._signals.drain_since)), 1)

        def announce() -> None:
            try:
                self.handler.drain(seconds, "its agent was asked to end")
            except rdzv.RendezvousError as error:
                logger.warning("this node goes, and could not say so before: %s", error)

        self.say(f"asked to end: this node leaves within {limit:g} s of the signal, so that the others can save work")
        self._draining = start_thread(announce, name="rdzv-drain")

    def _pass_on_drains(self, seen: Sequence[Worker], notices: DrainNotices) -> None:
        """Tell the workers of the drains, and the run once all of them are ready."""
        notices.send(seen, notices.show(self.handler.drains))
        is_answering = self._answering is not None and self._answering.is_alive()
        if is_answering or time.monotonic() < self._answers_from or not notices.are_answered(seen):
            return
        # If it fails, at once or later, it is tried again, and not at once.
        self._answers_from = time.monotonic() + _RETRY
        asked, nodes = notices.asked, notices.nodes

        def say_ready() -> None:
            try:
                self.handler.ready_to_drain(nodes)
            except Exception as error:
                logger.warning("the others do not know yet that this node is ready for the drain: %s", error)
            else:
                notices.answered, self._answers_from = asked, 0.0

        try:
            self._answering = start_thread(say_ready, name="rdzv-ready")
        except rdzv.RendezvousConnectionError as error:
            logger.warning("the others will know later that this node is ready for the drain: %s", error)

    def _shut_down(self, ending: AgentResult) -> None:
        if ending.exit_status is ExitStatus.DONE:
            self.handler.shutdown()
        else:
            self.handler.leave(ending.summary or ending.reason)
