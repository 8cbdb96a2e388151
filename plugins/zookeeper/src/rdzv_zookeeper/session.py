"""A session with ZooKeeper: it outlives its connections, and ends when the ensemble says so."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kazoo.exceptions import NoNodeError, ZookeeperError  # type: ignore[import-untyped]
from kazoo.protocol.serialization import Close  # type: ignore[import-untyped]
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError
from rdzv_transport import EndpointError, ReplyLostError

from . import wire
from .channel import Channel
from .ensemble import Ensemble, Identity
from .failures import SessionEndedError, explain

__all__ = ["Session"]

_T = TypeVar("_T")


class Session:
    """See above.

    Args:
        ensemble: Where.
        identity: Which. One without a number begins when it is first used.
        on_event: Hears the path of every node that changes under a watch. With it, another session begins when this
            one has ended; without, what hangs on the session has ended for good.

    Attributes:
        ensemble: See there.
        identity: See there; as granted, since it is connected.
    """

    def __init__(self, ensemble: Ensemble, identity: Identity, on_event: Callable[[str], None] | None = None) -> None:
        self.identity = identity
        self.ensemble = ensemble
        self._asked = identity
        self._renew = on_event is not None
        self._on_event = on_event or (lambda path: None)
        self._attaching = threading.Lock()
        self._channel: Channel | None = None

    def call(self, requests: Sequence[wire.Request], deadline: float, *, repeatable: bool = True) -> list[wire.Reply]:
        """Have requests done in one flight; see `use`."""
        return self.use(lambda channel: channel.exchange(requests, deadline), deadline, repeatable)

    def use(self, work: Callable[[Channel], _T], deadline: float, repeatable: bool = True) -> _T:
        """Do something over the connection, and anew over another one if that one fails.

        Raises:
            ReplyLostError: It may have taken effect (only if not `repeatable`).
            SessionEndedError: The session has ended; the last request was not done.
            RendezvousConnectionError: No server could be reached, or none answered.
        """
        failure: EndpointError | SessionEndedError | None = None
        # Each server may fail once, and the connection that there is may have broken while nobody looked.
        for _ in range(len(self.ensemble.members) + 1):
            channel = self.channel(deadline)
            try:
                return work(channel)
            except SessionEndedError as error:
                channel.fail(EndpointError("its session has ended", applied=False))
                if not self._renew:
                    raise
                failure = error
            except EndpointError as error:
                if error.denied:
                    raise RendezvousDeniedError(f"ZooKeeper refused {self.ensemble.login.who}: {error}.") from error
                if error.applied and not repeatable:
                    raise ReplyLostError(f"ZooKeeper's answer was lost: {error}.") from error
                failure = error
            if time.monotonic() >= deadline:
                break
        self.ensemble.check_open()
        endpoint = channel.line.member.endpoint
        raise RendezvousConnectionError(f"ZooKeeper at {endpoint} did not answer: {failure}.") from failure

    def check(self, reply: wire.Reply, path: str, *expected: type[Exception]) -> Any:
        """The result of a request about `path`.

        Raises:
            RendezvousError: What an error means that is not expected.
        """
        if isinstance(reply.result, ZookeeperError) and not isinstance(reply.result, expected):
            raise explain(reply.result, path, self.ensemble.login.who) from reply.result
        return reply.result

    def found(self, reply: wire.Reply, path: str) -> Any:
        """What was read of the node at `path`; None if there is no such node. Raises as `check`."""
        return None if isinstance(reply.result, NoNodeError) else self.check(reply, path)

    def channel(self, deadline: float) -> Channel:
        """The connection; makes one if there is none.

        Raises:
            SessionEndedError: The session has ended.
            RendezvousConnectionError: No server could be reached.
        """
        if not self._attaching.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RendezvousConnectionError("ZooKeeper was not reached in time: another thread still connects.")
        try:
            self.ensemble.check_open()
            channel = self._channel
            if channel is not None:
                channel.poll()
                if channel.broken is None:
                    return channel
                self.ensemble.demote(channel.line.member)
            self._channel = channel = self._attach(deadline)
            return channel
        finally:
            self._attaching.release()

    def end(self, deadline: float) -> None:
        """End the session now, with all that hangs on it.

        Raises:
            RendezvousConnectionError: No server could be reached.
        """
        with contextlib.suppress(SessionEndedError):
            self.call([Close()], deadline)
        self.disconnect()

    def close_session(self) -> None:
        """Have the session ended if that takes no time."""
        with contextlib.suppress(EndpointError):
            if self._channel is not None:
                self._channel.send([Close()], time.monotonic())

    def disconnect(self) -> None:
        """Let go of the connection; the session lives on until its time is up, and the next call makes another."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.fail(EndpointError("the connection was given up", applied=True))

    def _attach(self, deadline: float) -> Channel:
        try:
            line, self.identity = self.ensemble.attach(self.identity, deadline)
        except SessionEndedError:
            if not self._renew:
                raise
            line, self.identity = self.ensemble.attach(self._asked, deadline)
        return Channel(self.ensemble, line, self._on_event, self.identity.timeout)
