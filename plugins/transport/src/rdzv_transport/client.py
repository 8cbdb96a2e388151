"""Calls to a service: at which endpoint, for how long, and what it means that none answers.

One call is one attempt at each endpoint at most; trying again later is the core's affair.
"""

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from rdzv.endpoints import Endpoint, source_address
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError

from .connection import LONGEST, Connection, EndpointError, Member, Reply, Request, ResponseTimeoutError, Transport
from .stream import Stream

__all__ = ["CancelToken", "Client", "ReplyLostError"]

_T = TypeVar("_T")


class ReplyLostError(RendezvousConnectionError):
    """The request may have been applied, but no answer came."""


class CancelToken:
    """By this, other threads end a call in progress, or move it to another endpoint."""

    def __init__(self) -> None:
        self.cancelled = False
        self._using: tuple[Member, Connection] | None = None
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """End the call, for good."""
        with self._lock:
            self.cancelled = True
            if self._using:
                self._using[1].interrupt()

    def leave(self, member: Member) -> None:
        """Have the call move on if it waits for this endpoint."""
        with self._lock:
            if self._using and self._using[0] is member:
                self._using[1].interrupt()

    @contextlib.contextmanager
    def using(self, member: Member, connection: Connection) -> Iterator[None]:
        """For the time in which the call is made by this connection."""
        with self._lock:
            self._using = member, connection
            if self.cancelled:
                connection.interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._using = None


class Client:
    """The connection to one service, by all its endpoints, of one process.

    Args:
        service: What it is called in messages.
        endpoints: The first is tried first, one that fails last.
        check: Raises what an answer means that is no result: an `EndpointError` if another endpoint may do
            better, a `RendezvousError` if not, a ValueError if it is none of the service's.
        headers: Sent with every request.
        tls: How to verify the endpoints, and with which certificate of our own; None: no TLS.
        server_name: The name in the endpoints' certificates, if it is not the endpoint's.
        request_timeout: Seconds that one of several endpoints has to answer before the next is tried.
        kind: What the service is, more exactly, for the message about an endpoint that is something else.

    Attributes:
        request_timeout: See there.
        patience: Seconds within which every endpoint had its chance to answer.
        closed: `close` was called.
    """

    def __init__(
        self,
        service: str,
        endpoints: Sequence[Endpoint],
        check: Callable[[Reply], None],
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        request_timeout: float = 3.0,
        kind: str | None = None,
    ) -> None:
        self.request_timeout = min(request_timeout, LONGEST)
        self.patience = self.request_timeout * len(endpoints)
        self.closed = False
        self._understood = False
        self._service = service
        self._kind = kind or service
        self._check = check
        self._headers = dict(headers)
        self._transport = Transport(tls, server_name)
        self._scheme = "https" if tls else "http"
        self._members = tuple(Member(endpoint) for endpoint in endpoints)
        self._cancel_tokens: set[CancelToken] = set()
        self._lock = threading.Lock()

    def call(
        self, request: Request, timeout: float, read: Callable[[Reply], _T], cancel: CancelToken | None = None
    ) -> _T:
        """Ask one endpoint after the other until one answers.

        Args:
            request: What.
            timeout: Seconds for everything; what the service may keep the request comes on top.
            read: Makes the result of an answer that passed `check`. A KeyError or the like from it means
                that the answer is none of the service's.
            cancel: By this, other threads end the call.

        Raises:
            ReplyLostError: The request may have been applied (only if it is not repeatable).
            RendezvousConnectionError: No endpoint could be reached (`RendezvousDeniedError`: all refuse us, or
                answer as something else, and none ever did otherwise).
            RendezvousError: From `check`.
        """
        with self._registered(cancel or CancelToken()) as held:

            def attempt(member: Member, deadline: float) -> _T:
                return self._attempt(member, request, deadline, read, held)

            return self._try_members(attempt, request, timeout, held)

    def poll(self, request: Request, read: Callable[[Reply], _T], cancel: CancelToken) -> _T | None:
        """Ask the endpoint that did best so far for something that it may never answer.

        Returns:
            None if it did not answer within ``request.held`` seconds, or broke. That says little: call it.

        Raises:
            RendezvousError: From `check`.
        """
        self.check_open()
        member = self._members[0]
        with self._registered(cancel):
            try:
                return self._attempt(member, request, time.monotonic() + self.request_timeout, read, cancel)
            except ResponseTimeoutError:
                return None
            except EndpointError:
                if not cancel.cancelled:
                    self._demote(member)
                return None

    def open_stream(self, request: Request, timeout: float, read: Callable[[Reply], _T], alive: Request) -> Stream[_T]:
        """Ask for an answer that does not end; it need not have begun when this returns.

        When its endpoint fails a call, or itself, the stream breaks, and the next one is opened at another endpoint.

        Args:
            request: What.
            timeout: Seconds until it is sent.
            read: Makes something of one line of the answer, as in `call`.
            alive: What an endpoint is asked that has been silent for too long. Any answer shows that it lives.

        Raises:
            RendezvousConnectionError: No endpoint could be reached (`RendezvousDeniedError`: all refuse us).
        """

        def attempt(member: Member, deadline: float) -> Stream[_T]:
            def probe(until: float) -> None:
                asked = self._transport.connection(member, until)
                asked.exchange(alive, self._headers, until)
                self._keep(asked)

            def fail(failure: EndpointError) -> RendezvousError:
                self._demote(member)
                only_one = len(self._members) == 1
                kind = RendezvousDeniedError if failure.denied and only_one else RendezvousConnectionError
                return kind(f"{self._service} could not be used: {self._reasons([(member, failure)])}")

            with contextlib.ExitStack() as opening:
                connection = self._transport.connect(member, deadline)
                opening.callback(connection.close)
                cancel = opening.enter_context(self._registered(CancelToken()))
                opening.enter_context(cancel.using(member, connection))
                connection.send(request, self._headers, deadline)
                return Stream(
                    connection,
                    lambda reply: self._understand(reply, read),
                    probe=probe,
                    fail=fail,
                    patience=self.request_timeout,
                    closing=opening.pop_all(),
                )

        return self._try_members(attempt, request, timeout, CancelToken())

    def local_address(self) -> str:
        """The source address of this machine towards the service.

        Raises:
            RendezvousConnectionError: There is no route to any endpoint.
        """
        endpoints = [member.endpoint for member in self._members]
        return self._transport.local_address() or source_address(endpoints, self.request_timeout)

    def check_open(self) -> None:
        """Raise `RendezvousConnectionError` after `close`."""
        if self.closed:
            raise RendezvousConnectionError("This backend was closed.")

    def close(self) -> None:
        """End every connection, also those in use."""
        self.closed = True
        self._transport.close()
        for member in self._members:
            while member.idle:
                member.idle.pop().close()

    def discard_inherited(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        self.closed = True
        self._transport.discard_inherited()

    @contextlib.contextmanager
    def _registered(self, cancel: CancelToken) -> Iterator[CancelToken]:
        with self._lock:
            self._cancel_tokens.add(cancel)
        try:
            yield cancel
        finally:
            with self._lock:
                self._cancel_tokens.discard(cancel)

    def _try_members(
        self, attempt: Callable[[Member, float], _T], request: Request, timeout: float, cancel: CancelToken
    ) -> _T:
        """Attempt it at each endpoint until one does not fail."""
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
                if cancel.cancelled:
                    break
                self._demote(member)
                if failure.applied and not request.repeatable:
                    raise ReplyLostError(self._describe(failures, started)) from failure
                # What one endpoint was allowed to keep is not taken from the others.
                deadline += min(time.monotonic() - began, request.held)
        self.check_open()
        cause = failures[-1][1] if failures else None
        if len(failures) == len(members) and all(failure.denied for _, failure in failures):
            raise RendezvousDeniedError(f"{self._service} cannot be used: {self._reasons(failures)}") from cause
        raise RendezvousConnectionError(self._describe(failures, started)) from cause

    def _attempt(
        self, member: Member, request: Request, deadline: float, read: Callable[[Reply], _T], cancel: CancelToken
    ) -> _T:
        connection = self._transport.connection(member, deadline)
        with cancel.using(member, connection):
            reply = connection.exchange(request, self._headers, deadline + request.held)
        try:
            result = self._understand(reply, read)
        except BaseException:
            # A server with an unexpected answer may also break the order of requests and answers.
            connection.close()
            raise
        self._keep(connection)
        return result

    def _keep(self, connection: Connection) -> None:
        connection.keep()
        if self.closed:
            # It may have been kept after `close` looked.
            connection.close()

    def _understand(self, reply: Reply, read: Callable[[Reply], _T]) -> _T:
        try:
            self._check(reply)
            result = read(reply)
        except RendezvousError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise EndpointError(
                f"it did not answer as {self._service} does, but with HTTP {reply.status} and {reply.text!r}; "
                f"is it {self._kind}?",
                applied=True,
                # A service that was there before may come back to where something else answers for it meanwhile.
                denied=not self._understood,
            ) from error
        self._understood = True
        return result

    def _demote(self, member: Member) -> None:
        """Try an endpoint after all others from now on, and have the calls that wait for it leave it."""
        with self._lock:
            if len(self._members) == 1:
                return
            self._members = (*(other for other in self._members if other is not member), member)
            for cancel in self._cancel_tokens:
                cancel.leave(member)

    def _describe(self, failures: Sequence[tuple[Member, EndpointError]], started: float) -> str:
        if not failures:
            return f"{self._service} was not asked: no time was left"
        reasons = self._reasons(failures)
        if any(isinstance(failure.__cause__, TimeoutError) for _, failure in failures):
            return f"{self._service} did not answer within {time.monotonic() - started:.1f} s: {reasons}"
        return f"{self._service} could not be used: {reasons}"

    def _reasons(self, failures: Sequence[tuple[Member, EndpointError]]) -> str:
        return "; ".join(f"{self._scheme}://{member.endpoint}: {failure}" for member, failure in failures)
