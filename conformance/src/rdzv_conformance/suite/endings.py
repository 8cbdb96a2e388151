"""Closing a client waits for nothing: its calls end within a second, whatever the service does meanwhile."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, Final

import pytest
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.threads import in_thread

from ..deadlines import eventually
from ..meanwhile import unanswered_names
from .base import CALL, KEY, ROOT, refusal
from .calls import begun, calls_of, held, holds_more_than, is_unknown
from .server import ServerConformance, ServerHarness

_LONG: Final = CALL
"""What calls are given that `close` must end, in seconds."""
_SECOND: Final = 1 + 0.5
"""Within so many seconds they end, on a busy machine."""
_SHORT: Final = 0.5
_UNRESOLVED: Final = "service.invalid:1"
"""An endpoint whose name does not resolve."""


class EndingsConformance(ServerConformance):
    """`close`, and a timeout, while no server answers."""

    def test_close_ends_every_call_to_a_frozen_service(self, harness: ServerHarness) -> None:
        """Waits that were there before and calls that have just begun; no thread and no file stays behind."""
        before = held()
        client = harness.connect()
        since = client.read_all(ROOT, timeout=CALL)
        calls = calls_of(client, since, _LONG)
        ended = begun({"the wait before": calls["wait"]})
        time.sleep(0.2)  # either it waits by now, or it is about to: both must end
        with harness.away("frozen"):
            ended |= begun(calls)
            time.sleep(0.1)  # whether they have been sent by now or not
            _close_ends(client.close, ended)
        eventually(lambda: not holds_more_than(before), "a closed client to go")

    def test_close_ends_a_connection_that_is_being_made(self, harness: ServerHarness) -> None:
        """Where no server takes the connection, the client that connects hears nothing."""
        with _full_queue() as endpoint:
            client = harness.tcp_client(endpoint)
            reads = begun({"read": lambda: client.read(KEY, timeout=_LONG)})
            time.sleep(0.1)
            early = [read.result()[0] for read in reads.values() if read.done()]
            assert not early, f"no server takes the connection, and a read has ended: {early!r}"
            _close_ends(client.close, reads)

    def test_name_that_does_not_resolve_holds_up_nothing(self, harness: ServerHarness) -> None:
        """A call ends in time and names the endpoint, `close` ends one that has more time, and no thread stays."""
        client = harness.tcp_client(_UNRESOLVED)
        before = held()[0]
        with unanswered_names():
            short = in_thread(lambda: client.read(KEY, timeout=_SHORT), "read")
            if wait([short], _SHORT + _SECOND).not_done:
                pytest.fail(f"a read with a timeout of {_SHORT} s has not given up a name that does not resolve")
            error = refusal(short.result, RendezvousConnectionError)
            assert _UNRESOLVED in str(error), f"the error does not name the endpoint {_UNRESOLVED}: {error}"
            long = begun({"read": lambda: client.read(KEY, timeout=_LONG)})
            time.sleep(0.1)
            _close_ends(client.close, long)
        eventually(lambda: held()[0] <= before, "the threads to end that have asked for the name")


def _close_ends(close: Callable[[], None], calls: dict[str, Future[tuple[Any, float]]]) -> None:
    """Whether closing a client ends all its calls, with what says that nothing is known."""
    closing = time.monotonic()
    close()
    took = time.monotonic() - closing
    assert took < _SECOND, f"close took {took:.1f} s itself"
    missing = wait(calls.values(), max(0.0, closing + _SECOND - time.monotonic())).not_done
    late = [name for name, call in calls.items() if call in missing]
    if late:
        pytest.fail(f"a second after the client was closed, these calls have not ended: {', '.join(late)}")
    for name, call in calls.items():
        end, _ = call.result()
        told_nothing = is_unknown(end) or isinstance(end, RendezvousConnectionError)
        assert told_nothing, f"{name}, ended by close, must raise RendezvousConnectionError: {end!r}"


@contextlib.contextmanager
def _full_queue() -> Iterator[str]:
    """An endpoint whose queue is full: a client that connects there gets no answer."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        host, port = listener.getsockname()
        for _ in range(4):
            filler = opened.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((host, port))
        yield f"{host}:{port}"
