"""A server that tests may stop: what its author brings, and what the suite makes of it."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import pytest
from rdzv_core.backend import KeyValueBackend
from rdzv_core.endpoints import Endpoint, parse_endpoints
from rdzv_core.errors import RendezvousParameterError

from ..meanwhile import with_retries
from ..proxy import FaultProxy
from .base import SERVER, Conformance, Verdict, leave_out, remove_keys

_T = TypeVar("_T")


class Server(Protocol):
    """What the fixture ``server`` gives: a service that the suite may stop, kill and freeze, and starts again.

    All servers of `rdzv_conformance.servers` have these methods. Tests leave the server running, with their
    keys removed, so one server may serve a whole class (``@pytest.fixture(scope="class")``).

    One that keeps data may have a further method, ``forget()``, called after `kill`: what it has stored is lost.
    """

    def get_endpoint(self) -> str:
        """Where it serves, as ``host:port``; the same for its whole life.

        At another kind of endpoint, such as a Unix socket, the tests that need a proxy to the server are not tried.
        """

    def terminate(self) -> None:
        """Stop it in good order. What it has stored stays, if it stores anything."""

    def kill(self) -> None:
        """Stop it at once, as a crash does (SIGKILL). What it has stored stays."""

    def restart(self) -> None:
        """After `terminate` or `kill`: start it again, at the same endpoint; return when it serves."""

    def pause(self) -> None:
        """Freeze it (SIGSTOP): its connections stay open, and it answers nothing."""

    def resume(self) -> None:
        """Let it go on after `pause` (SIGCONT)."""


class ConnectTo(Protocol):
    """What ``connect`` gives where there is a ``server``: a second argument says which endpoint to use."""

    def __call__(self, run_id: str, endpoint: str = ..., /) -> KeyValueBackend:
        """Make a new, independent client of a run. Without an endpoint: of any server that runs."""


class ServerHarness:
    """The server of one test, clients of it, and lines to it."""

    def __init__(
        self,
        server: Server,
        connect: ConnectTo,
        run_id: str,
        node: pytest.Item,
    ) -> None:
        self._server = server
        self._connect = connect
        self._run_id = run_id
        self._node = node
        self._opened = contextlib.ExitStack()

    @property
    def endpoint(self) -> str:
        """The server's own."""
        return self._server.get_endpoint()

    def connect(self, endpoint: str | None = None) -> KeyValueBackend:
        """A new client, which its user closes: of the server itself, or of another endpoint."""
        return self._connect(self._run_id, endpoint or self.endpoint)

    def client(self, endpoint: str | None = None) -> KeyValueBackend:
        """A new client, closed in the end."""
        client = self.connect(endpoint)
        self._opened.callback(client.close)
        return client

    def tcp_client(self, endpoint: str) -> KeyValueBackend:
        """A new client of a ``host:port`` at which the server is not, closed in the end."""
        self._address()
        return self.client(endpoint)

    def proxy(self, at: str = "127.0.0.1") -> FaultProxy:
        """A new fault proxy to the server at an address of this machine, closed in the end."""
        there = self._address()
        return self._opened.enter_context(FaultProxy(there.port, at, host=there.host))

    def _address(self) -> Endpoint:
        """Where the server is; at another kind of endpoint the test is not tried."""
        try:
            (there,) = parse_endpoints(self.endpoint, 0)
        except RendezvousParameterError:
            why = f"this test needs a host:port, and the server's endpoint is '{self.endpoint}'"
            leave_out(self._node, Verdict.NOT_TRIED, why)
        return there

    @contextlib.contextmanager
    def away(self, how: str) -> Iterator[None]:
        """Have the server ``stopped``, ``killed``, ``frozen`` or ``emptied`` (killed, its data lost); then back."""
        forget = getattr(self._server, "forget", None)
        if how == "emptied" and forget is None:
            why = "the server has no method `forget`, which loses its data, so no loss was tried"
            leave_out(self._node, Verdict.NOT_TRIED, why)
        leave = {"stopped": self._server.terminate, "frozen": self._server.pause}.get(how, self._server.kill)
        leave()
        if how == "emptied" and forget is not None:
            forget()
        try:
            yield
        finally:
            (self._server.resume if how == "frozen" else self._server.restart)()

    def close(self) -> None:
        """Close the clients, and remove the keys of the run."""
        self._opened.close()
        with_retries(lambda: remove_keys(self.connect()))


class ServerConformance(Conformance):
    """What tests with a server of their own share. Without the fixture ``server`` none of them is tried."""

    @pytest.fixture
    def harness(self, request: pytest.FixtureRequest, run_id: str) -> Iterator[ServerHarness]:
        """The server, clients and lines."""
        server: Server = request.getfixturevalue(SERVER)
        connect: ConnectTo = request.getfixturevalue("connect")
        check_endpoint_is_taken(self, connect, SERVER)
        harness = ServerHarness(server, connect, run_id, request.node)
        yield harness
        harness.close()


def check_endpoint_is_taken(test: Conformance, connect: Callable[..., object], fixture: str) -> None:
    """Fail unless what `connect` gives takes an endpoint, which a class with that fixture needs."""
    try:
        inspect.signature(connect).bind("run", "endpoint")
    except TypeError:
        pytest.fail(
            f"{type(test).__name__} has a `{fixture}`, so the function that `connect` gives must take an endpoint as "
            "its second argument: lambda run_id, endpoint=...: MyBackend(endpoint, run_id)"
        )
