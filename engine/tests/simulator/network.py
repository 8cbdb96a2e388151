"""The ways between the nodes and the service: they delay, lose and repeat messages, and can be partitioned."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rdzv_core import Snapshot

from rdzv import RendezvousConnectionError, RendezvousDeniedError, RendezvousError

from .clock import Timeline
from .process import Process
from .service import Refusal, SimulatedService, Waiter

__all__ = ["Answer", "NetworkConditions", "NetworkLink", "Partition", "Silence"]

Answer = Callable[[Any, BaseException | None], None]
"""Takes the result of a call, or its error."""


class Silence(RendezvousConnectionError):
    """No reply came: the call may have been applied."""


@dataclass
class NetworkConditions:
    """How bad all ways are at the moment.

    Attributes:
        delay: The usual seconds one way; one message in twenty takes up to fifty times as long.
        lost: The probability that a request, or a reply, is lost.
        late: The probability that a request is applied long after its sender has given up.
        mute: The probability that a register does not tell what it has done with a state.
        refused: What the service refuses to all.
        watch_lag: Seconds by which a watch tells what has changed later than a read would, at most.
        watch_goes_on: A watch goes on from one wait to the next; else each wait makes it anew.
    """

    delay: float = 0.002
    lost: float = 0.0
    late: float = 0.0
    mute: float = 0.0
    refused: Refusal = Refusal.NOTHING
    watch_lag: float = 0.0
    watch_goes_on: bool = False


class Partition(Enum):
    """What a broken link does not carry."""

    NOTHING = "nothing"
    BOTH = "anything"
    REQUESTS = "what it asks"
    REPLIES = "the replies to it"

    @property
    def mute(self) -> bool:
        """Requests do not arrive."""
        return self in (Partition.BOTH, Partition.REQUESTS)

    @property
    def deaf(self) -> bool:
        """Replies do not arrive."""
        return self in (Partition.BOTH, Partition.REPLIES)


@dataclass(frozen=True)
class _Told:
    """What the service tells a wait.

    Attributes:
        news: What there is; None: the watch is broken.
        changed_at: When it changed.
        leaves_at: When the service sends it: later than that, where the watch is late.
        arrives_at: When the node hears it.
    """

    news: Snapshot | None
    changed_at: float
    leaves_at: float
    arrives_at: float

    def is_lost(self, forgot_at: float) -> bool:
        """Whether the service has forgotten it before it has sent it."""
        return self.changed_at <= forgot_at < self.leaves_at


class NetworkLink:
    """The way of one node."""

    def __init__(
        self,
        process: Process,
        service: SimulatedService,
        timeline: Timeline,
        conditions: NetworkConditions,
        rng: random.Random,
    ) -> None:
        """Connect `process` to `service`."""
        self.partition = Partition.NOTHING
        self.refused = Refusal.NOTHING
        self.service = service
        self.timeline = timeline
        self.rng = rng
        self._process = process
        self._conditions = conditions
        self._stuck: list[Callable[[], None]] = []
        self._told: dict[str, _Told] = {}
        """By prefix, what the service has told last, which the next wait hears if none has."""

    def heal(self) -> None:
        """Carry everything again. What a connection that survived still held arrives now."""
        self.partition = Partition.NOTHING
        stuck, self._stuck = self._stuck, []
        for arrive in stuck:
            self.timeline.after(self._takes(), arrive)

    def exchange(self, apply: Callable[[], Any], timeout: float, answer: Answer) -> None:
        """Send a request and wait for the reply.

        Args:
            apply: What the service does; happens at one instant, once, or never.
            timeout: Seconds after which the sender gives up, at the latest.
            answer: Called once. An error of type `Silence` may or may not have been applied.
        """
        until = self.timeline.now + timeout
        way = self._takes()
        if self.partition.mute:
            if self.rng.random() < 0.2:
                self._stuck.append(lambda: self._apply_unheard(apply))
            self._hear_nothing(until, answer)
        elif way > timeout or self.rng.random() < self._conditions.late:
            late = max(way, self.rng.choice((1.0, 5.0, 20.0)) * self.rng.random())
            self.timeline.after(late, self._apply_unheard, apply)
            self._hear_nothing(until, answer)
        elif self._loses():
            self._hear_nothing(until, answer)
        else:
            self.timeline.after(way, self._arrive, apply, until, answer)

    def watch(self, prefix: str, since: Snapshot, seconds: float, answer: Answer) -> None:
        """Wait at the service until `prefix` differs from `since`.

        Args:
            prefix: What to watch.
            since: What was seen.
            seconds: How long.
            answer: Called with the new snapshot, with None when time ran out, or with an error.
        """
        if self.partition is not Partition.NOTHING or self.service.breaks_watches or self._loses():
            self._told.pop(prefix, None)
            self._hear_nothing(self.timeline.now + min(seconds, 2.0), answer)
            return
        if "wait" in self._refused():
            # A watch that there is goes on: that it may be made was asked when it was.
            error = RendezvousDeniedError("The service refuses a wait.")
            self.timeline.after(self._takes(), self._process.does, answer, None, error)
            return

        answer_once = _once(answer)

        def hear(told: _Told) -> None:
            if told.news is None or told.is_lost(self.service.forgot_at):
                answer_once(None, RendezvousConnectionError("The watch broke."))
            else:
                answer_once(told.news, None)

        told = self._told.get(prefix)
        if told and told.news and told.news.revision > since.revision and not told.is_lost(self.service.forgot_at):
            # It was on its way when the wait before ended.
            self.timeline.at(told.arrives_at, self._process.does, hear, told)
            self.timeline.after(seconds, self._process.does, answer_once, None, None)
            return

        def tell(news: Snapshot | None) -> None:
            now = self.timeline.now
            if not self.partition.deaf:
                way, lag = self._takes(), self._lags()
                told = _Told(news, now, now + lag, now + lag + way)
                if news is not None and self._conditions.watch_goes_on:
                    self._told[prefix] = told
                self.timeline.at(told.arrives_at, self._process.does, hear, told)
            elif self.rng.random() < 0.7:
                self._stuck.append(lambda: self._process.does(hear, _Told(news, now, now, now)))

        def give_up() -> None:
            self.service.unwatch(waiter)
            self._process.does(answer_once, None, None)

        waiter = Waiter(prefix, since, tell, lambda: tell(None))
        self.service.watch(waiter)
        self.timeline.after(seconds, give_up)

    def sleep(self, seconds: float, answer: Answer) -> None:
        """Answer nothing, after a while."""
        self.timeline.after(seconds, self._process.does, answer, None, None)

    def is_mute(self) -> bool:
        """Whether the register does not tell now what it has done."""
        return self.rng.random() < self._conditions.mute

    def _takes(self) -> float:
        """Seconds for one way."""
        slow = 50.0 if self.rng.random() < 0.05 else 1.0
        return self.rng.uniform(0.2, 1.8) * self._conditions.delay * slow

    def _lags(self) -> float:
        """Seconds by which a watch is late: rarely much, as where a service pauses."""
        most = self._conditions.watch_lag
        return most * self.rng.random() ** 4 if most else 0.0

    def _loses(self) -> bool:
        return self.rng.random() < self._conditions.lost

    def _hear_nothing(self, until: float, answer: Answer) -> None:
        """The sender notices when the connection breaks, which may be soon, or when it has waited enough."""
        now = self.timeline.now
        patience = (until - now) * self.rng.choice((0.1, 1.0))
        status = _once(lambda: answer(None, Silence("No answer.")))
        self.timeline.at(min(until, now + self.rng.uniform(0.01, max(0.01, patience))), self._process.does, status)
        if self.partition is not Partition.NOTHING:
            # A connection that was cut is found to be broken as soon as anything gets through again.
            self._stuck.append(lambda: self._process.does(status))

    def _refused(self) -> frozenset[str]:
        """The calls that the service refuses to this node now."""
        return self._conditions.refused.value | self.refused.value

    def _apply_unheard(self, apply: Callable[[], Any]) -> None:
        try:
            with self.service.refusing(self._refused()):
                apply()
        except RendezvousError:
            return

    def _arrive(self, apply: Callable[[], Any], until: float, answer: Answer) -> None:
        result: Any = None
        problem: RendezvousError | None = None
        try:
            with self.service.refusing(self._refused()):
                result = apply()
        except RendezvousError as error:
            problem = error
        way = self._takes()
        if self.partition.deaf or self.timeline.now + way > until or self._loses():
            self._hear_nothing(until, answer)
        else:
            self.timeline.after(way, self._process.does, answer, result, problem)


def _once(call: Callable[..., None]) -> Callable[..., None]:
    """Do nothing the second time."""
    calls = [call]

    def once(*arguments: Any) -> None:
        if calls:
            calls.pop()(*arguments)

    return once
