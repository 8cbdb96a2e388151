"""The port of this machine that a node offers to the world of which it may become rank 0."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from rdzv_core.errors import RendezvousConnectionError

from ..shortages import outlast


class Ports:
    """The ports of this machine that one node may offer, one in each wait."""

    def __init__(self, wanted: range) -> None:
        """Any that is free, where none is `wanted`."""
        self._wanted = wanted
        self._claim: socket.socket | None = None

    @contextmanager
    def reserved(
        self, address: str, deadline: float, tell: Callable[[OSError | None], None] = lambda error: None
    ) -> Iterator[int]:
        """Keep a port for the time of the wait, and free it just before it is used.

        No other node of this machine takes one that is wanted until `release`, or the next wait: the program that is
        to listen there takes a while.

        Args:
            address: Where the others will look for it.
            deadline: Until when a port is tried for, on the monotonic clock.
            tell: See `outlast`.

        Raises:
            RendezvousConnectionError: None was free for long.
        """
        self.release()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with outlast(partial(self._take, family), deadline=deadline, tell=tell) as held:
                yield held.getsockname()[1]
        except BaseException:
            # Ctrl-C, too: nothing will listen there.
            self.release()
            raise

    def release(self) -> None:
        """Leave the port of the last wait to other nodes."""
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.close()

    def _take(self, family: socket.AddressFamily) -> socket.socket:
        failure: OSError | None = None
        for port in self._wanted or (0,):
            try:
                return self._take_one(family, port)
            except OSError as error:
                failure = error
        if not self._wanted:
            limits = "ulimit -n, ip_local_port_range"
            raise RendezvousConnectionError(f"This machine has no port for a world: {failure} ({limits}).") from failure
        raise RendezvousConnectionError(
            f"No port from {self._wanted[0]} to {self._wanted[-1]} (master_port) can be taken on this machine: "
            f"{failure}. End what has them, or give a range with a port for each node on this machine."
        ) from failure

    def _take_one(self, family: socket.AddressFamily, port: int) -> socket.socket:
        with ExitStack() as undo:
            # Sockets that do not listen may share a port of TCP, and the program has to be able to take it. Nodes keep
            # each other from it by that of UDP, which no program needs, and which goes with the process.
            claim = undo.enter_context(socket.socket(family, socket.SOCK_DGRAM)) if port else None
            if claim is not None:
                claim.bind(("", port))
            held = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("", port))
            undo.pop_all()
        self._claim = claim
        return held
