"""What an observer knows of heartbeat leases: the states of each, and the table of what leads from one to another.

No I/O, no threads: `HeartbeatLeases` reads the heartbeats, and says here what it has found.

An observer counts the time to live of a lease from the moment at which it has read another heartbeat. One of few
observers looks so often that it sees the end in time. Of many each looks seldom, by chance, but so that some look at
any moment, whenever they began: those that see a lease for the first time together, or a heartbeat, rest for very
different times. What such an observer has read for the first time may be the last heartbeat: it looks again when the
next one is due. If that has come it rests, for the others look meanwhile; else it goes on as one of few.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from rdzv_core.backend import ABSENT, Token

from . import transitions

_SCAN: Final = 0.75
"""The most seconds between two looks of all observers together: so late may the last heartbeat of a node that dies be
seen."""
_PAUSE: Final = 0.1
"""The fewest seconds between two looks of one observer, unless its interval is short."""
_OBSERVERS: Final = 16
"""Of many that observe the same leases, so many look within these seconds, by chance: if some die, others look."""


class LeaseState(Enum):
    """What an observer knows of a lease."""

    UNSEEN = "it has seen nothing of it"
    NOTED = "it has seen that it is there, and reads its heartbeat later; it lives until then"
    LIVE = "its time to live is counted from what was seen last; the observer rests"
    SILENT = "there was no other heartbeat; the observer looks again and again, and ends it when its time is over"
    ENDED = "it has ended for all; no other has its name"


class Trigger(Enum):
    """What changes the state of a lease."""

    SEEN_BY_MANY = "one of many observers sees it for the first time"
    SEEN_BY_FEW = "one of few observers sees it for the first time"
    READ = "it is read for the first time, or again after so long that a heartbeat may have been missed"
    HEARTBEAT = "there is another heartbeat"
    SAME_HEARTBEAT = "there is the same heartbeat"
    EXPIRED = "its end is read, or this observer has written it"


Transition = transitions.Transition[LeaseState, Trigger]

TRANSITIONS: Final = (
    Transition(LeaseState.UNSEEN, Trigger.SEEN_BY_MANY, LeaseState.NOTED),
    Transition(LeaseState.UNSEEN, Trigger.SEEN_BY_FEW, LeaseState.LIVE),
    Transition(LeaseState.NOTED, Trigger.READ, LeaseState.LIVE, "read"),
    Transition(LeaseState.LIVE, Trigger.READ, LeaseState.LIVE, "read"),
    Transition(LeaseState.SILENT, Trigger.READ, LeaseState.LIVE, "read"),
    Transition(LeaseState.LIVE, Trigger.HEARTBEAT, LeaseState.LIVE, "read"),
    Transition(LeaseState.SILENT, Trigger.HEARTBEAT, LeaseState.LIVE, "read"),
    Transition(LeaseState.LIVE, Trigger.SAME_HEARTBEAT, LeaseState.SILENT, "read"),
    Transition(LeaseState.SILENT, Trigger.SAME_HEARTBEAT, LeaseState.SILENT, "read"),
    *(
        Transition(state, Trigger.EXPIRED, LeaseState.ENDED, "read, or put")
        for state in LeaseState
        if state is not LeaseState.ENDED
    ),
)
"""What is not in the table changes nothing."""

_NEXT: Final = {(line.source, line.trigger): line.target for line in TRANSITIONS}


@dataclass(frozen=True, slots=True)
class _Lease:
    """One lease, as an observer knows it. All but the state is only looked at where the state gives it a meaning.

    Attributes:
        state: See `LeaseState`.
        token: Live or silent: the version of its last heartbeat; `ABSENT`: it had none yet.
        until: Live or silent: the moment until which it lives without another.
        read_at: When it was read last, or first seen.
        next_look: The moment from which on it is worth reading again, if there are not fewer observers by then.
    """

    state: LeaseState
    token: Token = ABSENT
    until: float = 0.0
    read_at: float = -math.inf
    next_look: float = 0.0


_UNSEEN: Final = _Lease(LeaseState.UNSEEN)
_ENDED: Final = _Lease(LeaseState.ENDED)


class LeaseObserver:
    """The leases that one client observes. Moments are seconds on its clock.

    Attributes:
        scan_interval: Seconds between two looks of one of few observers.
    """

    def __init__(self, interval: float, observers: Callable[[], int], rng: random.Random) -> None:
        """Know of none.

        Args:
            interval: Seconds between two heartbeats of an owner.
            observers: How many clients observe the same leases, about.
            rng: Where the moments of looks come from.
        """
        self.scan_interval = min(interval, _SCAN)
        self._interval = interval
        self._observers = observers
        self._rng = rng
        self._leases: dict[str, _Lease] = {}

    def state(self, name: str) -> LeaseState:
        """See `LeaseState`."""
        return self._leases.get(name, _UNSEEN).state

    def see(self, ttls: Mapping[str, float], now: float) -> None:
        """Note that leases are there. One that is seen for the first time lives, so that not all who see it together
        read it."""
        for name, ttl in ttls.items():
            if name not in self._leases:
                self.observe(name, ABSENT, ttl, now)

    def observe(self, name: str, token: Token, ttl: float, now: float, asked: float | None = None) -> None:
        """Note what was found of a lease. An answer that was asked for before the last one had come tells nothing:
        it may be older.

        Args:
            name: The lease's.
            token: The version of its heartbeat; `ABSENT`: it had none yet, or was not read.
            ttl: Its time to live, in seconds.
            now: The moment.
            asked: The moment at which it was asked for, from which on the observer rests; None: now.
        """
        before, mean, asked = self._leases.get(name, _UNSEEN), self._mean_pause(), now if asked is None else asked
        if asked < before.read_at:
            return
        trigger = self._trigger(before, token, now, many=bool(mean))
        state = _NEXT.get((before.state, trigger), before.state)
        match state:
            case LeaseState.NOTED:
                self._leases[name] = _Lease(state, read_at=now, next_look=now + mean * self._rng.random())
            case LeaseState.SILENT:
                next_look = max(now, asked + self.scan_interval)
                # What is over is over, or could not be ended just now; there is no hurry then.
                next_look = min(before.until, next_look) if now <= before.until else next_look
                self._leases[name] = replace(before, state=state, read_at=now, next_look=next_look)
            case LeaseState.LIVE:
                next_look = max(now, asked + self._rest(trigger, ttl, mean))
                self._leases[name] = _Lease(state, token, now + ttl, now, next_look)

    def _trigger(self, before: _Lease, token: Token, now: float, *, many: bool) -> Trigger:
        if before.state is LeaseState.UNSEEN:
            return Trigger.SEEN_BY_MANY if many else Trigger.SEEN_BY_FEW
        if self._is_unknown(before, now):
            return Trigger.READ
        return Trigger.SAME_HEARTBEAT if before.token == token else Trigger.HEARTBEAT

    def _is_unknown(self, lease: _Lease, now: float) -> bool:
        """Whether nothing is known of its heartbeats now. It was the observer who did not look: a live owner gets the
        whole time to live."""
        return lease.state is LeaseState.NOTED or now - lease.read_at > self._interval + self.scan_interval

    def _rest(self, trigger: Trigger, ttl: float, mean: float) -> float:
        """Seconds for which an observer does not look at a lease that lives."""
        if not mean:
            return min(ttl, self.scan_interval)
        return 2 * mean * self._rng.random() if trigger is Trigger.HEARTBEAT else self._interval

    def end(self, name: str) -> None:
        """Note that a lease has ended. What belongs to it may stay, and would be taken for new each time."""
        self._leases[name] = _ENDED

    def spare(self, name: str, ttl: float, now: float) -> None:
        """Note that a lease that is overdue could not be ended, since the service refuses that: it may have refused the
        heartbeats of its owner, too, who gets the whole time to live again."""
        before, next_look = self._leases[name], now + self._rest(Trigger.READ, ttl, self._mean_pause())
        if (state := _NEXT.get((before.state, Trigger.READ))) is not None:
            self._leases[name] = _Lease(state, before.token, now + ttl, now, next_look)

    def is_overdue(self, name: str, token: Token, now: float) -> bool:
        """Whether a lease is to be ended: this version of its heartbeat was read just now, and there was no other for
        its time to live. Of another version, which an answer has that tells nothing, it is not known how old it is."""
        lease = self._leases[name]
        return lease.state is LeaseState.SILENT and lease.token == token and now > lease.until

    def may_end(self, name: str, ttl: float, now: float, took: float = 0.0) -> bool:
        """Whether a lease that was seen may end before a look that begins now, and is late, has told that it lives: it
        has at most `_SCAN` seconds left of its `ttl`, and those that the look before `took`. Of many observers one that
        reads the same heartbeat again may find that another was the first to end it."""
        lease = self._leases[name]
        if lease.state is LeaseState.SILENT and self._mean_pause():
            return True
        left = ttl if self._is_unknown(lease, now) else lease.until - now
        return left <= _SCAN + took

    def next_looks(self, names: Iterable[str]) -> dict[str, float]:
        """The moments from which on leases that were seen, and have not ended, are worth reading."""
        mean = self._mean_pause()
        # There may be fewer observers than when it was drawn.
        most = max(self._interval, 2 * mean) if mean else self.scan_interval
        leases = {name: lease for name in names if (lease := self._leases.get(name, _ENDED)) is not _ENDED}
        return {name: min(lease.next_look, lease.read_at + most) for name, lease in leases.items()}

    def rest(self, names: Iterable[str], now: float) -> float:
        """Seconds after which a look at these leases may tell something: a heartbeat, or an end."""
        pauses = [moment - now for moment in self.next_looks(names).values()]
        # A look that is so much later than it is due must still be in time (see `_is_unknown`), or no lease ever ends.
        fewest = min(_PAUSE, self.scan_interval / 4)
        return max(fewest, min(pauses, default=self.scan_interval))

    def _mean_pause(self) -> float:
        """Seconds between two looks of one of many observers, on average; 0: they are few, and each looks in time."""
        share = self._observers() / _OBSERVERS
        return self.scan_interval * share if share > 1 else 0.0
