"""The faults, each in a few lines. The names are those of the simulator, where it has the same."""

import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Final

from ..proxy import PARTITIONS
from .corruption import KEYS
from .plan import FaultEvent
from .refusals import Refusal
from .testbed import AgentHandle, Testbed

_REFUSED: Final = 20.0
"""Seconds at most for which a service refuses: a node that has not been in asks for 30, and gets an error."""

Fault = Callable[[Testbed, FaultEvent], bool]
"""Does it, and says whether there was anything to do it to."""


def possible(testbed: Testbed) -> list[str]:
    """What can go wrong with this service."""
    members = len(testbed.service.members)
    unsupported = set() if testbed.proxies else {"partition", "slow"}
    unsupported |= set() if members else {"outage"}
    # Of two, the one that is left is not a majority.
    unsupported |= set() if members > 2 else {"member"}
    return [name for name in FAULTS if name not in {"close", "shutdown", *unsupported}]


def victim(testbed: Testbed, event: FaultEvent) -> AgentHandle | None:
    """The agent that a fault hits, if there is a healthy one."""
    found = healthy(testbed)
    leaders = [handle for handle in found if handle.name == testbed.leader]
    if event.leader and leaders:
        found = leaders
    return found[int(event.who * len(found))] if found else None


def healthy(testbed: Testbed) -> list[AgentHandle]:
    """Those to whom something may happen."""
    return [handle for handle in testbed.handles.values() if handle.healthy]


def _on_one(hit: Callable[[Testbed, FaultEvent, AgentHandle], None]) -> Fault:
    """A fault that hits one agent, if there is a healthy one."""

    @wraps(hit)
    def fault(testbed: Testbed, event: FaultEvent) -> bool:
        if handle := victim(testbed, event):
            hit(testbed, event, handle)
        return handle is not None

    return fault


def _while(testbed: Testbed, event: FaultEvent) -> float:
    """How long an agent is away: shorter or longer than its lease, and often just as long."""
    ttl = testbed.job.ttl
    return (0.2 + 4 * event.amount) * ttl if event.amount < 0.5 else ttl + event.amount - 0.6


def come(testbed: Testbed, event: FaultEvent) -> bool:
    """A new agent comes; there are never many more than there should be."""
    if len(testbed.handles) >= testbed.size + 2:
        return False
    testbed.arrive()
    return True


@_on_one
def kill(testbed: Testbed, event: FaultEvent, handle: AgentHandle) -> None:
    """kill -9; a newcomer takes the place some time later."""
    testbed.kill(handle)
    testbed.after(event.amount * 2 * testbed.job.ttl, testbed.arrive)


@_on_one
def pause(testbed: Testbed, event: FaultEvent, handle: AgentHandle) -> None:
    """SIGSTOP, and some time later SIGCONT."""
    testbed.pause(handle)
    testbed.after(_while(testbed, event), lambda: testbed.resume(handle))


def pause_many(testbed: Testbed, event: FaultEvent) -> bool:
    """Half of the agents stand still, as they do on a machine that is out of memory, and go on one by one."""
    found = healthy(testbed)
    half = found[:: 2 if event.leader else 3]
    for number, handle in enumerate(half):
        testbed.pause(handle)
        testbed.after(_while(testbed, event) + number * 0.1, lambda handle=handle: testbed.resume(handle))  # type: ignore[misc]
    return bool(half)


@_on_one
def partition(testbed: Testbed, event: FaultEvent, handle: AgentHandle) -> None:
    """One agent does not reach the service, or is not reached by it, or both."""
    ways = [*PARTITIONS, *(["wire"] * len(PARTITIONS) if testbed.isolated else [])]
    way = ways[int(event.amount * 100 * len(ways)) % len(ways)]
    testbed.partition(handle, way)
    lose = way != "wire" and int(event.who * 1000) % 2 == 0
    testbed.after(_while(testbed, event), lambda: testbed.heal(handle, lose))


def slow(testbed: Testbed, event: FaultEvent) -> bool:
    """Each answer comes later, to one agent or to all of them, at every endpoint that it has."""
    one = victim(testbed, event)
    # A bit of the amount that `_while` does not show.
    for handle in [one] if one and event.amount * 8 % 1 < 0.5 else healthy(testbed):
        testbed.slow(handle, event.who * testbed.job.ttl / 4)
        testbed.after(2 * _while(testbed, event), partial(testbed.slow, handle, 0.0))
    return one is not None


@_on_one
def err(testbed: Testbed, event: FaultEvent, handle: AgentHandle) -> None:
    """Some of an agent's calls raise, and not only what a backend may raise."""
    handle.tell("err", 0.05 if event.who < 0.5 else event.who)
    testbed.after(2 * _while(testbed, event), lambda: handle.tell("err", 0.0))


def refuse(testbed: Testbed, event: FaultEvent) -> bool:
    """The service refuses writes, or everything, to one agent or to all of them."""
    if testbed.refusal is not Refusal.NOTHING:
        return False
    refusal = (Refusal.KEYS, Refusal.WRITES, Refusal.ALL)[int(event.who * 300) % 3]
    one = victim(testbed, event) if event.amount * 8 % 1 < 0.5 else None
    began, seconds, ttl = time.monotonic(), min(_while(testbed, event), _REFUSED), testbed.job.ttl
    # One that is away is late to learn of it.
    is_outage = one is None and all(handle.healthy for handle in testbed.handles.values())
    is_outage = is_outage and "keep_alive" in refusal.value and seconds > ttl

    def permit() -> None:
        if is_outage:
            testbed.event_log.write("permits", since=began, until=time.monotonic() + ttl)
        testbed.refuse(Refusal.NOTHING, one)

    testbed.refuse(refusal, one)
    testbed.after(seconds, permit)
    return True


def stall(testbed: Testbed, event: FaultEvent) -> bool:
    """The reader of an agent's standard error stands still, until a world has formed nonetheless."""
    handle = victim(testbed, event)
    return handle is not None and testbed.stall(handle)


def corrupt(testbed: Testbed, event: FaultEvent) -> bool:
    """A stranger writes over what the leader has written, and puts it back."""
    return testbed.corrupt(KEYS[int(event.who * len(KEYS))], event.amount * testbed.job.ttl)


@_on_one
def fail(testbed: Testbed, event: FaultEvent, handle: AgentHandle) -> None:
    """A program fails, and joins again."""
    handle.tell("fail")


def fail_many(testbed: Testbed, event: FaultEvent) -> bool:
    """Many programs fail at once, as they do when one of them stops answering."""
    found = healthy(testbed)
    for handle in found[int(event.who * 2) :: 2]:
        handle.tell("fail")
    return bool(found)


@_on_one
def leave(testbed: Testbed, event: FaultEvent, handle: AgentHandle) -> None:
    """An agent goes; a newcomer takes the place some time later."""
    testbed.leave(handle)
    testbed.after(event.amount * 2 * testbed.job.ttl, testbed.arrive)


def outage(testbed: Testbed, event: FaultEvent) -> bool:
    """All servers stand still, or are killed and started again."""
    if testbed.faulted:
        return False
    dies = testbed.service.durable and event.leader
    for member in testbed.service.members:
        testbed.fault_member(member, dies, event.amount * 2.5 * testbed.job.ttl)
    return True


def member(testbed: Testbed, event: FaultEvent) -> bool:
    """One server of a cluster stands still, or is killed and started again."""
    if testbed.faulted:
        return False
    members = testbed.service.members
    chosen = members[int(event.who * len(members))]
    testbed.fault_member(chosen, testbed.service.durable and event.amount < 0.6, event.amount * 2.5 * testbed.job.ttl)
    return True


def close(testbed: Testbed, event: FaultEvent) -> bool:
    """A program closes the run; sometimes two do at once."""
    told = healthy(testbed)[: 1 if event.amount < 0.5 else 2]
    for handle in told:
        handle.tell("close", f"enough, says {handle.name}")
    return bool(told)


@_on_one
def shutdown(testbed: Testbed, event: FaultEvent, handle: AgentHandle) -> None:
    """A program has finished, and the run with it."""
    handle.tell("shutdown")


FAULTS: Final[Mapping[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        *(come, kill, pause, pause_many, partition, slow, err, refuse, stall, corrupt, fail, fail_many, leave),
        *(outage, member, close, shutdown),
    )
}
