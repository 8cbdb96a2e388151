"""Whether the service answers one node; for how long it has not, what that makes of others' leases, and the log of it.

The states are Curator's (`ConnectionState`), without READ_ONLY.
"""

import math
from collections.abc import Callable
from enum import Enum
from typing import Final

from rdzv_core.errors import RendezvousConnectionError

from .aside import node_logger

logger = node_logger(__name__)

_PATIENCE: Final = 5.0
"""Seconds of silence that are worth a line of the log: a server that restarts takes less."""


class ConnectionState(Enum):
    """How a node stands with its service."""

    CONNECTED = "the last call was answered"
    SUSPENDED = "a call was not answered; leases still live"
    LOST = "no lease was renewed for so long that leases may have ended, those of other nodes, too"


class Connection:
    """One node's connection to its service.

    Attributes:
        error: Why the last call was not answered; None: it was.
        round_trip: Seconds that the last renewal took; 0: there was none yet.
    """

    def __init__(self, run: str, backend: str, clock: Callable[[], float], interval: float, ttl: float) -> None:
        """Begin without a contact.

        Args:
            run: The run, as messages show it.
            backend: The backend's name.
            clock: The node's monotonic clock, in seconds.
            interval: Seconds between two keep-alives.
            ttl: Seconds after which a silent node counts as dead.
        """
        self.error: RendezvousConnectionError | None = None
        self.round_trip = 0.0
        self._service = f"The service of the rendezvous '{run}' on backend '{backend}'"
        self._clock = clock
        self._ttl = ttl
        self._longest_gap = max(1.5 * interval, ttl - interval)
        self._grace_since: float | None = None
        self._last_contact = -math.inf
        self._last_renewal = -math.inf
        self._silent_since: float | None = None
        self._logged_since: float | None = None

    @property
    def state(self) -> ConnectionState:
        """See `ConnectionState`."""
        # A service that answers reads may refuse renewals, to all nodes: whether it does, only a renewal tells.
        if self._clock() - self._last_renewal > self._longest_gap:
            return ConnectionState.LOST
        return ConnectionState.CONNECTED if self.error is None else ConnectionState.SUSPENDED

    def on_contact(self) -> None:
        """Note that the service has answered."""
        now = self._clock()
        if self._logged_since is not None:
            logger.warning("%s has answered a call again, after %.0f s.", self._service, now - self._logged_since)
        self._last_contact, self.error = now, None
        self._silent_since = self._logged_since = None

    def on_renewal(self, sent: float) -> None:
        """Note that the service has renewed this node's lease, or begun it: so it would those of others.

        Args:
            sent: When it was asked to.
        """
        if self._grace_since is None or self.state is ConnectionState.LOST:
            self._grace_since = self._clock()
        self._last_renewal, self.round_trip = sent, self._clock() - sent

    def on_error(self, error: RendezvousConnectionError, lasted: float = 0.0) -> None:
        """Note that the service did not answer a call, or not with success.

        Args:
            error: Why.
            lasted: Seconds from the call to the error: where a message is lost, the silence began before it.
        """
        self.error = error
        now = self._clock()
        if self._silent_since is None:
            self._silent_since = max(now - lasted, self._last_contact)
        # A call that has as many seconds ends a moment sooner.
        if round(now - self._silent_since, 1) >= _PATIENCE and self._logged_since is None:
            known = self._last_contact > -math.inf
            self._logged_since = self._last_contact if known else self._silent_since
            logger.warning(
                "%s has answered no call with success for %.0f s, and is asked again and again%s: %s",
                self._service,
                now - self._logged_since,
                f"; from {self._ttl:g} s on the others may go on without this node" if known else "",
                error,
            )

    @property
    def is_silence_told(self) -> bool:
        """Whether the log says that calls are not answered, and why."""
        return self._logged_since is not None

    def since_last_contact(self) -> float:
        """Seconds since the service last answered; infinite if it never did."""
        return self._clock() - self._last_contact

    def silence(self) -> float:
        """Seconds since calls are not answered with success; 0: the last one was."""
        return 0.0 if self._silent_since is None else self._clock() - self._silent_since

    def reset_grace_period(self) -> None:
        """Begin the grace period: the other nodes get a time to live to come back."""
        self._grace_since = None

    def grace_remaining(self) -> float:
        """Seconds of the grace period that are left, until this node may declare a silent member lost."""
        now = self._clock()
        # A service that was frozen may push the end of all leases before it answers anything.
        since = self._grace_since
        if since is None or self.state is ConnectionState.LOST:
            since = now
        return max(0.0, since + self._ttl - now)
