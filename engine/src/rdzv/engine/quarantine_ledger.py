"""How a leader keeps the quarantines of its run: which are due, which are over, and what it has written of them."""

import logging
from collections.abc import Collection
from dataclasses import replace

from rdzv_core.errors import RendezvousStateError

from . import quarantine
from .client import VersionedValue
from .effects import Coroutine, Put, Read
from .node import Node
from .notices import Failure, Notices, Quarantine, failure_key, quarantine_key
from .records import NodeRecord, State, read_record

logger = logging.getLogger(__name__)

_Written = dict[str, tuple[VersionedValue, Quarantine]]
"""By the name of the node, with the versioned value that it became."""


class QuarantineLedger:
    """What a leader knows of failures and quarantines before the watch shows it.

    Args:
        node: The node that leads.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._failures: dict[int, Failure] = {}
        self._written: _Written = {}

    def notices(self, state: State | None) -> tuple[Notices, str | None]:
        """The notices of the run, with the quarantine that is due by them, if one is, and the name of its node."""
        mine, seen = self._node.settings, self._node.run.notices
        failures, quarantines = {**seen.failures, **self._failures}, {**seen.quarantines, **self._unseen()}
        known = replace(seen, failures=failures, quarantines=quarantines)
        number = state.round if state is not None else 0
        return quarantine.with_due(known, number, mine.quarantine_after, mine.quarantine_cooldown.total_seconds())

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

    def read_failure(self, state: State | None, records: Collection[NodeRecord]) -> Coroutine[None]:
        """Read who failed first in the last round, if that may make a quarantine due: the watch may not show it yet."""
        mine = self._node
        if state is None or not quarantine.is_suspect(mine.run.notices, state.round, mine.settings.quarantine_after):
            return
        try:
            failure = read_record(Failure, (yield Read(failure_key(state.round), mine.background_deadline())))
        except RendezvousStateError:
            # The watch says so in the log.
            failure = None
        self._failures = {} if failure is None else {state.round: failure}
        yield from self.settle(state, records)

    def settle(self, state: State | None, records: Collection[NodeRecord]) -> Coroutine[None]:
        """Write down the quarantine that is due, and those that are over."""
        notices, due = self.notices(state)
        snapshot = self._node.run.snapshot
        assert snapshot is not None  # noqa: S101 - it was elected by what it has seen
        changed = {**quarantine.waited_out(records, notices), **({due: notices.quarantines[due]} if due else {})}
        for name, record in changed.items():
            key = quarantine_key(name)
            before = snapshot.replaceable(key)
            applied, there = yield Put(key, record.encode(), self._node.background_deadline(), previous=before)
            # If not, another leader has, or this one before: the next snapshot shows it.
            if applied:
                self._written[name] = there, record
                what = "is not quarantined any more" if record.over else f"is quarantined: {record.reason}"
                logger.warning("node '%s' of '%s' %s", name, self._node.settings.run, what)
