"""What is to go wrong: everything that a seed decides."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_RATES: Final = (0.1, 0.2, 0.4)
"""How often a kind of fault may come, per second."""

_SELDOM: Final = {"outage": 0.25, "come": 0.25, "corrupt": 0.5, "refuse": 0.5}
"""Those after which nothing else can happen for a while, and one that soon finds no room."""

_GATHER: Final = ("fail", "fail_many", "leave")
"""One of these is always among them: it makes all gather again, and so gives the others something to meet."""

_ENDING: Final = ("close", "close", "shutdown")


def chance(seed: str, name: str) -> random.Random:
    """The source of chance for one thing. Each has its own: taking one away leaves the others as they were."""
    return random.Random(f"{seed}/{name}")  # noqa: S311 - no secret


@dataclass(frozen=True)
class FaultEvent:
    """One thing that happens to the run from outside.

    Attributes:
        moment: When, in seconds from the beginning.
        fault: What: a name from `faults.FAULTS`.
        who: Which of the nodes that it may happen to, as a part of 1.
        leader: Whether it rather happens to the leader, if there is one.
        amount: How long or how much; what that means is up to the fault.
    """

    moment: float
    fault: str
    who: float = 0.0
    leader: bool = False
    amount: float = 0.0


@dataclass(frozen=True)
class FaultSchedule:
    """A fault phase; after it a quiet phase, in which a world must form.

    Attributes:
        fault_phase: Seconds during which faults come.
        events: What happens, in order.
    """

    fault_phase: float
    events: tuple[FaultEvent, ...]

    @classmethod
    def draw(cls, seed: int, number: int, kinds: Sequence[str], longest: float) -> "FaultSchedule":
        """A fault schedule by chance.

        A few kinds of faults, each often: all kinds at once would hide each other (A. Groce and others, "Swarm
        Testing", 2012). Every third fault phase ends with the run being closed.

        Args:
            seed: The seed of the whole.
            number: Which fault phase, from 0.
            kinds: What can go wrong here.
            longest: Seconds that are left.
        """
        rng = chance(str(seed), f"episode {number}")
        fault_phase = rng.choice((10.0, 20.0, 30.0))
        chosen = {rng.choice(_GATHER), *rng.sample(list(kinds), min(len(kinds), rng.choice((2, 3, 4, len(kinds)))))}
        events = [event for kind in sorted(chosen) for event in _draw(rng, kind, fault_phase)]
        if number % 3 == 2:
            events.append(
                FaultEvent(fault_phase * rng.uniform(0.5, 1.0), rng.choice(_ENDING), rng.random(), False, rng.random())
            )
        # Only now: the time that is left must not change what the seed decides.
        events = [event for event in events if event.moment < longest]
        return cls(min(fault_phase, longest), tuple(sorted(events, key=lambda event: event.moment)))


def _draw(rng: random.Random, kind: str, fault_phase: float) -> list[FaultEvent]:
    events = []
    rate, moment = rng.choice(_RATES) * _SELDOM.get(kind, 1.0), 0.0
    while (moment := moment + rng.expovariate(rate)) < fault_phase:
        events.append(FaultEvent(moment, kind, rng.random(), rng.random() < 0.4, rng.random()))
    return events
