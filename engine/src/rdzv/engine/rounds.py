"""What a round is to its user: a store of its own, and the ids of its nodes, which are read when they are asked for."""

import time
from functools import partial

from rdzv_core.backend import KeyValueBackend
from rdzv_core.errors import RendezvousClosedError, RendezvousStateError
from rdzv_core.handler import RendezvousInfo, RendezvousStoreInfo
from rdzv_core.store import Store

from ..settings import RendezvousSettings
from ..store import KeyValueStore, PrefixStore
from .lifetime import Lifetime
from .records import ROUNDS, State
from .runner import Runner
from .worlds import is_whole, read_world


class Rounds:
    """The rounds of one handler."""

    def __init__(self, settings: RendezvousSettings, store: Store, runner: Runner, lifetime: Lifetime) -> None:
        """See `run_store` for the store; the runner reads the ids, as long as the handler has not ended."""
        self._settings = settings
        self._store = store
        self._runner = runner
        self._lifetime = lifetime

    def info(self, state: State, rank: int) -> RendezvousInfo:
        """What a node gets of the round that it has joined."""
        return RendezvousInfo(
            round_store(self._store, self._settings.run_id, state.round),
            rank,
            state.size,
            RendezvousStoreInfo(state.address, state.port),
            round=state.round,
            run_id=self._settings.run_id,
            nodes=state.world if state.pages is None else partial(self._members, state),
        )

    def close(self) -> None:
        """End what waits for a round's store: the backend below it is closed."""
        if isinstance(self._store, KeyValueStore):
            self._store.close()

    def _members(self, state: State) -> tuple[str, ...]:
        if self._lifetime.has_ended:
            raise RendezvousClosedError(
                f"This handler of the rendezvous '{self._settings.run}' has shut down: the ids of the nodes of a world "
                f"of {state.size} are read from the service, so ask for them before."
            )
        deadline = time.monotonic() + self._settings.timeout.heartbeat.total_seconds()
        whole = self._runner.run(read_world(state, deadline))
        if not is_whole(whole):
            raise RendezvousStateError(
                f"The ids of the nodes of round {state.round} are gone from the service: they stand there until two "
                "more rounds were formed."
            )
        return whole.world


def run_store(store: Store | None, keys: KeyValueBackend) -> Store:
    """What the rounds' stores of a run are made of: `store`, or without one the run's keys (see `with_keys`)."""
    return KeyValueStore(keys, ROUNDS) if store is None else store


def round_store(store: Store, run_id: str, number: int) -> Store:
    """The part of `store` that belongs to one round."""
    if isinstance(store, KeyValueStore):
        return store.scoped(str(number)).scoped("store")
    return PrefixStore(f"rdzv.{run_id}.{number}", store)
