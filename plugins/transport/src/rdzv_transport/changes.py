"""Waiting for changes by streams of them: one per prefix, kept from one wait to the next.

What a stream brings is merged into the snapshot, so that nothing is read again. When a stream ends, for whatever reason
(its endpoint died, the service forgot what happened, it came back with less than it had), the prefix is read once and
compared: the last state is never missed.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rdzv_core.backend import Entry, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError
from rdzv_core.turns import Turns

from .prefixes import contains
from .reading import Readable, Reading
from .stream import Stream

_HASTE: Final = 1.0
"""A stream that breaks sooner than this, in seconds, is not opened again at once: the caller slows us down."""

_PAUSE: Final = 0.02
"""Seconds from a stream that brought nothing to the next."""

_LONGEST_PAUSE: Final = 1.0
"""The same where each stream has a gap at once, as behind a balancer one of whose members lags: doubled up to this."""


class GapError(Exception):
    """The service does not tell what happened since then: the prefix must be read again."""


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one key.

    Attributes:
        name: Of the key.
        entry: What it holds since; None if it was deleted.
        revision: When, in the service's order.
        below: Whether everything under it was deleted with it.
    """

    name: str
    entry: Entry | None
    revision: int
    below: bool = False


class Changes(ABC):
    """What happens under a prefix, until it ends. One thread at a time may receive.

    Attributes:
        over: Whether it tells nothing more, or may not. Another one tells the rest.
    """

    over = False

    def __init__(self, stream: Stream[list[Change]]) -> None:
        """They come by `stream`."""
        self._stream = stream

    @property
    @abstractmethod
    def confirmed(self) -> bool:
        """Whether the service has answered."""

    @property
    def age(self) -> float:
        """Seconds since they were asked for."""
        return time.monotonic() - self._stream.opened

    def receive(self, deadline: float) -> list[Change] | None:
        """All that is there; if there is nothing, wait until `deadline`, or until the service says anything.

        Returns:
            The changes; None: the prefix should be read, since it was silent for long, or has been ended.

        Raises:
            GapError: See there.
            RendezvousConnectionError: It ended or is broken (`RendezvousDeniedError`: the service does not let us).
        """
        return [change for changes in self._stream.receive(deadline) for change in changes]

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def log_in_again(self) -> bool:
        """Have the next one log in anew; False if there is nothing to log in with."""
        return False


class Source(Readable, Protocol):
    """A service that tells what happens, as one process reaches it. Its revisions are integers.

    Attributes:
        newest: The newest revision that any answer named. It falls if the service loses data.
        lost: The newest that was known of what the service has lost; 0: nothing.
    """

    newest: int
    lost: int

    def changes(self, prefix: str, known: int, timeout: float) -> Changes:
        """Ask, within `timeout` seconds, for what has happened since that revision; the answer may come later.

        Raises:
            RendezvousConnectionError: No endpoint could be reached.
        """


@dataclass(frozen=True, slots=True)
class _Settling:
    """A doubt is being settled.

    Attributes:
        doubt: Which: see `ChangeWatch`.
        known: The newest revision that we had when that began.
        reading: What settles it.
    """

    doubt: int
    known: int
    reading: Reading


class ChangeWatch:
    """What is known of one prefix, and the stream that keeps it up to date.

    Any number of threads may wait; one of them at a time reads, for all.
    """

    def __init__(self, source: Source, prefix: str) -> None:
        self._source = source
        self._prefix = prefix
        self._turns = Turns()
        self._now = Snapshot(revision=0)
        # The newest revision of which we heard, where the prefix must be read before anything else; None: it need not.
        self._doubt: int | None = 0
        self._settling: _Settling | None = None
        self._changes: Changes | None = None
        self._logged_in_again = False
        # The revision at the last gap, and the pause after it.
        self._gap, self._pause = -1, 0.0

    def wait(self, since: Snapshot, deadline: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        with self._turns.lock:
            self._adopt(since)
        return self._turns.wait(lambda: self._news(since), lambda: self._step(deadline), deadline) or since

    def close(self) -> None:
        """End the stream, if there is one, and the reading; the next wait opens others."""
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.close()
        self._end_reading()

    def _adopt(self, since: Snapshot) -> None:
        """Go on from what the caller knows, if that is more than we know."""
        if type(since.revision) is not int or since.revision <= self._now.revision:
            return
        is_first = not self._now.revision
        # What is not newer than what was lost may be part of that, though the service has come as far again.
        if since.revision > self._source.lost and (is_first or since.revision <= self._source.newest):
            self._now, self._doubt = since, None if is_first else self._doubt
        else:
            self._doubt = max(since.revision, self._doubt or 0)

    def _news(self, since: Snapshot) -> Snapshot | None:
        """What a caller who knows `since` should see, if it differs, or the service has lost what he knows."""
        fell_back = type(since.revision) is int and self._now.revision < since.revision
        if self._doubt is None and (fell_back or self._now.entries != since.entries):
            return self._now
        self._source.client.check_open()
        return None

    def _step(self, deadline: float) -> None:
        """One step towards news: read the prefix, or open the stream, or receive from it."""
        client, doubt = self._source.client, self._doubt
        with client.forgiving(deadline):
            if doubt is not None:
                self._settle(doubt, deadline)
                return
            # No doubt is left: `_adopt` has settled it, and the reading is of no use.
            self._end_reading()
            if self._changes is None:
                timeout = min(deadline - time.monotonic(), client.patience)
                self._changes = self._source.changes(self._prefix, self._now.revision, timeout)
            else:
                self._receive(self._changes, deadline)

    def _settle(self, doubt: int, deadline: float) -> None:
        before = self._now.revision
        if (settling := self._settling) is None:
            settling = self._settling = _Settling(doubt, before, Reading(self._source, self._prefix))
        try:
            if (read := settling.reading.receive(deadline)) is None:
                return
        except BaseException:
            # An interrupt, too: the next wait reads anew.
            self._end_reading()
            raise
        self._settling = None
        # A caller may have brought newer news since it was asked: then it is only late.
        fell_back = read.revision < settling.known
        if fell_back:
            self._source.lost = max(self._source.lost, self._source.newest, settling.known)
            self._source.newest = read.revision
        if fell_back or (read.revision >= before and read.entries != self._now.entries):
            # The service lost what it had, and what the stream waits for may never come; or the stream missed this. One
            # that has lost it may have come to the very revision that is known.
            self.close()
        with self._turns.lock:
            if fell_back or read.revision >= self._now.revision:
                self._now = read
            # It settles what it was asked for, and what has come since if it shows as much.
            if self._doubt is not None and (self._doubt == settling.doubt or self._doubt <= read.revision):
                self._doubt = None

    def _end_reading(self) -> None:
        settling, self._settling = self._settling, None
        if settling is not None:
            settling.reading.close()

    def _receive(self, changes: Changes, deadline: float) -> None:
        try:
            self._take_in(changes, deadline)
        except BaseException as error:
            # What was received and not merged (an interrupt may come in between) will not come again.
            self._doubt = self._now.revision
            self.close()
            if isinstance(error, GapError):
                is_new = self._now.revision != self._gap
                self._gap, self._pause = self._now.revision, _PAUSE if is_new else min(2 * self._pause, _LONGEST_PAUSE)
                _pause(changes, deadline, self._pause)
            elif not self._may_go_on(error, changes):
                raise

    def _take_in(self, changes: Changes, deadline: float) -> None:
        received = changes.receive(deadline)
        self._logged_in_again = self._logged_in_again and not changes.confirmed
        before = self._now.revision
        if received is None:
            self._doubt = self._now.revision
        else:
            self._merge(received)
        if changes.over:
            self.close()
            if self._now.revision == before:
                _pause(changes, deadline, _PAUSE)

    def _may_go_on(self, error: BaseException, changes: Changes) -> bool:
        """Whether to open a stream again; else, or if it broke too soon for that, the caller gets the error."""
        if isinstance(error, RendezvousDeniedError):
            # A service says the same of a login that has expired.
            self._logged_in_again = not self._logged_in_again and changes.log_in_again()
            return self._logged_in_again
        return isinstance(error, RendezvousConnectionError) and changes.age >= _HASTE

    def _merge(self, changes: Sequence[Change]) -> None:
        with self._turns.lock:
            entries, revision = dict(self._now.entries), self._now.revision
            for change in changes:
                if change.revision <= self._now.revision or not (change.below or contains(self._prefix, change.name)):
                    continue
                revision = change.revision
                if change.entry is not None:
                    entries[change.name] = change.entry
                elif change.below:
                    entries = {name: entry for name, entry in entries.items() if not contains(change.name, name)}
                else:
                    entries.pop(change.name, None)
            if revision != self._now.revision:
                self._now = Snapshot(entries, revision)


def _pause(changes: Changes, deadline: float, seconds: float) -> None:
    """Do not open one stream after the other all the time, where a service ends each at once."""
    time.sleep(max(0.0, min(seconds - changes.age, deadline - time.monotonic())))
