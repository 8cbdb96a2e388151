"""Waiting for changes: one watch per prefix, kept from one wait to the next.

What a watch brings is merged into the snapshot, so that nothing is read again. When a watch ends,
for whatever reason (its endpoint died, the history was compacted, the service came back with less
than it had), the prefix is read once and compared: the last state is never missed.
"""

import time
from typing import Any, Final

from rdzv_core.backend import Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError
from rdzv_core.turns import Turns
from rdzv_transport import contains, number_of

from .client import Client
from .events import Change, Events, GapError
from .wire import KeySpace

_HASTE: Final = 1.0
"""A watch that ends sooner than this, in seconds, is not opened again at once: the caller slows us down."""


def read_all(client: Client, keys: KeySpace, prefix: str, timeout: float) -> Snapshot:
    """Read every key at or under `prefix`."""

    def read(reply: dict[str, Any]) -> Snapshot:
        return Snapshot(keys.entries(reply.get("kvs", ()), prefix), number_of(reply["header"]["revision"]))

    return client.call("/v3/kv/range", keys.under(prefix), timeout, read)


class Watch:
    """What is known of one prefix, and the watch that keeps it up to date.

    Any number of threads may wait; one of them at a time reads, for all.
    """

    def __init__(self, client: Client, keys: KeySpace, prefix: str) -> None:
        self._prefix = prefix
        self._client = client
        self._keys = keys
        self._turns = Turns()
        self._now = Snapshot(revision=0)
        # Whether the prefix must be read before anything else.
        self._doubtful = True
        self._events: Events | None = None
        self._logged_in_again = False

    def wait(self, since: Snapshot, deadline: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        with self._turns.changed:
            self._adopt(since)
        return self._turns.wait(lambda: self._news(since), lambda: self._step(deadline), deadline) or since

    def close(self) -> None:
        """End the watch, if there is one; the next wait opens another."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def _adopt(self, since: Snapshot) -> None:
        """Go on from what the caller knows, if that is more than we know."""
        if type(since.revision) is not int or since.revision <= self._now.revision:
            return
        if not self._now.revision:
            self._now, self._doubtful = since, False
        elif since.revision <= self._client.newest:
            self._now = since
        else:
            self._doubtful = True

    def _news(self, since: Snapshot) -> Snapshot | None:
        """What a caller who knows `since` should see, if it differs, or the service has lost what he knows."""
        fell_back = type(since.revision) is int and self._now.revision < since.revision
        if not self._doubtful and (fell_back or self._now.entries != since.entries):
            return self._now
        self._client.http.check_open()
        return None

    def _step(self, deadline: float) -> None:
        """One step towards news: read the prefix, or open the watch, or receive from it."""
        timeout = min(deadline - time.monotonic(), self._client.http.patience)
        with self._client.http.forgiving(deadline):
            if self._doubtful:
                self._read_again(timeout)
            elif self._events is None:
                self._events = Events(self._client, self._keys, self._prefix, self._now.revision + 1, timeout)
            else:
                self._receive(self._events, deadline)

    def _read_again(self, timeout: float) -> None:
        before = self._now.revision
        read = read_all(self._client, self._keys, self._prefix, timeout)
        fell_back = read.revision < before
        if fell_back:
            # The service lost what it had: what the watch waits for may never come.
            self.close()
            self._client.newest = read.revision
        with self._turns.changed:
            self._doubtful = False
            if fell_back or read.revision > self._now.revision:
                self._now = read

    def _receive(self, events: Events, deadline: float) -> None:
        try:
            self._merge(events.receive(deadline))
        except BaseException as error:
            # What was received and not merged (an interrupt may come in between) will not come again.
            self._doubtful = True
            self.close()
            if not isinstance(error, GapError) and not self._may_go_on(error, events):
                raise
        else:
            self._logged_in_again = self._logged_in_again and not events.created

    def _may_go_on(self, error: BaseException, events: Events) -> bool:
        """Whether to open the watch again; else, or if it ended too soon for that, the caller gets the error."""
        if isinstance(error, RendezvousDeniedError):
            # etcd says the same of a login that has expired.
            self._logged_in_again = not self._logged_in_again and events.log_in_again()
            return self._logged_in_again
        return isinstance(error, RendezvousConnectionError) and events.age >= _HASTE

    def _merge(self, changes: list[Change]) -> None:
        with self._turns.changed:
            entries, revision = dict(self._now.entries), self._now.revision
            for change in changes:
                if change.revision <= self._now.revision or not contains(self._prefix, change.name):
                    continue
                revision = change.revision
                if change.entry is None:
                    entries.pop(change.name, None)
                else:
                    entries[change.name] = change.entry
            if revision != self._now.revision:
                self._now = Snapshot(entries, revision)
