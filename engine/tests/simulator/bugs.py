"""Bugs to put back on purpose, to see that the simulator finds them.

Each is a difference to the real code: some text of a function, and what to put in its place.
"""

import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rdzv_core.envelope import Envelope

from rdzv.admission import AdmissionRule, Limits
from rdzv.engine import (
    eligibility,
    failures,
    garbage,
    join,
    keep_alive,
    leader,
    leave,
    notices,
    quarantine,
    records,
    refusals,
    register,
    register_adapter,
    rules,
    verdicts,
    worlds,
)
from rdzv.engine.candidacy import Candidacy
from rdzv.engine.client import Write
from rdzv.engine.connection import Connection
from rdzv.engine.countdown import Countdown
from rdzv.engine.failures import Failures
from rdzv.engine.growth import Growth
from rdzv.engine.heartbeats import HeartbeatLeases, _HeartbeatLease
from rdzv.engine.lease_observer import LeaseObserver
from rdzv.engine.node import Node
from rdzv.engine.quarantine_ledger import QuarantineLedger
from rdzv.engine.reckoning import Reckoning
from rdzv.engine.register_adapter import RegisterAdapter
from rdzv.engine.run_view import RunView
from rdzv.engine.status_writer import StatusWriter

from .clock import NodeClock
from .plan import FaultEvent, Plan
from .service import SimulatedService

__all__ = ["BUGS", "Bug", "draw", "put_back"]


@dataclass(frozen=True)
class Change:
    """A difference to one function.

    Attributes:
        where: The function.
        edits: What stands there, once, and what would stand there.
    """

    where: Callable[..., Any]
    edits: Mapping[str, str]


@dataclass(frozen=True)
class Bug:
    """A bug.

    Attributes:
        what: In words.
        breaks: The invariants that it may violate; the first one that is violated ends a run.
        changes: What is different.
        faults: What must happen for it to matter, so that a few runs are enough; none: anything.
        conditions: The same: attributes of a `Plan`.
        says: What the violation says, where several checks are about the same invariant.
    """

    what: str
    breaks: frozenset[int]
    changes: tuple[Change, ...]
    faults: tuple[str, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    says: str = ""

    def plan(self, seed: int) -> Plan:
        """What to do to find it."""
        drawn = Plan.draw(seed, self.faults)
        # A crowd or a rule hides what most bugs do, or lets them do more.
        plain: dict[str, Any] = {"level": "leases", "crowd": False, "rule": None, "grow_delay": 0.0, "namesakes": False}
        plain |= {"assigning": None, "watch_lag": 0.0, "watch_goes_on": False}
        return replace(drawn, **{**plain, **self.conditions})


def _bug(
    what: str,
    breaks: set[int],
    where: Callable[..., Any],
    edits: Mapping[str, str],
    *faults: str,
    says: str = "",
    **conditions: Any,
) -> Bug:
    return Bug(what, frozenset(breaks), (Change(where, edits),), faults, conditions, says)


_PAIRS: Final[dict[str, Any]] = {"rule": AdmissionRule(node_unit=2), "min_nodes": 2, "max_nodes": 6}
_RACKS: Final[dict[str, Any]] = {"rule": AdmissionRule(group_by="rack", group_size=2), "min_nodes": 2, "max_nodes": 6}
_REFUSED_WRITES: Final = (
    *(FaultEvent(moment, "come") for moment in (0.0, 0.2, 0.4)),
    FaultEvent(6.0, "refuse", who=0.334, amount=0.6),
    # What is overwritten is read again: without that a leader whose writes are refused reads seldom.
    *(FaultEvent(moment, "corrupt", who=0.5, amount=0.3) for moment in (6.2, 7.4)),
)
"""Each node is refused its writes for as long as leases live, and the leader reads."""
_REFUSED_FROM_THE_BEGINNING: Final = (
    FaultEvent(0.0, "refuse", who=0.337, amount=0.96),
    FaultEvent(0.1, "come"),
    FaultEvent(10.35, "refuse", who=0.337, amount=0.96),
)
"""No call of a node that comes is answered for 20 s."""
_FORGETS_WHO_COMES: Final = (
    *(FaultEvent(moment, "come") for moment in (0.0, 0.1, 4.0)),
    FaultEvent(4.1, "forget"),
)
"""A service that forgets everything is away for 0.5 s while the record of a third node is on its way."""
_FORGETS_BEFORE_THE_FIRST_HEARTBEAT: Final = (
    *(FaultEvent(moment, "come") for moment in (0.0, 0.02)),
    FaultEvent(0.3, "forget"),
    FaultEvent(0.82, "fail"),
)
"""A service that forgets everything is away until heartbeats begin, and the program of a node fails just then."""
_FORGETS_TWICE: Final = (
    *(FaultEvent(moment, "come") for moment in (0.0, 0.02)),
    *(FaultEvent(moment, "forget") for moment in (0.3, 1.8)),
    FaultEvent(2.32, "fail"),
)
"""A service forgets everything twice, the second time before leases that were opened since have heartbeats."""
_HEARS_LATE: Final[dict[str, Any]] = {
    "fault_phase": 6.0,
    "max_nodes": 2,
    "level": "heartbeats",
    "patience": (600.0,),
    "delay": 0.002,
    "late": 0.3,
    "lost": 0.0,
    "ttl": 3.0,
}
"""Much of what nodes write on heartbeat leases arrives when they have given it up."""
_HANGS_AS_THE_OTHERS_LEAVE: Final = (
    *(FaultEvent(moment, "come") for moment in (0.0, 0.1, 0.2)),
    FaultEvent(6.0, "partition", who=0.67),
    FaultEvent(6.1, "hang", amount=0.69),
    FaultEvent(6.2, "come"),
)
"""All programs hang at the same step, and all but one that is cut off for 5 s leave the round, as a node comes."""
_LEADS_BEFORE_THE_LAST_HAS_LEFT: Final = (
    *(FaultEvent(moment, "come") for moment in (0.0, 0.1)),
    FaultEvent(6.0, "leave"),
    FaultEvent(8.0, "fail"),
    FaultEvent(9.0, "interrupt"),
    *(FaultEvent(9.13, "come") for _ in range(2)),
)
"""Two nodes come as the last one of the round before says in the status that it has left."""
_LEADERS_DRAIN: Final = (
    *(FaultEvent(moment, "come") for moment in (0.0, 0.1, 0.2)),
    *(FaultEvent(moment, "drain", leader=True) for moment in (1.0, 1.2)),
)
"""Two leaders drain, and go at once, one just after the other, before there is a world."""
_POSSIBLE: Final = "for a world that is possible"
_UNREADABLE: Final = "raise __import__('rdzv').RendezvousStateError('not ours')"

BUGS: Final[dict[str, Bug]] = {
    "unfenced-state": _bug(
        "The state is written whatever is there, instead of by a compare-and-set.",
        {1, 2, 5, 6},
        SimulatedService.put,
        {"expect is not ANY and": 'expect is not ANY and key != "control/state" and'},
        "pause_between",
        "near_miss",
    ),
    "unfenced-return": _bug(
        "A node that lost its lease writes its record again, and does not fence the state.",
        {2},
        register._fence,
        {"if not restored and not _is_round_pending(control, decode_state(versioned.payload).round):": "if True:"},
        "near_miss",
    ),
    "unannounced-round": _bug(
        "A leader does not say that it is about to form a round without a member.",
        {2},
        leader._declare_pending_round,
        {"yield Put(": "yield from () if True else Put("},
        "near_miss",
    ),
    "evicted-by-the-watch": _bug(
        "A leader leaves out a member that the watch does not show, and does not look whether it is back.",
        {2},
        leader._LeaderTerm.form,
        {"if before is not None or node.clock()": "if node.clock()"},
        "near_miss",
        watch_lag=1.0,
    ),
    "early-lease-for-ever": _bug(
        "A node that has opened its lease before it had a record counts on it until the lease is renewed.",
        {2},
        register._open_lease,
        {"opened + lease.ttl": "float('inf')"},
        "near_miss",
    ),
    "page-too-early": _bug(
        "A leader publishes a world before the last of its pages is written.",
        {1},
        worlds.write_world,
        {"in ranks.items()}, deadline": "in list(ranks.items())[:-1]}, deadline"},
        page=1,
    ),
    "page-unconfirmed": _bug(
        "A leader takes pages for written that are not known to have been made.",
        {1},
        worlds._make_pages,
        {"if not done": "if False"},
        page=1,
        level="heartbeats",
        lost=0.05,
    ),
    "unfenced-rejoin": Bug(
        "A node that finds its lease lost when it joins opens a new one, and does not fence the state.",
        frozenset({2}),
        (Change(register._write_record, {"_lose_all_on_lease(node)": "mine.lease = None"}),),
        ("near_miss",),
    ),
    "no-exclusivity": _bug(
        "A world is formed while members are in the one before.",
        {2},
        rules.is_in_use,
        {"return any(": "return False and any("},
        "fail",
    ),
    "wall-clock": _bug(
        "Leases are timed by the clock on the wall.",
        {2, 4, 10, 12},
        NodeClock.__call__,
        {"self._offset + self._timeline.now * self._rate": "self.wall()"},
        "jump",
        "outage",
    ),
    "edited-world": _bug(
        "A lost member is taken out of the running world.",
        {5},
        rules.decide,
        {
            "status = _status(": "if departed: "
            "return Publish(replace(state, world=tuple(one for one in state.world if one not in departed)))\n"
            "    status = _status("
        },
        "kill",
    ),
    "unconditional-record": _bug(
        "A node writes its record whatever is there: a request that comes too late undoes a later one.",
        {2, 4},
        Write.attempt,
        {
            "self.previous.token if": '__import__("rdzv_core").ANY if self.key.startswith("nodes/") else '
            "self.previous.token if"
        },
        "fail_many",
        "partition",
        late=0.1,
    ),
    "forgotten-election": _bug(
        "A node that won the election by a write whose reply was lost never learns that it leads.",
        {4},
        leader.elect,
        {
            "    if node.run.leader is None:": "    stands = node.run.leader is None\n    if stands:",
            "if candidacy.may_lead(node.clock()) and not node.leading and": "if stands and",
        },
        "kill",
        "unexpected",
    ),
    "own-address": _bug(
        "A node returns an address of its own.",
        {1},
        join.join,
        {"return state, rank": "return __import__('dataclasses').replace(state, address=node.id), rank"},
    ),
    "stale-address": _bug(
        "A round keeps the address of the round before, although another node may be its rank 0.",
        {1},
        rules._with_ranks,
        {"address=first.address": "address=state.address or first.address"},
        "fail_many",
        "kill",
    ),
    "stale-port": _bug(
        "A round keeps the port of the round before, although its rank 0 keeps another one free.",
        {1},
        rules._with_ranks,
        {"port=first.port": "port=state.port or first.port"},
        "fail_many",
        "kill",
    ),
    "small-world": _bug(
        "A world is formed although too few are there.",
        {3},
        rules._next_world,
        {"state.limits.choose(waiting, state.world)": "waiting[: state.max_nodes]"},
        "kill",
    ),
    "large-world": _bug(
        "Every node that waits gets into the world.",
        {3},
        rules._next_world,
        {"state.limits.choose(waiting, state.world)": "state.limits.choose(waiting, state.world) and waiting"},
        "come",
    ),
    "spares-count-as-waiting": _bug(
        "Spares that no world has room for count as waiting, so the others never get to work.",
        {4},
        rules._room_for,
        {"min(new, state.max_nodes - kept)": "new"},
        "come",
    ),
    "spares-take-places-of-silent-members": _bug(
        "After an outage, spares count as waiting for the places of members that are not back yet.",
        {5},
        rules._news,
        {"kept = len(state.world) - len(departed)": "kept = len(active_members(state, live)) + len(returned)"},
        "come",
        "outage",
    ),
    "second-reason": _bug(
        "A node that closes a closed attempt replaces the first reason by its own.",
        {6},
        rules.close,
        {"None if state.closed or": "None if"},
        "close",
    ),
    "timeout-closes-run": _bug(
        "A node whose join timeout is over closes the run for all.",
        {7},
        join._on_join_timeout,
        {
            "    raise refusals.timed_out(": """\
    from rdzv.engine.leave import close
    yield from close(node, "I give up", False, patience)
    raise refusals.timed_out("""
        },
        "interrupt",
    ),
    "last-node-removes-next-attempt": _bug(
        "The last node that ends removes the records of the next attempt, too.",
        {2, 4},
        garbage.of_closed_attempt,
        {"*_of_attempts(": "records.NODES, *_of_attempts("},
        "close",
        "relaunch",
        "relaunch",
        "pause",
        late=0.1,
    ),
    "store-under-member": _bug(
        "The node that ends last removes the store of a round that a member who was cut off comes back into.",
        {7},
        leave._after_last_round,
        {"rules.has_ended(whole, nodes, node.run.status, node.id)": "True"},
        "left_alone",
    ),
    "garbage-of-the-next-attempt": Bug(
        "The node that ends last goes by the state that it knows in the end, be it the next attempt's.",
        frozenset({7}),
        (
            Change(
                leave._collect_garbage,
                {
                    "    if is_closed and state": (
                        "    state, is_closed = node.run.state, node.closed() is not None\n    if is_closed and state"
                    )
                },
            ),
        ),
        ("requeue",),
        {"delay": 0.002, "late": 0.02, "lost": 0.05, "min_nodes": 3, "max_nodes": 4},
    ),
    "lost-is-left": _bug(
        "A member that a leader has declared lost is taken for one that never comes back.",
        {7},
        rules.has_ended,
        {"(status, state.round) if departure.left": "(status, state.round)"},
        "left_alone",
    ),
    "unconditional-resign": _bug(
        "A node that resigns removes the leader's key, whichever node it names.",
        {7},
        leader.resign,
        {"if leads is not None and leads.node != node.id:": "if False:"},
        "pause",
        "leave",
        "kill",
    ),
    "elected-when-gone": _bug(
        "A node that leaves while its claim is on its way is elected by it.",
        {7},
        leader.resign,
        {"not node.candidacy.claims": "True"},
        "leave",
        says="is elected although it has left",
        level="leases",
        delay=0.05,
    ),
    "announced-when-gone": Bug(
        "A call that joins while its node leaves announces the node when that is over.",
        frozenset({7}),
        (
            Change(register._write_record, {"not mine.has_left": "not node.stopped"}),
            Change(refusals.raise_if_cannot_join, {"node.registration.has_left": "node.stopped"}),
        ),
        ("leave", "come"),
        {"level": "leases", "delay": 0.02},
        says="its record says that it waits",
    ),
    "believes-an-old-answer": _bug(
        "A node believes the answer to its claim, though its watch has brought another leader since.",
        {4},
        leader._claim,
        {"applied or node.run.snapshot is seen": "True"},
        events=_LEADERS_DRAIN,
        min_nodes=1,
        max_nodes=4,
        last_call=10.0,
        fault_phase=5.0,
        patience=(600.0,),
        delay=0.05,
        late=0.0,
        lost=0.0,
    ),
    "forgotten-leftovers": _bug(
        "A leader removes only what rounds have left that it has published itself.",
        {13},
        garbage.old_rounds,
        {"max(swept, state.round - SWEPT)": "(swept or state.round - 3)"},
        "kill_between",
        "fail_many",
        "fail_many",
    ),
    "leftovers-of-the-superseded": _bug(
        "A node of an attempt that was superseded removes nothing, though it is the last of a run that is closed.",
        {13},
        leave._collect_garbage,
        {"not (state and state.closed)": "True"},
    ),
    "records-by-name": _bug(
        "The last node to leave removes the records of the others, which a write that was on its way makes anew.",
        {7},
        leave._after_last_round,
        {"[records.STATUS_KEY]": "[records.STATUS_KEY, *(record.key for record in nodes)]"},
        "purge",
        "requeue",
        "requeue",
        late=0.3,
        level="leases",
        min_nodes=3,
        max_nodes=3,
    ),
    "ghosts": Bug(
        "A node that was superseded removes the heartbeats of its attempt, and so the end of the leases of the dead.",
        frozenset({13}),
        (
            Change(
                leave._hand_over,
                {"records.node_key(node.settings.attempt, node.id)": 'f"{records.HEARTBEATS}/{node.settings.attempt}"'},
            ),
            Change(garbage.of_pending_rounds, {"[before, *between]": "[before]"}),
        ),
        ("kill", "relaunch", "requeue"),
        {"level": "heartbeats"},
    ),
    "old-contact": _bug(
        "A leader counts on a contact that was before an outage, as long as there was none after it.",
        {10},
        Connection.grace_remaining,
        {"since is None or self.state is ConnectionState.LOST": "since is None"},
        "outage",
        leases_sleep=False,
    ),
    "leader-without-grace-period": _bug(
        "After an outage, a leader takes a member that is not back yet for dead.",
        {10},
        leader._LeaderTerm.situation,
        {"self.node.connection.grace_remaining() == 0": "True"},
        "outage",
    ),
    "answers-are-renewals": _bug(
        "A leader whose reads are answered counts on the leases of others, whose renewals are refused like its own.",
        {10},
        Connection.on_contact,
        {"now = self._clock()": "now = self._clock(); self.on_renewal(now)"},
        events=_REFUSED_WRITES,
        min_nodes=2,
        max_nodes=3,
        fault_phase=12.0,
    ),
    "refused-renewal-counts": _bug(
        "A node whose keep-alives are refused counts its lease as renewed.",
        {2, 10},
        keep_alive._renew,
        {
            "alive = yield KeepAlive(lease, sent + node.interval)": """\
try:
            alive = yield KeepAlive(lease, sent + node.interval)
        except __import__("rdzv").RendezvousDeniedError:
            alive = True"""
        },
        "refuse",
    ),
    "refusal-is-final": _bug(
        "A refusal ends a node that has been in.",
        {10},
        Failures.add_passing,
        {"seconds >= most": "True"},
        "refuse",
    ),
    "refused-at-once": _bug(
        "A refusal ends a node at its first contact.",
        {10},
        failures.patience,
        {"min(REFUSED_AT_FIRST, refused)": "0.0"},
        events=_REFUSED_FROM_THE_BEGINNING,
        min_nodes=1,
        max_nodes=2,
        fault_phase=20.0,
        patience=(600.0,),
    ),
    "fresh-timeouts": _bug(
        "Each of the calls that one call is made of gets the whole timeout again.",
        {0},
        HeartbeatLeases._left,
        {"time_left(deadline, self._clock())": "10.0"},
        level="heartbeats",
    ),
    "any-size": _bug(
        "A world has any number of nodes, whatever the unit.",
        {3},
        Limits._sizes,
        {"size % step == 0": "True", "most - most % step, 0, -step": "most, 0, -1"},
        **_PAIRS,
    ),
    "part-of-a-group": _bug(
        "A group takes part although some of it is missing.",
        {3},
        Limits.choose,
        {"len(group) >= rule.group_size": "True"},
        **_RACKS,
    ),
    "scattered-group": _bug(
        "The ranks of a group are wherever there is room.",
        {3},
        rules._next_round,
        {"sticky_ranks(arrived, state.world)": "_kept_places([node.id for node in arrived], state.world)"},
        **_RACKS,
    ),
    "useless-news": _bug(
        "Members hear of nodes with which no larger world is possible.",
        {4, 5},
        rules._room_for,
        {"limits.rule is None": "True"},
        **_PAIRS,
    ),
    "forgotten-rule": _bug(
        "The first state of a run does not have its rule: it takes no node.",
        {4},
        rules._initial_state,
        {", rule=source.rule": ""},
        **_PAIRS,
    ),
    "requeue-waits": _bug(
        "The news of the next attempt, whose nodes gather, name none of those that have left the world before.",
        {4},
        rules.decide,
        {"departed = {} if state.closed else departed": "departed = {}"},
        "requeue",
        says=_POSSIBLE,
        delay=0.002,
        last_call=0.5,
        min_nodes=2,
        max_nodes=4,
        ttl=9.0,
    ),
    "long-last-call": _bug(
        "A world that could be larger waits for five last calls.",
        {4},
        rules._remaining,
        {"ends_in = (last_call if": "ends_in = (5 * last_call if"},
        says=_POSSIBLE,
        delay=0.002,
        **_PAIRS,
    ),
    "unbounded-arrivals": _bug(
        "An arrival extends the last call to ten times its length.",
        {4},
        rules._remaining,
        {"_AFTER_ARRIVAL * last_call": "10 * last_call", "_LONGEST * last_call": "10 * last_call"},
        "come",
        says=_POSSIBLE,
        delay=0.002,
        last_call=2.0,
    ),
    "wanted-at-any-time": _bug(
        "A world waits for its wanted size as long as it does not come.",
        {4},
        rules._remaining,
        {"max(situation.wanted, last_call)": "math.inf"},
        "come",
        says=_POSSIBLE,
        delay=0.002,
        rule=AdmissionRule(wanted=6),
        min_nodes=2,
        max_nodes=6,
    ),
    "hasty-growth": _bug(
        "A world is asked to grow as soon as a node waits, whatever the delay.",
        {5},
        Growth.due,
        {"if not self._delay:": "if True:"},
        grow_delay=4.0,
    ),
    "delayed-loss": _bug(
        "Members hear of a loss only when they hear of growth.",
        {4},
        rules._news,
        {"(1 if goes_on else 0)": "(1 if goes_on and new else 0)"},
        "kill",
        grow_delay=4.0,
    ),
    "dead-before-its-first-heartbeat": _bug(
        "A lease that had no heartbeat yet counts as ended.",
        {2, 4},
        HeartbeatLeases._check_expiry,
        {"if heartbeat.value != _EXPIRED": "if heartbeat.value not in (_EXPIRED, b'')"},
        "kill",
        level="heartbeats",
    ),
    "loss-unnoticed": _bug(
        "A record that a service has lost before the first heartbeat is written again on the same lease.",
        {7},
        _HeartbeatLease.note,
        {"elif self.holds == key and": "elif False and"},
        events=_FORGETS_BEFORE_THE_FIRST_HEARTBEAT,
        fault_phase=3.0,
        min_nodes=2,
        max_nodes=2,
        level="heartbeats",
        patience=(600.0,),
        delay=0.002,
        late=0.0,
        lost=0.0,
        ttl=3.0,
    ),
    "late-record-believed": _bug(
        "Where a service has lost a record, an earlier write of its owner that comes late counts as the record.",
        {4, 7},
        _HeartbeatLease._is_there,
        {" and self.created in (None, entry.order) and _parse_entry(entry)[0] == self.id": ""},
        **_HEARS_LATE,
        events=_FORGETS_TWICE,
        min_nodes=2,
        last_call=2.0,
    ),
    "late-heartbeat-believed": _bug(
        "An owner does not look again whether the service has what belongs to its lease, where its first heartbeat "
        "comes late and hides that the service has lost all since.",
        {4},
        _HeartbeatLease._write,
        {"self._is_verified and self._order in (None, put.entry.order)": "self._is_verified"},
        **_HEARS_LATE,
        events=(*(FaultEvent(moment, "come") for moment in (0.0, 0.1)), FaultEvent(1.2, "forget")),
        min_nodes=1,
        last_call=0.5,
    ),
    "ended-while-looked-at": _bug(
        "A lease counts as ended while a look at it is under way beside the wait.",
        {4, 10},
        HeartbeatLeases._unless_ended,
        {
            "self._not_ended(parsed.ttls)": "{one: ttl for one, ttl in parsed.ttls.items()"
            " if self._observer.state(one) is LeaseState.LIVE}"
        },
        level="heartbeats",
    ),
    "unverified-lease": _bug(
        "An owner does not look whether the service has lost what belongs to its lease before the first heartbeat.",
        {4, 7},
        _HeartbeatLease._verify,
        {"not self._is_there(there)": "False"},
        "forget",
        "come",
        level="heartbeats",
    ),
    "end-that-is-forgotten": _bug(
        "When a lease has ended its heartbeat is removed, so that it counts as one that had none yet.",
        {4, 5, 13},
        HeartbeatLeases._expire,
        {
            "return put.outcome is PutOutcome.APPLIED": "self._inner.delete(_heartbeat_key(lease), timeout=self._left("
            "deadline))\n    return put.outcome is PutOutcome.APPLIED"
        },
        "kill",
        "kill",
        level="heartbeats",
    ),
    "unreadable-key": _bug(
        "A key in a register that cannot be read is an error for all who look at the register.",
        {4, 7},
        register_adapter._entry,
        {"return Entry(repr(there).encode(), 0, 0)": _UNREADABLE},
        "garble",
        level="register",
    ),
    "no-answer-is-conflict": _bug(
        "A register that does not say whether it was written counts as not written.",
        {4},
        RegisterAdapter._write,
        {"return self._find_out(mine, deadline)": "return PutOutcome.CONFLICT"},
        level="register",
        mute=1.0,
    ),
    "hasty-removal": _bug(
        "A node whose lease is newer than the loss of the state takes a service without data for a removed run.",
        {7},
        keep_alive._verify_state,
        {" or mine.state is not NodeState.REGISTERED": ""},
        "forget",
        "fail_many",
        "come",
        patience=(600.0,),
        lost=0.4,
        min_nodes=1,
        max_nodes=2,
    ),
    "foreign-removal": _bug(
        "A node that waits takes the purge of an earlier attempt for the removal of its own.",
        {7},
        keep_alive._verify_state,
        {"run.state.attempt == node.settings.attempt": "True"},
        "purge",
    ),
    "unforgotten": _bug(
        "A node that knew a state that the service has forgotten does not believe what is there now.",
        {4},
        Envelope.supersedes,
        {"self.nonce not in (known.nonce, *known.recent_nonces)": "self.epoch > known.epoch"},
        "forget",
        "fail_many",
    ),
    "keep-ends": _bug(
        "The loop that keeps the lease alive ends with the first error that is not a silent service's.",
        {4},
        keep_alive.keep_alive_loop,
        {
            "return supervised(node, KEEP, turn)": """\
def loop() -> Coroutine[None]:
        while not node.stopped:
            try:
                yield from turn()
            except ConnectionError:
                yield Sleep(node.clock() + 0.5)
            except Exception:
                return

    return loop()"""
        },
        "corrupt",
        "unexpected",
    ),
    "lead-ends": _bug(
        "The leader's loop ends with the first error that is not a silent service's, and the node believes to lead.",
        {4},
        leader.lead,
        {
            "yield from supervised(node, LEAD, turn, goes_on, most=FAILURES)": """\
while leads() and not node.stopped:
            try:
                yield from turn()
            except ConnectionError:
                yield Sleep(node.clock() + 0.5)""",
            "        if leads():\n            node.candidacy.step_down()": "        pass",
        },
        "unexpected",
    ),
    "join-past-its-deadline": Bug(
        "A node that joins waits for its record until the service takes it.",
        frozenset({12}),
        (
            Change(
                join._register_to_join,
                {"register(node, deadline)": "register(node, float('inf'))"},
            ),
            Change(
                join._await_world,
                {"_ensure_leader(node, min(deadline, node.goes_at()))": "_ensure_leader(node, float('inf'))"},
            ),
        ),
        ("outage", "partition", "fail"),
        {"patience": (5.0,)},
    ),
    "token-of-old": _bug(
        "The new token of a state that was put back is not learnt, so no write of it wins any more.",
        {4},
        RunView.take,
        {"self.version = versioned\n            if": "pass\n            if"},
        "corrupt",
    ),
    "late-closing": _bug(
        "A leader reports members as lost before it has read that the run is closed.",
        {10},
        StatusWriter._is_outdated,
        {"not same_version(node.run.version, version) or": "False or"},
        "close",
        "come",
    ),
    "unseen-removal": _bug(
        "A node whose lease is younger than the loss of the state takes the run for removed.",
        {7},
        keep_alive._verify_state,
        {"run.seen_at < mine.written_at and": "False and"},
        "forget",
        "come",
        patience=(600.0,),
        lost=0.4,
    ),
    "removal-by-the-lease": _bug(
        "A node whose lease is older than the loss of the state, and its record younger, takes the run for removed.",
        {7},
        keep_alive._verify_state,
        {"< mine.written_at and": "< mine.lease_since and", "< mine.written_at + node": "< mine.lease_since + node"},
        events=_FORGETS_WHO_COMES,
        fault_phase=8.0,
        min_nodes=2,
        max_nodes=3,
        level="heartbeats",
        patience=(600.0,),
    ),
    "status-unread": _bug(
        "A leader writes over a status that an earlier leader has published since it leads, and does not read it.",
        {4},
        StatusWriter.publish,
        {"is Standing.GONE else self._version": "is Standing.GONE else node.run.snapshot.raw(STATUS_KEY)"},
        events=_LEADS_BEFORE_THE_LAST_HAS_LEFT,
        min_nodes=2,
        max_nodes=2,
        ttl=9.0,
        delay=0.02,
        late=0.0,
        lost=0.0,
        lag=0.0,
        patience=(600.0,),
        last_call=0.5,
    ),
    "assigns-for-ever": _bug(
        "A leader waits for a plugin that hangs as it assigns ranks.",
        {4},
        leader._assign_ranks,
        {"node.clock() + ASSIGNING": "math.inf"},
        assigning=math.inf,
    ),
    "assigns-meanwhile": _bug(
        "A leader publishes the world that a plugin has ordered, and does not look again who is there meanwhile.",
        {2, 4, 15},
        leader._LeaderTerm.form,
        {"again = self.decide(state, self.read(snapshot))": "again = decision"},
        "drain",
        "fail",
        min_nodes=1,
        assigning=10.0,
    ),
    "pages-of-others": Bug(
        "Two leaders, or two tries of one, write the pages of a round into the same folder.",
        frozenset({1, 2, 3, 5}),
        (Change(leader._publish, {'f"{node.rng.getrandbits(64):016x}"': '"0"'}),),
        ("kill_between", "pause_between", "partition", "come", "leave"),
        {"page": 1},
    ),
    "pages-of-another-world": Bug(
        "A leader takes the pages of the round before for a world that has other members, or other ranks.",
        frozenset({1, 2, 3, 4, 5}),
        (
            Change(leader._LeaderTerm.form, {"state.world == publish.state.world": "True"}),
            Change(
                leader._publish,
                {
                    "yield from worlds.write_world("
                    "decision.state, nonce, node.background_deadline, same, node.creates_at_once)": (
                        "replace(decision.state, world=(), pages=same) if same else "
                        "(yield from worlds.write_world(decision.state, nonce, node.background_deadline))"
                    )
                },
            ),
        ),
        ("fail", "leave", "come"),
        {"page": 1},
    ),
    "shared-pages-removed": Bug(
        "A leader removes the pages that a later round shares with the one for which they were written.",
        frozenset({1, 2, 3, 4, 5, 7, 10}),
        (Change(garbage.old_rounds, {"worlds.rounds_needed(state)": "2"}),),
        ("fail", "come", "pause_between"),
        # A quarantine would end the consecutive rounds of one world.
        {"page": 1, "quarantine_after": 10},
    ),
    "page-unread": Bug(
        "A node that knows pages of the round before looks at those for its rank.",
        frozenset({1, 2, 3, 4, 5}),
        (Change(register.page_in, {"known.pages == state.pages": "known.pages is not None"}),),
        ("fail", "leave", "come"),
        {"page": 1},
    ),
    "only-candidates": _bug(
        "Of many that see no leader, those that are not among the first candidates never stand for election.",
        {4},
        Candidacy.draw,
        {"moments * NO_LEADER_TIMEOUT": "(math.inf if moments else 0.0)"},
        "kill",
        crowd=True,
    ),
    "resting-observer": _bug(
        "One of many observers that has seen a lease for the first time never looks at it again by itself.",
        {4},
        LeaseObserver.next_looks,
        {"min(lease.next_look, ": "lease.next_look if lease.state is not LeaseState.NOTED else max(1e9, "},
        "kill",
        level="heartbeats",
        crowd=True,
    ),
    "look-without-end": _bug(
        "A look has as long as its wait, so that a node whose answer is lost does not look again meanwhile.",
        {0},
        HeartbeatLeases._look_twice,
        {"late + self._interval": "late + 30.0"},
        level="heartbeats",
        says="that has to end in time",
    ),
    "drowsy-observer": _bug(
        "One of many observers that misses a heartbeat rests as if it had come, so that it takes its own absence for "
        "the reason.",
        {4},
        LeaseObserver._trigger,
        {"before.token == token": "before.token == token and not many"},
        "kill",
        level="heartbeats",
        crowd=True,
    ),
    "drain-without-end": _bug(
        "A node that drains goes only when all are ready for it.",
        {14},
        Node.is_drained,
        {"self.clock() >= moment or ": ""},
        "drain",
    ),
    "drain-put-off": _bug(
        "A further announcement puts off the end of a drain.",
        {14},
        Countdown._note,
        {"end.moment < known.moment": "True"},
        "drain",
        min_nodes=1,
        max_nodes=2,
    ),
    "drain-too-early": _bug(
        "A node that drains goes as soon as one member is ready for it.",
        {14},
        eligibility.drained,
        {"frozenset.intersection(*": "frozenset().union(*"},
        "drain",
    ),
    "drain-again": _bug(
        "The next world has a node that drains, as long as it is there.",
        {5, 15},
        eligibility._burden,
        {"return node.id in notices.drains, 0": "return False, 0"},
        "drain",
        "fail",
        min_nodes=1,
    ),
    "quarantine-twice": _bug(
        "A failure that has counted for a quarantine counts for the next one.",
        {15},
        quarantine.with_due,
        {"before.round >= rounds[0]": "before.round >= number"},
        "fail_again",
        min_nodes=4,
        max_nodes=4,
    ),
    "quarantine-of-others": _bug(
        "A node is quarantined for the failures of others.",
        {15},
        quarantine.with_due,
        {" or len(names) > 1": ""},
        "fail_again",
        "fail",
    ),
    "quarantine-of-namesakes": _bug(
        "A node is quarantined by a name that others have.",
        {15},
        quarantine.with_due,
        {"not in shared": "is not None"},
        "fail_again",
        says="which others have",
        min_nodes=2,
        max_nodes=4,
        namesakes=True,
    ),
    "quarantine-too-soon": _bug(
        "A quarantine is due although fewer rounds have failed.",
        {15},
        quarantine.with_due,
        {"len(failures) < after": "not failures"},
        "fail_again",
    ),
    "quarantine-unread": _bug(
        "The next world has a node whose quarantine is due.",
        {15},
        leader._LeaderTerm.situation,
        {"notices=self.quarantines.notices(state)[0]": "notices=rules.NONE"},
        "fail_again",
        min_nodes=1,
    ),
    "quarantine-by-the-watch": _bug(
        "A leader forgets what it has said of a round before, although its watch does not show that yet.",
        {15},
        QuarantineLedger.judge,
        {"self._failures |= ": "self._failures = "},
        "fail_again",
        min_nodes=1,
        max_nodes=8,
        watch_lag=5.0,
    ),
    "quarantine-for-ever": _bug(
        "A node that has waited out its quarantine does not say so.",
        {4, 15},
        Countdown.serve,
        {"self.served, self.cooled_at = self.quarantine.round, math.inf": "self.cooled_at = math.inf"},
        "fail_again",
        min_nodes=1,
        max_nodes=8,
        patience=(600.0,),
    ),
    "pardon-unheard": _bug(
        "A node that is pardoned waits out its quarantine.",
        {15},
        Countdown.observe,
        {
            "if quarantine is None:": "if quarantine is self.quarantine is None:",
            "elif quarantine != self.quarantine:": "elif quarantine not in (None, self.quarantine):",
        },
        "fail_again",
        "pardon",
        min_nodes=1,
        level="leases",
        quarantine_after=1,
        cooldown=20.0,
    ),
    "unreadable-notice": _bug(
        "A notice that cannot be read keeps nodes from reading the others.",
        {4, 7},
        notices._read,
        {"except RendezvousStateError as error": "except ZeroDivisionError as error"},
        "fail_again",
        "drain",
        "garble_notice",
    ),
    "endless-number": _bug(
        "A name of thousands of digits is read as a number.",
        {0, 4, 7},
        records.number_of,
        {"len(name) <= DIGITS and ": ""},
        "litter",
        "fail",
    ),
    "believed-notice": _bug(
        "The bytes of a notice are parsed before they are looked at.",
        {0, 4, 7},
        notices._read,
        {
            "record = read_record(": """\
__import__("json").loads(control.get(key).payload or b"0")
            record = read_record("""
        },
        "litter",
        "fail",
    ),
    "loss-as-a-failure": Bug(
        "A program that breaks off because a member died has failed first.",
        frozenset({15}),
        (
            Change(verdicts._explanation, {"if not departure.left:": "if departure.left is None:"}),
            Change(verdicts.judged, {"unknown := departed.keys() - ended.keys()": "unknown := set[str]()"}),
        ),
        ("break_off",),
    ),
    "failures-unjudged": _bug(
        "A node is quarantined for failures that a loss explains, or of which that is not known yet.",
        {15},
        quarantine.with_due,
        {" and failure.counts": ""},
        "fail_again",
        "break_off",
        quarantine_after=1,
    ),
    "explained-for-nothing": _bug(
        "A failure is explained by a member that is still there.",
        {15},
        verdicts._explanation,
        {"return None": "return 'nothing'"},
        "fail",
    ),
    "first-who-hangs": _bug(
        "Of those that hang the one that says so first has failed.",
        {15},
        verdicts.judged,
        {"if not hung or": "if True or"},
        "hang",
    ),
    "one-of-equals": _bug(
        "Of those that hang at the same step one has failed.",
        {15},
        verdicts._judged_by_steps,
        {"if len(behind) > 1:": "if not behind:"},
        "hang",
    ),
    "behind-those-that-left": _bug(
        "A node that hangs because the others had left the round, which it did not learn of, was behind.",
        {15},
        verdicts._judged_by_steps,
        {" and not outcome.heard": " and False"},
        events=_HANGS_AS_THE_OTHERS_LEAVE,
        min_nodes=3,
        max_nodes=4,
        ttl=10.0,
        last_call=1.0,
    ),
    "spent-takes-part": _bug(
        "A node that has failed and has no restart left is in the next world.",
        {15},
        rules._candidates,
        {" or eligibility.is_out(node, notices)": ""},
        "break_off",
        "fail",
        min_nodes=1,
    ),
    "spent-waits": _bug(
        "A node that has failed, and has no restart left, waits for longer than the loss of another takes to be known.",
        {12},
        Reckoning.out_until,
        {"self.out_since + ttl + PATIENCE": "math.inf"},
        "break_off",
        "fail",
        "partition",
    ),
    "failures-removed": _bug(
        "A leader removes the failures of the last rounds.",
        {15},
        garbage.of_notices,
        {"state.round - ROUNDS_KEPT": "state.round - 1"},
        "fail_again",
        min_nodes=1,
    ),
}
"""By name; see ``python3 dev.py simulate --bug NAME``."""


def draw(seed: int, bug: str | None = None) -> Plan:
    """What a seed is, on the hunt for a bug or in general."""
    return Plan.draw(seed) if bug is None else BUGS[bug].plan(seed)


@contextmanager
def put_back(name: str | None) -> Iterator[None]:
    """Have the code with that bug, in this process; None: as it is.

    Raises:
        KeyError: There is no such bug.
        ValueError: The code is not any more what the bug is a difference to.
    """
    with ExitStack() as undo:
        for change in BUGS[name].changes if name else ():
            owner = _owner(change.where)
            setattr(owner, change.where.__name__, _changed(change))
            undo.callback(setattr, owner, change.where.__name__, change.where)
        yield


def _owner(function: Callable[..., Any]) -> Any:
    """The module or the class that a function is an attribute of."""
    owner: Any = sys.modules[function.__module__]
    for part in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, part)
    return owner


def _changed(change: Change) -> Any:
    source = textwrap.dedent(inspect.getsource(change.where))
    for right, wrong in change.edits.items():
        if source.count(right) != 1:
            raise ValueError(f"A bug does not fit the code any more: {right!r} should be there once in\n{source}")
        source = source.replace(right, wrong)
    scope: dict[str, Any] = {}
    code = compile(source, f"<{change.where.__name__} with a bug>", "exec")
    exec(code, change.where.__globals__, scope)
    return scope[change.where.__name__]
