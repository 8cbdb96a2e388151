"""Which endpoint of a service is asked, for how long, and what it means that none answers.

One call is one attempt at each endpoint at most; trying again later is rdzv's affair.
"""

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rdzv_core.endpoints import Endpoint, source_address
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from .present import Present
from .sockets import LONGEST, EndpointError, Sockets

_T = TypeVar("_T")


class ReplyLostError(RendezvousConnectionError):
    """The request may have been applied, but no answer came."""


@dataclass(eq=False, slots=True)
class Member:
    """One endpoint of a service.

    Attributes:
        endpoint: Where it is.
        responded_at: When it last said anything, on the monotonic clock; 0: never.
    """

    endpoint: Endpoint
    responded_at: float = 0.0


class FailoverClient:
    """The endpoints of one service, as one process uses them: one that fails is tried last from then on.

    Args:
        service: What it is called in messages.
        endpoints: The first is tried first.
        tls: How to verify the endpoints, and with which certificate of our own; None: no TLS.
        server_name: The name in the endpoints' certificates, if it is not the endpoint's.
        request_timeout: Seconds that one of several endpoints has to answer before the next is tried.
        scheme: What stands before an endpoint in messages.
        without_tls: What the user sets to go without TLS, for messages.

    Attributes:
        request_timeout: See there.
        patience: Seconds within which every endpoint had its chance to answer.
        sockets: The connections to them.
        closed: `close` was called.
        understood: Whether any endpoint ever answered as the service does. A service that was there before may come
            back to where something else answers for it meanwhile.
    """

    def __init__(
        self,
        service: str,
        endpoints: Sequence[Endpoint],
        *,
        tls: Present[ssl.SSLContext] | None,
        server_name: str | None,
        request_timeout: float,
        scheme: str,
        without_tls: str,
    ) -> None:
        self.request_timeout = min(request_timeout, LONGEST)
        self.patience = self.request_timeout * len(endpoints)
        self.sockets = Sockets(tls, server_name, without_tls)
        self.closed = False
        self.understood = False
        self._service = service
        self._scheme = scheme
        self._members = tuple(Member(endpoint) for endpoint in endpoints)
        self._lock = threading.Lock()

    @property
    def members(self) -> tuple[Member, ...]:
        """The endpoints, the one to try first before the others."""
        return self._members

    def try_members(
        self,
        attempt: Callable[[Member, float], _T],
        timeout: float,
        *,
        repeatable: bool = True,
    ) -> _T:
        """Attempt something at one endpoint after the other until one does it.

        Args:
            attempt: Is given the endpoint, and until when; raises an `EndpointError` if another one may do better.
            timeout: Seconds for everything.
            repeatable: Whether it may be attempted again though it may have been applied already.

        Raises:
            ReplyLostError: It may have been applied (only if it is not repeatable).
            RendezvousConnectionError: No endpoint could be reached (`RendezvousDeniedError`: all refuse us).
        """
        self.check_open()
        started = time.monotonic()
        deadline = started + min(timeout, LONGEST)
        failures: list[tuple[Member, EndpointError]] = []
        members = self._members
        for left in range(len(members), 0, -1):
            member = members[-left]
            began = time.monotonic()
            if began >= deadline:
                break
            # The last one gets all the time that is left, the others leave some for those behind them.
            patience = deadline - began if left == 1 else min(self.request_timeout, (deadline - began) / left)
            try:
                return attempt(member, began + patience)
            except EndpointError as failure:
                failures.append((member, failure))
                self.demote(member)
                if failure.applied and not repeatable:
                    raise ReplyLostError(self._describe(failures, started, deadline)) from failure
        self.check_open()
        cause = failures[-1][1] if failures else None
        if len(failures) == len(members) and all(failure.denied for _, failure in failures):
            raise RendezvousDeniedError(f"{self._service} cannot be used: {self.reasons(failures)}") from cause
        raise RendezvousConnectionError(self._describe(failures, started, deadline)) from cause

    @contextlib.contextmanager
    def forgiving(self, deadline: float) -> Iterator[None]:
        """Within this, no failure comes of what only `deadline` cut short: that proves nothing against the service."""
        started = time.monotonic()
        try:
            yield
        except RendezvousDeniedError:
            raise
        except RendezvousConnectionError:
            now = time.monotonic()
            if now < deadline or now - started >= self.request_timeout or self.closed:
                raise

    def demote(self, member: Member) -> None:
        """Try an endpoint after all others from now on."""
        with self._lock:
            self._members = (*(other for other in self._members if other is not member), member)

    def reasons(self, failures: Sequence[tuple[Member, EndpointError]]) -> str:
        """What has failed, in words."""
        return "; ".join(f"{self._scheme}{member.endpoint}: {failure}" for member, failure in failures)

    def local_address(self) -> str:
        """The source address of this machine towards the service.

        Raises:
            RendezvousConnectionError: There is no route to any endpoint.
        """
        endpoints = [member.endpoint for member in self._members]
        return self.sockets.local_address() or source_address(endpoints, self.request_timeout)

    def check_open(self) -> None:
        """Raise `RendezvousConnectionError` after `close`."""
        if self.closed:
            raise RendezvousConnectionError("This backend was closed.")

    def close(self) -> None:
        """End every connection, also those in use."""
        self.closed = True
        self.sockets.close()

    def discard_inherited(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        self.closed = True
        self.sockets.discard_inherited()

    def _describe(self, failures: Sequence[tuple[Member, EndpointError]], started: float, deadline: float) -> str:
        if not failures:
            return f"{self._service} was not asked: no time was left"
        now = time.monotonic()
        if now >= deadline or any(isinstance(failure.__cause__, TimeoutError) for _, failure in failures):
            return f"{self._service} did not answer within {now - started:.1f} s: {self.reasons(failures)}"
        return f"{self._service} could not be used: {self.reasons(failures)}"
