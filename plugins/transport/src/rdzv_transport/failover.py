"""Which member of a service is asked, for how long, and what it means that none answers.

A member is one address of one endpoint: several that one name stands for are as good as several endpoints. One call is
one attempt at each member at most; trying again later is rdzv's affair.
"""

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from rdzv_core.endpoints import Endpoint, source_address
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from .present import Present
from .sockets import LONGEST, Address, EndpointError, NotConnectedError, Sockets, TimedSocket

_T = TypeVar("_T")

_TRIPS: Final = 4
"""Round trips of an attempt: the connection, TLS, which cluster it is, and the answer."""
_HICCUP: Final = 0.1
"""Seconds without an answer that prove nothing, however quick the last one was."""


class ReplyLostError(RendezvousConnectionError):
    """The request may have been applied, but no answer came."""


@dataclass(eq=False, slots=True)
class Member:
    """One address of an endpoint.

    Attributes:
        endpoint: As the user wrote it.
        address: What that means; None: its name was not looked up yet.
        responded_at: When it last said anything, on the monotonic clock; 0: never.
        took: Seconds that its last answer to a call took; at least so many, where it did not come; 0: there was none.
        failed: Its last attempt did.
    """

    endpoint: Endpoint
    address: Address | None = None
    responded_at: float = 0.0
    took: float = 0.0
    failed: bool = False

    @property
    def name(self) -> str:
        """Its host as certificates and requests name it: in ASCII, as it is looked up, without the interface of an
        address of IPv6, and without the dot that ends a full name."""
        host = self.endpoint.host.partition("%")[0].removesuffix(".")
        return host if host.isascii() else host.encode("idna").decode()

    def __str__(self) -> str:
        if self.address is None or self.address.host == self.endpoint.host:
            return str(self.endpoint)
        return f"{self.endpoint} ({self.address.host})"


class FailoverClient:
    """The members of one service, as one process uses them: one that fails is tried last from then on.

    A name is looked up anew when all members behind it have failed.

    Args:
        service: What it is called in messages.
        endpoints: The first is tried first.
        tls: How to verify the endpoints, and with which certificate of our own; None: no TLS.
        server_name: The name in the endpoints' certificates, if it is not the endpoint's.
        request_timeout: Seconds that one of several members has to answer before the next is tried.
        scheme: What stands before an endpoint in messages.
        without_tls: What the user sets to go without TLS, for messages.
        early: How many connections are begun before they are needed, each when the one before it is there: they cost a
            node that joins no round trip then. Who only looks makes one too many.

    Attributes:
        request_timeout: See there.
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
        early: int = 0,
    ) -> None:
        self.request_timeout = min(request_timeout, LONGEST)
        self.sockets = Sockets(tls, server_name, without_tls)
        self.closed = False
        self.understood = False
        self._service = service
        self._scheme = scheme
        self._members = tuple(Member(endpoint) for endpoint in endpoints)
        self._early = early
        self._connections = 0
        self._lock = threading.Lock()

    @property
    def members(self) -> tuple[Member, ...]:
        """The members that are known, the one to try first before the others."""
        return self._members

    @property
    def patience(self) -> float:
        """Seconds within which every member had its chance to answer."""
        return self.request_timeout * len(self._members)

    def try_members(
        self,
        attempt: Callable[[Member, float], _T],
        timeout: float,
        *,
        repeatable: bool = True,
    ) -> _T:
        """Attempt something at one member after the other until one does it.

        Args:
            attempt: Is given the member, and until when; raises an `EndpointError` if another one may do better.
            timeout: Seconds for everything.
            repeatable: Whether it may be attempted again though it may have been applied already.

        Raises:
            ReplyLostError: It may have been applied (only if it is not repeatable).
            RendezvousConnectionError: No member could be reached (`RendezvousDeniedError`: all refuse us).
        """
        self.check_open()
        started = time.monotonic()
        deadline = started + min(timeout, LONGEST)
        failures: list[tuple[Member, EndpointError]] = []
        queue, lost = list(self._members), self._lost()
        while queue and (began := time.monotonic()) < deadline:
            member = queue.pop(0)
            try:
                if member.endpoint in lost:
                    lost.remove(member.endpoint)
                    member, *more = self._locate(member.endpoint, self._until(deadline, 1 + len(queue)))
                    queue = [*more, *(other for other in queue if other.endpoint != member.endpoint)]
                result = attempt(member, self._until(deadline, 1 + len(queue)))
            except EndpointError as failure:
                failures.append((member, failure))
                self._note_failure(member, failure, time.monotonic() - began)
                if failure.applied and not repeatable:
                    raise ReplyLostError(self._describe(failures, started, deadline)) from failure
            else:
                member.failed = False
                return result
        self.check_open()
        cause = failures[-1][1] if failures else None
        if not queue and _are_denied(failures):
            raise RendezvousDeniedError(f"{self._service} cannot be used: {self.reasons(failures)}") from cause
        raise RendezvousConnectionError(self._describe(failures, started, deadline)) from cause

    def time_to_answer(self, member: Member, timeout: float) -> float:
        """Seconds that a member has to answer what is asked within `timeout`: of several, each has its share, or what
        it may need, if that is longer."""
        if len(self._members) == 1:
            return self.request_timeout
        return min(self.request_timeout, max(timeout / len(self._members), self._needed(member)))

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
        """Put a member last that has failed, and fail the calls that wait for it, if there are others."""
        self._put_last(member)
        if len(self._members) > 1:
            self.hang_up(member)

    def hang_up(self, member: Member) -> None:
        """End the connections to a member that are kept, which are none here."""

    def abandon(self, member: Member) -> None:
        """End the connection to a member that was begun early, if there is one."""
        if member.address is not None:
            self.sockets.abandon(member.address)

    def connect(self, member: Member, deadline: float) -> TimedSocket:
        """A new connection to a member. See `Sockets.connect`."""
        with self._lock:
            self._connections = count = self._connections + 1
        address = member.address or self.sockets.resolve(member.endpoint, deadline)[0]
        sock = self.sockets.connect(address, member.name, deadline)
        # Not while another thread makes one: that is the one that was needed.
        if count == self._connections and count <= self._early:
            self.sockets.begin(address)
        return sock

    def reasons(self, failures: Sequence[tuple[Member, EndpointError]]) -> str:
        """What has failed, in words."""
        return "; ".join(f"{self._scheme}{member}: {failure}" for member, failure in failures)

    def local_address(self) -> str:
        """The source address of this machine towards the service.

        Raises:
            RendezvousConnectionError: There is no route to any endpoint.
        """
        endpoints = list(dict.fromkeys(member.endpoint for member in self._members))
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

    def _note_failure(self, member: Member, failure: EndpointError, seconds: float) -> None:
        """Put a member last that has failed an attempt after so many seconds. They may have been its share of a short
        call, and less than it needs: then the calls that wait for it go on."""
        if not isinstance(failure.__cause__, TimeoutError):
            self.demote(member)
            return
        needed = self._needed(member)
        if member.took:
            # So a member that has become slow is hung up on once, and not each time.
            member.took = max(member.took, seconds)
        if seconds < needed:
            self._put_last(member)
        else:
            self.demote(member)

    def _needed(self, member: Member) -> float:
        """Seconds that a member may need to answer; of one that has answered no call that is not known."""
        usual = max(_HICCUP, _TRIPS * member.took) if member.took else self.request_timeout
        return min(self.request_timeout, usual)

    def _put_last(self, member: Member) -> None:
        """Try a member after all others from now on."""
        member.failed = True
        self.abandon(member)
        with self._lock:
            if member in self._members:
                self._members = (*(other for other in self._members if other is not member), member)

    def _until(self, deadline: float, left: int) -> float:
        """How long the next of some members may take: the last one has all the time that is left, the others leave some
        for those behind them."""
        now = time.monotonic()
        return deadline if left == 1 else now + min(self.request_timeout, (deadline - now) / left)

    def _lost(self) -> set[Endpoint]:
        """The endpoints behind which no member is known that may answer."""
        if not any(member.failed or member.address is None for member in self._members):  # as nearly always
            return set()
        hopeful = {member.endpoint for member in self._members if member.address is not None and not member.failed}
        return {member.endpoint for member in self._members} - hopeful

    def _locate(self, endpoint: Endpoint, deadline: float) -> list[Member]:
        """The members behind an endpoint as its name is resolved now, new ones first; as it was, where that fails.

        Raises:
            EndpointError: It fails, and never did otherwise.
        """
        try:
            addresses = self.sockets.resolve(endpoint, deadline)
        except EndpointError:
            if known := [member for member in self._members if member.endpoint == endpoint and member.address]:
                return known
            raise
        with self._lock:
            before = [member for member in self._members if member.endpoint == endpoint]
            others = [member for member in self._members if member.endpoint != endpoint]
            known = [member for member in before if member.address in addresses]
            new = set(addresses) - {member.address for member in known}
            found = [*(Member(endpoint, address) for address in addresses if address in new), *known]
            self._members = (*found, *others)
        for member in before:
            if member not in known:
                self.hang_up(member)
        return found

    def _describe(self, failures: Sequence[tuple[Member, EndpointError]], started: float, deadline: float) -> str:
        if not failures:
            return f"{self._service} was not asked: no time was left"
        now = time.monotonic()
        if now >= deadline or any(isinstance(failure.__cause__, TimeoutError) for _, failure in failures):
            return f"{self._service} did not answer within {now - started:.1f} s: {self.reasons(failures)}"
        return f"{self._service} could not be used: {self.reasons(failures)}"


def _are_denied(failures: Sequence[tuple[Member, EndpointError]]) -> bool:
    """Whether every endpoint refuses us: of the addresses of one, those that take no connection do not count."""
    refusing = {member.endpoint for member, failure in failures if failure.denied}
    return bool(failures) and all(
        failure.denied or (isinstance(failure, NotConnectedError) and member.endpoint in refusing)
        for member, failure in failures
    )
