"""The servers of one ZooKeeper: which of them to use, and how a session is attached to one."""

import math
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rdzv.endpoints import Endpoint, source_address
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError

from . import wire
from .failures import BrokenError, EndpointError, NotZooKeeperError, SessionEndedError
from .security import Login
from .transport import Line, Transport

__all__ = ["Ensemble", "Identity"]

_NO_PASSWORD: Final = bytes(16)
_ENDED: Final = (
    "; a server does so while its ensemble has no leader, when it has too many connections from one address "
    "(its maxClientCnxns), or when one end speaks TLS and the other one does not (our option tls)"
)
_LONGEST_TIMEOUT: Final = 2**31 - 1
"""In milliseconds: what fits into the request."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the ensemble knows a session by. A client that shows it speaks for the session, from any connection.

    Attributes:
        number: Unique for the life of the ensemble.
        password: Proves that the session is ours.
        timeout: After so many seconds of silence it ends; as granted.
    """

    number: int
    password: bytes
    timeout: float


class Ensemble:
    """The servers, of one process."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        login: Login,
        request_timeout: float,
    ) -> None:
        self.login = login
        self.request_timeout = request_timeout
        self.transport = Transport(tls, server_name)
        self._endpoints = tuple(endpoints)
        # Whether it ever answered as ZooKeeper does.
        self._known = False
        self._lock = threading.Lock()
        self.closed = False

    @property
    def size(self) -> int:
        """How many endpoints there are."""
        return len(self._endpoints)

    def attach(self, identity: Identity | None, timeout: float, deadline: float) -> tuple[Line, Identity]:
        """Connect a session to whichever server takes it.

        Args:
            identity: Of the session; None: make a new one.
            timeout: The seconds of silence that a new session should outlast.
            deadline: Until when.

        Raises:
            SessionEndedError: There is no such session any more.
            RendezvousConnectionError: No server could be reached (`RendezvousDeniedError`: all refuse us, or
                answer as something else, and none ever did otherwise).
        """
        self.check_open()
        started = time.monotonic()
        failures: list[tuple[Endpoint, EndpointError]] = []
        endpoints = self._endpoints
        for left in range(len(endpoints), 0, -1):
            endpoint = endpoints[-left]
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            # The last one gets all the time that is left, the others leave some for those behind them.
            patience = remaining if left == 1 else min(self.request_timeout, remaining / left)
            try:
                return self._attempt(endpoint, identity, timeout, time.monotonic() + patience)
            except EndpointError as failure:
                failures.append((endpoint, failure))
                self.demote(endpoint)
        self.check_open()
        if not failures:
            raise RendezvousConnectionError("ZooKeeper was not asked: no time was left")
        reasons = "; ".join(f"{endpoint}: {failure}" for endpoint, failure in failures)
        now, cause = time.monotonic(), failures[-1][1]
        if len(failures) == len(endpoints) and all(failure.denied for _, failure in failures):
            raise RendezvousDeniedError(f"ZooKeeper cannot be used: {reasons}") from cause
        told = f"did not answer within {now - started:.1f} s" if now >= deadline else "could not be reached"
        raise RendezvousConnectionError(f"ZooKeeper {told}: {reasons}") from cause

    def demote(self, endpoint: Endpoint) -> None:
        """Try an endpoint after all others from now on."""
        with self._lock:
            self._endpoints = (*(other for other in self._endpoints if other is not endpoint), endpoint)

    def local_address(self) -> str:
        """The source address of this machine towards ZooKeeper.

        Raises:
            RendezvousConnectionError: There is no route to any endpoint.
        """
        return self.transport.local_address() or source_address(self._endpoints, self.request_timeout)

    def check_open(self) -> None:
        """Raise `RendezvousConnectionError` after `close`."""
        if self.closed:
            raise RendezvousConnectionError("This backend was closed.")

    def close(self) -> None:
        """End every connection, also those in use."""
        self.closed = True
        self.transport.close()

    def discard_inherited(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        self.closed = True
        self.transport.discard_inherited()

    def _attempt(
        self, endpoint: Endpoint, identity: Identity | None, timeout: float, deadline: float
    ) -> tuple[Line, Identity]:
        line = self.transport.connect(endpoint, deadline)
        try:
            granted = _shake_hands(line, identity, timeout, deadline)
            self._known = True
            self.login.perform(line, deadline)
        except BrokenError as error:
            self.transport.disconnect(line)
            # What was ZooKeeper before is so again later, whatever answers for it meanwhile.
            denied = error.denied or (isinstance(error, NotZooKeeperError) and not self._known)
            raise EndpointError(f"no session: {error}{self._hint(error)}", denied=denied) from error
        except BaseException:
            self.transport.disconnect(line)
            raise
        return line, granted

    def _hint(self, error: BrokenError) -> str:
        ended = _ENDED if isinstance(error.__cause__, ConnectionResetError | BrokenPipeError) else ""
        return ended if self._known or isinstance(error, NotZooKeeperError) else f"{ended}; is it ZooKeeper?"


def _shake_hands(line: Line, identity: Identity | None, timeout: float, deadline: float) -> Identity:
    number, password = (identity.number, identity.password) if identity else (0, _NO_PASSWORD)
    asked = min(math.ceil((identity.timeout if identity else timeout) * 1000), _LONGEST_TIMEOUT)
    # We claim to have seen nothing yet: every read asks for the latest anyway, and a server that was
    # set up anew, or restored from a copy, would refuse a client that has seen more than it has.
    seen = 0
    line.send(wire.frame(wire.Connect(0, seen, asked, number, password, False), None), deadline)
    try:
        granted, proof, milliseconds = wire.parse_connect(line.receive_one(deadline))
    except wire.MalformedError as error:
        raise NotZooKeeperError(f"it is not ZooKeeper: its answer is malformed ({error})") from error
    if milliseconds <= 0:
        if identity is None:
            raise EndpointError("it gives us no session")
        raise SessionEndedError("the session has ended")
    return Identity(granted, proof, milliseconds / 1000)
