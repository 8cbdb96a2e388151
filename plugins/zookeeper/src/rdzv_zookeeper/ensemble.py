"""The servers of one ZooKeeper, and how a session is attached to one of them."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kazoo.protocol.serialization import Connect  # type: ignore[import-untyped]
from rdzv.endpoints import Endpoint
from rdzv_transport import EndpointError, FailoverClient, Member

from .failures import NotZooKeeperError, SessionEndedError
from .security import Login
from .wire import Line, read

__all__ = ["Ensemble", "Identity"]

_ENDED: Final = (
    "; a server does so while its ensemble has no leader, when it has too many connections from one address "
    "(its maxClientCnxns), or when one end speaks TLS and the other one does not (our option tls)"
)
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


class Ensemble(FailoverClient):
    """The servers, of one process.

    Attributes:
        login: Who we are.
    """

    def __init__(self, endpoints: Sequence[Endpoint], login: Login, **settings: Any) -> None:
        """See `FailoverClient`."""
        without_tls = "tls=false, or give its secureClientPort"
        super().__init__("ZooKeeper", endpoints, scheme="", without_tls=without_tls, **settings)
        self.login = login

    def attach(self, identity: Identity, deadline: float) -> tuple[Line, Identity]:
        """Connect a session, or make one, at whichever server takes it.

        Raises:
            SessionEndedError: There is no such session any more.
            RendezvousConnectionError: No server could be reached (`RendezvousDeniedError`: all refuse us, or
                answer as something else, and none ever did otherwise).
        """
        return self.try_members(partial(self._attempt, identity), deadline - time.monotonic())

    def _attempt(self, identity: Identity, member: Member, deadline: float) -> tuple[Line, Identity]:
        line = Line(self.sockets.connect(member.endpoint, deadline), member)
        try:
            granted = _shake_hands(line, identity, deadline)
            self.understood = True
            self.login.perform(line, member.endpoint.host, deadline)
        except EndpointError as error:
            line.close()
            denied = error.denied or (isinstance(error, NotZooKeeperError) and not self.understood)
            raise EndpointError(f"no session: {error}{self._hint(error)}", applied=False, denied=denied) from error
        except BaseException:
            line.close()
            raise
        return line, granted

    def _hint(self, error: EndpointError) -> str:
        ended = _ENDED if isinstance(error.__cause__, ConnectionResetError | BrokenPipeError) else ""
        return ended if self.understood or isinstance(error, NotZooKeeperError) else f"{ended}; is it ZooKeeper?"


def _shake_hands(line: Line, identity: Identity, deadline: float) -> Identity:
    asked = min(math.ceil(identity.timeout * 1000), _LONGEST_TIMEOUT)
    # We claim to have seen nothing yet: every read asks for the latest anyway, and a server that was
    # set up anew, or restored from a copy, would refuse a client that has seen more than it has.
    seen = 0
    hello = Connect(0, seen, asked, identity.number, identity.password, False)
    granted, _ = read(Connect.deserialize, line.ask(hello, None, deadline))
    if granted.time_out <= 0:
        if identity.number:
            raise SessionEndedError("the session has ended")
        raise EndpointError("it grants none", applied=False)
    return Identity(granted.time_out / 1000, granted.session_id, granted.passwd)
