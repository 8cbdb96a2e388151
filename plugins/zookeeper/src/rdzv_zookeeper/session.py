"""A session with ZooKeeper: it outlives its connections, and ends when the ensemble says so."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from kazoo.exceptions import NoNodeError, ZookeeperError  # type: ignore[import-untyped]
from kazoo.protocol.serialization import Close, Connect  # type: ignore[import-untyped]
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError
from rdzv_transport import EndpointError, FailoverClient, Member, ReplyLostError, alone

from . import wire
from .channel import Channel, opening
from .failures import NotZooKeeperError, SessionEndedError, explain
from .security import Login

_T = TypeVar("_T")

_ENDED: Final = (
    "; a server does so while its ensemble has no leader, when it has too many connections from one address "
    "(its maxClientCnxns), or when one end speaks TLS and the other one does not (our option tls)"
)
_PARTING: Final = 0.02
"""Seconds for the answer to the last request of a session: more than it takes on a network that is near."""

_LONGEST_TIMEOUT: Final = 2**31 - 1
"""In milliseconds: what fits into the request."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the ensemble knows a session by. A client that shows it speaks for the session, from any connection.

    Attributes:
        timeout: After so many seconds of silence it ends; as granted.
        number: Unique for the life of the ensemble; 0: the session is yet to be made.
        password: Proves that the session is ours.
    """

    timeout: float
    number: int = 0
    password: bytes = bytes(16)


class Session:
    """See above.

    Args:
        on_event: Hears the path of every node that changes under a watch, and whether it was created. With it, another
            session begins when this one has ended; without, what belongs to the session has ended for good.

    Attributes:
        client: The servers.
        login: The user that logs in.
        identity: Which. One without a number begins when it is first used; as granted, since it is connected.
    """

    def __init__(
        self,
        client: FailoverClient,
        login: Login,
        identity: Identity,
        on_event: Callable[[str, bool], None] | None = None,
    ) -> None:
        self.client = client
        self.login = login
        self.identity = identity
        self._asked = identity
        self._renew = on_event is not None
        self._on_event = on_event or (lambda path, created: None)
        self._attaching = threading.RLock()
        self._channel: Channel | None = None

    def call(self, requests: Sequence[wire.Request], deadline: float, *, repeatable: bool = True) -> list[wire.Reply]:
        """Have requests done in one flight; see `use`."""
        return self.use(lambda channel: channel.exchange(requests, deadline), deadline, repeatable)

    def use(
        self,
        work: Callable[[Channel], _T],
        deadline: float,
        repeatable: bool = True,
        first: Sequence[wire.Request] = (),
    ) -> _T:
        """Do something over the connection, and anew over another one if that one fails.

        Args:
            work: What it is.
            deadline: Until when.
            repeatable: Whether it may be done again though it may have taken effect already.
            first: What it exchanges first over a new connection: it is on its way sooner then.

        Raises:
            ReplyLostError: It may have taken effect (only if not `repeatable`).
            SessionEndedError: The session has ended; the last request was not done.
            RendezvousConnectionError: No server could be reached, or none answered.
        """
        failure: EndpointError | SessionEndedError | None = None
        # Each server may fail once, and the connection that there is may have broken while it was not in use.
        for _ in range(len(self.client.members) + 1):
            channel = self.channel(deadline, first)
            try:
                return work(channel)
            except SessionEndedError as error:
                channel.fail(EndpointError("its session has ended", applied=False))
                if not self._renew:
                    raise
                failure = error
            except EndpointError as error:
                if error.denied:
                    raise RendezvousDeniedError(f"ZooKeeper refused {self.login.who}: {error}.") from error
                if error.applied and not repeatable:
                    raise ReplyLostError(f"ZooKeeper's answer was lost: {error}.") from error
                failure = error
            if time.monotonic() >= deadline:
                break
        self.client.check_open()
        endpoint = channel.line.member.endpoint
        raise RendezvousConnectionError(f"ZooKeeper at {endpoint} did not answer: {failure}.") from failure

    def check(self, reply: wire.Reply, path: str, *expected: type[Exception]) -> Any:
        """The result of a request about `path`.

        Raises:
            RendezvousError: What an error means that is not expected.
        """
        if isinstance(reply.result, ZookeeperError) and not isinstance(reply.result, expected):
            raise explain(reply.result, path, self.login.who) from reply.result
        return reply.result

    def found(self, reply: wire.Reply, path: str) -> Any:
        """What was read of the node at `path`; None if there is no such node. Raises as `check`."""
        return None if isinstance(reply.result, NoNodeError) else self.check(reply, path)

    def channel(self, deadline: float, first: Sequence[wire.Request] = ()) -> Channel:
        """The connection; makes one if there is none, which has sent what is asked `first` as soon as it could.

        Raises:
            SessionEndedError: The session has ended.
            RendezvousConnectionError: No server could be reached.
        """
        channel = alone(self._attaching, partial(self._attached, first, deadline), deadline)
        if channel is None:
            raise RendezvousConnectionError("ZooKeeper was not reached in time: another thread still connects.")
        return channel

    def end(self, deadline: float) -> None:
        """End the session now, with all that belongs to it.

        Raises:
            RendezvousConnectionError: No server could be reached.
        """
        with contextlib.suppress(SessionEndedError):
            self.call([Close()], deadline)
        self.disconnect()

    def close_session(self) -> None:
        """Have the session ended if that takes next to no time."""
        with contextlib.suppress(EndpointError):
            if (channel := self._channel) is not None:
                (answer,) = channel.send([Close()], time.monotonic())
                # A connection that is closed with an event unread is reset: the server may end it before it reads that.
                channel.listen(answer.done, time.monotonic() + _PARTING)

    def disconnect(self) -> None:
        """Let go of the connection; the session lives on until its time is up, and the next call makes another."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.fail(EndpointError("the connection was given up", applied=True))

    def _attached(self, first: Sequence[wire.Request], deadline: float) -> Channel:
        self.client.check_open()
        channel = self._channel
        if channel is not None:
            channel.poll()
            if channel.broken is None:
                return channel
            self.client.demote(channel.line.member)
        # A mechanism is gone through before anything else is asked.
        begun = () if self.login.sasl else first
        try:
            line = self._attach(self.identity, begun, deadline)
        except SessionEndedError:
            if not self._renew:
                raise
            line = self._attach(self._asked, begun, deadline)
        self._channel = Channel(self.client, line, self._on_event, self.identity.timeout, begun)
        return self._channel

    def _attach(self, identity: Identity, begun: Sequence[wire.Request], deadline: float) -> wire.Line:
        """Connect the session, or make one, at whichever server takes it."""
        attempt = partial(self._attach_to, identity, self.login.opening + opening(begun))
        line, self.identity = self.client.try_members(attempt, deadline - time.monotonic())
        return line

    def _attach_to(
        self, identity: Identity, behind: bytes, member: Member, deadline: float
    ) -> tuple[wire.Line, Identity]:
        line = wire.Line(self.client.connect(member, deadline), member)
        try:
            granted = _shake_hands(line, identity, behind, deadline)
            self.client.understood = True
            self.login.perform(line, member.name, deadline)
        except EndpointError as error:
            line.close()
            known, foreign = self.client.understood, isinstance(error, NotZooKeeperError)
            hint = _ENDED if isinstance(error.__cause__, ConnectionResetError | BrokenPipeError) else ""
            hint += "" if known or foreign else "; is it ZooKeeper?"
            denied = error.denied or (foreign and not known)
            raise EndpointError(f"no session: {error}{hint}", applied=False, denied=denied) from error
        except BaseException:
            line.close()
            raise
        return line, granted


def _shake_hands(line: wire.Line, identity: Identity, behind: bytes, deadline: float) -> Identity:
    """Begin with a session, and send what comes behind that."""
    asked = min(math.ceil(identity.timeout * 1000), _LONGEST_TIMEOUT)
    # We claim to have seen nothing yet: every read asks for the latest anyway, and a server that was
    # set up anew, or restored from a copy, would refuse a client that has seen more than it has.
    seen = 0
    hello = wire.frame(Connect(0, seen, asked, identity.number, identity.password, False), None)
    # A server reads on when the session has begun. From a session that has ended it hangs up as soon as it has said so,
    # and what it has not read would be the end of that answer, too.
    sooner, later = (b"", behind) if identity.number else (behind, b"")
    line.send(hello + sooner, deadline)
    granted, _ = wire.read(Connect.deserialize, line.next(deadline))
    if granted.time_out <= 0:
        if identity.number:
            raise SessionEndedError("the session has ended")
        raise EndpointError("it grants none", applied=False)
    line.send(later, deadline)
    return Identity(granted.time_out / 1000, granted.session_id, granted.passwd)
