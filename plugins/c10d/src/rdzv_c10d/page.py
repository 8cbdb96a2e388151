"""Everything in the folder of the state register, in one value for each version of it.

A write makes version v + 1 out of version v: it creates the key ``page/<v+1>``, by a `compare_set`, so that of two that
make the same one wins. Who waits for a change waits for that key to appear (see `PageWatch`): the write itself
wakes it.

**A version that was written is never missing again.** All rests on that: where ``page/<v+1>`` is missing, v is the last
one, for any client, however long ago it has read v; and a write that arrives late finds its version there. So
the versions of a run are counted on when all keys of its page are removed, and one that is old is not removed: in its
place stands the number of one that was written later, which takes some 100 bytes.

``page`` holds a copy of a version, as a rule of the last one: there begins who knows none. A writer makes the copy,
and writes over an old version, after its own write and without waiting for an answer. So one that dies before leaves a
copy that lags, and an old version that stays whole; one that is late makes a copy of what was long ago. From each of
them a reader goes on to the last version, and from one that was written over in few steps.
"""

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from rdzv_core.backend import Expect, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.errors import RendezvousStateError

from .store import Connection, Session, attempts, peek
from .values import Page, matches

_KEPT: Final = 16
"""So many of the last versions are whole: a reader that is behind by more goes on by so many at a time."""
_SESSIONS: Final = 2
"""Of how many sessions of the store the last version is known: calls to one that has ended may end late."""


class PageVersion(NamedTuple):
    """Which version a snapshot of the page shows: its `Snapshot.revision`.

    Attributes:
        session: The id of the store's `Session`.
        number: See `Page.version`.
    """

    session: str
    number: int


class SharedPage:
    """Reads and writes the page of one run. Keeps the last version that was seen; any number of threads may use it.

    Attributes:
        wakeup: The wakeup key of this process, once it begins to watch what is beside the page.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self.wakeup = ""
        self._known: dict[str, Page] = {}
        self._learning = threading.Lock()

    def key_of(self, version: int) -> str:
        """The key of a version."""
        return f"{self._key}/{version}"

    def known(self, session: str) -> Page | None:
        """The last version that was seen in a session of the store; None: none was looked for."""
        return self._known.get(session)

    def read(self, connection: Connection) -> Page:
        """What is on it now."""
        page = self.known(connection.session.id)
        if page is None:
            page = Page.parse(peek(connection.store, self._key))
        return self._learn(connection.session, _last_after(page, connection, self.key_of))

    def follow(self, connection: Connection, page: Page, raw: bytes) -> Page:
        """Go on from `page` to what stands in the place of the next version: that, or the last one."""
        if raw.isdigit():
            return self.read(connection)
        return self._learn(connection.session, _parse(raw, page.version + 1))

    def snapshot(self, connection: Connection, prefix: str) -> Snapshot:
        """What is on it now at or under a prefix."""
        page = self.read(connection)
        return Snapshot(page.under(prefix), PageVersion(connection.session.id, page.version))

    def put(
        self, connection: Connection, path: str, value: bytes, expect: Token | Expect, commit: Callable[[], None]
    ) -> PutResult:
        """Write one key under a condition; `commit` is called before the page is written, and may raise."""
        # What was seen last is probably the last one still: then one call will do. What is `fresh` was the last one at
        # some moment of this call: it was read, or follows one that was.
        page, fresh = self.known(connection.session.id), False
        for _ in attempts(path):
            if page is not None and matches(page.entries.get(path), expect):
                new = page.written(path, value, self.wakeup)
                commit()
                page = self._write(connection, page, new)
                if page is new:
                    return PutResult(PutOutcome.APPLIED, new.entries[path])
            elif page is not None and fresh:
                return PutResult(PutOutcome.CONFLICT, page.entries.get(path))
            else:
                page, fresh = self.read(connection), True
        raise AssertionError("attempts() raises")

    def delete(self, connection: Connection, prefix: str) -> None:
        """Remove everything at or under `prefix`."""
        page = self.read(connection)
        for _ in attempts(prefix):
            if not (gone := page.under(prefix)):
                return
            new = page.without(gone)
            page = self._write(connection, page, new)
            if page is new:
                return

    def _write(self, connection: Connection, page: Page, new: Page) -> Page:
        """Write the version after `page`; returns `new`, or another one that is there: later than `page`."""
        store, raw = connection.store, new.pack()
        found = store.compare_set(self.key_of(new.version), b"", raw)
        if found != raw:
            return self.follow(connection, page, found)
        self._learn(connection.session, new)
        # Where nothing is left, none of them is of use.
        kept = _KEPT if new.entries else 1
        old = [self.key_of(version) for version in range(max(1, new.version - _KEPT), new.version - kept + 1)]
        store.multi_set([self._key, *old], [raw, *[b"%d" % new.version] * len(old)])
        return new

    def _learn(self, session: Session, page: Page) -> Page:
        with self._learning:
            there = self._known.get(session.id)
            if there is None or there.version < page.version:
                self._known[session.id] = page
            for oldest in list(self._known)[:-_SESSIONS]:
                self._known.pop(oldest)
        return page


def _last_after(page: Page, connection: Connection, key_of: Callable[[int], str]) -> Page:
    """The last version, at some moment of this call, which begins at `page`."""
    number = page.version + 1
    # All who wait for the next version would wake if it were read before it is there.
    while connection.store.check([key := key_of(number)]) and (raw := peek(connection.store, key)) is not None:
        if raw.isdigit():
            number = _later(raw, number)
            continue
        page = _parse(raw, number)
        number += 1
    return page


def _parse(raw: bytes, number: int) -> Page:
    page = Page.parse(raw)
    if page.version != number:
        raise RendezvousStateError(f"The store holds version {page.version} of a page where rdzv-c10d wrote {number}.")
    return page


def _later(raw: bytes, number: int) -> int:
    """The number of a later version, which stands in the place of one."""
    if len(raw) > len(str(2**64)) or (later := int(raw)) <= number:
        raise RendezvousStateError(f"The store holds what was not written by rdzv-c10d, for version {number}: {raw!r}")
    return later
