"""Which worker of a round has failed: it has ended, or it hangs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rdzv.channel import Report
from rdzv.outcome import Ending

from ..log import flush
from .outputs import RoundOutput
from .progress import HangDetection
from .signals import Signals
from .workers import Worker

_STACKS: Final = 0.3
"""Seconds that each worker gets to write its stacks, when one hangs."""


class WorkerFailure(NamedTuple):
    """How a worker has failed: in words, by its exit code as a shell has it (1: it hangs), and which of both.

    Its last lines are empty where they are not known, as those that went to the console uncopied.
    """

    what: str
    code: int = 1
    ending: Ending = Ending.FAILED
    last_lines: str = ""

    def after(self, restarts: int) -> str:
        """That this was the last time, after so many restarts."""
        lines = f"; its last lines: {self.last_lines}" if self.last_lines else ""
        return f"{self.what}, after {restarts} restart{'s' * (restarts != 1)}{lines}"


@dataclass(frozen=True)
class FailureDetection:
    """The workers of one round, by local rank.

    Attributes:
        program: What they run.
        first_rank: The global rank of the first.
        hangs: Finds those that hang.
        say: Takes what the user should know.
        is_urgent: Whether there is no time for stacks.
        signals: Those that the agent gets: a worker that one of them has ended, too, has not failed.
        output: That of the workers.
    """

    program: str
    first_rank: int
    hangs: HangDetection
    say: Callable[[str], None]
    is_urgent: Callable[[], bool]
    signals: Signals
    output: RoundOutput

    def look(self, workers: Sequence[Worker], reports: Sequence[Report]) -> WorkerFailure | None:
        """The worker that has failed first, and how; None: none has. All write their stacks if one hangs."""
        # A worker that gets no signal for it would write on, into the void.
        if self.output.is_lost and any(worker.code is None for worker in workers):
            return WorkerFailure(f"the copier of the output of {self.program} was killed")
        for local_rank, worker in sorted(enumerate(workers), key=lambda one: one[1].place):
            if worker.code and not self.signals.may_explain(-worker.code, worker.ended):
                what = f"{self._name(worker, local_rank)} ended with {worker.ending}"
                code = worker.code if worker.code > 0 else 128 - worker.code
                return WorkerFailure(what, code, last_lines=worker.last_lines())
        hanging = self.hangs.look(reports, [worker.code is None for worker in workers], time.monotonic())
        if hanging is None:
            return None
        self._collect_stacks(workers, reports)
        how = f"no progress for {self.hangs.timeout:g} s, last step {reports[hanging].step}"
        return WorkerFailure(f"{self._name(workers[hanging], hanging)} hangs: {how}", ending=Ending.HUNG)

    def _name(self, worker: Worker, local_rank: int) -> str:
        rank = self.first_rank + local_rank
        return f"{self.program} (rank {rank}, local rank {local_rank}, process {worker.pid})"

    def _collect_stacks(self, workers: Sequence[Worker], reports: Sequence[Report]) -> None:
        """Have all workers write their stacks, one after the other: one that hangs may wait for another."""
        for local_rank, (worker, report) in enumerate(zip(workers, reports, strict=True)):
            if not report.process or self.is_urgent():
                continue
            # One that is stopped, or away, does not: the line stands before what comes, if anything does.
            self.say(f"{self._name(worker, local_rank)} is asked to write its stacks to its standard error")
            # Whose they are stands before them.
            flush(_STACKS)
            if worker.send_to(report.process, report.signal):
                time.sleep(_STACKS)
