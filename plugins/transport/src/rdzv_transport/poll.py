"""An answer that the service may keep back until there is news.

Read by whichever thread waits for it, so that no poll needs a thread of its own, and a wait can be given up and taken
up again.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Generic, TypeVar

from .connection import Connection, Reply, ResponseTimeoutError

_T = TypeVar("_T")

_GRACE: Final = 0.1
"""Seconds for the pieces of an answer that are there, where its time is over."""


class Poll(Generic[_T]):
    """A request in progress, made by `Client.open_poll`; its user closes it. One thread at a time may receive.

    Attributes:
        member: The endpoint that was asked.
    """

    def __init__(
        self, connection: Connection, understand: Callable[[Reply], _T], until: float, used: ExitStack
    ) -> None:
        """Its request was sent by `connection`.

        Args:
            connection: Of its own until the answer has come.
            understand: Makes the result of the answer, and leaves the connection for the next request.
            until: The moment by which the endpoint must have answered.
            used: Says that the connection is not used any more.
        """
        self.member = connection.member
        self._connection: Connection | None = connection
        self._understand = understand
        self._until = until
        self._used = used

    def receive(self, deadline: float) -> tuple[_T] | None:
        """The result, in a tuple of one, if the answer comes until `deadline`; None: it is still awaited, or its time
        is over just now: ask again. One whose time is over is given `_GRACE` seconds, whatever the deadline.

        Raises:
            EndpointError: The endpoint broke, or did not answer in time.
            RendezvousError: From the client's `check`.
        """
        assert self._connection is not None  # noqa: S101 - it was neither answered nor closed
        began = time.monotonic()
        is_late = began >= self._until
        # What has come is not late because it is taken up late: all its pieces are read.
        reply = self._connection.finish(began + _GRACE if is_late else min(deadline, self._until))
        if reply is None:
            if is_late:
                raise ResponseTimeoutError("no answer in time", applied=True)
            return None
        self._connection = None
        self._used.close()
        return (self._understand(reply),)

    def close(self) -> None:
        """Give it up. Closing twice is fine, and so is closing one that was answered."""
        connection, self._connection = self._connection, None
        self._used.close()
        if connection is not None:
            connection.close()
