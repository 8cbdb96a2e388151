"""What must hold, checked after every step. The numbers are those of docs/guarantees.md."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from rdzv_core import errors
from rdzv_core.backend import STATE_KEY
from rdzv_core.envelope import Envelope

from rdzv.admission import AdmissionRule
from rdzv.engine.codec import decode
from rdzv.engine.failures import LASTING_TIMES, REFUSED_AT_FIRST
from rdzv.engine.notices import DRAINS, FAILURES, QUARANTINES, Failure, Quarantine, Verdict, name_of
from rdzv.engine.records import (
    LEADER_KEY,
    NODES,
    PENDING,
    ROUNDS,
    STATUS_KEY,
    LeaderRecord,
    NodeRecord,
    Page,
    Pages,
    RunStatus,
    State,
)
from rdzv.hooks import Event, EventKind
from rdzv.outcome import Ending
from rdzv.settings import ROUNDS_KEPT

from .connection import living, written
from .machine import HANGS, Machine, SimulationContext

if TYPE_CHECKING:
    from collections.abc import Mapping

HEARD = 1.0
"""Seconds after which a leader that was never away knows what was written."""

_NEVER = 0, -math.inf, 0.0
"""The quarantine of a node that had none: its round, since when, and for how many seconds."""

_NOTICES = (f"{DRAINS}/", f"{FAILURES}/", f"{QUARANTINES}/")
_WATCHED = frozenset({STATE_KEY, STATUS_KEY, LEADER_KEY})

__all__ = ["Invariants", "Violation"]


class Violation(AssertionError):
    """An invariant does not hold.

    Attributes:
        number: Which; 0: the code itself breaks.
    """

    def __init__(self, number: int, what: str) -> None:
        """Say which, and what was seen."""
        super().__init__(f"invariant {number}: {what}")
        self.number = number


class Invariants:
    """Watches one run.

    Attributes:
        state: The state as the service holds it.
        status: The status that was published last.
        terms: How many times a node was elected.
        rounds: How many worlds were published.
        late: What was written for a round after it was over: it came too late to be removed with it.
        undead_at: When a record was applied last whose node had gone: without leases it counts as there.
        came_at: When each machine came, by its name; it had always been there: it is not named.
    """

    def __init__(self, context: SimulationContext) -> None:
        """Watch `context`."""
        self.state: State | None = None
        self.status: RunStatus | None = None
        self.terms = 0
        self.rounds = 0
        self.late: set[str] = set()
        self.undead_at = -math.inf
        self.came_at: dict[str, float] = {}
        self._context = context
        self._leads = ""
        self._kept_out: set[str] = set()
        self._published_at = 0.0
        self._lost: set[str] = set()
        self._seen: dict[str, bytes] = {}
        self._pages: dict[str, Mapping[str, int]] = {}
        # The pages of a round are looked at once for each folder, not by each node that returns.
        self._paged: tuple[Pages, tuple[str, ...]] | None = None
        self._failures: dict[int, tuple[str, Verdict | None]] = {}
        # The last round of an attempt that was closed.
        self._closed_round = 0
        self._counted: dict[str, int] = {}
        self._times: dict[str, int] = {}
        self._quarantined: dict[str, tuple[int, float, float]] = {}
        self._failed_at: dict[int, float] = {}
        self._drains_since: dict[str, float] = {}
        self._worlds: dict[int, tuple[tuple[str, ...], str, int]] = {}
        self._ranks: tuple[tuple[str, ...], dict[str, int]] = ((), {})

    # What is written to the service.

    def wrote(self, key: str, value: bytes) -> None:
        """A write was applied."""
        if key in self._context.litter:
            return
        for name, data in written(self._context.plan.level, key, value):
            if name.startswith((f"{ROUNDS}/", f"{PENDING}/")) and self._is_over(name):
                self.late.add(name)
            # Each write of a register holds all records: one counts if it has changed. Elsewhere each counts, also
            # a late one that puts back what was removed.
            if name.startswith(f"{NODES}/") and data and (name == key or self._seen.get(name) != data):
                self._seen[name] = data
                self._wrote_record(name.rpartition("/")[2])
            if name.startswith(f"{ROUNDS}/") and "/world/" in name:
                self._pages[name] = decode(Page, Envelope.unpack(data).payload).ranks
            # One that is not ours is empty once a register was written again.
            if name.startswith(_NOTICES) and data and self._seen.get(name) != data:
                self._seen[name] = data
                self._wrote_notice(name, Envelope.unpack(data))
            if name in _WATCHED and self._seen.get(name) != data:
                self._seen[name] = data
                self._look_at(name, Envelope.unpack(data))

    def _wrote_record(self, node: str) -> None:
        machine = self._context.by_id.get(node)
        if self._context.plan.level != "leases" and (machine is None or not machine.process.alive):
            self.undead_at = self._context.timeline.now

    def _wrote_notice(self, key: str, envelope: Envelope) -> None:
        name = key.rpartition("/")[2]
        if envelope.deleted:
            return
        if key.startswith(DRAINS):
            self._drains_since.setdefault(name, self._context.timeline.now)
        if key.startswith(FAILURES):
            self._failed(int(name), decode(Failure, envelope.payload))
        if key.startswith(QUARANTINES):
            quarantine = decode(Quarantine, envelope.payload)
            if name == self._shared_name():
                self._check_alone(name, quarantine)
            elif not quarantine.times:
                self._pardoned(name, quarantine.round)
            elif quarantine.over:
                # A handler that the node starts later does not begin it.
                self._quarantined.pop(name, None)
            else:
                self._check_quarantine(name, quarantine)

    def _failed(self, number: int, failure: Failure) -> None:
        """The first failure of a round stands, until it is removed when the run has ended, and so does its verdict."""
        said = failure.node, failure.verdict
        is_over = self.state is None or self.state.closed or self._context.data_lost or self._context.purged
        # Of a round long ago, or of an attempt that was closed, it has been removed.
        is_over = is_over or self.state is None or number <= max(self._closed_round, self.state.round - ROUNDS_KEPT)
        node, verdict = self._failures.get(number, said)
        may_follow = verdict is None and (node == failure.node or failure.verdict is Verdict.BEHIND)
        if (node, verdict) != said and not may_follow and not is_over:
            raise Violation(15, f"{said} failed first in round {number}, and so did {self._failures[number]}")
        self._failures[number] = said
        if failure.verdict is None:
            self._failed_at[number] = self._context.timeline.now
        if failure.verdict is not None and not is_over and self.state and self.state.round == number:
            self._check_verdict(number, failure)

    def _check_verdict(self, number: int, failure: Failure) -> None:
        """No node fails by the loss of another, nor by one for which it waits; and none is excused for nothing."""
        self._context.trace.log("round {} has ended by {}: {}", number, failure.node, failure.verdict)
        context, world = self._context, self._worlds.get(number, ((),))[0]
        members = [machine for machine in context.machines if machine.name in world]
        if failure.counts and (dead := [machine.name for machine in members if machine.died_in == number]):
            raise Violation(15, f"{failure.node} has failed first in round {number}, in which {dead} died")
        is_whole = len(members) == len(world) and not (context.unreliable or context.corrupt or context.data_lost)
        is_calm = all(one.alive and not one.disturbed and one.node.has_valid_lease() for one in members)
        if failure.verdict is Verdict.EXPLAINED and is_whole and is_calm:
            raise Violation(15, f"the failure of {failure.node} in round {number} is explained by no loss")
        is_hang = failure.verdict is Verdict.BEHIND or failure.reason == HANGS
        behind = context.hangs.get(number, set())
        if failure.counts and is_hang and failure.node not in behind:
            raise Violation(15, f"{failure.node} waited in round {number} for {sorted(behind)}, and pays")

    def _check_quarantine(self, name: str, quarantine: Quarantine) -> None:
        """A node is quarantined for failures in so many consecutive rounds, and for each of them once."""
        rounds = self._rounds_until(quarantine.round)
        self._context.trace.log("{} is quarantined: {}", name, quarantine.times)
        if self._context.data_lost or self._context.purged or self._context.notices_garbled:
            # The numbers of the rounds began anew, or what has counted is not known any more.
            return
        if not self._all_failed_by(name, rounds):
            raise Violation(15, f"{name} is quarantined for rounds {[*rounds]}, which failed by {self._failures}")
        if self._counted.get(name, 0) >= rounds[0]:
            raise Violation(15, f"{name} is quarantined twice for a failure up to round {self._counted[name]}")
        self._times[name] = self._times.get(name, 0) + 1
        if quarantine.times != self._times[name] and not self._context.plan.namesakes:
            raise Violation(15, f"quarantine {self._times[name]} of {name} counts as number {quarantine.times}")
        self._counted[name] = quarantine.round
        self._quarantined[name] = quarantine.round, self._context.timeline.now, quarantine.cooldown
        ends = quarantine.cooldown + self._context.plan.ttl
        self._context.timeline.after(ends, self._see_that_it_is_served, name, quarantine.round)

    def _shared_name(self) -> str | None:
        """The name that all nodes have; None: no two that live have the same."""
        return name_of(self._context.machines[0].name) if self._context.plan.namesakes else None

    def _identity(self, node: str) -> str:
        """By what a node is quarantined: by its id where others have its name."""
        return node if self._context.plan.namesakes else name_of(node)

    def _check_alone(self, name: str, quarantine: Quarantine) -> None:
        """No node is quarantined by a name that others have, which are members beside it."""
        world = self.state.world if self.state is not None else ()
        here = [one for one in self._context.machines if one.working or one.joining]
        inside = [one.name for one in here if one.name in world and one.node.has_valid_lease() and not one.disturbed]
        if not quarantine.over and quarantine.times and len(inside) > 1 and not self._context.unreliable:
            raise Violation(15, f"'{name}' is quarantined, which others have: {', '.join(inside)}")

    def _all_failed_by(self, name: str, rounds: range) -> bool:
        """Whether handlers of that name failed first in each of these rounds."""
        failures = [self._failures.get(number, ("", None)) for number in rounds]
        counts = all(verdict in (Verdict.FIRST, Verdict.BEHIND) for _, verdict in failures)
        return counts and {self._identity(node) for node, _ in failures} == {name}

    def _see_that_it_is_served(self, name: str, number: int) -> None:
        """A node that waits, and was never away, knows when its quarantine is over, unless a further one has begun.

        Where the service is away it may wait for an answer to its record first.
        """
        there, since, _ = self._quarantined.get(name, _NEVER)
        is_due = there == number and not self._context.service.down
        for machine in self._sure_of_what_they_see(name) if is_due else ():
            was_there = self.came_at.get(machine.name, -math.inf) < since
            if machine.joining and was_there and machine.node.countdown.served < number:
                raise Violation(15, f"{machine.name} is still quarantined")

    def _pardoned(self, name: str, number: int) -> None:
        """What a node has failed until that round does not count any more."""
        self._counted[name], self._times[name] = max(number, self._counted.get(name, 0)), 0
        self._quarantined.pop(name, None)
        self._context.timeline.after(self._context.plan.ttl, self._see_that_it_is_free, name)

    def _see_that_it_is_free(self, name: str) -> None:
        """A node that was pardoned waits for nothing, unless it was quarantined again."""
        for machine in self._sure_of_what_they_see(name):
            if name not in self._quarantined and math.isfinite(machine.node.countdown.cooled_at):
                raise Violation(15, f"{name} is still quarantined although it is pardoned")

    def _sure_of_what_they_see(self, name: str) -> "list[Machine]":
        """The machines of that name that were never away, if what stands in the service is what was written."""
        context = self._context
        is_sure = not (context.unreliable or context.data_lost or context.purged or context.notices_garbled)
        machines = [one for one in context.machines if self._identity(one.name) == name] if is_sure else []
        return [one for one in machines if one.alive and not one.disturbed]

    def _is_due(self, node: str, number: int) -> bool:
        """Whether a node has failed first in enough consecutive rounds up to this one, none of which has counted."""
        rounds, name = self._rounds_until(number), self._identity(node)
        return self._all_failed_by(name, rounds) and self._counted.get(name, 0) < rounds[0]

    def _due_since(self, name: str) -> float:
        """Since when the last failure is known that a quarantine is made of; its verdict comes with the next world."""
        number, since, _ = self._quarantined.get(name, _NEVER)
        return min(since, self._failed_at.get(number, since))

    def _rounds_until(self, number: int) -> range:
        """The rounds whose failures make a quarantine due, of which this is the last."""
        return range(number - self._context.plan.quarantine_after + 1, number + 1)

    def is_unfit(self, machine: Machine) -> bool:
        """Whether a node drains, or is quarantined, and may be so by now."""
        number, since, cooldown = self._quarantined.get(self._identity(machine.name), _NEVER)
        # A handler that was started later began it anew.
        since = max(since, self.came_at.get(machine.name, -math.inf))
        is_cooling = self._context.timeline.now < since + cooldown + 3 * self._context.plan.ttl
        return machine.name in self._drains_since or (machine.node.countdown.served < number and is_cooling)

    def _check_fitness(self, state: State, leader: str) -> None:
        """A world has a node that is quarantined or drains only if none is possible without."""
        machines = self._context.by_id
        known = self._context.timeline.now - HEARD
        unfit = [
            node
            for node in state.world
            if self.is_unfit(machines[node])
            and max(self._drains_since.get(node, -math.inf), self._due_since(self._identity(node))) < known
        ]
        is_sure = not (self._context.unreliable or self._context.notices_garbled)
        is_sure = is_sure and leader in machines and not machines[leader].disturbed
        unfit = [*(unfit if is_sure else ()), *self._due(state)]
        if unfit and self._context.plan.limits.largest(len(state.world) - 1):
            raise Violation(15, f"{unfit} are in a world of {len(state.world)}, and a smaller one is possible")

    def _due(self, state: State) -> list[str]:
        """Whose quarantine is due in a new world, however bad the network is and however late the watch.

        A leader writes the verdicts of all rounds before the one that it forms, or has seen them when it was elected.
        """
        context = self._context
        # Whether it is due to a name or to an id changes with who lives, where several nodes have one name.
        if context.notices_garbled or context.data_lost or context.purged or context.plan.namesakes:
            return []
        return [node for node in state.world if self._is_due(node, state.round - 1)]

    def _is_over(self, key: str) -> bool:
        """Whether what belongs to a round may have been removed."""
        number = int(key.removeprefix(f"{PENDING}/") if key.startswith(PENDING) else key.split("/")[1])
        ends = number + (2 if key.startswith(ROUNDS) else 0)
        return self.state is not None and (self.state.closed is not None or self.state.round >= ends)

    def _look_at(self, key: str, envelope: Envelope) -> None:
        if envelope.deleted:
            if key == LEADER_KEY:
                self._check_resigning(envelope.writer)
                # Of one that has resigned a tombstone takes nothing.
                self._leads = ""
            if key == STATE_KEY:
                self.state = None
            return
        if key == STATE_KEY:
            self._wrote_state(self.whole(decode(State, envelope.payload)), envelope.writer)
        elif key == STATUS_KEY:
            self._wrote_status(decode(RunStatus, envelope.payload))
        else:
            self._leads, self.terms = decode(LeaderRecord, envelope.payload).node, self.terms + 1
            # Without leases a claim may come so late that the key was removed with its attempt: then it is litter.
            late = self._context.plan.level != "leases"
            gone = {one.name for one in self._context.machines if one.ended and not (late and self._is_over_for(one))}
            # What belongs to a lease that is over names no leader.
            if self._leads in gone - self._kept_out and self._leader() == self._leads:
                raise Violation(7, f"{self._leads} is elected although it has left")
            self._context.trace.log("{} leads", self._leads)

    def lost(self, keys: list[str], has_run_out: bool) -> None:
        """A lease has ended, and these keys with it."""
        if has_run_out:
            self._context.trace.log("a lease runs out, with {}", ", ".join(keys))
            for machine in self._context.machines:
                if _record_key(machine) in keys and machine.alive and machine.node.has_valid_lease():
                    raise Violation(2, f"the lease of {machine.name} runs out, which takes it for valid")
        if LEADER_KEY in keys:
            self._leads = ""

    def _check_resigning(self, writer: str) -> None:
        """A node that resigns takes the lead from no other; one whose lease has ended does not have it any more.

        By its own clock, which is the first to say so: a leader that is past that acts no more.
        """
        for machine in self._context.machines:
            if machine.name == self._leads != writer and machine.node.has_valid_lease():
                raise Violation(7, f"{writer} resigns, and takes the lead from {self._leads}")

    def whole(self, state: State) -> State:
        """The same state with all members of its world."""
        if state.pages is None:
            return state
        if self._paged is None or self._paged[0] != state.pages:
            self._paged = state.pages, self._on_pages(state, state.pages)
        return replace(state, world=self._paged[1], pages=None)

    def _on_pages(self, state: State, pages: Pages) -> tuple[str, ...]:
        ranks: dict[str, int] = {}
        for number in range(pages.count):
            page = self._pages.get(f"{pages.folder}/{number}")
            if page is None:
                raise Violation(1, f"round {state.round} is published, and its page {number} was never written")
            ranks |= page
        world = tuple(sorted(ranks, key=ranks.__getitem__))
        if [ranks[node] for node in world] != list(range(pages.size)) or world[0] != pages.first:
            raise Violation(1, f"the pages of round {state.round} hold {ranks}")
        return world

    def _wrote_state(self, state: State, writer: str) -> None:
        before, self.state = self.state, state
        if before is not None and not self._context.data_lost:
            self._check_succession(before, state)
        if state.closed and (before is None or before.closed != state.closed):
            self._context.trace.log(
                "attempt {} is closed by {}: {}", state.attempt, state.closed.by, state.closed.reason
            )
            self._check_closing(state)
            self._closed_round = state.round
        if state.round > (before.round if before else 0):
            self._published(state)
            self._check_fitness(state, writer)

    def _check_succession(self, before: State, state: State) -> None:
        if (state.attempt, state.round) < (before.attempt, before.round):
            raise Violation(1, f"the state went back from {before} to {state}")
        if state.round == before.round and state.attempt == before.attempt and state.world != before.world:
            raise Violation(5, f"the world of round {state.round} was edited: {before.world} -> {state.world}")
        if before.closed and state.attempt == before.attempt and state.closed != before.closed:
            raise Violation(6, f"attempt {state.attempt}, {before.closed}, became {state.closed}")
        if before.closed and state.attempt == before.attempt and state.round != before.round:
            raise Violation(6, f"round {state.round} of attempt {state.attempt} was published although it is closed")

    def _check_closing(self, state: State) -> None:
        assert state.closed is not None
        superseded = state.closed.reason.startswith("superseded") and state.attempt < self._context.attempt
        if not superseded and state.closed.by not in self._context.closers:
            raise Violation(7, f"no node has closed the run, but {state.closed}")

    def _published(self, state: State) -> None:
        self.rounds += 1
        self._published_at = self._context.timeline.now
        self._context.trace.log("round {} is published: {}", state.round, ", ".join(state.world))
        plan, size = self._context.plan, len(state.world)
        rule = plan.rule or AdmissionRule()
        is_no_size = size % rule.node_unit or size % rule.group_size or (rule.sizes and size not in rule.sizes)
        if is_no_size or not plan.min_nodes <= size <= plan.max_nodes or len(set(state.world)) != size:
            raise Violation(3, f"a world of {state.world} for {plan.limits}")
        if rule.group_by:
            self._check_groups(state.world, rule.group_size)
        self._worlds[state.round] = (state.world, state.address, state.port)
        for machine in self._context.machines:
            self._check_exclusivity(machine)
            self._check_place(machine, state)

    def _check_groups(self, world: tuple[str, ...], size: int) -> None:
        racks = {machine.name: machine.labels["rack"] for machine in self._context.machines}
        blocks = [{racks[node] for node in world[at : at + size]} for at in range(0, len(world), size)]
        if any(len(block) > 1 for block in blocks) or len(set().union(*blocks)) != len(blocks):
            raise Violation(3, f"the groups of {world} are {blocks}")

    def _wrote_status(self, status: RunStatus) -> None:
        self.status = status
        if self._context.unreliable:
            return
        lost = {departure.node for departure in status.departures if not departure.left}
        for machine in self._context.machines:
            if machine.name in lost and machine.working and not machine.disturbed:
                raise Violation(10, f"{machine.name} is said to be lost although it was never away")
        self._check_ended(status)
        self._check_drained(status)
        self._check_room(status)
        self._check_growth(status)

    def _check_ended(self, status: RunStatus) -> None:
        """A member that ends after the run was closed is not reported as lost."""
        before, self._lost = self._lost, {departure.node for departure in status.departures if not departure.left}
        state = self.state
        if state is None or status.round != state.round or not state.closed:
            return
        for machine in self._context.machines:
            if machine.name in self._lost - before and machine.ended and not machine.disturbed:
                raise Violation(10, f"{machine.name} is said to be lost although it has ended a closed run")

    def _check_drained(self, status: RunStatus) -> None:
        """A member goes when its time is over, or when all that work are ready for it, and not before.

        One that was away may be lost: then no other waits for it.
        """
        for machine in self._context.machines:
            if machine.name not in status.drained or machine.clock() >= machine.drains_at:
                continue
            for other in self._context.machines:
                is_awaited = other.working and other.round == status.round and not other.disturbed
                if is_awaited and machine.name not in other.ready_for:
                    raise Violation(14, f"{machine.name} is to go at once, and {other.name} is not ready")

    def _check_room(self, status: RunStatus) -> None:
        """A world whose members are all at work is asked to let in as many as it has places for, and no more."""
        state = self.state
        if state is None or status.round != state.round or not state.world or state.closed:
            return
        inside = {machine.name for machine in self._context.machines if machine.working and not machine.disturbed}
        room = state.limits.largest(state.max_nodes) - len(state.world) + 2 * len(status.drained)
        if status.waiting > room and inside.issuperset(state.world):
            raise Violation(5, f"a world of {len(state.world)} with room for {room} more hears of {status.waiting}")

    def _check_growth(self, status: RunStatus) -> None:
        """A world whose members are all at work is asked to grow only when it has run for a while."""
        state, context = self.state, self._context
        if state is None or status.round != state.round or status.departures or status.drained or not status.waiting:
            return
        is_whole = all(machine.working for machine in context.machines if machine.name in state.world)
        ran = context.timeline.now - self._published_at
        if is_whole and ran < context.plan.grow_delay * 0.99:
            raise Violation(5, f"a world that has run for {ran:.1f} s hears of {status.waiting}")

    # What nodes receive, and do.

    def stepped(self, machine: Machine) -> None:
        """See `Watcher`."""
        if self.state is None:
            return
        if machine.round < self.state.round:
            self._check_exclusivity(machine)
        elif machine.stored and self.state.closed is None:
            self._check_store(machine)

    def _check_exclusivity(self, machine: Machine) -> None:
        """A node that trusts its world must be right: while its lease lives, there can be no other."""
        node, state = machine.node, self.state
        trusts = not self._context.data_lost and machine.working and node.has_valid_lease() and not node.is_evicted()
        if trusts and state is not None and 0 < machine.round < state.round:
            raise Violation(
                2, f"{machine.name} is in round {machine.round} while round {state.round} exists: {state.world}"
            )

    def _check_place(self, machine: Machine, state: State) -> None:
        """A world is where its rank 0 offers, or has offered: one that has joined again since does not return it."""
        if self._context.data_lost:
            # A record from before may have been written again.
            return
        offered = (state.address, state.port) in machine.places
        if state.world[0] == machine.name and machine.joining and not offered:
            there = f"{state.address}:{state.port}"
            raise Violation(1, f"round {state.round} is at {there}, and its rank 0, {machine.name}, at {machine.place}")

    def _check_store(self, machine: Machine) -> None:
        """A node in the running round finds what it has written into the round's store."""
        node = machine.node
        trusts = not self._context.data_lost and machine.working and node.has_valid_lease() and node.in_running_round()
        # After a purge the numbers begin anew, and what a node of the removed run still had on its way names them, too.
        trusts &= not (self._context.purged and self._context.unreliable)
        if trusts and self._context.plan.level != "register" and not self._context.service.holds(machine.stored):
            raise Violation(7, f"{machine.name} is in round {machine.round}, but the round's store was removed")

    def returned(self, machine: Machine, state: State, rank: int) -> None:
        """See `Watcher`."""
        state = self.whole(state)
        got = (state.world, state.address, state.port)
        published = self._worlds.get(state.round)
        if self._ranks[0] is not state.world:
            self._ranks = state.world, {name: at for at, name in enumerate(state.world)}
        place = self._ranks[1].get(machine.name)
        if (got != published and not self._context.data_lost) or place is None:
            raise Violation(1, f"{machine.name} got {got} as round {state.round}, which is {published}")
        if rank != place:
            raise Violation(1, f"{machine.name} got rank {rank} in round {state.round} of {state.world}")
        if rank == 0 and not self._context.data_lost and (state.address, state.port) != machine.place:
            raise Violation(1, f"{machine.name} returns round {state.round} as its rank 0, and offers {machine.place}")
        node, verdict = self._failures.get(machine.before, ("", None))
        has_failed = machine.outcome is not None and machine.outcome.ending is not Ending.CHANGED
        if machine.outcome is not None and machine.outcome.spent:
            pays = node == machine.name if verdict is Verdict.BEHIND else has_failed and verdict is Verdict.FIRST
            if pays and not (self._context.data_lost or self._context.purged):
                raise Violation(15, f"{machine.name} has failed in round {machine.before}, and may not be in another")
        self._context.trace.log("{} is rank {} of {} in round {}", machine.name, rank, len(state.world), state.round)

    def stays(self, machine: Machine) -> None:
        """See `Watcher`."""
        raise Violation(14, f"{machine.name} works on although its drain is over")

    def stays_waiting(self, machine: Machine) -> None:
        """See `Watcher`."""
        if self._context.plan.level == "register":
            # PyTorch's methods take no timeout.
            return
        raise Violation(14, f"{machine.name} waits for a world although its drain is over")

    def overdue(self, machine: Machine) -> None:
        """See `Watcher`."""
        if self._context.plan.level == "register":
            # PyTorch's methods take no timeout.
            return
        raise Violation(12, f"{machine.name} waits longer than its join timeout and a keep-alive interval")

    def refused(self, machine: Machine, error: BaseException) -> None:
        """See `Watcher`: a node gets an error only for its own sake, or because the run is closed."""
        if not isinstance(error, (errors.RendezvousError, KeyboardInterrupt)):
            raise error
        match error:
            case errors.RendezvousDeniedError() if not self._may_be_refused(machine, error):
                raise Violation(10, f"{machine.name} is ended by a refusal: {error!r}")
            case errors.RendezvousTimeoutError() | errors.RendezvousConnectionError() | KeyboardInterrupt():
                return
            case errors.RendezvousStateError() if self._context.corrupt:
                return
            case errors.RendezvousError() if _is_unexpected(error) and (
                self._context.corrupt or machine.runner.hits >= LASTING_TIMES or machine.clock() >= machine.gives_up_at
            ):
                # Few unexpected errors are tolerated; several faults, or one and what cannot be read, make many. One
                # that comes when the time to join is over is the reason for that.
                return
            case errors.RendezvousClosedError() | errors.RendezvousGracefulExitError() if self._is_over_for(machine):
                return
            case errors.RendezvousGracefulExitError() if math.isfinite(machine.drains_at):
                return
            case errors.RendezvousGracefulExitError() if machine.outcome is not None and machine.outcome.spent:
                explained = self._failures.get(machine.before, ("", None))[1] is Verdict.EXPLAINED
                if not explained or machine.disturbed or self._context.unreliable:
                    # A leader that is there in time, and is heard, would have said so.
                    return
        raise Violation(7, f"{machine.name} gets an error for no fault of its own: {error!r}")

    def _may_be_refused(self, machine: Machine, error: errors.RendezvousDeniedError) -> bool:
        """Whether a refusal may be what a program gets: while it waits for a world, and for too long. No refusal lasts
        as long as a node that has been in goes on."""
        if machine.node.failures.lasting is error:
            # It works.
            return False
        is_new = not machine.round and self._context.timeline.now - self.came_at[machine.name] >= REFUSED_AT_FIRST
        # One whose drain is over goes, whatever the error is.
        return is_new or machine.clock() >= min(machine.gives_up_at, machine.drains_at)

    def _is_over_for(self, machine: Machine) -> bool:
        state = self.state
        return state is not None and (state.closed is not None or state.attempt > machine.settings.attempt)

    def left(self, machine: Machine) -> None:
        """See `Watcher`: the others need not wait for a node that has gone, nor for the lease of a leader that has."""
        if self._context.corrupt:
            return
        record = living(self._context.plan.level, self._context.service.everything()).get(_record_key(machine))
        if record is not None and self._context.plan.level == "leases":
            envelope = Envelope.unpack(record)
            if not envelope.deleted and decode(NodeRecord, envelope.payload).left is None:
                raise Violation(7, f"{machine.name} has left, and its record says that it waits")
        if (leads := self._leader()) == machine.name and self._context.plan.level == "leases":
            # Elsewhere its record may stay, though nothing renews it.
            raise Violation(7, f"{machine.name} is elected although it has left")
        if leads != machine.name and self._claim() is not None:
            # Its claim cannot win as long as another leads, or its own tombstone stands; should it arrive when that
            # lease is over, its own lease is what the others wait for.
            self._kept_out.add(machine.name)

    def _leader(self) -> str:
        """Who leads by what the service holds."""
        envelope = self._claim()
        return "" if envelope is None or envelope.deleted else decode(LeaderRecord, envelope.payload).node

    def _claim(self) -> Envelope | None:
        """The claim, or the tombstone of one, that the service holds."""
        value = living(self._context.plan.level, self._context.service.everything()).get(LEADER_KEY)
        return None if value is None else Envelope.unpack(value)

    def heard(self, machine: Machine, event: Event) -> None:
        """See `Watcher`."""
        if event.kind is EventKind.EVICTED and not machine.disturbed and not self._context.unreliable:
            raise Violation(10, f"{machine.name} was evicted although it was never away")


def _record_key(machine: Machine) -> str:
    """Where the record of a node stands."""
    return f"{NODES}/{machine.settings.attempt}/{machine.name}"


def _is_unexpected(error: BaseException | None) -> bool:
    """Whether an error says that a backend has raised what it should not."""
    return error is not None and (isinstance(error, OSError) or _is_unexpected(error.__cause__))
