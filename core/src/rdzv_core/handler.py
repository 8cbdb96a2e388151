"""What a rendezvous offers to its caller, and what it hands out."""

import logging
import socket
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from .endpoints import Endpoint, source_address
from .errors import RendezvousConnectionError, RendezvousStateError
from .text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Drain", "RendezvousHandler", "RendezvousInfo", "RendezvousStoreInfo"]

logger = logging.getLogger(__name__)

_TEST_NET: Final = (Endpoint("192.0.2.1", 0), Endpoint("2001:db8::1", 0))
"""Addresses for documentation (RFC 5737, RFC 3849): the way to them is the way out of this machine."""


@dataclass
class RendezvousStoreInfo:
    """Where the nodes of a round can meet by themselves, without the service.

    Attributes:
        master_addr: The address of rank 0.
        master_port: A port there.
    """

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"

    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int, store: Any, local_addr: str | None = None, server_port: int | None = None
    ) -> "RendezvousStoreInfo":
        """Agree on address and port over the round's store: rank 0 writes them, all read them.

        Args:
            rank: This node's rank.
            store: The round's store, rdzv's or torch's.
            local_addr: This node's address as the others reach it. None: the address from which
                this machine sends to others; no resolver is asked for its name.
            server_port: The port on which rank 0 listens. None or 0: one that is free now (though
                another process may take it before it is used).

        Raises:
            RendezvousStateError: What rank 0 wrote is not a port.
        """
        if rank == 0:
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY, (local_addr or default_source_address()).encode())
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(server_port or _free_port()).encode())
        address = store.get(RendezvousStoreInfo.MASTER_ADDR_KEY)
        port = store.get(RendezvousStoreInfo.MASTER_PORT_KEY)
        try:
            return RendezvousStoreInfo(address.decode(), int(port))
        except ValueError as error:
            raise RendezvousStateError(f"Rank 0 cannot be at {address!r}, port {port!r}: {error}.") from error


class _Members:
    """The ids of a world, or a function that reads them: it is called when they are asked for, once."""

    def __get__(self, info: "RendezvousInfo | None", owner: type | None = None) -> tuple[str, ...]:
        if info is None:
            return ()
        found: tuple[str, ...] | Callable[[], tuple[str, ...]] = info.__dict__["_members"]
        if callable(found):
            found = info.__dict__["_members"] = found()
        return found

    def __set__(
        self, info: "RendezvousInfo", members: "tuple[str, ...] | Callable[[], tuple[str, ...]] | _Members"
    ) -> None:
        # Without any, the dataclass gives the descriptor itself, which is its default.
        info.__dict__["_members"] = () if isinstance(members, _Members) else members


@dataclass(frozen=True, eq=False)
class RendezvousInfo:
    """The world that a node got.

    Attributes:
        store: The key-value store that the nodes of this round share.
        rank: This node's number, from 0.
        world_size: How many nodes there are.
        bootstrap_store_info: Where rank 0 is, for what the nodes set up among themselves.
        round: Which world of the run this is; every new one has a higher number.
        run_id: Which run.
        nodes: The ids of all nodes, in rank order. Those of a large world are read from the service when they are asked
            for first: a `RendezvousError` says that it is away, or that two more rounds were formed meanwhile.
    """

    store: Any
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo | None
    _: KW_ONLY
    round: int = 0
    run_id: str = ""
    nodes: _Members = field(default=_Members(), repr=False)  # to be shown, it may have to be read


@dataclass(frozen=True, slots=True)
class Drain:
    """A node that is about to leave its run.

    Attributes:
        node: The node's id.
        seconds: For how many more seconds it stays at most; 0: its time is over, and it may be gone.
        reason: Why it leaves, in words.
    """

    node: str
    seconds: float
    reason: str


class RendezvousHandler(ABC):
    """One node's part in the rendezvous of a run.

    As a context manager it shuts down at the end, and only leaves if the block fails: the crash of
    one node is no reason to end the run for the others.
    """

    @abstractmethod
    def get_backend(self) -> str:
        """The name of the backend."""

    @property
    def use_agent_store(self) -> bool:
        """Whether the store's server outlives the round, so that the application may use it as well."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next world that this node is part of.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousConnectionError: The service could not be reached.
            RendezvousGracefulExitError: The job ended without this node.
            RendezvousStateError: What the service holds is corrupt.
            RendezvousTimeoutError: No world came about within the join timeout.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the run is closed, as far as this node knows; it may learn a moment later than others."""

    @abstractmethod
    def set_closed(self) -> None:
        """Close the run: no node gets a further world."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes wait outside the current world and could be in the next one.

        Above zero, the members of the current world should call `next_rendezvous` again.
        """

    @abstractmethod
    def get_run_id(self) -> str:
        """Which run."""

    @abstractmethod
    def shutdown(self) -> bool:
        """End this node's part, with the job being over, and release everything.

        Returns:
            Whether the service has confirmed it.
        """

    def leave(self, reason: str = "it left") -> bool:
        """End this node's part without ending the run for the others.

        The default is `shutdown`, for handlers that know no difference.

        Args:
            reason: Why, for the others to read.

        Returns:
            Whether the service has confirmed it.
        """
        del reason
        return self.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # sys.exit() or sys.exit(0) is how a program says that it is done.
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.shutdown()
            return
        try:
            self.leave(f"{type(error).__name__}: {error}")
        except Exception:
            # The caller must see the error of the block, not this one.
            logger.warning("Leaving the run '%s' failed.", printable(self.get_run_id()), exc_info=True)


def default_source_address() -> str:
    """The address from which this machine sends to others; that of the loopback if it has no way to them."""
    try:
        return source_address(_TEST_NET, timeout=0.0)
    except RendezvousConnectionError:
        # Without a way out, every node that can take part is on this machine.
        return "127.0.0.1"


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
