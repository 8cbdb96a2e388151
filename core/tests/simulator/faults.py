"""What goes wrong, each in a few lines."""

from collections.abc import Callable
from functools import partial
from typing import Final

from rdzv.engine.envelope import Envelope
from rdzv.engine.records import BEATS, STATE_KEY, STORE, State, decode
from rdzv.engine.steps import Put, Step

from .connection import garbled, names, state_key
from .driver import Fuse, Hit
from .machine import Machine, Scene
from .network import Cut
from .plan import Strike

__all__ = ["FAULTS"]

Fault = Callable[[Scene, Strike], None]


def victim(scene: Scene, strike: Strike, suits: Callable[[Machine], bool] = lambda machine: True) -> Machine | None:
    """The node that a strike hits, if there is one that suits."""
    found = [machine for machine in scene.living() if suits(machine)]
    leaders = [machine for machine in found if machine.node.leading]
    if strike.leader and leaders:
        found = leaders
    return found[int(strike.who * len(found))] if found else None


def _while(scene: Scene, strike: Strike) -> float:
    """How long a node is away: shorter or longer than its lease, and often just as long."""
    if strike.amount < 0.5:
        return (0.5 + 2 * strike.amount) * scene.plan.ttl
    return scene.plan.ttl + scene.plan.lag + strike.amount - 0.6


def come(scene: Scene, strike: Strike) -> None:
    """A new node comes; there are never many more than a world can have."""
    if len(scene.living()) < scene.plan.max_nodes + 3:
        scene.arrive()


def kill(scene: Scene, strike: Strike) -> None:
    """kill -9."""
    if one := victim(scene, strike):
        _kill(scene, one)


def _kill(scene: Scene, one: Machine) -> None:
    scene.story.say("{} is killed", one.name)
    one.kill()


def kill_between(scene: Scene, strike: Strike) -> None:
    """A node is killed between two steps, with a request on its way or not."""
    _between(scene, strike, lambda one: _kill(scene, one))


def pause(scene: Scene, strike: Strike) -> None:
    """SIGSTOP, and some time later SIGCONT."""
    if one := victim(scene, strike):
        _pause(scene, one, _while(scene, strike))


def _pause(scene: Scene, one: Machine, seconds: float) -> None:
    scene.story.say("{} stands still for {:.1f} s", one.name, seconds)
    one.disturbed = True
    one.process.stop()
    scene.timeline.after(seconds, one.process.go_on)


def pause_between(scene: Scene, strike: Strike) -> None:
    """A node stands still between two steps: for a moment, or for longer than its lease."""
    seconds = (0.1, 0.5, _while(scene, strike))[int(strike.who * 300) % 3]
    _between(scene, strike, lambda one: _pause(scene, one, seconds))


def _between(scene: Scene, strike: Strike, blow: Callable[[Machine], None]) -> None:
    """Let something happen between two steps of a leader, or of a node that joins."""
    if one := victim(scene, strike, lambda machine: machine.node.leading or not strike.leader):
        choice = int(strike.amount * 1600) % 16
        burns = _leads if strike.leader else _joins
        if strike.leader and choice < 8:
            one.driver.fuse = Fuse(_publishes, 1, choice % 4 == 0, lambda: blow(one))
        else:
            one.driver.fuse = Fuse(burns, 1 + choice // 2, choice % 2 == 0, lambda: blow(one))


def _leads(kind: str, step: Step) -> bool:
    return kind == "lead"


def _joins(kind: str, step: Step) -> bool:
    return kind == "join"


def _enrolls(kind: str, step: Step) -> bool:
    return kind == "join" and isinstance(step, Put)


def _publishes(kind: str, step: Step) -> bool:
    """The step that counts most: between what the leader has read and what it writes."""
    return kind == "lead" and isinstance(step, Put) and step.key == STATE_KEY


def near_miss(scene: Scene, strike: Strike) -> None:
    """A member is away for about as long as its lease lives, and the leader for a moment, when it publishes.

    The member is away at once, or when it has just sent its record for the next round.
    """
    one = victim(scene, strike, lambda machine: machine.working and not machine.node.leading)
    if one is None:
        return
    lives_for = one.clock.seconds_until(one.node.lease_until) + scene.plan.lag
    seconds = lives_for + strike.amount - 0.1
    goes = partial((_pause, _cut)[int(strike.who * 100) % 2], scene, one, seconds)
    if strike.leader:
        one.driver.fuse = Fuse(_enrolls, 1, True, goes)
        fail_many(scene, Strike(strike.moment, "fail_many"))
    else:
        goes()
    for leader in [machine for machine in scene.living() if machine.node.leading]:
        blow = partial(_pause, scene, leader, 0.05 + strike.who * scene.plan.ttl / 2)
        leader.driver.fuse = Fuse(_publishes, 2 if strike.leader else 1, False, blow)


def cut(scene: Scene, strike: Strike) -> None:
    """One node cannot reach the service, or is not reached by it, or both."""
    if one := victim(scene, strike):
        how = (Cut.BOTH, Cut.REQUESTS, Cut.REPLIES)[int(strike.who * 300) % 3]
        _cut(scene, one, _while(scene, strike), how)


def _cut(scene: Scene, one: Machine, seconds: float, how: Cut = Cut.BOTH) -> None:
    scene.story.say("{} is cut off for {:.1f} s: {} gets lost", one.name, seconds, how.value)
    one.disturbed = True
    one.line.cut = how
    scene.timeline.after(seconds, one.line.heal)


def left_alone(scene: Scene, strike: Strike) -> None:
    """A member is cut off for longer than its lease lives, and all others leave before it is back."""
    one = victim(scene, strike, lambda machine: machine.working)
    if one is None:
        return
    seconds = scene.plan.ttl + scene.plan.lag + 0.5 + strike.amount
    _cut(scene, one, seconds)

    def drain() -> None:
        for other in scene.living():
            if other is not one:
                scene.story.say("{} leaves", other.name)
                other.process.does(other.leave, "drained")

    scene.timeline.after(seconds - strike.who / 2, drain)


def outage(scene: Scene, strike: Strike) -> None:
    """The service is away: down, so that watches break, or frozen, so that they go on afterwards."""
    seconds = (0.5, 2.0, 3.0, 10.0)[int(strike.amount * 4)]
    frozen = strike.who < 0.5
    scene.story.say("the service is {} for {:.1f} s", "frozen" if frozen else "away", seconds)
    scene.service.stop(frozen=frozen)
    scene.timeline.after(seconds, scene.service.start)


def forget(scene: Scene, strike: Strike) -> None:
    """The service is away, and comes back empty."""
    seconds = (0.5, 2.0, 3.0, 10.0)[int(strike.amount * 4)]
    scene.story.say("the service is away for {:.1f} s, and has forgotten everything", seconds)
    scene.amnesia = scene.rough = True
    scene.service.stop()
    scene.service.forget()
    scene.timeline.after(seconds, scene.service.start)


def corrupt(scene: Scene, strike: Strike) -> None:
    """Another client writes over the state, and puts it back: at once, or just when a node that was away comes back."""
    seconds = (0.3, 0.6, 1.5, 4.0)[int(strike.amount * 4)]
    one = victim(scene, strike) if strike.leader else None
    if one is None:
        _corrupt(scene, seconds)
    else:
        away = scene.plan.ttl + scene.plan.lag + 0.5 + strike.who
        _cut(scene, one, away)
        scene.timeline.after(away - 0.1, _corrupt, scene, seconds)


def _corrupt(scene: Scene, seconds: float) -> None:
    key = state_key(scene.plan.level)
    before = scene.service.overwrite(key, b"not ours")
    if before is None or before == b"not ours":
        return
    scene.story.say("the state is overwritten for {:.1f} s", seconds)
    scene.corrupt = True
    # A register holds the beats as well.
    scene.rough = scene.rough or scene.plan.level != "leases"

    def restore() -> None:
        if scene.service.everything().get(key) == b"not ours":
            scene.service.overwrite(key, before)

    scene.timeline.after(seconds, restore)


def garble(scene: Scene, strike: Strike) -> None:
    """Another client writes over a beat, of a node that lives or not. Its owner writes the next one."""
    level, there = scene.plan.level, scene.service.everything()
    if level == "leases" or there.get(state_key(level), b"not ours") == b"not ours":
        return
    # Leases of counted beats have an id.
    owners = {f"{BEATS}/{getattr(one.node.lease, 'id', None)}": one for one in scene.machines}
    known = names(level, there)
    beats = [key for key in owners if key in known]
    if beats:
        one = beats[int(strike.who * len(beats))]
        scene.story.say("a beat of {} is overwritten", owners[one].name)
        scene.service.overwrite(*garbled(level, one, there))


def unexpected(scene: Scene, strike: Strike) -> None:
    """Calls of one loop of a node raise what no backend should, a few times; what they ask is done, or is not."""
    if one := victim(scene, strike, lambda machine: machine.driver.hit is None and not machine.node.failures):
        loop = "lead" if strike.leader else ("watch", "keep", "join")[int(strike.who * 300) % 3]
        times = 1 + int(strike.amount * 3)
        scene.story.say("{} meets {} unexpected errors: {}", one.name, times, loop)
        one.driver.hit = Hit(lambda kind, step: kind == loop, times, strike.amount * 6 % 2 < 1)


def slow(scene: Scene, strike: Strike) -> None:
    """Every message takes much longer."""
    scene.story.say("the network is slow for {:.1f} s", _while(scene, strike))
    scene.rough = True
    scene.weather.delay = scene.plan.delay * 30

    def recover() -> None:
        scene.weather.delay = scene.plan.delay

    scene.timeline.after(_while(scene, strike), recover)


def jump(scene: Scene, strike: Strike) -> None:
    """Somebody sets the clock on a wall."""
    if one := victim(scene, strike):
        one.clock.jump((strike.amount - 0.5) * 7200)


def leave(scene: Scene, strike: Strike) -> None:
    """A node goes."""
    if one := victim(scene, strike):
        scene.story.say("{} leaves", one.name)
        one.process.does(one.leave, "it was told to")


def fail(scene: Scene, strike: Strike) -> None:
    """A program fails."""
    if one := victim(scene, strike, lambda machine: machine.working):
        _fail(scene, one)


def _fail(scene: Scene, one: Machine) -> None:
    scene.story.say("the program of {} fails, and joins again", one.name)
    one.process.does(one.fail)


def fail_many(scene: Scene, strike: Strike) -> None:
    """Many programs fail at once, as they do when one of them stops answering."""
    first = int(strike.who * 2)
    for number, one in enumerate(scene.living()):
        if one.working and number % 2 >= first:
            _fail(scene, one)


def interrupt(scene: Scene, strike: Strike) -> None:
    """Ctrl-C for a program that waits."""
    if one := victim(scene, strike, lambda machine: machine.joining):
        scene.story.say("{} is interrupted", one.name)
        one.process.does(one.interrupt)


def close(scene: Scene, strike: Strike) -> None:
    """A program closes the run."""
    if one := victim(scene, strike):
        scene.story.say("{} closes the run", one.name)
        one.process.does(one.close, "enough")


def shutdown(scene: Scene, strike: Strike) -> None:
    """A program has finished."""
    if one := victim(scene, strike):
        scene.story.say("{} shuts down", one.name)
        one.process.does(one.shut_down)


def relaunch(scene: Scene, strike: Strike) -> None:
    """The scheduler starts the job again, with or without having killed what was left of it."""
    scene.attempt += 1
    scene.story.say("attempt {} begins", scene.attempt)
    if strike.amount < 0.5:
        for one in scene.living():
            _kill(scene, one)
    for _ in range(scene.plan.max_nodes):
        scene.timeline.after(strike.who, scene.arrive)


def purge(scene: Scene, strike: Strike) -> None:
    """All programs have finished, and what they have left is purged while the next attempt begins."""
    for one in scene.living():
        scene.story.say("{} shuts down", one.name)
        one.process.does(one.shut_down)
    scene.timeline.after(1.0, _begin, scene, strike)


def _begin(scene: Scene, strike: Strike) -> None:
    scene.attempt += 1
    scene.story.say("attempt {} begins", scene.attempt)
    for number in range(scene.plan.max_nodes):
        scene.timeline.after(number * strike.who * scene.plan.ttl, scene.arrive)
    scene.timeline.after(strike.amount * scene.plan.ttl, _purge, scene)


def _purge(scene: Scene) -> None:
    held = None if scene.service.down else scene.service.read(STATE_KEY, timeout=1.0)
    # Where the adapters put more around a value, a purge is the same.
    if held is None or held.value == b"not ours" or scene.plan.level != "leases":
        return
    before = Envelope.unpack(held.value)
    state = decode(State, before.payload)
    if state.closed is None or any(one.settings.attempt <= state.attempt for one in scene.living()):
        return
    scene.story.say("what attempt {} has left is removed", state.attempt)
    for number in range(state.round + 1):
        scene.service.delete(f"{STORE}/{number}", timeout=1.0)
    tombstone = Envelope.seal(b"", writer="purge", after=before, deleted=True)
    scene.service.put(STATE_KEY, tombstone.pack(), expect=held.token, timeout=1.0)
    scene.service.delete(STATE_KEY, timeout=1.0)


FAULTS: Final[dict[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        come,
        kill,
        kill_between,
        pause,
        pause_between,
        near_miss,
        cut,
        left_alone,
        outage,
        forget,
        corrupt,
        garble,
        unexpected,
        slow,
        jump,
        leave,
        fail,
        fail_many,
        interrupt,
        close,
        shutdown,
        relaunch,
        purge,
    )
}
