"""The API of one node: `DynamicRendezvousHandler`."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from rdzv_core.backend import Capability, KeyValueBackend, RendezvousBackend
from rdzv_core.endpoints import check_address
from rdzv_core.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousError, RendezvousStateError
from rdzv_core.handler import Drain, RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.store import Store

from .. import hooks
from ..settings import RendezvousSettings, RendezvousTimeout
from ..store import KeyValueStore, PrefixStore
from . import drain, join, keep_alive, leave, report, rules, watch
from .client import RetryingClient
from .heartbeats import HeartbeatLeases
from .node import Node
from .notices import Failure, drain_notice
from .progress import without_progress
from .records import ROUNDS, Closed, NodeRecord, RunStatus, State
from .register_adapter import RegisterAdapter
from .runner import Runner
from .worlds import is_whole, read_world

logger = logging.getLogger(__name__)


def create_handler(
    store: Store | None, backend: RendezvousBackend, params: RendezvousParameters
) -> "DynamicRendezvousHandler":
    """Make a handler for parameters; the options it reads are those of `HANDLER_OPTIONS`.

    Args:
        store: What each round's store is made of; None: one on `backend` itself.
        backend: A register or a key-value backend. The handler closes it when it shuts down.
        params: The parameters.

    Raises:
        RendezvousParameterError: An option has a value that cannot be used.
    """
    return DynamicRendezvousHandler(RendezvousSettings.from_parameters(params), backend, store, params.local_addr)


class DynamicRendezvousHandler(RendezvousHandler):
    """One node of a rendezvous that grows, shrinks and re-forms, over any backend.

    Threads start with the first call that needs the service, and end with `shutdown` or `leave`.
    """

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Store | None,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: float = 5,
        keep_alive_max_attempt: int = 3,
        cas_backoff_max_seconds: float = 0.0,
    ) -> "DynamicRendezvousHandler":
        """Make a handler; the signature is PyTorch's.

        Args:
            run_id: Which run.
            store: What each round's store is made of; None: one on `backend` itself.
            backend: A register or a key-value backend. The handler closes it when it shuts down.
            min_nodes: The smallest world.
            max_nodes: The largest.
            local_addr: This node's address as the others reach it; None: the source address
                towards the service.
            timeout: How long things may take.
            keep_alive_interval: Seconds between two keep-alives.
            keep_alive_max_attempt: How many of them may fail to come before the node is dead.
            cas_backoff_max_seconds: Used for nothing: no two nodes fight for one key.

        Raises:
            RendezvousParameterError: A value cannot be used.
        """
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            timedelta(seconds=keep_alive_interval),
            keep_alive_max_attempt,
            cas_backoff_max_seconds,
        )
        return cls(settings, backend, store, local_addr)

    def __init__(
        self,
        settings: RendezvousSettings,
        backend: RendezvousBackend,
        store: Store | None = None,
        local_addr: str | None = None,
    ) -> None:
        """See `from_backend`."""
        if local_addr:
            check_address(local_addr)
        # Looking for them takes longer than a rendezvous: now, and not while all wait for each other.
        hooks.plugin_manager()
        self._settings = settings
        self._backend = backend
        self._node = Node(settings, backend.name, time.monotonic, assign_ranks)
        keys = with_keys(backend)
        self._store = run_store(store, keys)
        self._keys = with_leases(keys, settings, self._node.observers)
        self._local_addr = local_addr
        client = RetryingClient(
            self._keys,
            self._node.id,
            lambda error: self._runner.on_connection_error(error),
            self._node.longest_pause,
        )
        self._runner = Runner(self._node, client, hooks.emit)
        self._process = os.getpid()
        self._joining = threading.Lock()
        self._starting = threading.Lock()
        self._started = False
        self._stopped = False

    @property
    def settings(self) -> RendezvousSettings:
        """The handler's settings."""
        return self._settings

    @property
    def node_id(self) -> str:
        """This node's id, under which the others know it."""
        return self._node.id

    @property
    def status(self) -> RunStatus | None:
        """The latest news of the run as this node knows it; None if there was none."""
        return self._node.run.status

    @property
    def connection_error(self) -> RendezvousConnectionError | None:
        """Why the service could not be reached lately; None while it can be."""
        return self._node.connection.error

    @property
    def since_last_contact(self) -> float:
        """Seconds since the service last answered; infinite if it never did."""
        return self._node.connection.since_last_contact()

    @property
    def alone(self) -> float | None:
        """Seconds for which this node has waited alone: all others of its world have left. None: it is not so."""
        return self._node.countdown.alone_for(time.monotonic())

    @property
    def closed(self) -> Closed | None:
        """The node that closed the run, and why; None while it is open, as far as this node knows."""
        return self._node.closed()

    @property
    def record(self) -> NodeRecord | None:
        """What this node tells the others of itself, such as its address and port as rank 0; None: it is not here."""
        return self._node.registration.record

    @property
    def member_until(self) -> float | None:
        """Until when this node is certainly a member of the world that it was given last: then its lease may end.

        A moment on the monotonic clock (`time.monotonic`); each keep-alive moves it on. None if the node cannot be
        sure now: it has no world, has left it, its lease may have ended, or a later round was formed without it.
        """
        return self._runner.member_until()

    def get_backend(self) -> str:
        return self._backend.name

    def get_run_id(self) -> str:
        return self._settings.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """See `RendezvousHandler`.

        Raises:
            RendezvousGracefulExitError: The job ended, and this node was not needed.
            RendezvousParameterError: The run was started with other limits.
            RendezvousError: A health check refused this node; or another thread waits already, or this
            is a fork of the process whose node it is.
        """
        # First, for a fork has a copy of the lock as well.
        self._check_process()
        if not self._joining.acquire(blocking=False):
            raise RendezvousError("Another thread waits in next_rendezvous() of this handler; a node waits once.")
        try:
            return self._info(*self._join())
        finally:
            self._joining.release()

    def _join(self) -> tuple[State, int]:
        deadline = time.monotonic() + self._settings.timeout.join.total_seconds()
        hooks.check_health(self._settings.run_id, self._settings.labels)
        self._start()
        # Only after a first contact is it known which of this machine's addresses leads to the service.
        self._runner.run(watch.wait_until_connected(self._node, deadline))
        address = self._local_addr or self._keys.local_address
        with _reserved_port(address) as port:
            return self._runner.run(join.join(self._node, address, port, deadline))

    def is_closed(self) -> bool:
        """See `RendezvousHandler`. Answers from what this node knows; only the first call may wait."""
        self._look()
        return self._node.closed() is not None

    def set_closed(self, reason: str = "closed by the application", *, gave_up: bool = False) -> None:
        """Close the run for all, for good. If it is closed already, the first reason stands.

        Args:
            reason: What others will read.
            gave_up: The job makes no progress: to start it again is of no use.

        Raises:
            RendezvousConnectionError: The service could not be reached within the close timeout.
        """
        self._start()
        deadline = time.monotonic() + self._settings.timeout.close.total_seconds()
        self._runner.run(leave.close(self._node, reason, False, deadline, gave_up=gave_up))

    def num_nodes_waiting(self) -> int:
        """How many nodes wait for a world that would differ from this node's.

        Beyond PyTorch's meaning, a member that is gone counts as one, once the others could go on
        without it, and so does a world that was formed without this node while it was away.
        Answers from what this node knows; only the first call may wait.
        """
        self._look()
        return self._node.waiting()

    def drain(self, seconds: float, reason: str) -> None:
        """Announce that this node goes: after so many seconds, or as soon as all members are ready for it.

        Then `is_drained` is true, `num_nodes_waiting` is above zero here and, if they can go on, at the other members,
        and `next_rendezvous` raises a `RendezvousGracefulExitError`: end the programs, and call `leave`. Of several
        calls the earliest end counts.

        Args:
            seconds: From now on.
            reason: What the others read.

        Raises:
            RendezvousParameterError: The seconds are no number from 0 to 1e9, or the reason exceeds 1,000 characters.
            RendezvousConnectionError: The service could not be reached in that time. The node goes all the same.
        """
        notice = drain_notice(seconds, reason)
        self._start()
        patience = max(seconds, self._settings.timeout.heartbeat.total_seconds())
        self._runner.run(drain.announce(self._node, notice, time.monotonic() + patience))

    @property
    def drains(self) -> Sequence[Drain]:
        """The members of this node's world that drain, with the seconds that each has left; this one, too.

        While the node is in no world, it is all nodes of the run; in one of more than 64 nodes, too: who is in it would
        have to be read.
        """
        now, drains = time.monotonic(), self._node.countdown.drains
        return tuple(
            Drain(node, max(0.0, end.moment - now), end.reason)
            for node, end in sorted(drains.items(), key=lambda item: item[1])
            if not self._node.is_outside(node)
        )

    @property
    def is_drained(self) -> bool:
        """Whether this node drains, and goes now."""
        return self._node.is_drained()

    def ready_to_drain(self, nodes: Collection[str] | None = None) -> None:
        """Say that this node has saved its work in this round, and can go on without nodes that drain.

        Args:
            nodes: The ids of those; None: all that drain now, as far as this node knows.

        Raises:
            RendezvousConnectionError: The service could not be reached.
        """
        self._start()
        deadline = time.monotonic() + self._settings.timeout.heartbeat.total_seconds()
        ready_for = self._node.countdown.drains if nodes is None else nodes
        self._runner.run(drain.get_ready(self._node, ready_for, deadline))

    def report_failure(self, reason: str, progressed: bool = False) -> bool:
        """Report that this node's program has failed in the round that it joined last.

        All nodes learn of the first failure of each round; a node that fails first again and again is quarantined.

        Args:
            reason: In words.
            progressed: Whether the program had made progress in this round.

        Returns:
            Whether no other node of the round has reported a failure before.

        Raises:
            RendezvousConnectionError: The service could not be reached.
        """
        self._start()
        deadline = time.monotonic() + self._settings.timeout.heartbeat.total_seconds()
        return self._runner.run(report.report_failure(self._node, reason, progressed, deadline))

    @property
    def failures(self) -> Mapping[int, Failure]:
        """The first failure in each of the last rounds, as far as this node knows; a round without any is left out."""
        return self._node.run.notices.failures

    @property
    def rounds_without_progress(self) -> Sequence[tuple[int, Failure]]:
        """The consecutive rounds of this attempt without progress, up to the one that this node joined last; each with
        its first failure. At most `ROUNDS_KEPT` are known."""
        return without_progress(self._node.run.notices.failures, self._settings.attempt, self._node.round)

    @property
    def quarantine(self) -> str | None:
        """For how many more seconds this node is quarantined, and why, in words; None: it is not."""
        return self._node.countdown.quarantined(time.monotonic())

    @property
    def drain_reason(self) -> str:
        """Why this node drains, in words."""
        return self._node.countdown.drain_reason()

    def shutdown(self) -> bool:
        """End this node's part and release everything.

        If the node is in the current round the job is over, and the run is closed for all; if not,
        only this node goes. The option ``on_shutdown`` forces either.

        Returns:
            False if the service did not confirm it; what was written goes when the lease runs out.
        """
        closes = self._settings.on_shutdown == "close" or (
            self._settings.on_shutdown == "auto" and self._node.in_running_round()
        )
        return self._end("it has shut down", closes)

    def leave(self, reason: str = "it left") -> bool:
        """Leave for good, with the reason, and release everything; the run goes on.

        Returns:
            False if the service did not confirm it.
        """
        return self._end(reason, closes=False)

    def _end(self, reason: str, closes: bool) -> bool:
        if os.getpid() != self._process:
            # A fork's copy: the node is the parent's, and stays.
            return False
        with self._starting:
            if self._stopped:
                return True
            self._stopped = True
        # If the service cannot be reached, leaving is limited to one keep-alive interval.
        patience = (
            self._settings.timeout.close if self._node.connection.error is None else self._settings.keep_alive_interval
        )
        deadline = time.monotonic() + patience.total_seconds()
        try:
            if closes:
                self._runner.run(leave.close(self._node, "the job is done", True, deadline))
            self._runner.run(leave.leave(self._node, reason, deadline))
        except Exception as error:
            # Of any class, for a backend may have a bug: a node that ends must not fail for that.
            logger.warning("node '%s' could not leave '%s' in order: %r", self._node.id, self._settings.run, error)
            return False
        finally:
            self._runner.stop(timeout=5.0)
            if isinstance(self._store, KeyValueStore):
                # It is on the backend that was just closed: what waits for it must end.
                self._store.close()
        return True

    def _look(self) -> None:
        if self._stopped and os.getpid() == self._process:
            return
        self._start()
        deadline = time.monotonic() + self._settings.timeout.heartbeat.total_seconds()
        self._runner.run(watch.wait_until_connected(self._node, deadline))
        if self._node.closed() is None:
            self._node.failures.raise_lasting()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RendezvousError(
                f"This handler of the rendezvous '{self._settings.run}' belongs to process {self._process}; "
                "a process that was forked from it needs one of its own."
            )

    def _start(self) -> None:
        self._check_process()
        with self._starting:
            if self._stopped:
                raise RendezvousClosedError(
                    f"This handler of the rendezvous '{self._settings.run}' has shut down; create a new one."
                )
            if not self._started:
                self._started = True
                self._runner.start("watch", watch.watch_loop(self._node))
                self._runner.start("keep", keep_alive.keep_alive_loop(self._node))

    def _info(self, state: State, rank: int) -> RendezvousInfo:
        return RendezvousInfo(
            round_store(self._store, self.get_run_id(), state.round),
            rank,
            state.size,
            RendezvousStoreInfo(state.address, state.port),
            round=state.round,
            run_id=self.get_run_id(),
            nodes=state.world if state.pages is None else partial(self._members, state),
        )

    def _members(self, state: State) -> tuple[str, ...]:
        if self._stopped:
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


def with_keys(backend: RendezvousBackend) -> KeyValueBackend:
    """Any backend as one with keys."""
    return backend if isinstance(backend, KeyValueBackend) else RegisterAdapter(backend)


def with_leases(
    keys: KeyValueBackend, settings: RendezvousSettings, observers: Callable[[], int] = lambda: 1
) -> KeyValueBackend:
    """Any backend with keys as one with leases, too, so that there is one protocol above it.

    Args:
        keys: The backend.
        settings: The run's settings.
        observers: About how many nodes observe the same leases.
    """
    if Capability.LEASE in keys.capabilities:
        return keys
    interval = settings.keep_alive_interval.total_seconds()
    return HeartbeatLeases(keys, interval, folder=str(settings.attempt), observers=observers)


def assign_ranks(arrived: Sequence[NodeRecord], previous: Sequence[str]) -> Sequence[str]:
    """The plugins' order of ranks, else the default."""
    order = hooks.assign_ranks(arrived, previous)
    return rules.sticky_ranks(arrived, previous) if order is None else order


@contextmanager
def _reserved_port(address: str) -> Iterator[int]:
    """Keep a port of this machine for the time of the wait, and free it just before it is used."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]
