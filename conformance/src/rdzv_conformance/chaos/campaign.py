"""One run of the task: storms and calms, until the time is over or an invariant is violated."""

import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from .checker import Finding, check, is_settled
from .faults import FAULTS, possible
from .plan import Episode, Strike
from .stage import Stage

__all__ = ["Campaign"]

_JUDGE: Final = 5.0
"""Seconds between two looks at what is wrong so far."""


class _ViolatedError(Exception):
    """Something is wrong: the rest need not be tried."""


@dataclass
class Campaign:
    """What was done, and what was found.

    Attributes:
        stage: Where it happens.
        seed: Where all chance comes from.
        seconds: How long faults may come.
        bound: Seconds of calm within which a world must form.
        progress: Called again and again.
        faults: How often each kind was there.
        calms: How many storms were outlived.
        slowest: The longest time until a world had formed, in seconds of calm.
        findings: What is wrong.
    """

    stage: Stage
    seed: int
    seconds: float
    bound: float
    progress: Callable[["Campaign"], None] = lambda campaign: None
    faults: Counter[str] = field(default_factory=Counter)
    calms: int = 0
    slowest: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    _judged: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.faults.most_common())
        rounds = len(self.stage.history.rounds)
        return (
            f"{self.faults.total()} faults ({kinds}), {rounds} rounds, {self.calms} storms outlived, "
            f"slowest world after {self.slowest:.1f} s of calm, {len(self.findings)} violations"
        )

    def run(self) -> None:
        """Do it all; afterwards `findings` are complete."""
        with suppress(_ViolatedError):
            ends = time.monotonic() + self.seconds
            self._begin()
            for number in itertools.count():
                if (left := ends - time.monotonic()) <= 0:
                    break
                self._weather(Episode.draw(self.seed, number, possible(self.stage), left))
            self._end()

    def _begin(self) -> None:
        for _ in range(self.stage.size):
            self.stage.arrive()
        self._calm(self._is_settled)

    def _weather(self, episode: Episode) -> None:
        """A storm, and the calm after it."""
        stage = self.stage
        for strike in episode.strikes:
            stage.after(strike.moment, partial(self._strike, strike))
        stage.after(episode.storm, lambda: None)
        self._pass_time(stage.nothing_is_due)
        # Newcomers of a closed run are those who come too late.
        for _ in range(len(stage.players), stage.size):
            stage.arrive()
        for player in list(stage.players.values())[stage.size :]:
            stage.leave(player)
        self._calm(lambda: self._is_settled() or self._is_empty())
        self.calms += 1
        if self._is_empty():
            self._next_attempt()

    def _strike(self, strike: Strike) -> None:
        if FAULTS[strike.fault](self.stage, strike):
            self.faults[strike.fault] += 1

    def _next_attempt(self) -> None:
        """The run is closed, and everybody has gone: launch it again."""
        self._come_too_late()
        self.stage.history.forget()
        self.stage.attempt += 1
        self._begin()

    def _come_too_late(self) -> None:
        """Whoever joins a closed run is refused."""
        self.stage.arrive()
        self._calm(self._is_empty)

    def _end(self) -> None:
        """Close the run, and see that everybody hears it."""
        next(iter(self.stage.players.values())).tell("close", "the end")
        self._calm(self._is_empty)
        self._come_too_late()

    def _calm(self, ended: Callable[[], bool]) -> None:
        """Nothing is wrong any more, so this must come about; then all that was written is checked."""
        stage = self.stage
        stage.await_servers()
        stage.await_mended()
        stage.diary.write("calm")
        began = time.monotonic()
        self._pass_time(lambda: ended() or time.monotonic() > began + self.bound)
        after = time.monotonic() - began
        if ended():
            stage.diary.write("settled", after=round(after, 3))
            self.slowest = max(self.slowest, after)
        else:
            stage.diary.write("unsettled", text=self._what_they_do(after))
        stage.history.refresh()
        self._judge()

    def _judge(self) -> None:
        job = self.stage.job
        self.findings = check(self.stage.history.records, job.min_nodes, job.max_nodes)
        self._judged = time.monotonic()
        if self.findings:
            raise _ViolatedError

    def _is_settled(self) -> bool:
        return is_settled(self.stage.history.last, self.stage.players, self.stage.job.max_nodes)

    def _is_empty(self) -> bool:
        return not self.stage.players

    def _what_they_do(self, after: float) -> str:
        last = self.stage.history.last
        found = (f"{name} {last[name].what if name in last else 'says nothing'}" for name in self.stage.players)
        return f"not all were in one world, or told that there is none, after {after:.1f} s of calm: {', '.join(found)}"

    def _pass_time(self, until: Callable[[], bool]) -> None:
        """Let time pass until a condition holds; see now and then whether something is wrong."""

        def ended() -> bool:
            self.progress(self)
            if time.monotonic() > self._judged + _JUDGE:
                self._judge()
            return until()

        self.stage.pass_time(ended)
