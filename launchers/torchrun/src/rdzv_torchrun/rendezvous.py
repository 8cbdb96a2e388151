"""A handler of rdzv as torchrun wants it."""

import atexit
import itertools
import logging
import os
import socket
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import rdzv
from rdzv.registry import create_backend
from rdzv_transport.forks import keep_in_children
from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.events import construct_and_record_rdzv_event
from torch.distributed.elastic.events.api import NodeState
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from .config import our_parameters
from .errors import as_rendezvous_errors
from .signals import ended_by_signals
from .store import TorchStore

logger = logging.getLogger(__name__)

_READY_PREFIX: Final = "rdzv/here"
"""Under this, each node of a round says in its store that it has come to know the round."""

_local_ids: Final = itertools.count()


def create_handler(params: RendezvousParameters) -> "TorchrunHandler":
    """See `rdzv_torchrun.create_handler`."""
    try:
        ours = our_parameters(params)
        with as_rendezvous_errors():
            backend, store = create_backend(ours)
            return TorchrunHandler(rdzv.create_handler(store, backend, ours), params.backend, params.local_addr)
    except Exception as error:
        construct_and_record_rdzv_event(params.run_id, f"{type(error).__name__}: {error}", NodeState.FAILED)
        raise


class TorchrunHandler(RendezvousHandler):
    """One node of a rendezvous, for torchrun's agent.

    Where it differs from torch's own handlers:

    * A member that dies or is cut off counts in `num_nodes_waiting`, so that the agents of the others
      form a smaller world.
    * `shutdown` closes the run only if the job is done. If an exception is on its way, or the others
      are about to form a new world, this node just leaves.
    * When the process ends by a signal, and torchrun therefore calls no `shutdown`, the node leaves.

    torch's event log gets what torch's own handler tells it.
    """

    def __init__(self, handler: rdzv.DynamicRendezvousHandler, backend: str, local_addr: str | None = None) -> None:
        """Offer `handler` to torch under the name `backend`; `local_addr` is this node's address for the event log."""
        self._handler = handler
        self._backend = backend
        # The name that the machine has for itself; no resolver is asked for more of it.
        self._hostname = local_addr or socket.gethostname()
        self._local_id = next(_local_ids)
        self._round = 0
        self._size = 0
        self._logged_losses: set[str] = set()
        self._store: TorchStore | None = None
        self._server: TCPStore | None = None
        self._graceful_exit = False
        self._left = weakref.finalize(self, handler.leave, "its process has ended")
        # At the end of the process, not with torch's own finalizers: these come after what closes the backend, which
        # was registered before this. See "The order at exit" in the architecture.
        self._left.atexit = False
        atexit.register(self._left)

    def get_backend(self) -> str:
        """The name by which torch knows the backend."""
        return self._backend

    def get_run_id(self) -> str:
        """Which run."""
        return self._handler.get_run_id()

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers use the TCPStore that rank 0's agent serves; as in torch, the environment decides."""
        return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next world that this node is part of. Its store and address serve this round alone.

        Raises:
            torch.distributed.elastic.rendezvous.RendezvousError: One of torch's, as in torch.
            ValueError: The run was started with other limits.
            torch.distributed.elastic.multiprocessing.SignalException: A signal has ended the wait.
        """
        method = "next_rendezvous"
        self._report_failure()
        self._record(method, f"attempts to join the next round of the rendezvous '{self._run}'")
        with self._failures_recorded(method), as_rendezvous_errors():
            info = ended_by_signals(self._next_round, unhandled=True)
        self._record(
            method,
            f"has joined round {self._round} of the rendezvous '{self._run}' as rank {info.rank} in a world of size "
            f"{info.world_size}",
            rank=info.rank,
        )
        return info

    def is_closed(self) -> bool:
        """Whether the run is closed, as far as this node knows."""
        with self._failures_recorded("is_closed"), as_rendezvous_errors():
            return ended_by_signals(self._handler.is_closed)

    def set_closed(self) -> None:
        """Close the run for all; the agents of a running world end it."""
        with self._failures_recorded("set_closed"), as_rendezvous_errors():
            ended_by_signals(self._handler.set_closed)
        self._record("set_closed", f"has closed the rendezvous '{self._run}'", NodeState.SUCCEEDED)

    def num_nodes_waiting(self) -> int:
        """How many nodes wait for a world that would differ from the running one; a lost member counts as one.

        Raises:
            torch.distributed.elastic.rendezvous.RendezvousClosedError: The run was closed before
                the job was done. The agent asks nothing else while its workers run.
        """
        with self._failures_recorded("num_nodes_waiting"), as_rendezvous_errors():
            closed = self._handler.view.closed
            if closed is not None and not closed.done:
                raise rdzv.RendezvousClosedError(
                    f"The rendezvous '{self._run}' was closed by {closed.by or 'others'}: {closed.reason}."
                )
            self._log_lost_members()
            return ended_by_signals(self._handler.num_nodes_waiting)

    def shutdown(self) -> bool:
        """End this node's part: see the class. The option ``on_shutdown`` forces closing or leaving.

        Returns:
            Whether the service has confirmed it.
        """
        error = sys.exception()
        reason = self._unfinished(error) if self._handler.settings.on_shutdown == "auto" else None
        method = "shutdown"
        with self._failures_recorded(method), as_rendezvous_errors():
            told = ended_by_signals(self._handler.shutdown if reason is None else partial(self._handler.leave, reason))
        # Not before: a signal may have ended the call, and then the process says it when it ends.
        self._left.detach()
        atexit.unregister(self._left)
        self._server = None
        if told:
            done = "has closed the rendezvous" if reason is None else "has left the rendezvous"
            self._record(method, f"{done} '{self._run}': {reason or 'the job is done'}", NodeState.SUCCEEDED)
        else:
            self._record(method, f"has failed to shut down the rendezvous '{self._run}'", NodeState.FAILED)
        if self._graceful_exit and _is_missing_result(error):
            raise SystemExit(0) from None
        return told

    def _report_failure(self) -> None:
        """Report that the workers of this node have failed, if nothing else makes torchrun ask for another world."""
        if not self._round or self._handler.view.closed is not None:
            return
        try:
            if not self._handler.num_nodes_waiting() and self._broken() is None:
                # Whether they made progress torchrun does not know.
                ended_by_signals(partial(self._handler.report_failure, "its workers have failed", progressed=True))
        except rdzv.RendezvousError as error:
            logger.warning("The failure of the workers of this node could not be reported: %s", error)

    def _next_round(self) -> RendezvousInfo:
        while True:
            if self._handler.settings.ports:
                # The next one may have to be at the same port.
                self._server = None
            try:
                world = self._handler.next_rendezvous()
            except rdzv.RendezvousGracefulExitError:
                self._graceful_exit = True
                raise
            self._round, self._size = world.round, world.world_size
            self._logged_losses.clear()
            self._store = TorchStore(world.store, self._broken)
            try:
                return RendezvousInfo(self._store, world.rank, world.world_size, self._sync_round(world, self._store))
            except DistNetworkError as error:
                raise rdzv.RendezvousConnectionError(str(error)) from error
            except DistStoreError as error:
                if (reason := self._broken()) is None:
                    raise rdzv.RendezvousTimeoutError(
                        f"Not every node of round {world.round} of the rendezvous '{self._run}' has said that it is "
                        f"there: {error}"
                    ) from error
                logger.info("Round %d of '%s' is over before it began: %s", world.round, self._run, reason)

    def _sync_round(self, world: rdzv.RendezvousInfo, store: TorchStore) -> RendezvousStoreInfo:
        """Wait until all nodes of a new round know it, and agree on where their workers meet.

        A node may have died while it waited, just before the round. torchrun itself has no way back
        once it has a world, so this is found out here.
        """
        where = world.bootstrap_store_info
        assert where is not None  # noqa: S101 - rdzv's own handler always says where
        # Each round has a server of its own: what the workers of the last one left is not for this one's.
        self._server = None
        if world.rank == 0:
            store.multi_get([f"{_READY_PREFIX}/{rank}" for rank in range(1, world.world_size)])
            if self.use_agent_store:
                self._server = _serve(where.master_addr, where.master_port if self._handler.settings.ports else 0)
            port = where.master_port if self._server is None else self._server.port
            keys = [RendezvousStoreInfo.MASTER_ADDR_KEY, RendezvousStoreInfo.MASTER_PORT_KEY]
            store.multi_set(keys, [where.master_addr, str(port)])
            return RendezvousStoreInfo(where.master_addr, port)
        store.set(f"{_READY_PREFIX}/{world.rank}", "")
        address, port_text = store.multi_get([RendezvousStoreInfo.MASTER_ADDR_KEY, RendezvousStoreInfo.MASTER_PORT_KEY])
        return RendezvousStoreInfo(address.decode(), int(port_text))

    def _log_lost_members(self) -> None:
        """Log each member of the round that is gone, and what comes of it."""
        status = self._handler.view.status
        if status is None or status.round != self._round:
            return
        left, limits = self._size - status.gone, self._handler.settings.limits
        outcome = "The others go on without it."
        if not limits.largest(left):
            outcome = (
                f"The {left} others are too few for a world of at least {limits.min_nodes}: their workers run until "
                "they end or fail, or another node comes."
            )
        for departure in status.departures:
            if departure.node not in self._logged_losses:
                self._logged_losses.add(departure.node)
                logger.warning(
                    "The node '%s' of round %d is gone (%s). %s", departure.node, self._round, departure.cause, outcome
                )

    def _broken(self) -> str | None:
        """Why this node's round will not be completed; None as long as it may be."""
        if (closed := self._handler.view.closed) is not None:
            return f"The run is closed: {closed.reason}."
        status = self._handler.view.status
        if status is None or status.round < self._round or (status.round == self._round and status.phase == "running"):
            return None
        lost = ", ".join(f"'{departure.node}' is gone ({departure.cause})" for departure in status.departures)
        return f"The world of round {self._round} is no longer whole: {lost or 'others form a new one'}."

    def _unfinished(self, error: BaseException | None) -> str | None:
        """Why the job is not done, although this node ends; None if it is."""
        if self._handler.view.is_drained:
            return self._handler.view.drain_reason
        if isinstance(error, ChildFailedError):
            rank, failure = error.get_first_failure()
            return f"its worker with rank {rank} has failed for good, with exit code {failure.exitcode}"
        if error is not None:
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return None if self._handler.view.closed is not None else self._broken()

    @property
    def _run(self) -> str:
        return self._handler.settings.run

    def _record(self, method: str, message: str, state: NodeState = NodeState.RUNNING, rank: int | None = None) -> None:
        """Tell torch's event log, which is switched off unless the user has set it up."""
        self._record_event(method, f"The node '{self._handler.view.node_id}' {message}.", state, rank)

    @contextmanager
    def _failures_recorded(self, method: str) -> Iterator[None]:
        """Tell torch's event log if something fails."""
        try:
            yield
        except Exception as error:
            self._record_event(method, f"{type(error).__name__}: {error}", NodeState.FAILED)
            raise

    def _record_event(self, method: str, message: str, state: NodeState, rank: int | None = None) -> None:
        construct_and_record_rdzv_event(
            run_id=self.get_run_id(),
            message=message,
            node_state=state,
            name=f"{type(self).__name__}.{method}",
            hostname=self._hostname,
            pid=os.getpid(),
            local_id=self._local_id,
            rank=rank,
        )


def _is_missing_result(error: BaseException | None) -> bool:
    """Whether this is the error over which torch's launcher stumbles: a spare that ends has no result."""
    return isinstance(error, AttributeError) and error.obj is None and error.name == "is_failed"


def _serve(address: str, port: int) -> TCPStore:
    """Serve a TCPStore on a port of every interface; 0: on one that is free."""
    # Connecting to it by the address that others use may need a way back that a network lacks.
    loopback = "::1" if ":" in address else "127.0.0.1"
    return keep_in_children(TCPStore(loopback, port, is_master=True, wait_for_workers=False))
