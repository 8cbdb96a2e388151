"""Waiting for changes by polls: one per prefix, however many threads wait, kept from one wait to the next.

Of the threads that wait for a prefix one at a time polls, for all. A poll that a wait has given up is in progress
still, and the next wait goes on with it.
"""

import time
from dataclasses import dataclass
from typing import Final, Protocol

from rdzv_core.backend import Snapshot
from rdzv_core.turns import Turns

from .connection import ResponseTimeoutError
from .poll import Poll
from .reading import Readable, Reading
from .sockets import EndpointError

_REUSE_WINDOW: Final = 1.0
"""A snapshot that was received less than so many seconds ago need not be read again."""

PAUSE: Final = 0.02
"""Seconds from a poll to the next if it brought nothing: some services wake a waiter at every write nearby."""


@dataclass(frozen=True, slots=True)
class Revision:
    """When a snapshot was true.

    Attributes:
        index: The service's own count. It falls if the service loses data.
        asked: When the service was asked, on our monotonic clock.
        received: When it had answered; -inf if it is not known.
    """

    index: int
    asked: float
    received: float


_UNKNOWN: Final = Revision(0, float("-inf"), float("-inf"))
"""That of a snapshot from elsewhere."""


class Polled(Readable, Protocol):
    """A service that answers after a change, as one process reaches it. Its snapshots have a `Revision`."""

    def open_poll(self, prefix: str, since: Snapshot, timeout: float) -> Poll[Snapshot]:
        """Ask, within `timeout` seconds, for what is at or under a prefix after the first change since a snapshot.

        Raises:
            RendezvousConnectionError: No endpoint could be reached.
        """


class PollWatch:
    """What is known of one prefix, and the poll that keeps it up to date.

    Args:
        service: Asked for what is at or under the prefix.
        prefix: Which.
    """

    def __init__(self, service: Polled, prefix: str) -> None:
        self._service = service
        self._client = service.client
        self._prefix = prefix
        self._turns = Turns()
        # None: it must be read before anything else, or is being read.
        self._now: Snapshot | None = None
        self._has_failed = False
        self._reading: Reading | None = None
        self._poll: Poll[Snapshot] | None = None
        self._next_poll = 0.0

    def wait(self, since: Snapshot, deadline: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        known = since.revision if isinstance(since.revision, Revision) else _UNKNOWN
        with self._turns.lock:
            is_recent = time.monotonic() - known.received < _REUSE_WINDOW
            # After a failure the service may have lost what it had, and what is newer never come.
            if self._now is None and is_recent and not self._has_failed:
                self._now = since

        def news() -> Snapshot | None:
            self._client.check_open()
            now = self._now
            return now if now is not None and _is_newer(now, since, known) else None

        return self._turns.wait(news, lambda: self._step(deadline), deadline) or since

    def close(self) -> None:
        """Give up what is under way; the next wait begins anew."""
        reading, self._reading, poll, self._poll = self._reading, None, self._poll, None
        for asked in (reading, poll):
            if asked is not None:
                asked.close()

    def _step(self, deadline: float) -> None:
        """One step towards news: begin a reading or a poll, or receive the answer."""
        with self._client.forgiving(deadline):
            try:
                if self._reading is not None:
                    self._receive_reading(self._reading, deadline)
                elif self._poll is not None:
                    self._receive(self._poll, deadline)
                else:
                    self._begin(deadline)
            except BaseException:
                # An interrupt, too: what was received and not taken in does not come again.
                self._now, self._has_failed = None, True
                self.close()
                raise

    def _begin(self, deadline: float) -> None:
        if (pause := self._next_poll - time.monotonic()) > 0:
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            return
        self._next_poll = time.monotonic() + PAUSE
        if (now := self._now) is None:
            self._reading = Reading(self._service, self._prefix)
        else:
            timeout = min(deadline - time.monotonic(), self._client.patience)
            self._poll = self._service.open_poll(self._prefix, now, timeout)

    def _receive_reading(self, reading: Reading, deadline: float) -> None:
        if (found := reading.receive(deadline)) is not None:
            self._reading = None
            self._take_in(found)

    def _receive(self, poll: Poll[Snapshot], deadline: float) -> None:
        found = None
        try:
            if (answer := poll.receive(deadline)) is None:
                return
            (found,) = answer
        except EndpointError as failure:
            # One that waits for a change may be late: reading shows whether the service lives.
            if not isinstance(failure, ResponseTimeoutError):
                self._client.demote(poll.member)
        self.close()
        self._take_in(found)

    def _take_in(self, found: Snapshot | None) -> None:
        """Know what was found; None: what there is must be read."""
        before, self._now, self._has_failed = self._now, found, found is None
        if found is not None and (before is None or found.entries != before.entries):
            self._next_poll = 0.0


def _is_newer(now: Snapshot, since: Snapshot, known: Revision) -> bool:
    """Whether a caller who knows `since` should see `now`."""
    # What was asked for after `since` was received is newer, even if the service has lost data and counts anew.
    is_newer = now.revision.index >= known.index or now.revision.asked >= known.received
    return is_newer and bool(now.entries != since.entries)
