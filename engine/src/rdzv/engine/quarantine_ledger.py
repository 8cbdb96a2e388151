"""How a leader keeps the quarantines of its run: which are due, which are over, and what it has written of them."""

import logging
from collections.abc import Collection
from dataclasses import replace

from rdzv_core.errors import RendezvousStateError

from . import quarantine, verdicts
from .aside import node_logger
from .client import VersionedValue
from .effects import Coroutine, Put, Read
from .node import Node
from .notices import Failure, Notices, Quarantine, failure_key, quarantine_key
from .records import NodeRecord, State, read_record
from .rules import Situation

logger = node_logger(__name__)

_Written = dict[str, tuple[VersionedValue, Quarantine]]
"""By the name of the node, or its id, with the versioned value that it became."""


class QuarantineLedger:
    """What a leader knows of failures and quarantines before the watch shows it.

    Args:
        node: The node that leads.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._failures: dict[int, Failure] = {}
        self._written: _Written = {}
        self._shared_since: dict[str, float] = {}

    def notices(self, state: State | None) -> tuple[Notices, str | None]:
        """The notices of the run, with the quarantine that is due by them, if one is, and the name of its node."""
        mine, seen = self._node.settings, self._node.run.notices
        failures, quarantines = {**seen.failures, **self._failures}, {**seen.quarantines, **self._unseen()}
        known = replace(seen, failures=failures, quarantines=quarantines)
        number = state.round if state is not None else 0
        cooldown = mine.quarantine_cooldown.total_seconds()
        return quarantine.with_due(known, number, mine.quarantine_after, cooldown, self._shared_since)

    def _unseen(self) -> dict[str, Quarantine]:
        """What this leader has written, and the watch does not show yet."""
        snapshot = self._node.run.snapshot
        assert snapshot is not None  # noqa: S101 - it was elected by what it has seen
        return {
            name: record
            for name, (versioned, record) in self._written.items()
            if (seen := snapshot.replaceable(quarantine_key(name))) is None
            or versioned.envelope.supersedes(seen.envelope)
        }

    def judge(self, situation: Situation, *, publishes: bool = False) -> Coroutine[None]:
        """Write down whose failure it was that ended the last round, once that can be told.

        Args:
            situation: What the leader knows.
            publishes: The next round is about to be formed: the watch may not show yet who failed first in this one.
        """
        state = situation.state
        if state is None or not self._may_judge(situation, state, publishes):
            return
        key, deadline = failure_key(state.round), self._node.background_deadline()
        try:
            versioned = self._shown(key) or (yield Read(key, deadline))
            failure = read_record(Failure, versioned)
            if failure is not None and failure.verdict is None and (judged := verdicts.judged(failure, situation)):
                # What stands there then: that, or the verdict of another leader.
                _, there = yield Put(key, judged.encode(), deadline, previous=versioned)
                failure = read_record(Failure, there)
        except RendezvousStateError:
            # The watch says so in the log.
            failure = None
        # What is said of a round counts until a later one is formed: the watch may show none of it by then.
        kept = range(state.round - self._node.settings.quarantine_after, state.round)
        self._failures = {number: self._failures[number] for number in kept if number in self._failures}
        self._failures |= {} if failure is None else {state.round: failure}
        if failure is not None and failure.verdict is not None and not failure.counts:
            run, because = self._node.settings.run, failure.because
            logger.warning("round %d of '%s' has ended by the failure of no node: %s", state.round, run, because)

    def _shown(self, key: str) -> VersionedValue | None:
        """What the watch shows of a key: it may be old, and then the write over it tells what is there."""
        snapshot = self._node.run.snapshot
        return None if snapshot is None else snapshot.get(key)

    def _may_judge(self, situation: Situation, state: State, publishes: bool) -> bool:
        mine = self._node
        notices, _ = self.notices(state)
        known = notices.failures.get(state.round)
        if known is not None:
            return known.verdict is None and verdicts.judged(known, situation) is not None
        is_suspect = publishes and quarantine.is_suspect(notices, state.round, mine.settings.quarantine_after)
        return is_suspect or verdicts.has_failed(situation)

    def settle(self, state: State | None, records: Collection[NodeRecord]) -> Coroutine[None]:
        """Write down the quarantine that is due, and those that are over."""
        lasting = self._note_shared_names(records)
        notices, due = self.notices(state)
        snapshot = self._node.run.snapshot
        assert snapshot is not None  # noqa: S101 - it was elected by what it has seen
        changed = {**quarantine.waited_out(records, notices), **quarantine.lifted(lasting, notices)}
        changed |= {due: notices.quarantines[due]} if due else {}
        for name, record in changed.items():
            key = quarantine_key(name)
            before = snapshot.replaceable(key)
            applied, there = yield Put(key, record.encode(), self._node.background_deadline(), previous=before)
            # If not, another leader has, or this one before: the next snapshot shows it.
            if applied:
                self._written[name] = there, record
                what = "is not quarantined any more" if record.over else f"is quarantined: {record.reason}"
                # That it begins is an event on every node.
                level = logging.WARNING if record.over else logging.INFO
                logger.log(level, "node '%s' of '%s' %s", name, self._node.settings.run, what)

    def _note_shared_names(self, records: Collection[NodeRecord]) -> list[str]:
        """Note which names several nodes have; returns those that are so for longer than a dead node has a record."""
        now = self._node.clock()
        self._shared_since = {name: self._shared_since.get(name, now) for name in quarantine.shared_names(records)}
        return [name for name, since in self._shared_since.items() if now >= since + self._node.ttl]
