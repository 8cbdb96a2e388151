"""The line to the service: connections that break, answers that are not the service's, names that do not resolve."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import ClassVar, Final

import pytest
from rdzv_core.backend import ANY, Capability, KeyValueBackend, PutOutcome
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from ..deadlines import eventually
from ..meanwhile import open_files, unanswered_names, with_retries
from ..proxy import FaultProxy
from .base import CALL, KEY, ROOT, Conformance, refusal, requires
from .calls import at_once, calls_of, end_of, ends_of, is_unknown
from .server import ConnectTo

_SHORT: Final = 1.0
"""What calls are given while something strange answers, in seconds."""
_LATE: Final = 1.5
"""So many seconds later a call on a busy machine may end."""
_PIECE: Final = 1 << 16
_DEEP: Final = 100_000
_HOSTILE: Final[dict[str, Callable[[], bytes]]] = {
    "digits": lambda: b"9" * 4301,  # one more than Python reads as a number
    "too deep": lambda: b"[" * _DEEP + b"]" * _DEEP,
    "no text": lambda: b'{"\xff\xfe\xc3": "\xed\xa0\x80"}',
    "too large": lambda: b'"' + b"x" * (80 << 20) + b'"',
}
_CONNECTIONS: Final = 4
"""How many connections calls may leave open, however many of them there were at once."""
_WATCHES: Final = 9
"""How many waits may leave open, those for the calls included."""

Reach = Callable[[str], KeyValueBackend]
"""Makes a client of the test's run that asks the service at an endpoint."""


class NetworkConformance(Conformance):
    """What a backend makes of a line that fails, and of something else at its end.

    It is separate from `BackendConformance`, since it needs to know how the service speaks: a subclass brings the
    fixture ``proxy``, a `FaultProxy` on the way to a healthy service, and a ``connect`` that takes an endpoint.
    """

    strange_answers: ClassVar[Sequence[bytes]]
    """Answers that are not the service's, whatever it was asked."""

    something_else: ClassVar[tuple[bytes, str]]
    """What answers where the service is not, and what the error then says, as a regular expression."""

    passing: ClassVar[Sequence[tuple[str, bytes]]]
    """What the error says, and the answer that it stands for: it tells of what passes."""

    shakes_hands: ClassVar[bool] = False
    """Whether a connection begins with questions and answers of its own, as PostgreSQL's: where these are strange, no
    request is sent, and a put raises `RendezvousConnectionError`, since it has written nothing."""

    @staticmethod
    def answer_of(body: bytes) -> bytes:
        """An answer of the service with some bytes in the place of what it says, so that they are read; they alone if a
        class does not say how an answer begins."""
        return body

    @pytest.fixture
    def reach(self, connect: ConnectTo, run_id: str) -> Iterator[Reach]:
        """Makes clients of the run at an endpoint, and closes them in the end."""
        with ExitStack() as opened:

            def reach(endpoint: str) -> KeyValueBackend:
                backend = connect(run_id, endpoint)
                opened.callback(backend.close)
                return backend

            yield reach

    @requires(Capability.MULTI_ENDPOINT)
    def test_read_whose_reply_is_lost_goes_elsewhere(self, reach: Reach, proxy: FaultProxy) -> None:
        """Once: the endpoint that failed is the last from then on."""
        backend = reach(f"{proxy.endpoint},{proxy.behind}")
        proxy.loses_replies = True
        for _ in range(2):
            assert backend.read(KEY, timeout=CALL) is None
        assert proxy.requests == 1, "an endpoint that has failed is asked first again"

    def test_connection_that_broke_while_idle_is_replaced(self, reach: Reach, proxy: FaultProxy) -> None:
        """No write is lost in a connection that was over before."""
        backend = reach(proxy.endpoint)
        for number in range(5):
            put = backend.put(KEY, b"%d" % number, expect=ANY, timeout=CALL)
            assert put.outcome is PutOutcome.APPLIED, f"a write went into a connection that had broken: {put}"
            proxy.disconnect()

    def test_strange_answer_is_an_outage(self, reach: Reach, proxy: FaultProxy) -> None:
        """Whatever answers: reads fail, a put is unknown, and all goes on when the service answers again."""
        for answer in self.strange_answers:
            self._assert_is_an_outage(reach(proxy.endpoint), proxy, answer)

    @pytest.mark.parametrize("what", _HOSTILE)
    def test_answer_beyond_all_bounds_is_an_outage(self, reach: Reach, proxy: FaultProxy, what: str) -> None:
        """The same of what is too large or too deep, of a number of thousands of digits, and of what is no text."""
        self._assert_is_an_outage(reach(proxy.endpoint), proxy, self.answer_of(_HOSTILE[what]()))

    @pytest.mark.parametrize("byte", [b"9", b"[", b" ", b"\n", b"\0", b"\xff"], ids=ascii)
    def test_answer_without_end_ends_in_time(self, reach: Reach, proxy: FaultProxy, byte: bytes) -> None:
        """However much comes, and whatever it is: no call takes more than its time, and the client works afterwards."""
        backend = reach(proxy.endpoint)
        since = backend.read_all(ROOT, timeout=CALL)
        calls = calls_of(backend, since, _SHORT)
        proxy.disconnect()
        proxy.flood = byte * _PIECE
        ends = ends_of(calls)
        for name, (end, seconds) in ends.items():
            assert seconds < _SHORT + _LATE, f"{name} with a timeout of {_SHORT:g} s took {seconds:.1f} s: {end!r}"
            told_nothing = is_unknown(end) or (name == "wait" and end == since)
            assert told_nothing or isinstance(end, RendezvousConnectionError), f"{name} of an endless answer: {end!r}"
        proxy.flood = b""
        proxy.disconnect()
        with_retries(lambda: backend.delete(ROOT, timeout=CALL))
        assert backend.read(KEY, timeout=CALL) is None

    def _assert_is_an_outage(self, backend: KeyValueBackend, proxy: FaultProxy, answer: bytes) -> None:
        backend.put(KEY, b"x", expect=ANY, timeout=CALL)
        since = backend.read_all(ROOT, timeout=CALL)
        calls = calls_of(backend, since, _SHORT)
        backend.delete(KEY, timeout=CALL)
        proxy.disconnect()
        _have_answer(proxy, answer)
        for name, call in calls.items():
            began = time.monotonic()
            if name in ("put", "delete_version", "create_all"):
                end, _ = end_of(call)
                told_nothing = self.shakes_hands and isinstance(end, RendezvousConnectionError)
                assert told_nothing or is_unknown(end), f"{name} answered by {answer[:80]!r}: {end!r}"
            else:
                refusal(call, RendezvousConnectionError)
            took = time.monotonic() - began
            assert took < _SHORT + _LATE, f"{name} answered by {answer[:80]!r} took {took:.1f} s"
        proxy.answer = None
        assert backend.read(KEY, timeout=CALL) is None
        assert backend.wait(ROOT, since, timeout=CALL).entries == {}

    def test_something_else_at_the_endpoint_is_named(self, reach: Reach, proxy: FaultProxy) -> None:
        """At once, as a refusal: it will not become the service."""
        answer, words = self.something_else
        _have_answer(proxy, answer)
        error = refusal(lambda: reach(proxy.endpoint).read(KEY, timeout=CALL), RendezvousDeniedError)
        assert re.search(f"{proxy.endpoint}.*{words}", str(error)), f"the error does not name what is there: {error}"

    def test_what_passes_is_not_refused(self, reach: Reach, proxy: FaultProxy) -> None:
        """What a proxy or a server says that is not ready is an outage, and the error says which."""
        for status, answer in self.passing:
            _have_answer(proxy, answer)
            error = refusal(lambda: reach(proxy.endpoint).read(KEY, timeout=CALL), RendezvousConnectionError)
            assert re.search(status, str(error)), f"the error does not name {status}: {error}"
            assert not isinstance(error, RendezvousDeniedError), f"{status} passes, and was taken for a refusal"

    def test_refused_connection_is_said_and_tells_no_time(self, reach: Reach) -> None:
        """No retry has waited for it."""
        # The port of a listener that is gone.
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        error = refusal(lambda: reach(f"127.0.0.1:{port}").read(KEY, timeout=CALL), RendezvousConnectionError)
        assert f"127.0.0.1:{port}" in str(error)
        assert "refused" in str(error)
        assert " s:" not in str(error), f"no retry has waited: {error}"

    def test_name_that_does_not_exist_is_said(self, reach: Reach) -> None:
        """With the name; the thread that looked it up ends with the answer."""
        with pytest.raises(RendezvousConnectionError, match=r"nowhere\.invalid:\d+.*not connected"):
            reach("nowhere.invalid").read(KEY, timeout=5)
        eventually(lambda: not any("resolve" in thread.name for thread in threading.enumerate()), "the thread to end")

    def test_name_that_is_not_resolved_is_said(self, reach: Reach) -> None:
        """Within the call's own time, though Python's resolver has none."""
        began = time.monotonic()
        with unanswered_names(), pytest.raises(RendezvousConnectionError, match="not resolved"):
            reach("service.test").read(KEY, timeout=0.5)
        assert time.monotonic() - began < 2

    def test_neighbours_do_not_wake_a_waiter(self, reach: Reach, proxy: FaultProxy) -> None:
        """A prefix is a path; what merely begins like it is another one."""
        backend = reach(proxy.behind)
        prefix = f"{ROOT}/p"
        backend.put(prefix, b"", expect=ANY, timeout=CALL)
        since = backend.read_all(prefix, timeout=CALL)
        for neighbour in ("p-x", "p.x", "p0", "px", "o/p"):
            backend.put(f"{ROOT}/{neighbour}", b"", expect=ANY, timeout=CALL)
        assert backend.wait(prefix, since, timeout=0.3) is since

    def test_calls_at_once_leave_few_connections(self, reach: Reach, proxy: FaultProxy) -> None:
        """Services take so many from one address, and no more."""
        backend = reach(proxy.behind)
        before = open_files()

        def put(number: int) -> None:
            backend.put(f"{ROOT}/{number}", b"x" * 9999, expect=ANY, timeout=CALL)

        at_once("put", put, range(320), threads=32)
        left = open_files() - before
        assert left <= _CONNECTIONS, f"320 calls on 32 threads have left {left} connections open"
        backend.delete(ROOT, timeout=CALL)

    def test_waits_for_many_keys_leave_few_connections(self, reach: Reach, proxy: FaultProxy) -> None:
        """What is not waited for any more ends."""
        backend = reach(proxy.behind)
        backend.read(KEY, timeout=CALL)
        before = open_files()
        for number in range(30):
            prefix = f"{ROOT}/once/{number}"
            backend.wait(prefix, backend.read_all(prefix, timeout=CALL), timeout=0.005)
        eventually(lambda: open_files() - before <= _WATCHES, "the connections of waits that are over to end", 5)


def _have_answer(proxy: FaultProxy, answer: bytes) -> None:
    """Have the proxy answer in the place of the service."""
    if type(proxy).pass_requests is FaultProxy.pass_requests:
        pytest.fail(
            "the fixture `proxy` must give a subclass of FaultProxy whose `pass_requests` sends `answer`, if set"
        )
    proxy.answer = answer
