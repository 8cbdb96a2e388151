"""Reading a prefix once, by what a wait that is shorter than a round trip does not lose."""

import time
from typing import Protocol

from rdzv_core.backend import Snapshot

from .client import Client
from .connection import ResponseTimeoutError
from .poll import Poll
from .sockets import EndpointError


class Readable(Protocol):
    """A service that can be read, as one process reaches it."""

    @property
    def client(self) -> Client:
        """The connections."""

    def read_all(self, prefix: str, timeout: float) -> Snapshot:
        """See `KeyValueBackend.read_all`."""

    def open_reading(self, prefix: str, timeout: float) -> Poll[Snapshot] | None:
        """Ask for the same, within `timeout` seconds; the answer may come later. None: it is to be read by a call.

        Raises:
            RendezvousConnectionError: No endpoint could be reached.
        """


class Reading:
    """A prefix is being read: by a poll, with which the next wait goes on; by a call if there is none, or it fails.

    A call tries the other endpoints, and says what fails. The only endpoint that has not answered has had its time.
    """

    def __init__(self, service: Readable, prefix: str) -> None:
        """Nothing is asked yet. Its user closes it."""
        self._service = service
        self._prefix = prefix
        self._poll: Poll[Snapshot] | None = None
        self._has_begun = False

    def receive(self, deadline: float) -> Snapshot | None:
        """Everything there is; None: it has not come by `deadline`, and the next wait receives it.

        Raises:
            RendezvousConnectionError: No endpoint has answered; the next wait reads anew.
        """
        client = self._service.client
        if not self._has_begun:
            self._has_begun = True
            self._poll = self._service.open_reading(self._prefix, self._timeout(deadline))
        if (poll := self._poll) is not None:
            try:
                # First of all: one that was answered must not be received from again, whatever interrupts this.
                self._poll = None
                if (answer := poll.receive(deadline)) is None:
                    self._poll = poll
                    return None
                return answer[0]
            except EndpointError as failure:
                if not isinstance(failure, ResponseTimeoutError) or len(client.members) > 1:
                    client.demote(poll.member)
                elif time.monotonic() < deadline:
                    raise client.fail(poll.member, failure) from failure
                else:
                    # What a wait says at its end counts as cut short by that: the next one says it, or has the answer.
                    self._poll = poll
                    return None
            finally:
                if self._poll is None:
                    poll.close()
        return self._service.read_all(self._prefix, self._timeout(deadline))

    def close(self) -> None:
        """Give it up. Closing twice is fine, and so is closing one that was answered."""
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.close()

    def _timeout(self, deadline: float) -> float:
        return min(deadline - time.monotonic(), self._service.client.patience)
