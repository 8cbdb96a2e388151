"""How a run is removed: once no node is left, and without what belongs to a later attempt."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rdzv_core.backend import STATE_KEY
from rdzv_core.errors import RendezvousParameterError, RendezvousStateError
from rdzv_core.text import printable

from . import garbage, records
from .client import DecodedSnapshot, RetryingClient, VersionedValue
from .codec import decode
from .records import CONTROL, HEARTBEATS, LEADER_KEY, NODES, PENDING, ROUNDS, Closed, State, read_record

_LAST_LOOK: Final = 1.0
"""Seconds for the last look at the nodes of a run that is purged."""
_CLOSED: Final = Closed("a purge", "its keys are being removed", done=False)


@dataclass(frozen=True)
class Purge:
    """Removes every key of a run.

    Attributes:
        run_id: Which run, for messages.
        client: Sees what the nodes see.
        raw: Also sees what stands there whether its lease lives or not, and a round's store, which has none.
        close: Closes the attempt that the run is at; raises if the state is not readable.
        deadline: Until when to wait for the nodes to go, and to remove the keys.
    """

    run_id: str
    client: RetryingClient
    raw: RetryingClient
    close: Callable[[Closed, float], object]
    deadline: float

    def run(self) -> tuple[str, ...]:
        """Do it; see `RunInspector.purge`."""
        if live := self._await_end():
            return live
        self._fence()
        control = self.client.read_all(CONTROL, self.deadline)
        versioned = control.raw(STATE_KEY)
        if versioned is None:
            # Another purge was faster.
            return ()
        # One that was on its way when the run was closed: it hears of that, and goes.
        if live := _awaited(self.client.read_all(NODES, self.deadline)):
            return live
        self._remove_keys(control, decode(State, versioned.payload))
        self._remove_state(versioned)
        return ()

    def _await_end(self) -> tuple[str, ...]:
        """Wait until no node is left; returns those that still are."""
        snapshot = self.client.read_all(NODES, self.deadline)
        # A last look needs time: what a service that is away last said of its nodes is no answer.
        until = self.deadline - min(_LAST_LOOK, (self.deadline - time.monotonic()) / 2)
        snapshot = self.client.wait_for(lambda now: not _awaited(now), NODES, snapshot, until, self.deadline - until)
        return _awaited(self.client.read_all(NODES, self.deadline)) if _awaited(snapshot) else ()

    def _fence(self) -> None:
        """Close the run, so that a node that comes is refused."""
        try:
            self.close(_CLOSED, self.deadline)
        except RendezvousStateError:
            self._close_unread()
            # Another client may have written meanwhile.
            self.close(_CLOSED, self.deadline)

    def _close_unread(self) -> None:
        """Write a closed state over one that cannot be read; of which attempt and round, as far as other keys tell."""
        snapshot = self.client.read_all(STATE_KEY, self.deadline)
        with suppress(RendezvousStateError):
            read_record(State, snapshot.raw(STATE_KEY))
            # It has been put back.
            return
        attempt, last = self._highest_number((NODES, HEARTBEATS)), self._highest_number((ROUNDS, PENDING))
        closed = State(attempt, last, (), "", 0, 1, 1, _CLOSED)
        self.client.put(STATE_KEY, closed.encode(), self.deadline, previous=snapshot.replaceable(STATE_KEY))

    def _highest_number(self, prefixes: Iterable[str]) -> int:
        """The highest number that names a folder under one of these prefixes."""
        names = [
            name[len(prefix) + 1 :].split("/")[0]
            for prefix in prefixes
            for name in self.raw.read_all(prefix, self.deadline).names()
        ]
        return max((records.number_of(name) or 0 for name in names), default=0)

    def _remove_keys(self, control: DecodedSnapshot, state: State) -> None:
        """Remove all but the state."""
        for top, last in ((ROUNDS, state.round), (NODES, state.attempt), (HEARTBEATS, state.attempt)):
            for folder in garbage.folders_until(self.raw.read_all(top, self.deadline), last):
                self.client.delete(folder, self.deadline)
        for key in garbage.beside_state(control, state):
            self.client.delete(key, self.deadline)
        if self.client.backend is not self.raw.backend:
            self._sweep()

    def _sweep(self) -> None:
        """Remove what a service without leases keeps unseen: heartbeats, dead records, the service's own notes of them.

        That goes by whole prefixes only, so not if the next attempt has begun: what is left then goes with it.
        """
        if not any(self.client.read_all(top, self.deadline).names() for top in (NODES, LEADER_KEY)):
            for top in (NODES, HEARTBEATS, ROUNDS):
                self.client.delete(top, self.deadline)

    def _remove_state(self, versioned: VersionedValue) -> None:
        """Remove the closed state, unless the next attempt has written its own over it."""
        applied, now = self.client.put(STATE_KEY, versioned.payload, self.deadline, previous=versioned, deleted=True)
        if not applied and now is not None and not now.envelope.deleted:
            attempt = decode(State, now.payload).attempt
            raise RendezvousParameterError(
                f"The run '{printable(self.run_id)}' goes on with attempt {attempt}, which has begun meanwhile; only "
                "what earlier attempts had left was removed. Close it and purge again to remove the rest."
            )
        # No node counts on a tombstone: a world that is formed in this very moment learns that the run was removed.
        self.client.delete(STATE_KEY, self.deadline)


def _awaited(snapshot: DecodedSnapshot) -> tuple[str, ...]:
    """The nodes for which a purge waits: those that have not left, and those of another version of rdzv: whether one
    of these has left, that version knows."""
    live = (record.id for record in records.nodes_in(snapshot) if record.left is None)
    return (*live, *records.of_another_version(snapshot))
