"""Calls to Consul: at which agent, for how long, as whom, and what an error means.

One call is one attempt at each agent at most; trying again later is the core's affair.
"""

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import urlencode

from rdzv.endpoints import Endpoint, source_address
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousParameterError

from .transport import Agent, AttemptError, Connection, Reply, Transport

__all__ = ["Client", "Hold", "ReplyLostError", "Request"]

_T = TypeVar("_T")

_NOT_PASSED_ON: Final = ("No cluster leader", "No path to datacenter", "rate limit", "not ready to serve")
"""In the answers of agents that have done nothing with a request."""


class ReplyLostError(RendezvousConnectionError):
    """The request may have been applied, but no answer came."""


@dataclass(frozen=True, slots=True)
class Request:
    """What Consul is asked.

    Attributes:
        method: Of HTTP.
        path: Below ``/v1/``, quoted.
        query: What follows the question mark.
        body: What is sent with it.
        repeatable: Whether it may be sent to another agent though it may have been applied already.
        held: Seconds for which an agent may keep it before it answers.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    repeatable: bool = True
    held: float = 0.0


class Hold:
    """By this, other threads end a call in progress, or move it to another agent."""

    def __init__(self) -> None:
        self.released = False
        self._using: tuple[Agent, Connection] | None = None
        self._lock = threading.Lock()

    def release(self) -> None:
        """End the call, for good."""
        with self._lock:
            self.released = True
            if self._using:
                self._using[1].interrupt()

    def leave(self, agent: Agent) -> None:
        """Have the call move on if it waits for this agent."""
        with self._lock:
            if self._using and self._using[0] is agent:
                self._using[1].interrupt()

    @contextlib.contextmanager
    def using(self, agent: Agent, connection: Connection) -> Iterator[None]:
        """For the time in which the call is made by this connection."""
        with self._lock:
            self._using = agent, connection
            if self.released:
                connection.interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._using = None


class Client:
    """The connection to one Consul, by those of its agents that were named, of one process.

    Attributes:
        patience: Seconds within which every agent had its chance to answer.
        closed: `close` was called.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        token: str | None = None,
        namespace: str | None = None,
        datacenter: str | None = None,
        request_timeout: float = 3.0,
    ) -> None:
        self.patience = request_timeout * len(endpoints)
        self.closed = False
        self._request_timeout = request_timeout
        self._transport = Transport(tls, server_name)
        self._scheme = "https" if tls else "http"
        self._agents = tuple(Agent(endpoint) for endpoint in endpoints)
        headers = {"X-Consul-Token": token, "X-Consul-Namespace": namespace, "Content-Type": "application/json"}
        self._headers = {name: value for name, value in headers.items() if value}
        self._query = {"dc": datacenter} if datacenter else {}
        self._answered = False
        self._holds: set[Hold] = set()
        self._lock = threading.Lock()

    def call(self, request: Request, timeout: float, read: Callable[[Reply], _T], hold: Hold | None = None) -> _T:
        """Ask one agent after the other until one answers.

        Args:
            request: What.
            timeout: Seconds for everything; what an agent may keep the request comes on top.
            read: Makes the result of an answer of status 200, 404 or 409.
            hold: By this, other threads end the call.

        Raises:
            ReplyLostError: The request may have been applied (only if it is not repeatable).
            RendezvousConnectionError: No agent could be reached (`RendezvousDeniedError`: they refuse us).
            RendezvousParameterError: Consul can do nothing with the request.
        """
        if hold is None:
            return self._try_agents(request, timeout, read, Hold())
        with self._lock:
            self._holds.add(hold)
        try:
            return self._try_agents(request, timeout, read, hold)
        finally:
            with self._lock:
                self._holds.discard(hold)

    def local_address(self) -> str:
        """The source address of this machine towards the agents.

        Raises:
            RendezvousConnectionError: There is no route to any of them.
        """
        endpoints = [agent.endpoint for agent in self._agents]
        return self._transport.local_address() or source_address(endpoints, self._request_timeout)

    def check_open(self) -> None:
        """Raise `RendezvousConnectionError` after `close`."""
        if self.closed:
            raise RendezvousConnectionError("This backend was closed.")

    def close(self) -> None:
        """End every connection, also those in use."""
        self.closed = True
        self._transport.close()
        for agent in self._agents:
            while agent.idle:
                agent.idle.pop().close()

    def abandon(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        self.closed = True
        self._transport.abandon()

    def _try_agents(self, request: Request, timeout: float, read: Callable[[Reply], _T], hold: Hold) -> _T:
        self.check_open()
        started = time.monotonic()
        deadline = started + timeout
        failures: list[tuple[Agent, AttemptError]] = []
        agents = self._agents
        for left in range(len(agents), 0, -1):
            agent = agents[-left]
            began = time.monotonic()
            if began >= deadline:
                break
            # The last one gets all the time that is left, the others leave some for those behind them.
            patience = deadline - began if left == 1 else min(self._request_timeout, (deadline - began) / left)
            try:
                return self._attempt(agent, request, began + patience, read, hold)
            except AttemptError as failure:
                failures.append((agent, failure))
                if hold.released:
                    break
                self._demote(agent)
                if failure.applied and not request.repeatable:
                    raise ReplyLostError(self._describe(failures, started)) from failure
                # What one agent was allowed to keep is not taken from the others.
                deadline += min(time.monotonic() - began, request.held)
        self.check_open()
        denied = bool(failures) and all(failure.denied for _, failure in failures)
        kind = RendezvousDeniedError if denied else RendezvousConnectionError
        raise kind(self._describe(failures, started)) from (failures[-1][1] if failures else None)

    def _attempt(self, agent: Agent, request: Request, deadline: float, read: Callable[[Reply], _T], hold: Hold) -> _T:
        connection = self._transport.connection(agent, deadline)
        target = f"/v1/{request.path}?{urlencode({**request.query, **self._query})}"
        with hold.using(agent, connection):
            reply = connection.exchange(request.method, target, request.body, self._headers, deadline + request.held)
        try:
            self._check(reply)
            result = _understand(reply, read)
        except BaseException:
            # Whoever answers strangely may not keep to the order of requests and answers, either.
            connection.close()
            raise
        connection.keep()
        if self.closed:
            # It may have been kept after `close` looked.
            connection.close()
        self._answered = True
        return result

    def _check(self, reply: Reply) -> None:
        """Raise what an answer means that is no result."""
        if reply.status in (200, 404, 409):
            return
        text = _text(reply)
        if reply.status == 403:
            raise self.denied(text)
        if reply.status == 400 and "HTTPS server" in text:
            raise AttemptError("it speaks TLS; set protocol=https", applied=False, denied=True)
        if "No path to datacenter" in text and not self._answered:
            raise RendezvousParameterError(f"Consul refused the datacenter '{self._query.get('dc')}': {text}.")
        if reply.status in (400, 413):
            raise RendezvousParameterError(f"Consul refused the request: {text}")
        if reply.status == 429 or reply.status >= 500:
            applied = not any(known in text for known in _NOT_PASSED_ON)
            raise AttemptError(f"it answered {reply.status}, {text}", applied=applied)
        raise _unlike_consul(reply)

    def denied(self, reason: str) -> RendezvousDeniedError:
        """The error for what we may not do."""
        who = "this token" if "X-Consul-Token" in self._headers else "a client without a token"
        return RendezvousDeniedError(
            f"Consul refused {who}: {reason}. Check the option token, and that its policy has "
            'key_prefix "..." { policy = "write" } for the keys under the prefix.'
        )

    def _demote(self, agent: Agent) -> None:
        """Try an agent after all others from now on, and have the watches leave it."""
        with self._lock:
            if len(self._agents) == 1:
                return
            self._agents = (*(other for other in self._agents if other is not agent), agent)
            for hold in self._holds:
                hold.leave(agent)

    def _describe(self, failures: Sequence[tuple[Agent, AttemptError]], started: float) -> str:
        reasons = "; ".join(f"{self._scheme}://{agent.endpoint}: {failure}" for agent, failure in failures)
        return f"Consul did not answer within {time.monotonic() - started:.1f} s: {reasons or 'no time was left'}"


def _understand(reply: Reply, read: Callable[[Reply], _T]) -> _T:
    try:
        return read(reply)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _unlike_consul(reply) from error


def _unlike_consul(reply: Reply) -> AttemptError:
    return AttemptError(
        f"it did not answer as Consul does, but with HTTP {reply.status} and {_text(reply)!r}; is it a Consul agent?",
        applied=True,
    )


def _text(reply: Reply) -> str:
    return reply.body[:200].decode("utf-8", "replace").strip()
