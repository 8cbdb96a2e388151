"""Waiting for changes by polls: one per prefix, however many threads wait, kept from one wait to the next.

Of the threads that wait for a prefix one at a time polls, for all. A poll that a wait has given up is in progress
still, and the next wait goes on with it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rdzv_core.backend import Snapshot
from rdzv_core.turns import Turns

from .client import Client
from .connection import ResponseTimeoutError
from .poll import Poll
from .sockets import EndpointError

_REUSE_WINDOW: Final = 1.0
"""A snapshot that was received less than so many seconds ago need not be read again."""

PAUSE: Final = 0.02
"""Seconds from a poll to the next if it brought nothing: some services wake a waiter at every write nearby."""

OpenPoll = Callable[[str, Snapshot | None, float], Poll[Snapshot] | None]
"""Asks for what is at or under a prefix after the first change since a snapshot, or as it is now: given the prefix, the
snapshot or None, and the seconds until it is sent. None: it is to be read by a call."""


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


class PollWatch:
    """What is known of one prefix, and the poll that keeps it up to date.

    Args:
        client: The connections.
        read_all: Reads everything at or under a prefix, given the seconds for it, where `open_poll` begins no reading,
            or that has failed. Its snapshots have a `Revision`.
        open_poll: See `OpenPoll`.
        prefix: Which.
    """

    def __init__(
        self,
        client: Client,
        read_all: Callable[[str, float], Snapshot],
        open_poll: OpenPoll,
        prefix: str,
    ) -> None:
        self._client = client
        self._read_all = read_all
        self._open_poll = open_poll
        self._prefix = prefix
        self._turns = Turns()
        # None: it must be read before anything else, or is being read.
        self._now: Snapshot | None = None
        self._has_failed = False
        self._poll: Poll[Snapshot] | None = None
        # Whether it is answered at once; a wait may bring a snapshot meanwhile.
        self._is_reading = False
        self._next_poll = 0.0

    def wait(self, since: Snapshot, deadline: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        known = since.revision if isinstance(since.revision, Revision) else _UNKNOWN
        with self._turns.lock:
            is_unread = self._now is None and self._poll is None
            # After a failure the service may have lost what it had, and what is newer never come.
            if is_unread and not self._has_failed and time.monotonic() - known.received < _REUSE_WINDOW:
                self._now = since

        def news() -> Snapshot | None:
            self._client.check_open()
            now = self._now
            return now if now is not None and _is_newer(now, since, known) else None

        return self._turns.wait(news, lambda: self._step(deadline), deadline) or since

    def close(self) -> None:
        """Give up the poll, if there is one; the next wait opens another."""
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.close()

    def _step(self, deadline: float) -> None:
        """One step towards news: begin a poll, or receive its answer. A reading begins as a poll, too: a wait that is
        shorter than a round trip does not lose it."""
        with self._client.forgiving(deadline):
            try:
                if self._poll is None:
                    self._begin(deadline)
                else:
                    self._receive(self._poll, deadline)
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
        now = self._now
        self._is_reading = now is None
        self._poll = self._open_poll(self._prefix, now, self._timeout(deadline))
        if self._poll is None:
            self._take_in(self._read_all(self._prefix, self._timeout(deadline)))

    def _receive(self, poll: Poll[Snapshot], deadline: float) -> None:
        is_reading, found = self._is_reading, None
        try:
            if (result := poll.receive(deadline)) is None:
                return
            (found,) = result
        except EndpointError as failure:
            if is_reading and len(self._client.members) == 1:
                raise self._client.fail(poll.member, failure) from failure
            # One that waits for a change may be late: reading shows whether the service lives.
            if is_reading or not isinstance(failure, ResponseTimeoutError):
                self._client.demote(poll.member)
        self.close()
        if found is None and is_reading:
            # By a call, which tries the other endpoints, and tells the caller what fails.
            found = self._read_all(self._prefix, self._timeout(deadline))
        self._take_in(found)

    def _take_in(self, found: Snapshot | None) -> None:
        """Know what was found; None: what there is must be read."""
        before, self._now, self._has_failed = self._now, found, found is None
        if found is not None and (before is None or found.entries != before.entries):
            self._next_poll = 0.0

    def _timeout(self, deadline: float) -> float:
        return min(deadline - time.monotonic(), self._client.patience)


def _is_newer(now: Snapshot, since: Snapshot, known: Revision) -> bool:
    """Whether a caller who knows `since` should see `now`."""
    # What was asked for after `since` was received is newer, even if the service has lost data and counts anew.
    is_newer = now.revision.index >= known.index or now.revision.asked >= known.received
    return is_newer and bool(now.entries != since.entries)
