"""Calls to a service over HTTP."""

import contextlib
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError

from .cluster import OneCluster
from .connection import Connection, Reply, Request
from .failover import FailoverClient, Member
from .poll import Poll
from .present import Present
from .sockets import EndpointError
from .stream import Stream

_T = TypeVar("_T")


_IDLE: Final = 4
"""How many connections to one endpoint are kept for later."""


class Client(FailoverClient):
    """A service over HTTP, of one process.

    Args:
        service: What it is called in messages.
        endpoints: The first is tried first, one that fails last.
        check: Raises what an answer other than a result means: an `EndpointError` if another endpoint may do
            better, a `RendezvousError` if not, a ValueError if it does not come from the service.
        headers: Sent with every request.
        login: The headers that say who we are, sent with every request, too; None: there are none.
        tls: How to verify the endpoints, and with which certificate of our own; None: no TLS.
        server_name: The name in the endpoints' certificates, if it is not the endpoint's.
        request_timeout: Seconds that one of several endpoints has to answer before the next is tried.
        cluster: The cluster that is meant; None: the service has no name for one.
        kind: What the service is, more exactly, for the message about an endpoint that is something else.
        early: See `FailoverClient`. A node that joins waits, and calls meanwhile; one that leads waits twice.
    """

    def __init__(
        self,
        service: str,
        endpoints: Sequence[Endpoint],
        check: Callable[[Reply], None],
        *,
        headers: Mapping[str, str],
        login: Present[Mapping[str, str]] | None = None,
        tls: Present[ssl.SSLContext] | None = None,
        server_name: str | None = None,
        request_timeout: float = 3.0,
        cluster: OneCluster | None = None,
        kind: str | None = None,
        early: int = 2,
    ) -> None:
        super().__init__(
            service,
            endpoints,
            tls=tls,
            server_name=server_name,
            request_timeout=request_timeout,
            scheme="https://" if tls else "http://",
            without_tls="protocol=http",
            early=early,
        )
        self._kind = kind or service
        self._check = check
        self._cluster = cluster
        self._headers = dict(headers)
        self._login = login or Present.fixed({})
        self._idle: defaultdict[Member, list[Connection]] = defaultdict(list)
        self._in_use = _InUse()

    def call(self, request: Request, timeout: float, read: Callable[[Reply], _T]) -> _T:
        """Ask one endpoint after the other until one answers.

        Args:
            request: What.
            timeout: Seconds for everything.
            read: Makes the result of an answer that passed `check`. A KeyError or the like from it means
                that the answer does not come from the service.

        Raises:
            ReplyLostError: The request may have been applied (only if it is not repeatable).
            RendezvousConnectionError: No endpoint could be reached (`RendezvousDeniedError`: all refuse us, or
                answer as something else, and none ever did otherwise).
            RendezvousError: From `check`.
        """

        def attempt(member: Member, deadline: float) -> _T:
            connection = self._connection(member, deadline)
            with self._in_use.using(connection):
                reply = connection.exchange(request, deadline)
            return self._take(connection, reply, read)

        return self.try_members(attempt, timeout, repeatable=request.repeatable)

    def open_poll(self, request: Request, held: float, timeout: float, read: Callable[[Reply], _T]) -> Poll[_T]:
        """Ask for something that the service may not answer for a while; it need not have begun when this returns.

        Args:
            request: What.
            held: Seconds for which the service may keep it before it answers; 0: it answers at once.
            timeout: Seconds until it is sent.
            read: See `call`.

        Raises:
            RendezvousConnectionError: No endpoint could be reached (`RendezvousDeniedError`: all refuse us).
        """

        def attempt(member: Member, deadline: float) -> Poll[_T]:
            with contextlib.ExitStack() as opening:
                connection = self._connection(member, deadline)
                opening.callback(connection.close)
                used = opening.enter_context(contextlib.ExitStack())
                used.enter_context(self._in_use.using(connection))
                connection.ask(request, deadline)
                opening.pop_all()
                late = held + self.request_timeout if held else self.time_to_answer(member, timeout)
                until = time.monotonic() + late
                return Poll(connection, lambda reply: self._take(connection, reply, read), until, used)

        return self.try_members(attempt, timeout)

    def open_stream(
        self,
        request: Request,
        timeout: float,
        read: Callable[[Reply], _T],
        alive: Request,
        *,
        may_end: bool = False,
        begin: Callable[[Reply], None] | None = None,
    ) -> Stream[_T]:
        """Ask for an answer that does not end; it need not have begun when this returns.

        When its endpoint fails a call, or itself, the stream breaks, and the next one is opened at another endpoint.

        Args:
            request: What.
            timeout: Seconds until it is sent.
            read: Makes something of one line of the answer, as in `call`.
            alive: What an endpoint is asked that has been silent for too long. Any answer shows that it lives.
            may_end: Whether the service may end the answer: then that says nothing against its endpoint.
            begin: Hears of the head of the answer, unless that is an error; may raise what `read` may.

        Raises:
            RendezvousConnectionError: No endpoint could be reached (`RendezvousDeniedError`: all refuse us).
        """

        def attempt(member: Member, deadline: float) -> Stream[_T]:
            def probe(until: float) -> None:
                asked = self._connection(member, until)
                asked.exchange(alive, until)
                self._keep(asked)

            with contextlib.ExitStack() as opening:
                connection = self._connect(member, deadline)
                opening.callback(connection.close)
                opening.enter_context(self._in_use.using(connection))
                connection.send(request, deadline)
                return Stream(
                    connection,
                    lambda reply: self._understand(connection, reply, read),
                    probe=probe,
                    fail=lambda failure: self.fail(member, failure),
                    patience=self.request_timeout,
                    may_end=may_end,
                    begin=begin and (lambda reply: self._understand(connection, reply, begin)),
                    closing=opening.pop_all(),
                )

        return self.try_members(attempt, timeout, repeatable=request.repeatable)

    def fail(self, member: Member, failure: EndpointError) -> RendezvousConnectionError:
        """Demote a member; returns the error for who has asked no other."""
        self.demote(member)
        only_one = len(self.members) == 1
        kind = RendezvousDeniedError if failure.denied and only_one else RendezvousConnectionError
        return kind(f"{self._service} could not be used: {self.reasons([(member, failure)])}")

    def hang_up(self, member: Member) -> None:
        """End the connections to a member, also those in use."""
        for connection in (*self._in_use.all(), *self._idle.pop(member, ())):
            if connection.member is member:
                connection.sock.close()

    def _take(self, connection: Connection, reply: Reply, read: Callable[[Reply], _T]) -> _T:
        """The result of an answer; its connection is left for the next request."""
        try:
            result = self._understand(connection, reply, read)
        except BaseException:
            # A server with an unexpected answer may also break the order of requests and answers.
            connection.close()
            raise
        self._keep(connection)
        return result

    def _connection(self, member: Member, deadline: float) -> Connection:
        """A connection to use: an idle one, or a new one."""
        with contextlib.suppress(IndexError):
            while not (idle := self._idle[member].pop()).sock.is_silent() or self._is_outdated(idle):
                idle.close()
            return idle
        connection = self._connect(member, deadline)
        if self._cluster is not None and self._cluster.asks and len(self.members) > 1:
            self._make_sure_of(connection, self._cluster, deadline)
            if not (connection.is_persistent and connection.sock.is_silent()):
                connection.close()
                connection = self._connect(member, deadline)
        return connection

    def _connect(self, member: Member, deadline: float) -> Connection:
        return Connection(self.connect(member, deadline), member, {**self._headers, **self._login()})

    def _is_outdated(self, connection: Connection) -> bool:
        """Whether it shows what stood in files that have changed since it was made."""
        return not self._login().items() <= connection.headers.items() or self.sockets.is_outdated(connection.sock)

    def _make_sure_of(self, connection: Connection, cluster: OneCluster, deadline: float) -> None:
        """Ask one of several endpoints for its cluster first: another is written nothing, and its errors pass."""
        try:
            with self._in_use.using(connection):
                reply = connection.exchange(cluster.question, deadline)
            cluster.check(reply)
            # What else than a failure of the endpoint it may mean, the answer to the request itself will tell.
            with contextlib.suppress(RendezvousError, ValueError):
                self._check(reply)
        except EndpointError as failure:
            connection.close()
            failure.applied = False
            raise

    def _keep(self, connection: Connection) -> None:
        """Leave it for the next request, unless it has served its time."""
        idle = self._idle[connection.member]
        if connection.is_persistent and len(idle) < _IDLE:
            idle.append(connection)
        else:
            connection.close()
        if len(idle) == _IDLE:
            self.abandon(connection.member)  # there are enough without one that was begun

    def _understand(self, connection: Connection, reply: Reply, read: Callable[[Reply], _T]) -> _T:
        if reply.status == 400 and b"HTTP request to an HTTPS server" in reply.body:
            # Of any server that is written in Go.
            raise EndpointError("it speaks TLS; set protocol=https", applied=False, denied=True)
        if self._cluster is not None:
            self._cluster.check(reply)
        try:
            self._check(reply)
            result = read(reply)
        except RendezvousDeniedError as refusal:
            if not self._is_outdated(connection):
                raise
            reason = f"it refused what our files held before they changed: {refusal}"
            raise EndpointError(reason, applied=False) from refusal
        except RendezvousError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise EndpointError(
                f"it did not answer as {self._service} does, but with HTTP {reply.status} and {reply.text!r}; "
                f"is it {self._kind}?",
                applied=True,
                denied=not self.understood,
            ) from error
        self.understood = True
        return result


class _InUse:
    """The connections that are used: they are closed if their endpoint is demoted."""

    def __init__(self) -> None:
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()

    def all(self) -> tuple[Connection, ...]:
        """Those that are used now."""
        with self._lock:
            return tuple(self._connections)

    def using(self, connection: Connection) -> "_Use":
        """For the time in which one is used."""
        return _Use(connection, self._connections, self._lock)


class _Use:
    # No generator: each call goes through it.
    __slots__ = ("_connection", "_in_use", "_lock")

    def __init__(self, connection: Connection, in_use: set[Connection], lock: threading.Lock) -> None:
        self._connection = connection
        self._in_use = in_use
        self._lock = lock

    def __enter__(self) -> None:
        with self._lock:
            self._in_use.add(self._connection)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._in_use.discard(self._connection)
