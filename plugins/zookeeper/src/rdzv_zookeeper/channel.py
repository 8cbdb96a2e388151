"""A session's connection to one server: requests in order, answers in the same order, events amid them.

No thread of our own: of the threads that wait for an answer, or for an event, one at a time reads for all. So a
session is kept alive by those who use it and by nothing else, and nothing is sent that no call waits for.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from kazoo import exceptions  # type: ignore[import-untyped]
from kazoo.protocol.serialization import Ping, Watch  # type: ignore[import-untyped]
from rdzv_core.turns import Turns
from rdzv_transport import EndpointError, FailoverClient, alone

from . import wire
from .failures import NotZooKeeperError, SessionEndedError, name_of

PER_FLIGHT: Final = 256
"""How many requests are sent before the first answer is read: each side can hold so many for the other."""

_OFTEN: Final = 1.0
"""Seconds between two probes, at most."""

_PROBE_AFTER: Final = 0.5
"""Seconds after which a server that owes an answer is probed: ZooKeeper 3.8 forgets about one request in thousands
until the next one comes. A server that a thousand clients ask at once is slower than a fifth of a second."""


def opening(begun: Sequence[wire.Request]) -> bytes:
    """What is sent before there is a channel that has `begun` with these requests: the first flight of them."""
    return b"".join(wire.frame(request, number) for number, request in enumerate(begun[:PER_FLIGHT], 1))


class Channel:
    """See above.

    Args:
        client: The servers.
        on_event: Hears the path of every node that changes under a watch, and whether it was created.
        timeout: The seconds of silence that the session outlasts.
        begun: Requests whose `opening` was sent already. The call that exchanges these very ones gets the answers.

    Attributes:
        line: To which server.
        broken: Why it cannot be used any more; None: it can.
    """

    def __init__(
        self,
        client: FailoverClient,
        line: wire.Line,
        on_event: Callable[[str, bool], None],
        timeout: float,
        begun: Sequence[wire.Request] = (),
    ) -> None:
        self.line = line
        self.broken: EndpointError | None = None
        self._client = client
        self._on_event = on_event
        self._timeout = timeout
        self._sending = threading.RLock()
        self._turns = Turns()
        self._number = 0
        # The numbers and requests whose answers have not come, with these.
        self._pending = deque(self._flight(begun[:PER_FLIGHT]))
        self._begun = begun, [answer for _, _, answer in self._pending]
        self._asked = time.monotonic()

    def exchange(
        self,
        requests: Sequence[wire.Request],
        deadline: float,
        more: Callable[[], Sequence[wire.Request]] = tuple,
    ) -> list[wire.Reply]:
        """Send requests all at once, and wait for their answers; they are done in this order.

        Args:
            requests: Which.
            deadline: Until when.
            more: Gives what else is to be asked, once; it is called whenever something has arrived while answers are
                owed. That is sent at once, and costs no round trip of its own; its answers stand behind those of
                `requests`.

        Raises:
            EndpointError: The connection broke, or the deadline has come.
            SessionEndedError: The session has ended.
        """
        answers = list(self._begun[1]) if requests is self._begun[0] else []
        left = list(requests[len(answers) :])

        def is_due() -> bool:
            left.extend(more())
            # Answers come in order: the last one after all others.
            if not answers or answers[-1].done():
                return True
            return bool(left) and len(self._pending) + len(left) <= PER_FLIGHT

        while True:
            flight = left[:PER_FLIGHT]
            del left[: len(flight)]
            if flight:
                answers += self.send(flight, deadline, applied=bool(answers))
            if not self.listen(is_due, deadline, owed=True):
                raise EndpointError("no answer in time", applied=True)
            if not left:
                break
        replies = [answer.result() for answer in answers]
        if any(isinstance(reply.result, exceptions.SessionExpiredError) for reply in replies):
            raise SessionEndedError
        return replies

    def send(
        self, requests: Sequence[wire.Request], deadline: float, *, applied: bool = False
    ) -> list[Future[wire.Reply]]:
        """Send requests without waiting for the answers; they are done before any that is sent later.

        Raises:
            EndpointError: The connection broke, or the deadline has come. If nothing was sent, it says `applied`
                of those before that belong to them.
        """
        sent = alone(self._sending, partial(self._send, requests, deadline, applied=applied), deadline)
        if sent is None:
            raise EndpointError("another thread still sends", applied=applied)
        return sent

    def _send(self, requests: Sequence[wire.Request], deadline: float, *, applied: bool) -> list[Future[wire.Reply]]:
        try:
            flight = self._flight(requests)
            data = b"".join(wire.frame(request, number) for number, request, _ in flight)
            with self._turns.lock:
                self._check(applied=applied)
                self._pending += flight
            self._asked = time.monotonic()
            self.line.send(data, deadline)
        except EndpointError as error:
            self.fail(error)
            raise
        return [answer for _, _, answer in flight]

    def listen(self, done: Callable[[], bool], deadline: float, *, owed: bool = False) -> bool:
        """Read until `done`, and let the server hear of us meanwhile; False if the deadline has come.

        Args:
            done: Asked whenever something has arrived; takes no lock that another thread may hold for long.
            deadline: Until when.
            owed: Whether the server owes an answer, and is probed, and left when it is silent for too long.

        Raises:
            EndpointError: The connection broke.
        """

        def is_done() -> bool:
            if not (is_done := done()):
                self._check(applied=True)
            return is_done

        began = time.monotonic()
        patience = self._client.request_timeout
        pause = _PROBE_AFTER
        if not owed:
            pause = self._timeout / 3
            patience = min(pause + patience, self._timeout * 2 / 3)
        while True:
            until = min(deadline, self._asked + pause)
            if self._turns.take(is_done, partial(self._receive, until), until):
                return True
            now = time.monotonic()
            over = now >= deadline
            silence = now - max(began, self.line.responded_at)
            # Of a server that owes an answer, but is the only one, as much is hoped for as the caller's time allows.
            if silence >= patience and (over or not owed or len(self._client.members) > 1):
                self.fail(EndpointError(f"no answer within {silence:.1f} s", applied=True))
            if over:
                with self._turns.lock:
                    return done()
            # Another thread may have asked meanwhile.
            if now >= self._asked + pause:
                self._ping(deadline)
                pause = min(2 * pause, _OFTEN) if owed else pause

    def wake(self) -> None:
        """Have every thread that listens ask again whether it is done."""
        self._turns.wake()

    def poll(self) -> None:
        """Take what has arrived, without waiting; an end that has come is noticed."""
        now = time.monotonic()
        self._turns.take(lambda: self.broken is not None or self._turns.is_taken(), lambda: self._receive(now), now)

    def fail(self, error: EndpointError) -> None:
        """Close it, and have every waiter find it broken."""
        with self._turns.lock:
            self.broken = self.broken or error
            self._turns.wake()
        self.line.close()

    def _flight(self, requests: Sequence[wire.Request]) -> list[tuple[int, wire.Request, Future[wire.Reply]]]:
        return [(self._next_number(), request, Future()) for request in requests]

    def _next_number(self) -> int:
        self._number = self._number % 0x7FFFFFFF + 1
        return self._number

    def _ping(self, deadline: float) -> None:
        self._asked = time.monotonic()
        # A thread that sends meanwhile is as good a keep-alive.
        alone(self._sending, partial(self._send_ping, deadline), self._asked)

    def _send_ping(self, deadline: float) -> None:
        try:
            self.line.send(wire.frame(Ping(), wire.PING_XID), deadline)
        except EndpointError as error:
            self.fail(error)

    def _check(self, *, applied: bool) -> None:
        if self.broken is not None:
            raise EndpointError(str(self.broken), applied=applied, denied=self.broken.denied) from self.broken

    def _receive(self, deadline: float) -> None:
        try:
            frames = self.line.receive(deadline)
            with self._turns.lock:
                for data in frames:
                    self._dispatch(data)
        except EndpointError as error:
            self.fail(error)
        except BaseException as error:
            # Answers and events may be lost with it, and others wait for them.
            self.fail(EndpointError(f"reading it has failed: {error!r}", applied=True))
            raise

    def _dispatch(self, data: bytes) -> None:
        number, _, _ = wire.read_header(data)
        if number == wire.EVENT_XID:
            event, _ = wire.read(Watch.deserialize, data, wire.HEADER_SIZE)
            self._on_event(str(event.path), event.type == wire.CREATED)
        elif number != wire.PING_XID:
            if not self._pending or self._pending[0][0] != number:
                raise NotZooKeeperError(f"its answer is not ZooKeeper's: to request {number}, which no call waits for")
            _, request, answer = self._pending.popleft()
            reply = wire.read_reply(request, data)
            answer.set_result(reply)
            if isinstance(reply.result, exceptions.SessionClosedRequireSaslError):
                # There will be no answers to the others.
                raise EndpointError(name_of(reply.result), applied=True, denied=True)
