"""What a run is to be: everything that a seed decides before it begins."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from rdzv.admission import AdmissionRule, Limits
from rdzv.engine.leader import ASSIGNING
from rdzv.engine.worlds import PAGE

from .service import CREATES

__all__ = ["FaultEvent", "Plan", "chance"]


def chance(seed: str, name: str) -> random.Random:
    """The source of chance for one thing. Each has its own: taking one away leaves the others as they were."""
    return random.Random(f"{seed}/{name}")


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
class Plan:
    """A run to be.

    Attributes:
        seed: Where the chances of the run itself come from: delays, losses, clocks.
        min_nodes: The smallest world.
        max_nodes: The largest.
        fault_phase: Seconds during which faults come. Then nothing goes wrong, and a world must form.
        events: What happens, in order.
        ttl: Seconds after which a silent node is dead.
        last_call: Seconds for stragglers.
        patience: The join timeouts that nodes are given, in seconds.
        level: What the service has; see `connection.LEVELS`.
        delay: The usual seconds that a message takes.
        lost: The probability that a message is lost.
        late: The probability that a request is applied after its sender gave up.
        mute: The probability that a register does not tell what it has done with a state.
        leases_sleep: Whether leases stand still while the service is away.
        lag: Seconds between the end of a lease and its keys' vanishing.
        drift: How much faster or slower clocks may run.
        page: How many ids fit on a page of a world, and into the state itself.
        creates_at_once: How many keys the service makes in one step; 1: it does not.
        crowd: Whether a few nodes behave as many do; see `simulation.CROWD`.
        rule: What else is asked of a world. Each node has a label ``rack``, of which there are `racks`.
        grow_delay: Seconds that a world runs at least before it is asked to grow.
        cooldown: Seconds of a first quarantine.
        quarantine_after: Consecutive rounds in which a node fails first until it is quarantined.
        namesakes: Whether all nodes have one name, so that only an id tells one from another.
        watch_lag: Seconds by which a watch may be late.
        watch_goes_on: Whether a watch goes on from one wait to the next, or is made anew.
        assigning: Seconds that a plugin takes at most to assign ranks; infinite: it hangs; None: there is no plugin.
    """

    seed: str
    min_nodes: int
    max_nodes: int
    fault_phase: float = 0.0
    events: tuple[FaultEvent, ...] = ()
    ttl: float = 3.0
    last_call: float = 2.0
    patience: tuple[float, ...] = (600.0,)
    level: str = "leases"
    delay: float = 0.002
    lost: float = 0.0
    late: float = 0.0
    mute: float = 0.0
    leases_sleep: bool = True
    lag: float = 0.0
    drift: float = 0.0
    page: int = PAGE
    creates_at_once: int = CREATES
    crowd: bool = False
    rule: AdmissionRule | None = None
    grow_delay: float = 0.0
    cooldown: float = 4.0
    quarantine_after: int = 3
    namesakes: bool = False
    watch_lag: float = 0.0
    watch_goes_on: bool = False
    assigning: float | None = None

    @property
    def limits(self) -> Limits:
        """Which worlds the run takes."""
        return Limits(self.min_nodes, self.max_nodes, self.rule)

    @property
    def wanted_timeout(self) -> float:
        """Seconds for which a world waits for the size that it wants."""
        return 2 * self.last_call

    @property
    def assigning_at_most(self) -> float:
        """Seconds for which a leader waits for that plugin."""
        return min(self.assigning or 0.0, ASSIGNING)

    @property
    def racks(self) -> int:
        """How many values the label has: one more than the largest world has groups."""
        return self.max_nodes // (self.rule.group_size if self.rule else 1) + 1

    @classmethod
    def draw(cls, seed: int, faults: Sequence[str] = ()) -> "Plan":
        """A plan by chance: some seeds have no faults, some nothing else.

        Args:
            seed: The same seed gives the same plan.
            faults: What goes wrong; none: that is left to chance, too.
        """
        rng = chance(str(seed), "plan")
        nodes = rng.randint(2, 8)
        low = rng.randint(1, nodes)
        fault_phase = rng.choice((5.0, 10.0, 20.0, 40.0))
        high = rng.randint(low, nodes + 1)
        return cls(
            str(seed),
            low,
            high,
            fault_phase,
            _draw_events(str(seed), rng, nodes, fault_phase, faults),
            last_call=rng.choice((0.5, 2.0)),
            patience=rng.choice(((600.0,), (5.0, 30.0, 600.0))),
            level=rng.choices(("leases", "heartbeats", "register"), (80, 15, 5))[0],
            delay=rng.choice((0.002, 0.002, 0.02)),
            lost=rng.choice((0.0, 0.0, 0.01, 0.05)),
            late=rng.choice((0.0, 0.0, 0.02, 0.1)),
            leases_sleep=rng.random() < 0.7,
            lag=rng.choice((0.0, 0.5)),
            drift=rng.choice((0.0, 5e-5)),
            mute=rng.choice((0.0, 0.2, 1.0)),
            # Each by a chance of its own, so that existing seeds give the same plans otherwise.
            page=chance(str(seed), "page").choice((1, 2, PAGE, PAGE)),
            creates_at_once=chance(str(seed), "creates").choice((1, 2, CREATES)),
            crowd=chance(str(seed), "crowd").random() < 0.3,
            rule=_draw_rule(chance(str(seed), "rule"), low, high),
            grow_delay=chance(str(seed), "grow").choice((0.0, 0.0, 0.0, 1.0, 4.0)),
            namesakes=chance(str(seed), "namesakes").random() < 0.1,
            watch_lag=chance(str(seed), "watch").choice((0.0, 0.0, 1.0, 5.0)),
            watch_goes_on=chance(str(seed), "goes on").random() < 0.5,
            assigning=chance(str(seed), "ranks").choice((None, None, None, None, 0.0, 2 * ASSIGNING, math.inf)),
        )


_FAULT_EVENTS = (
    "kill", "kill_between", "pause", "pause_between", "partition", "outage", "slow", "leave", "fail", "fail_many",
    "come", "interrupt", "jump", "corrupt", "unexpected",
)  # fmt: skip
_ENDING = ("close", "shutdown", "relaunch")
_LATER = {
    "garble": 0.2, "purge": 0.1, "drain": 0.2, "fail_again": 0.2, "pardon": 0.3, "garble_notice": 0.1, "requeue": 0.1,
    "refuse": 0.2, "break_off": 0.2, "hang": 0.2, "litter": 0.2,
}  # fmt: skip
_OFTEN = {"near_miss": 2.0, "left_alone": 0.5, "purge": 0.25, "requeue": 0.25, **dict.fromkeys(_ENDING, 0.25)}


def _draw_rule(rng: random.Random, low: int, high: int) -> AdmissionRule | None:
    """In one plan of three: something that is asked of its worlds, if any of them meets it."""
    size = rng.randint(low, high)
    rule = rng.choice(
        (
            AdmissionRule(node_unit=rng.choice((2, 3))),
            AdmissionRule(sizes=tuple(sorted({size, rng.randint(low, high)}))),
            AdmissionRule(group_by="rack", group_size=2),
            AdmissionRule(wanted=size),
        )
    )
    return rule if rng.random() < 1 / 3 and Limits(low, high, rule).largest(high) else None


def _draw_events(
    seed: str, rng: random.Random, nodes: int, fault_phase: float, faults: Sequence[str]
) -> tuple[FaultEvent, ...]:
    events = [FaultEvent(rng.uniform(0.0, 1.0), "come") for _ in range(nodes)]
    # By a chance of its own, so that existing seeds give the same plans.
    later = [fault for fault, often in _LATER.items() if chance(seed, fault).random() < often]
    for fault in faults or [*_draw_faults(rng), *later]:
        rate = rng.choice((0.02, 0.05, 0.1, 0.2)) * _OFTEN.get(fault, 1.0)
        moment = 1.5
        while (moment := moment + rng.expovariate(rate)) < fault_phase:
            events.append(FaultEvent(moment, fault, rng.random(), rng.random() < 0.4, rng.random()))
    return tuple(sorted(events, key=lambda event: event.moment))


def _draw_faults(rng: random.Random) -> Sequence[str]:
    """A few kinds of faults, each often: all kinds at once would hide each other.

    After A. Groce and others, "Swarm Testing", 2012.
    """
    kinds = rng.sample(_FAULT_EVENTS, rng.choice((0, 1, 2, 3, 5, len(_FAULT_EVENTS))))
    if rng.random() < 0.5:
        kinds.append("near_miss")
    if rng.random() < 0.2:
        kinds += _ENDING
    if rng.random() < 0.05:
        kinds.append("forget")
    if rng.random() < 0.05:
        kinds.append("left_alone")
    return kinds
