"""What goes wrong, each in a few lines."""

from collections.abc import Callable
from functools import partial
from typing import Final

from rdzv_core.backend import ABSENT, ANY, STATE_KEY
from rdzv_core.envelope import Envelope

from rdzv.engine.codec import _SCHEMA, decode
from rdzv.engine.effects import Effect, Put, ReadAll
from rdzv.engine.heartbeats import _EXPIRED
from rdzv.engine.notices import DRAINS, FAILURES, QUARANTINES, Quarantine
from rdzv.engine.records import CONTROL, HEARTBEATS, NODES, PENDING, ROUNDS, State, pending_key, round_folder

from .connection import contents, garbled, state_key
from .machine import Machine, SimulationContext
from .network import NetworkConditions, NetworkLink, Partition
from .plan import FaultEvent
from .runner import FailPoint, Hit
from .service import Refusal

__all__ = ["FAULTS"]

Fault = Callable[[SimulationContext, FaultEvent], None]


def victim(
    context: SimulationContext, event: FaultEvent, suits: Callable[[Machine], bool] = lambda machine: True
) -> Machine | None:
    """The node that a fault hits, if there is one that suits."""
    found = [machine for machine in context.living() if suits(machine)]
    leaders = [machine for machine in found if machine.node.leading]
    if event.leader and leaders:
        found = leaders
    return found[int(event.who * len(found))] if found else None


def _while(context: SimulationContext, event: FaultEvent) -> float:
    """How long a node is away: shorter or longer than its lease, and often just as long."""
    if event.amount < 0.5:
        return (0.5 + 2 * event.amount) * context.plan.ttl
    return context.plan.ttl + context.plan.lag + event.amount - 0.6


def come(context: SimulationContext, event: FaultEvent) -> None:
    """A new node comes; there are never many more than a world can have."""
    if len(context.living()) < context.plan.max_nodes + 3:
        context.arrive()


def kill(context: SimulationContext, event: FaultEvent) -> None:
    """kill -9."""
    if one := victim(context, event):
        _kill(context, one)


def _kill(context: SimulationContext, one: Machine) -> None:
    context.trace.log("{} is killed", one.name)
    one.kill()


def kill_between(context: SimulationContext, event: FaultEvent) -> None:
    """A node is killed between two steps, with a request on its way or not."""
    _between(context, event, lambda one: _kill(context, one))


def pause(context: SimulationContext, event: FaultEvent) -> None:
    """SIGSTOP, and some time later SIGCONT."""
    if one := victim(context, event):
        _pause(context, one, _while(context, event))


def _pause(context: SimulationContext, one: Machine, seconds: float) -> None:
    context.trace.log("{} stands still for {:.1f} s", one.name, seconds)
    one.disturbed = True
    one.process.stop()
    context.timeline.after(seconds, one.process.go_on)


def pause_between(context: SimulationContext, event: FaultEvent) -> None:
    """A node stands still between two steps: for a moment, or for longer than its lease."""
    seconds = (0.1, 0.5, _while(context, event))[int(event.who * 300) % 3]
    _between(context, event, lambda one: _pause(context, one, seconds))


def _between(context: SimulationContext, event: FaultEvent, trigger: Callable[[Machine], None]) -> None:
    """Let something happen between two steps of a leader, or of a node that joins."""
    if one := victim(context, event, lambda machine: machine.node.leading or not event.leader):
        choice = int(event.amount * 1600) % 16
        matches = _leads if event.leader else _joins
        if event.leader and choice < 8:
            one.runner.fail_point = FailPoint(_publishes, 1, choice % 4 == 0, lambda: trigger(one))
        else:
            one.runner.fail_point = FailPoint(matches, 1 + choice // 2, choice % 2 == 0, lambda: trigger(one))


def _leads(kind: str, effect: Effect) -> bool:
    return kind == "lead"


def _joins(kind: str, effect: Effect) -> bool:
    return kind == "join"


def _registers(kind: str, effect: Effect) -> bool:
    return kind == "join" and isinstance(effect, Put)


def _fences(kind: str, effect: Effect) -> bool:
    return kind == "join" and isinstance(effect, ReadAll) and effect.prefix == CONTROL


def _publishes(kind: str, effect: Effect) -> bool:
    """The step that counts most: between what the leader has read and what it writes."""
    return kind == "lead" and isinstance(effect, Put) and effect.key == STATE_KEY


def near_miss(context: SimulationContext, event: FaultEvent) -> None:
    """A member is away for about as long as its lease lives, and the leader for a moment, when it publishes."""
    one = victim(context, event, lambda machine: machine.working and not machine.node.leading)
    if one is None:
        return
    leaders = [machine for machine in context.living() if machine.node.leading]
    if event.leader:
        _miss_a_round(context, event, one, leaders)
        return
    lives_for = one.clock.seconds_until(one.node.registration.lease_until) + context.plan.lag
    (_pause, _partition)[int(event.who * 100) % 2](context, one, lives_for + event.amount - 0.1)
    for leader in leaders:
        trigger = partial(_pause, context, leader, 0.05 + event.who * context.plan.ttl / 2)
        leader.runner.fail_point = FailPoint(_publishes, 1, False, trigger)


def _miss_a_round(context: SimulationContext, event: FaultEvent, one: Machine, leaders: list[Machine]) -> None:
    """All join, and one hears of its round when the leader is about to publish the next one, without it.

    It is cut off when it has sent its record, and sends that again on a lease that is over.
    """
    silence = one.node.background_deadline() - one.node.clock()
    again = context.timeline.now + silence
    cut_off = partial(_partition, context, one, silence - 0.05)
    one.runner.fail_point = FailPoint(_registers, 1, True, cut_off)
    fail_many(context, FaultEvent(0.0, "fail_many"))
    for leader in leaders:

        def stand_still(leader: Machine = leader) -> None:
            _pause(context, leader, max(0.1, again + event.amount / 4 - context.timeline.now))

        leader.runner.fail_point = FailPoint(_publishes, 2, False, stand_still)


def partition(context: SimulationContext, event: FaultEvent) -> None:
    """One node cannot reach the service, or is not reached by it, or both."""
    if one := victim(context, event):
        how = (Partition.BOTH, Partition.REQUESTS, Partition.REPLIES)[int(event.who * 300) % 3]
        _partition(context, one, _while(context, event), how)


def _partition(context: SimulationContext, one: Machine, seconds: float, how: Partition = Partition.BOTH) -> None:
    context.trace.log("{} is cut off for {:.1f} s: {} gets lost", one.name, seconds, how.value)
    one.disturbed = True
    one.link.partition = how
    context.timeline.after(seconds, one.link.heal)


def left_alone(context: SimulationContext, event: FaultEvent) -> None:
    """A member is cut off for longer than its lease lives, and all others leave before it is back."""
    one = victim(context, event, lambda machine: machine.working)
    if one is None:
        return
    seconds = context.plan.ttl + context.plan.lag + 0.5 + event.amount
    _partition(context, one, seconds)

    def drain() -> None:
        for other in context.living():
            if other is not one:
                context.trace.log("{} leaves", other.name)
                other.process.does(other.leave, "drained")

    context.timeline.after(seconds - event.who / 2, drain)


def outage(context: SimulationContext, event: FaultEvent) -> None:
    """The service is away: down, so that watches break, or frozen, so that they go on afterwards."""
    seconds = (0.5, 2.0, 3.0, 10.0)[int(event.amount * 4)]
    frozen = event.who < 0.5
    context.trace.log("the service is {} for {:.1f} s", "frozen" if frozen else "away", seconds)
    context.service.stop(frozen=frozen)
    context.timeline.after(seconds, context.service.start)


def refuse(context: SimulationContext, event: FaultEvent) -> None:
    """The service refuses writes, or everything, to one node or to all, for shorter or longer than leases live."""
    refused = (Refusal.KEYS, Refusal.WRITES, Refusal.ALL)[int(event.who * 300) % 3]
    one = victim(context, event) if event.amount * 8 % 1 < 0.5 else None
    seconds = (0.5, 2.0, 3.0, 10.0)[int(event.amount * 4)] + event.who
    whom: NetworkLink | NetworkConditions = one.link if one is not None else context.conditions
    context.trace.log("{} is refused {} for {:.1f} s", one.name if one else "each node", refused.name, seconds)
    whom.refused = refused
    if one is not None:
        one.disturbed = True

    def permit() -> None:
        whom.refused = Refusal.NOTHING

    context.timeline.after(seconds, permit)


def forget(context: SimulationContext, event: FaultEvent) -> None:
    """The service is away, and comes back empty; a node may take its time to fence the record that it writes again."""
    seconds = (0.5, 2.0, 3.0, 10.0)[int(event.amount * 4)]
    context.trace.log("the service is away for {:.1f} s, and has forgotten everything", seconds)
    context.data_lost = context.unreliable = True
    context.service.stop()
    context.service.forget()
    context.timeline.after(seconds, context.service.start)
    if event.leader and (one := victim(context, event, lambda machine: machine.working and _meets_no_error(machine))):
        one.runner.hit = Hit(_fences, 3, False)
        context.timeline.after(seconds, _fail, context, one)


_GARBAGE: Final = (b"not ours", b'{"rdzv":3}\n')
"""Bytes that are not rdzv's, and an envelope as another version may write it."""


def corrupt(context: SimulationContext, event: FaultEvent) -> None:
    """Another client writes over the state, and puts it back: at once, or just when a node that was away comes back."""
    seconds = (0.3, 0.6, 1.5, 4.0)[int(event.amount * 4)]
    one = victim(context, event) if event.leader else None
    if one is None:
        _corrupt(context, seconds)
    else:
        away = context.plan.ttl + context.plan.lag + 0.5 + event.who
        _partition(context, one, away)
        context.timeline.after(away - 0.1, _corrupt, context, seconds)


def _corrupt(context: SimulationContext, seconds: float) -> None:
    key = state_key(context.plan.level)
    before = context.service.everything().get(key)
    if before is None or before in _GARBAGE:
        return
    garbage = _GARBAGE[seconds < 1]
    context.service.overwrite(key, garbage)
    context.trace.log("the state is overwritten for {:.1f} s", seconds)
    context.corrupt = True
    # A register holds the heartbeats as well.
    context.unreliable = context.unreliable or context.plan.level != "leases"

    def restore() -> None:
        if context.service.everything().get(key) == garbage:
            context.service.overwrite(key, before)

    context.timeline.after(seconds, restore)


def garble(context: SimulationContext, event: FaultEvent) -> None:
    """Another client writes over a heartbeat, of a node that lives or not. Its owner writes the next one."""
    level, there = context.plan.level, context.service.everything()
    if level == "leases" or there.get(state_key(level), b"not ours") in _GARBAGE:
        return
    # Heartbeat leases have an id.
    owners = {f"{HEARTBEATS}/{getattr(one.node.registration.lease, 'id', None)}": one for one in context.machines}
    known = contents(level, there)
    # The end of a lease is no heartbeat any more.
    heartbeats = [key for key in owners if known.get(key, _EXPIRED) != _EXPIRED]
    if heartbeats:
        one = heartbeats[int(event.who * len(heartbeats))]
        context.trace.log("a heartbeat of {} is overwritten", owners[one].name)
        context.service.overwrite(*garbled(level, one, there))


def garble_notice(context: SimulationContext, event: FaultEvent) -> None:
    """Another client writes over a notice: a drain, a first failure, or a quarantine."""
    level, there = context.plan.level, context.service.everything()
    if there.get(state_key(level), b"not ours") in _GARBAGE:
        return
    notices = sorted(key for key in contents(level, there) if key.startswith((DRAINS, FAILURES, QUARANTINES)))
    if notices:
        key = notices[int(event.who * len(notices))]
        context.trace.log("{} is overwritten", key)
        context.notices_garbled = True
        context.service.overwrite(*garbled(level, key, there))


_FOLDERS: Final = (NODES, ROUNDS, PENDING, DRAINS, FAILURES, QUARANTINES, HEARTBEATS)
_DIGITS: Final = "9" * 4301
"""One more than Python reads as an integer."""
_FIELDS: Final = (f'"round":{_DIGITS}', '"round":1e999', r'"\ud800":"\u0000"', f'"nodes":{"[" * 100_000}')
_STRANGE: Final = ("1e999", _DIGITS, *(f'{{"schema":{_SCHEMA},{fields}}}' for fields in _FIELDS))
"""What is no record, and is refused in several ways."""


def litter(context: SimulationContext, event: FaultEvent) -> None:
    """Another client leaves a key where nodes have theirs: no name that rdzv writes, and nothing that it reads."""
    if context.plan.level == "register" or context.service.down:
        return
    folder, payload = _FOLDERS[int(event.who * len(_FOLDERS))], _STRANGE[int(event.amount * len(_STRANGE))]
    key = f"{folder}/{_DIGITS if event.leader else 'stray'}"
    context.trace.log("another client leaves {:.40} with {:.20}", key, payload)
    context.litter.add(key)
    value = Envelope.wrap(payload.encode(), writer="another").pack()
    context.service.put(key, value, expect=ABSENT, timeout=1.0)


def unexpected(context: SimulationContext, event: FaultEvent) -> None:
    """Calls of one loop of a node raise what no backend should, a few times; what they ask is done, or is not."""
    if one := victim(context, event, _meets_no_error):
        loop = "lead" if event.leader else ("watch", "keep", "join")[int(event.who * 300) % 3]
        times = 1 + int(event.amount * 3)
        context.trace.log("{} meets {} unexpected errors: {}", one.name, times, loop)
        one.runner.hit = Hit(lambda kind, effect: kind == loop, times, event.amount * 6 % 2 < 1)


def _meets_no_error(one: Machine) -> bool:
    return one.runner.hit is None and one.node.failures.latest is None


def slow(context: SimulationContext, event: FaultEvent) -> None:
    """Every message takes much longer."""
    context.trace.log("the network is slow for {:.1f} s", _while(context, event))
    context.unreliable = True
    context.conditions.delay = context.plan.delay * 30

    def recover() -> None:
        context.conditions.delay = context.plan.delay

    context.timeline.after(_while(context, event), recover)


def jump(context: SimulationContext, event: FaultEvent) -> None:
    """The wall clock is set."""
    if one := victim(context, event):
        one.clock.jump((event.amount - 0.5) * 7200)


def leave(context: SimulationContext, event: FaultEvent) -> None:
    """A node goes."""
    if one := victim(context, event):
        context.trace.log("{} leaves", one.name)
        one.process.does(one.leave, "it had orders to")


def fail(context: SimulationContext, event: FaultEvent) -> None:
    """A program fails."""
    if one := victim(context, event, lambda machine: machine.working):
        _fail(context, one)


def _fail(context: SimulationContext, one: Machine) -> None:
    context.trace.log("the program of {} fails, and joins again", one.name)
    one.process.does(one.fail)


def fail_again(context: SimulationContext, event: FaultEvent) -> None:
    """The program of one node fails in each world that it gets, for a while."""
    if one := victim(context, event):
        one.failing = 2 + int(event.amount * 4)
        if one.working:
            _fail(context, one)


def drain(context: SimulationContext, event: FaultEvent) -> None:
    """A node has to go soon, and says so."""
    if one := victim(context, event):
        seconds = 4 * event.amount
        context.trace.log("{} drains, and goes in {:.1f} s", one.name, seconds)
        one.process.does(one.drain, seconds)


def pardon(context: SimulationContext, event: FaultEvent) -> None:
    """An operator lifts the quarantine of a node. Where the adapters put more around a value, a pardon is the same."""
    service = context.service
    if service.down or context.plan.level != "leases":
        return
    values = {key: value for key, value in service.everything().items() if value not in _GARBAGE}
    quarantines = sorted(key for key in values.keys() - context.litter if key.startswith(QUARANTINES))
    keys = [key for key in quarantines if not _quarantine(values[key]).over]
    if keys and STATE_KEY in values:
        key = keys[int(event.who * len(keys))]
        number = decode(State, Envelope.unpack(values[STATE_KEY]).payload).round
        context.trace.log("{} is lifted in round {}", key, number)
        lifted = Quarantine(0, number, 0.0, "pardoned", over=True).encode()
        envelope = Envelope.wrap(lifted, writer="pardon", previous=Envelope.unpack(values[key]))
        service.put(key, envelope.pack(), expect=ANY, timeout=1.0)


def _quarantine(value: bytes) -> Quarantine:
    return decode(Quarantine, Envelope.unpack(value).payload)


def fail_many(context: SimulationContext, event: FaultEvent) -> None:
    """Many programs fail at once, as they do when one of them stops answering."""
    first = int(event.who * 2)
    for number, one in enumerate(context.living()):
        if one.working and number % 2 >= first:
            _fail(context, one)


def break_off(context: SimulationContext, event: FaultEvent) -> None:
    """A node is killed, and the programs of all others of its world fail; some may have no restart left."""
    one = victim(context, event, lambda machine: machine.working)
    others = [other for other in context.living() if one and other.working and other.round == one.round]
    if one is None:
        return
    _kill(context, one)
    for number, other in enumerate(other for other in others if other is not one):
        other.spent = event.amount < 0.5
        context.timeline.after(0.1 * event.who * number, _fail, context, other)


def hang(context: SimulationContext, event: FaultEvent) -> None:
    """The program of a node stops, and those of all others of its world wait for it, at that step or the next one."""
    one = victim(context, event, lambda machine: machine.working)
    if one is None or one.round in context.hangs:
        return
    step = int(event.amount * 100)
    others = [other for other in context.living() if other.working and other.round == one.round and other is not one]
    is_behind = step % 3 > 0 or not others
    if any(machine.process.stopped for machine in (one, *others)):
        # A program that stands still comes to its step late: until then others may wait for it, and any may be named.
        context.hangs[one.round] = {machine.name for machine in (one, *others)}
    else:
        context.hangs[one.round] = {one.name} if is_behind else set()
    context.trace.log("the program of {} hangs at step {}, the others {}", one.name, step, "wait" * is_behind)
    for number, other in enumerate([one, *others]):
        there = step + 1 if number and is_behind else step
        other.process.does(other.stop_at, there, one.round, 2.0 + 0.02 * (event.who * 100 * number % 7))


def interrupt(context: SimulationContext, event: FaultEvent) -> None:
    """Ctrl-C for a program that waits."""
    if one := victim(context, event, lambda machine: machine.joining):
        context.trace.log("{} is interrupted", one.name)
        one.process.does(one.interrupt)


def close(context: SimulationContext, event: FaultEvent) -> None:
    """A program closes the run."""
    if one := victim(context, event):
        context.trace.log("{} closes the run", one.name)
        one.process.does(one.close, "enough")


def shutdown(context: SimulationContext, event: FaultEvent) -> None:
    """A program has finished."""
    if one := victim(context, event):
        context.trace.log("{} shuts down", one.name)
        one.process.does(one.shut_down)


def relaunch(context: SimulationContext, event: FaultEvent) -> None:
    """The scheduler starts the job again, with or without having killed what was left of it."""
    context.attempt += 1
    context.trace.log("attempt {} begins", context.attempt)
    if event.amount < 0.5:
        for one in context.living():
            _kill(context, one)
    for _ in range(context.plan.max_nodes):
        context.timeline.after(event.who, context.arrive)


def requeue(context: SimulationContext, event: FaultEvent) -> None:
    """The scheduler takes the nodes away: all leave in good order, and those of the next attempt come one by one."""
    for one in context.living():
        context.trace.log("{} leaves", one.name)
        one.process.does(one.leave, "requeued")
    context.timeline.after(1.0, _begin_one_by_one, context, event)


def _begin_one_by_one(context: SimulationContext, event: FaultEvent) -> None:
    context.attempt += 1
    context.trace.log("attempt {} begins", context.attempt)
    for number in range(context.plan.max_nodes):
        context.timeline.after(number * event.who * context.plan.ttl, context.arrive)


def purge(context: SimulationContext, event: FaultEvent) -> None:
    """All programs have finished, and what they have left is purged while the next attempt begins."""
    for one in context.living():
        context.trace.log("{} shuts down", one.name)
        one.process.does(one.shut_down)
    context.timeline.after(1.0, _begin, context, event)


def _begin(context: SimulationContext, event: FaultEvent) -> None:
    _begin_one_by_one(context, event)
    context.timeline.after(event.amount * context.plan.ttl, _purge, context)


def _purge(context: SimulationContext) -> None:
    entry = None if context.service.down else context.service.read(STATE_KEY, timeout=1.0)
    # Where the adapters put more around a value, a purge is the same.
    if entry is None or entry.value in _GARBAGE or context.plan.level != "leases":
        return
    before = Envelope.unpack(entry.value)
    state = decode(State, before.payload)
    # Nor while one that leaves still removes what it has seen before.
    runs = [one for one in context.machines if one.process.alive]
    if state.closed is None or any(one.settings.attempt <= state.attempt for one in runs):
        return
    context.trace.log("what attempt {} has left is removed", state.attempt)
    for number in range(state.round + 2):
        context.service.delete(round_folder(number), timeout=1.0)
        context.service.delete(pending_key(number), timeout=1.0)
    tombstone = Envelope.wrap(b"", writer="purge", previous=before, deleted=True)
    context.purged = True
    context.service.put(STATE_KEY, tombstone.pack(), expect=entry.token, timeout=1.0)
    context.service.delete(STATE_KEY, timeout=1.0)


FAULTS: Final[dict[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        come,
        kill,
        kill_between,
        pause,
        pause_between,
        near_miss,
        partition,
        left_alone,
        outage,
        refuse,
        forget,
        corrupt,
        garble,
        garble_notice,
        litter,
        unexpected,
        slow,
        jump,
        leave,
        drain,
        fail,
        fail_again,
        pardon,
        fail_many,
        break_off,
        hang,
        interrupt,
        close,
        shutdown,
        relaunch,
        requeue,
        purge,
    )
}
