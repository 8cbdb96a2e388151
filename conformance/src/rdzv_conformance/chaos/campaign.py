"""One run of the task: fault phases and quiet phases, until the time is over or an invariant is violated."""

import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from .checker import Violation, check, is_settled
from .faults import FAULTS, healthy, possible
from .plan import FaultEvent, FaultSchedule
from .testbed import Testbed

_JUDGE: Final = 5.0
"""Seconds between two looks at what is wrong so far."""

_START: Final = 120.0
"""Seconds that processes may take to begin: eight that import torch for the first time take half a minute."""


class _ViolatedError(Exception):
    """Something is wrong: the rest need not be tried."""


@dataclass
class Campaign:
    """What was done, and what was found.

    Attributes:
        testbed: Where it happens.
        seed: Where all chance comes from.
        seconds: How long faults may come.
        bound: Seconds of the quiet phase within which a world must form.
        progress: Called again and again.
        faults: How often each kind was there.
        quiet_phases: How many fault phases were survived.
        slowest: The longest time until a world had formed, in seconds of the quiet phase.
        violations: What is wrong.
    """

    testbed: Testbed
    seed: int
    seconds: float
    bound: float
    progress: Callable[["Campaign"], None] = lambda campaign: None
    faults: Counter[str] = field(default_factory=Counter)
    quiet_phases: int = 0
    slowest: float = 0.0
    violations: list[Violation] = field(default_factory=list)
    _judged: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.faults.most_common())
        rounds = len(self.testbed.history.rounds)
        return (
            f"{self.faults.total()} faults ({kinds}), {rounds} rounds, {self.quiet_phases} fault phases survived, "
            f"slowest world after {self.slowest:.1f} s of the quiet phase, {len(self.violations)} violations"
        )

    def run(self) -> None:
        """Do it all; afterwards `violations` are complete."""
        with suppress(_ViolatedError):
            ends = time.monotonic() + self.seconds
            self._begin()
            for number in itertools.count():
                if (left := ends - time.monotonic()) <= 0:
                    break
                self._fault_phase(FaultSchedule.draw(self.seed, number, possible(self.testbed), left))
            self._end()

    def _begin(self) -> None:
        for _ in range(self.testbed.size):
            self.testbed.arrive()
        self._quiet_phase(self._is_settled)

    def _fault_phase(self, schedule: FaultSchedule) -> None:
        """A fault phase, and the quiet phase after it."""
        testbed = self.testbed
        for event in schedule.events:
            testbed.after(event.moment, partial(self._inject, event))
        testbed.after(schedule.fault_phase, lambda: None)
        self._pass_time(testbed.nothing_is_due)
        # One that has orders to go may still begin. (Newcomers of a closed run are those who come too late.)
        staying = healthy(testbed)
        for _ in range(len(staying), testbed.size):
            testbed.arrive()
        for handle in staying[testbed.size :]:
            testbed.leave(handle)
        self._quiet_phase(lambda: self._is_settled() or self._is_empty())
        self.quiet_phases += 1
        if self._is_empty():
            self._next_attempt()

    def _inject(self, event: FaultEvent) -> None:
        if FAULTS[event.fault](self.testbed, event):
            self.faults[event.fault] += 1

    def _next_attempt(self) -> None:
        """The run is closed, and all agents have gone: launch it again."""
        self._come_too_late()
        self.testbed.history.forget()
        self.testbed.attempt += 1
        self._begin()

    def _come_too_late(self) -> None:
        """A node that joins a closed run is refused."""
        self.testbed.arrive()
        self._quiet_phase(self._is_empty)

    def _end(self) -> None:
        """Close the run, and see that every agent hears it."""
        next(iter(self.testbed.handles.values())).tell("close", "the end")
        self._quiet_phase(self._is_empty)
        self._come_too_late()

    def _quiet_phase(self, ended: Callable[[], bool]) -> None:
        """Nothing is wrong any more, so this must come about; then all that was written is checked."""
        testbed = self.testbed
        testbed.await_servers()
        testbed.await_restored()
        started_by = time.monotonic() + _START
        self._pass_time(lambda: testbed.handles.keys() <= testbed.history.last.keys() or time.monotonic() > started_by)
        testbed.event_log.write("quiet")
        began = time.monotonic()
        self._pass_time(lambda: ended() or time.monotonic() > began + self.bound)
        after = time.monotonic() - began
        if ended():
            testbed.event_log.write("settled", after=round(after, 3))
            self.slowest = max(self.slowest, after)
        else:
            testbed.event_log.write("unsettled", text=self._what_they_do(after))
        testbed.read_on()
        testbed.history.refresh()
        self._judge()

    def _judge(self) -> None:
        job = self.testbed.job
        self.violations = check(self.testbed.history.records, job.min_nodes, job.max_nodes)
        self._judged = time.monotonic()
        if self.violations:
            raise _ViolatedError

    def _is_settled(self) -> bool:
        return is_settled(self.testbed.history.last, self.testbed.handles, self.testbed.job.max_nodes)

    def _is_empty(self) -> bool:
        return not self.testbed.handles

    def _what_they_do(self, after: float) -> str:
        last = self.testbed.history.last
        found = (f"{name} {last[name].what if name in last else 'says nothing'}" for name in self.testbed.handles)
        return f"not all were in one world, or knew of none, after {after:.1f} s of the quiet phase: {', '.join(found)}"

    def _pass_time(self, until: Callable[[], bool]) -> None:
        """Let time pass until a condition holds; see now and then whether something is wrong."""

        def ended() -> bool:
            self.progress(self)
            if time.monotonic() > self._judged + _JUDGE:
                self._judge()
            return until()

        self.testbed.pass_time(ended)
