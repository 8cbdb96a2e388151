"""The API of one node: `DynamicRendezvousHandler`."""

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import TypeVar

from rdzv_core.backend import Capability, KeyValueBackend, RendezvousBackend
from rdzv_core.errors import RendezvousConnectionError, RendezvousError, RendezvousTimeoutError
from rdzv_core.handler import RendezvousHandler, RendezvousInfo
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.store import Store
from rdzv_core.threads import in_thread

from .. import hooks
from ..outcome import Outcome
from ..settings import RendezvousSettings, RendezvousTimeout
from ..shortages import outlast
from . import drain, join, keep_alive, leave, report, watch
from .address import announced, own_address
from .aside import node_logger, speaking_aside
from .effects import Coroutine
from .heartbeats import HeartbeatLeases, Look, look_at_once
from .lifetime import Lifetime
from .node import Node
from .node_view import NodeView
from .notices import drain_notice
from .ports import Ports
from .records import State
from .register_adapter import RegisterAdapter
from .rounds import Rounds, run_store
from .runner import Runner

logger = node_logger(__name__)

_R = TypeVar("_R")


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
            local_addr: This node's address, interface or network for the others; None: the source towards the service.
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
        self._local_addr = own_address(local_addr, settings.behind_nat) if local_addr else None
        self._ports = Ports(settings.ports)
        # Looking for them takes longer than a rendezvous: now, and not while all wait for each other.
        hooks.plugin_manager()
        self._settings = settings
        keys = with_keys(backend)
        self._node = Node(settings, keys.name, time.monotonic, creates_at_once=keys.creates_at_once)
        self._keys = with_leases(keys, settings, self._node.observers)
        self._runner = Runner(self._node, self._keys, hooks.announce)
        self._view = NodeView(self._node, self._runner.member_until)
        self._lifetime = Lifetime(settings.run)
        self._rounds = Rounds(settings, run_store(store, keys), self._runner, self._lifetime)
        self._joining = threading.Lock()

    @property
    def settings(self) -> RendezvousSettings:
        """The handler's settings."""
        return self._settings

    @property
    def view(self) -> NodeView:
        """What this node knows of itself and of its run now; asking costs no call."""
        return self._view

    def get_backend(self) -> str:
        return self._node.backend

    def get_run_id(self) -> str:
        return self._settings.run_id

    def next_rendezvous(self, outcome: Outcome | None = None) -> RendezvousInfo:
        """See `RendezvousHandler`; `outcome` says how the round before has ended here, as far as its caller knows.

        Raises:
            RendezvousGracefulExitError: The job or this node's drain is over, or its failure ends it (`outcome`).
            RendezvousParameterError: The run was started with other limits.
            RendezvousError: A health check refused this node, another thread waits already, or this is a fork's copy.
        """
        # First, for a fork has a copy of the lock as well.
        self._lifetime.check_process()
        if not self._joining.acquire(blocking=False):
            raise RendezvousError("Another thread waits in next_rendezvous() of this handler; a node waits once.")
        try:
            return self._rounds.info(*self._join(outcome))
        finally:
            self._joining.release()

    def _join(self, outcome: Outcome | None) -> tuple[State, int]:
        deadline = time.monotonic() + self._settings.timeout.join.total_seconds()
        hooks.check_health(self._settings.run_id, self._settings.labels)
        lacks = self._node.failures.note_shortage
        outlast(partial(self._lifetime.begin, self._start_loops), deadline=deadline, tell=lacks)
        # Only after a first contact is it known which of this machine's addresses leads to the service.
        self._runner.run(join.look_first(self._node, deadline))
        address = announced(self._local_addr) or address_towards(self._keys, deadline, lacks)
        with self._ports.reserved(address, deadline, lacks) as port:
            return self._runner.run(join.join(self._node, address, port, deadline, outcome))

    def expect(self, machines: Collection[str]) -> None:
        """Name the machines of all nodes, of which messages say which have not come; else those of the world before."""
        self._node.expected = tuple(machines)

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
        self._call(partial(leave.close, self._node, reason, False, gave_up=gave_up), self._settings.timeout.close)

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

        Then `view.is_drained` is true, `num_nodes_waiting` is above zero here and, if they can go on, at the others,
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
        patience = max(timedelta(seconds=notice.seconds), self._settings.timeout.heartbeat)
        self._call(partial(drain.announce, self._node, notice), patience)

    def ready_to_drain(self, nodes: Collection[str] | None = None) -> None:
        """Say that this node has saved its work in this round, and can go on without nodes that drain.

        Args:
            nodes: The ids of those; None: all that drain now, as far as this node knows.

        Raises:
            RendezvousConnectionError: The service could not be reached.
        """
        ready_for = self._node.countdown.drains if nodes is None else nodes
        self._call(partial(drain.get_ready, self._node, ready_for), self._settings.timeout.heartbeat)

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
        told = partial(report.report_failure, self._node, reason, progressed)
        return self._call(told, self._settings.timeout.heartbeat)

    def shutdown(self) -> bool:
        """End this node's part and release everything.

        If the node is in the current round the job is over, and the run is closed for all; if not,
        only this node goes. The option ``on_shutdown`` forces either.

        Returns:
            False if the service did not confirm it; what was written goes when the lease runs out.
        """
        wish = self._settings.on_shutdown
        closes = wish == "close" or (wish == "auto" and self._node.in_running_round())
        return self._end("it has shut down", closes)

    def leave(self, reason: str = "it left") -> bool:
        """Leave for good, with the reason, and release everything; the run goes on.

        Returns:
            False if the service did not confirm it.
        """
        return self._end(reason, closes=False)

    @speaking_aside
    def _end(self, reason: str, closes: bool) -> bool:
        if self._lifetime.is_copy():
            # The node is the parent's, and stays.
            return False
        if not self._lifetime.end():
            return True
        try:
            self._runner.run(leave.end(self._node, reason, closes))
        except Exception as error:
            # Of any class, for a backend may have a bug: a node that ends must not fail for that.
            logger.warning("node '%s' could not leave in order%s", self._node.id, self._node.failures.unsaid(error))
            return False
        finally:
            self._runner.stop(timeout=5.0)
            self._rounds.close()
            self._ports.release()
        return True

    def _look(self) -> None:
        if self._lifetime.has_ended and not self._lifetime.is_copy():
            return
        look = partial(watch.wait_until_connected, self._node, since=time.monotonic())
        self._call(look, self._settings.timeout.heartbeat)
        if self._node.closed() is None:
            self._node.failures.raise_lasting()

    def _call(self, begin: Callable[[float], Coroutine[_R]], timeout: timedelta) -> _R:
        """Run the coroutine that `begin` makes for a deadline; the first call of a handler starts its loops."""
        self._lifetime.begin(self._start_loops)
        return self._runner.run(begin(time.monotonic() + timeout.total_seconds()))

    def _start_loops(self) -> None:
        self._runner.start_once(watch=watch.watch_loop(self._node), keep=keep_alive.keep_alive_loop(self._node))


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
    return HeartbeatLeases(keys, interval, folder=str(settings.attempt), observers=observers, beside=look_beside)


def look_beside(look: Look) -> Future[object]:
    """Begin a look on a thread of its own; where there is no room for one the wait looks itself."""
    try:
        return in_thread(speaking_aside(look), "rdzv-look")
    except RendezvousConnectionError:
        return look_at_once(look)


def address_towards(keys: KeyValueBackend, deadline: float, tell: Callable[[OSError | None], None]) -> str:
    """This machine's address as the service's clients see it. A backend may look up a name for it, at its leisure.

    Args:
        keys: The backend.
        deadline: Until when, on the monotonic clock.
        tell: See `outlast`.

    Raises:
        RendezvousTimeoutError: It has not told by then.
    """
    asked = outlast(partial(in_thread, lambda: keys.local_address, "rdzv-address"), deadline=deadline, tell=tell)
    if wait([asked], max(0.0, deadline - time.monotonic())).done:
        return asked.result()
    raise RendezvousTimeoutError(
        f"The address of this machine towards the service of backend '{keys.name}' was not found in time; is the "
        "resolver of names silent? Give it as local_addr."
    )
