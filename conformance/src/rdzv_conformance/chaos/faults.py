"""What goes wrong, each in a few lines. The names are those of the simulator, where it has the same."""

from collections.abc import Callable, Mapping
from typing import Final

from .lines import CUTS
from .plan import Strike
from .stage import Player, Stage
from .vandal import KEYS

__all__ = ["FAULTS", "possible"]

Fault = Callable[[Stage, Strike], bool]
"""Does it, and says whether there was anything to do it to."""


def possible(stage: Stage) -> list[str]:
    """What can go wrong with this service."""
    members = len(stage.service.members)
    lacking = set() if stage.lines else {"cut"}
    lacking |= set() if members else {"outage"}
    # Of two, the one that is left is no majority.
    lacking |= set() if members > 2 else {"member"}
    return [name for name in FAULTS if name not in {"close", "shutdown", *lacking}]


def victim(stage: Stage, strike: Strike) -> Player | None:
    """The agent that a strike hits, if there is one that is well."""
    found = well(stage)
    leaders = [player for player in found if player.name == stage.leader]
    if strike.leader and leaders:
        found = leaders
    return found[int(strike.who * len(found))] if found else None


def well(stage: Stage) -> list[Player]:
    """Those to whom something may happen."""
    return [player for player in stage.players.values() if player.well]


def _while(stage: Stage, strike: Strike) -> float:
    """How long an agent is away: shorter or longer than its lease, and often just as long."""
    ttl = stage.job.ttl
    return (0.2 + 4 * strike.amount) * ttl if strike.amount < 0.5 else ttl + strike.amount - 0.6


def come(stage: Stage, strike: Strike) -> bool:
    """A new agent comes; there are never many more than there should be."""
    if len(stage.players) >= stage.size + 2:
        return False
    stage.arrive()
    return True


def kill(stage: Stage, strike: Strike) -> bool:
    """kill -9; a newcomer takes the place some time later."""
    if not (player := victim(stage, strike)):
        return False
    stage.kill(player)
    stage.after(strike.amount * 2 * stage.job.ttl, stage.arrive)
    return True


def pause(stage: Stage, strike: Strike) -> bool:
    """SIGSTOP, and some time later SIGCONT."""
    if not (player := victim(stage, strike)):
        return False
    stage.pause(player)
    stage.after(_while(stage, strike), lambda: stage.resume(player))
    return True


def pause_many(stage: Stage, strike: Strike) -> bool:
    """Half of the agents stand still, as they do on a machine that is out of memory, and go on one by one."""
    found = well(stage)
    half = found[:: 2 if strike.leader else 3]
    for number, player in enumerate(half):
        stage.pause(player)
        stage.after(_while(stage, strike) + number * 0.1, lambda player=player: stage.resume(player))  # type: ignore[misc]
    return bool(half)


def cut(stage: Stage, strike: Strike) -> bool:
    """One agent does not reach the service, or is not reached by it, or both."""
    if not (player := victim(stage, strike)):
        return False
    ways = [*CUTS, *(["wire"] * len(CUTS) if stage.alone else [])]
    way = ways[int(strike.amount * 100 * len(ways)) % len(ways)]
    stage.cut(player, way)
    lose = way != "wire" and int(strike.who * 1000) % 2 == 0
    stage.after(_while(stage, strike), lambda: stage.heal(player, lose))
    return True


def err(stage: Stage, strike: Strike) -> bool:
    """Some of an agent's calls raise, and not only what a backend may raise."""
    if not (player := victim(stage, strike)):
        return False
    player.tell("err", 0.05 if strike.who < 0.5 else strike.who)
    stage.after(2 * _while(stage, strike), lambda: player.tell("err", 0.0))
    return True


def spoil(stage: Stage, strike: Strike) -> bool:
    """A stranger writes over what the leader has written, and puts it back."""
    return stage.spoil(KEYS[int(strike.who * len(KEYS))], strike.amount * stage.job.ttl)


def fail(stage: Stage, strike: Strike) -> bool:
    """A program fails, and joins again."""
    if not (player := victim(stage, strike)):
        return False
    player.tell("fail")
    return True


def fail_many(stage: Stage, strike: Strike) -> bool:
    """Many programs fail at once, as they do when one of them stops answering."""
    found = well(stage)
    for player in found[int(strike.who * 2) :: 2]:
        player.tell("fail")
    return bool(found)


def leave(stage: Stage, strike: Strike) -> bool:
    """An agent goes; a newcomer takes the place some time later."""
    if not (player := victim(stage, strike)):
        return False
    stage.leave(player)
    stage.after(strike.amount * 2 * stage.job.ttl, stage.arrive)
    return True


def outage(stage: Stage, strike: Strike) -> bool:
    """All servers stand still, or are killed and started again."""
    if stage.hurt:
        return False
    dies = stage.service.durable and strike.leader
    for member in stage.service.members:
        stage.hurt_member(member, dies, strike.amount * 2.5 * stage.job.ttl)
    return True


def member(stage: Stage, strike: Strike) -> bool:
    """One server of a cluster stands still, or is killed and started again."""
    if stage.hurt:
        return False
    members = stage.service.members
    chosen = members[int(strike.who * len(members))]
    stage.hurt_member(chosen, stage.service.durable and strike.amount < 0.6, strike.amount * 2.5 * stage.job.ttl)
    return True


def close(stage: Stage, strike: Strike) -> bool:
    """A program closes the run; sometimes two do at once."""
    told = well(stage)[: 1 if strike.amount < 0.5 else 2]
    for player in told:
        player.tell("close", f"enough, says {player.name}")
    return bool(told)


def shutdown(stage: Stage, strike: Strike) -> bool:
    """A program has finished, and the run with it."""
    if not (player := victim(stage, strike)):
        return False
    player.tell("shutdown")
    return True


FAULTS: Final[Mapping[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        *(come, kill, pause, pause_many, cut, err, spoil, fail, fail_many, leave),
        *(outage, member, close, shutdown),
    )
}
