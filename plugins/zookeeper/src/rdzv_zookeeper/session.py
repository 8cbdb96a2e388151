"""A session with ZooKeeper, and the connection that it has at the moment.

No thread of our own: whichever thread waits for an answer, or for an event, reads for all. So a session
is kept alive by those who use it and by nothing else, and nothing is sent that nobody waits for.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError

from . import wire
from .ensemble import Ensemble, Identity
from .failures import BrokenError, ReplyLostError, SessionEndedError
from .transport import Line

__all__ = ["Channel", "Session"]

_T = TypeVar("_T")

_PER_FLIGHT: Final = 256
"""How many requests are sent before the first answer is read: each side can hold so many for the other."""

_OFTEN: Final = 1.0
"""Seconds between keep-alives, at most, while a thread waits."""

_PROBE_AFTER: Final = 0.05
"""Seconds after which a server that owes an answer is probed. ZooKeeper 3.8 forgets about one request in
thousands until the next one comes."""


class _Pending:
    """A request whose answer has not come."""

    __slots__ = ("number", "reply", "request")

    def __init__(self, request: wire.Request, number: int) -> None:
        self.request = request
        self.number = number
        self.reply: wire.Reply | None = None


class Channel:
    """A session's connection to one server: requests in order, answers in the same order, events amid them."""

    def __init__(self, line: Line, on_event: Callable[[str], None]) -> None:
        """Speak over `line`; `on_event` hears the path of every node that changes under a watch."""
        self.line = line
        self.broken: BrokenError | None = None
        self._on_event = on_event
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._pending: deque[_Pending] = deque()
        self._number = 0
        self._reading = False
        self._asked = time.monotonic()

    def exchange(self, requests: Sequence[wire.Request], deadline: float, patience: float) -> list[wire.Reply]:
        """Send requests all at once, and wait for their answers.

        Args:
            requests: In this order they are done.
            deadline: Until when.
            patience: The seconds of silence after which the server is given up.

        Raises:
            BrokenError: The connection broke (see `BrokenError.sent`), or the deadline has come.
            SessionEndedError: The session has ended.
        """
        replies: list[wire.Reply] = []
        for start in range(0, len(requests), _PER_FLIGHT):
            flight = self._send(requests[start : start + _PER_FLIGHT], deadline, first=not start)
            self._await(flight[-1], deadline, patience)
            replies += [one.reply for one in flight if one.reply is not None]
        if any(isinstance(reply.result, wire.SessionExpiredError) for reply in replies):
            raise SessionEndedError
        return replies

    def listen(self, done: Callable[[], bool], deadline: float, timeout: float) -> bool:
        """Read until `done`, and let the server hear of us meanwhile.

        Args:
            done: Asked whenever something has arrived; takes no lock that another thread may hold for long.
            deadline: Until when.
            timeout: The session's, in seconds.

        Returns:
            Whether it is done.

        Raises:
            BrokenError: The connection broke.
        """
        began = time.monotonic()
        while True:
            due = self._asked + min(_OFTEN, timeout / 3)
            if self._read_until(done, min(deadline, due)):
                return True
            now = time.monotonic()
            if now >= deadline:
                return False
            if now < due:
                continue
            silence = now - max(began, self.line.has_responded)
            if silence > timeout * 2 / 3:
                self.fail(BrokenError(f"silence for {silence:.1f} s"))
            else:
                self._ping(deadline)

    def wake(self) -> None:
        """Have every thread that listens ask again whether it is done."""
        with self._changed:
            self._changed.notify_all()

    def poll(self) -> None:
        """Take what has arrived, without waiting; an end that has come is noticed."""
        self._take_turn(lambda: self.broken is not None or self._reading, time.monotonic())

    def close_session(self) -> None:
        """Ask for the session's end, if that takes no time."""
        if self._sending.acquire(blocking=False):
            with contextlib.suppress(BrokenError):
                self.line.send(wire.frame(wire.Close(), 0), time.monotonic())
            self._sending.release()

    def fail(self, error: BrokenError) -> None:
        """Have everybody who waits find it broken."""
        with self._changed:
            self.broken = self.broken or error
            self._changed.notify_all()
        self.line.close()

    def _send(self, requests: Sequence[wire.Request], deadline: float, *, first: bool) -> list[_Pending]:
        if not self._sending.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise BrokenError("another thread still sends", sent=not first)
        try:
            flight = [_Pending(request, self._next_number()) for request in requests]
            data = b"".join(wire.frame(one.request, one.number) for one in flight)
            with self._changed:
                self._check(sent=not first)
                self._pending += flight
            self._asked = time.monotonic()
            self.line.send(data, deadline)
        except BrokenError as error:
            self.fail(error)
            raise error.again(sent=error.sent or not first) from error
        finally:
            self._sending.release()
        return flight

    def _next_number(self) -> int:
        self._number = self._number % 0x7FFFFFFF + 1
        return self._number

    def _ping(self, deadline: float) -> None:
        if not self._sending.acquire(blocking=False):
            return  # the one who sends is as good a sign
        try:
            self._asked = time.monotonic()
            self.line.send(wire.frame(wire.Ping(), wire.PING_XID), deadline)
        except BrokenError as error:
            self.fail(error)
        finally:
            self._sending.release()

    def _await(self, one: _Pending, deadline: float, patience: float) -> None:
        """Wait for an answer."""
        began = time.monotonic()
        pause = _PROBE_AFTER
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise BrokenError("no answer in time")
            if now >= max(began, self.line.has_responded) + patience:
                self.fail(BrokenError(f"no answer within {patience:.1f} s"))
            if self._read_until(lambda: one.reply is not None, min(deadline, now + pause)):
                return
            self._ping(deadline)
            pause = min(2 * pause, _OFTEN)

    def _read_until(self, done: Callable[[], bool], deadline: float) -> bool:
        """Take part in reading until `done`; False if the deadline has come."""
        while not self._take_turn(done, deadline):
            if time.monotonic() >= deadline:
                with self._changed:
                    return done()
        return True

    def _take_turn(self, done: Callable[[], bool], deadline: float) -> bool:
        """Unless it is done: receive for all, or wait for the thread that does. Whether it was done."""
        my_turn = False
        try:
            with self._changed:
                if done():
                    return True
                self._check(sent=True)
                if self._reading:
                    self._changed.wait(max(0.0, deadline - time.monotonic()))
                    return False
                my_turn = self._reading = True
            self._receive(deadline)
            return False
        finally:
            if my_turn:
                # First of all: an interrupt of the rest must not leave a turn that no thread has.
                self._reading = False
                with self._changed:
                    self._changed.notify_all()

    def _check(self, *, sent: bool) -> None:
        if self.broken is not None:
            self.line.close()
            raise self.broken.again(sent=sent) from self.broken

    def _receive(self, deadline: float) -> None:
        failure: BrokenError | None = None
        try:
            frames = self.line.receive(deadline)
            with self._changed:
                for data in frames:
                    self._dispatch(data)
        except BrokenError as error:
            failure = error
        except wire.MalformedError as error:
            failure = BrokenError(f"its answer is not ZooKeeper's: {error}")
        except BaseException as error:
            # Answers and events may be lost with it, and others wait for them.
            failure = BrokenError(f"reading it has failed: {error!r}")
            raise
        finally:
            if failure is not None:
                self.fail(failure)

    def _dispatch(self, data: bytes) -> None:
        number, _, _ = wire.parse_header(data)
        if number == wire.EVENT_XID:
            self._on_event(wire.parse_event(data))
        elif number != wire.PING_XID:
            if not self._pending or self._pending[0].number != number:
                raise wire.MalformedError(f"an answer to request {number}, which nobody waits for")
            one = self._pending.popleft()
            one.reply = wire.parse_reply(one.request, data)
            if isinstance(one.reply.result, wire.SessionClosedRequireSaslError):
                # There will be no answers to the others.
                self.broken = BrokenError(f"{type(one.reply.result).__name__.removesuffix('Error')}", denied=True)


class Session:
    """A session: it outlives its connections, and ends when the ensemble says so."""

    def __init__(
        self,
        ensemble: Ensemble,
        timeout: float,
        *,
        on_event: Callable[[str], None] = lambda path: None,
        identity: Identity | None = None,
        renew: bool = False,
    ) -> None:
        """Does not connect.

        Args:
            ensemble: Where.
            timeout: The seconds of silence that it should outlast.
            on_event: Hears the path of every node that changes under a watch.
            identity: Of a session that exists; None: it begins when it is first used.
            renew: Begin another session when this one has ended.
        """
        self.identity = identity
        self._ensemble = ensemble
        self._timeout = timeout
        self._on_event = on_event
        self._renew = renew
        self._attaching = threading.Lock()
        self._channel: Channel | None = None

    def call(self, requests: Sequence[wire.Request], deadline: float, *, repeatable: bool = True) -> list[wire.Reply]:
        """Have requests done in one flight; see `use`."""
        return self.use(lambda channel: channel.exchange(requests, deadline, self.patience), deadline, repeatable)

    def use(self, work: Callable[[Channel], _T], deadline: float, repeatable: bool = True) -> _T:
        """Do something over the connection, and over another one if that one fails.

        Args:
            work: Done anew over each connection.
            deadline: Until when.
            repeatable: Whether it may be done again though it may have taken effect already.

        Raises:
            ReplyLostError: It may have taken effect (only if not `repeatable`).
            SessionEndedError: The session has ended; the last request was not done.
            RendezvousConnectionError: No server could be reached, or none answered.
        """
        failure: BrokenError | SessionEndedError | None = None
        # Each server may fail once, and the connection that there is may have broken while nobody looked.
        for _ in range(self._ensemble.size + 1):
            channel, began = self.channel(deadline), time.monotonic()
            try:
                return work(channel)
            except SessionEndedError as error:
                channel.fail(BrokenError("its session has ended", sent=False))
                if not self._renew:
                    raise
                failure = error
            except BrokenError as error:
                self._judge(channel, began)
                if error.denied:
                    raise RendezvousDeniedError(f"ZooKeeper refused {self._ensemble.login.who}: {error}.") from error
                if error.sent and not repeatable:
                    raise ReplyLostError(f"ZooKeeper's answer was lost: {error}.") from error
                failure = error
            if time.monotonic() >= deadline:
                break
        self._ensemble.check_open()
        raise RendezvousConnectionError(f"ZooKeeper at {channel.line.endpoint} did not answer: {failure}.") from failure

    def listen(self, channel: Channel, done: Callable[[], bool], deadline: float) -> bool:
        """Read events until `done` (see `Channel.listen`), or the connection breaks; False if it is the deadline."""
        timeout = self.identity.timeout if self.identity else self._timeout
        began = time.monotonic()
        try:
            return channel.listen(done, deadline, timeout)
        except BrokenError:
            self._judge(channel, began)
            self._ensemble.check_open()
            return True

    @property
    def patience(self) -> float:
        """The seconds of silence after which another server is tried; with one endpoint there is none to try."""
        return self._ensemble.request_timeout if self._ensemble.size > 1 else float("inf")

    @property
    def turn(self) -> float:
        """Seconds within which every server had its chance to answer."""
        return self._ensemble.request_timeout * self._ensemble.size

    def channel(self, deadline: float) -> Channel:
        """The connection; makes one if there is none.

        Raises:
            SessionEndedError: The session has ended.
            RendezvousConnectionError: No server could be reached.
        """
        if not self._attaching.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RendezvousConnectionError("ZooKeeper was not reached in time: another thread still connects.")
        try:
            self._ensemble.check_open()
            channel = self._channel
            if channel is not None:
                channel.poll()
                if channel.broken is None:
                    return channel
                self._drop(channel)
            self._channel = self._attach(deadline)
            return self._channel
        finally:
            self._attaching.release()

    def end(self, deadline: float) -> None:
        """End the session now, with all that hangs on it.

        Raises:
            RendezvousConnectionError: No server could be reached.
        """
        with contextlib.suppress(SessionEndedError):
            self.call([wire.Close()], deadline)
        self.disconnect()

    def close_session(self) -> None:
        """Have the session ended if that takes no time."""
        channel = self._channel
        if channel is not None:
            channel.close_session()

    def leave(self) -> None:
        """Have the next call make a new connection."""
        channel = self._channel
        if channel is not None:
            channel.fail(BrokenError("the connection was left"))

    def disconnect(self) -> None:
        """Let go of the connection; the session lives on until its time is up."""
        channel, self._channel = self._channel, None
        if channel is not None:
            self._drop(channel)

    def _attach(self, deadline: float) -> Channel:
        try:
            line, self.identity = self._ensemble.attach(self.identity, self._timeout, deadline)
        except SessionEndedError:
            if not self._renew:
                raise
            line, self.identity = self._ensemble.attach(None, self._timeout, deadline)
        return Channel(line, self._on_event)

    def _drop(self, channel: Channel) -> None:
        channel.fail(BrokenError("the connection was given up"))
        self._ensemble.transport.disconnect(channel.line)

    def _judge(self, channel: Channel, began: float) -> None:
        """After a failure: go elsewhere next time, unless all that failed was the caller's patience."""
        if time.monotonic() - max(began, channel.line.has_responded) >= self._ensemble.request_timeout:
            channel.fail(BrokenError("it was silent for too long"))
        if channel.broken is not None:
            self._ensemble.demote(channel.line.endpoint)
