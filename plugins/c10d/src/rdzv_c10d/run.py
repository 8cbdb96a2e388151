"""The keys of one run in a store, and how they are read and written: the functions that run on a connection.

Heartbeats are written all the time, and looked at, but not waited for: nothing rings for them, a heartbeat costs one
call, and no count says in which order they were created.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Final, NamedTuple

from rdzv_core.backend import ABSENT, Entry, Expect, PutOutcome, PutResult, Token
from rdzv_transport import contains

from .indexes import Indexes, names_in, path_of
from .layout import WATCHERS, Layout, is_on_page, is_quiet, queues_key, store_key, top_of
from .page import SharedPage
from .reading import Listing, Reader
from .store import Connection, Store, attempts, extend, peek, stores
from .values import KeyIndex, Version, entry_of, frame, matches, nonce, read_frame

_STORES: Final = "rounds"
"""The top folder under which the round stores are."""


class Watcher(NamedTuple):
    """Who is rung for changes: as text, these three with blanks between them.

    Attributes:
        wakeup: Its wakeup key.
        prefix: What it watches.
        nonce: No other has it: a watch that ends late ends none that is newer.
    """

    wakeup: str
    prefix: str
    nonce: str


class Attempt(Future[None]):
    """A put that its caller may give up at any moment, by `cancel`: either before the write, or too late."""

    def commit(self) -> None:
        """Begin the write.

        Raises:
            CancelledError: The caller has given up.
        """
        if not (self.running() or self.set_running_or_notify_cancel()):
            raise CancelledError


class Run:
    """Reads and writes the keys of one run. Keeps nothing but short cuts; any number of threads may use it."""

    def __init__(self, root: str) -> None:
        """The run whose keys begin with `root`."""
        self._layout = layout = Layout(root)
        self._indexes = Indexes(layout)
        self._reader = Reader(layout, self._indexes)
        self._page = SharedPage(layout.page())
        self._watchers_seen: dict[str, tuple[str, int, list[Watcher]]] = {}

    def read(self, connection: Connection, path: str) -> Entry | None:
        """Read one key."""
        store = connection.store
        if is_on_page(path):
            return self._page.read(store).entries.get(path)
        return entry_of(peek(store, self._layout.value(path)))

    def read_all(self, connection: Connection, prefix: str, deadline: float) -> Listing:
        """Read everything at or under `prefix`, as it was at one moment.

        Args:
            connection: Where.
            prefix: What.
            deadline: On the monotonic clock, in seconds: no pause between two readings lasts longer.
        """
        if is_on_page(prefix):
            page = self._page.read(connection.store).entries
            return Listing({path: page[path] for path in page if contains(prefix, path)}, True)
        return self._reader.read_all(connection, prefix, deadline)

    def put(
        self, connection: Connection, path: str, value: bytes, expect: Token | Expect, attempt: Attempt
    ) -> PutResult:
        """Write one key under a condition."""
        if is_on_page(path):
            return self._put_on_page(connection, path, value, expect, attempt)
        store, key = connection.store, self._layout.value(path)
        # A caller that expects something is mostly right: then the write itself is all it takes.
        raw = expect.raw if isinstance(expect, Version) else None
        known = raw is not None or expect is ABSENT
        if not known:
            raw = peek(store, key)
        for _ in attempts(path):
            if not (known or matches(entry_of(raw), expect)):
                return PutResult(PutOutcome.CONFLICT, entry_of(raw))
            if raw is None:
                put, count = self._create(connection, path, value, attempt)
            else:
                put, count = self._overwrite(store, path, raw, value, attempt), None
            if put.outcome is PutOutcome.APPLIED:
                if not is_quiet(path):
                    self._ring(connection, [path], store.add(self._layout.count(path), 0) if count is None else count)
                return put
            known = False
            raw = put.entry.token.raw if put.entry is not None else None
        raise AssertionError("attempts() raises")

    def delete(self, connection: Connection, prefix: str) -> None:
        """Remove everything at or under `prefix`."""
        store = connection.store
        if is_on_page(prefix):
            gone = self._page.delete(store, prefix)
        else:
            paths = dict.fromkeys(path_of(name) for name in self._indexes.announced(store, prefix))
            if "/" in prefix:
                paths[prefix] = None
            gone = [path for path in paths if self._delete_value(store, path)]
            if "/" not in prefix and hasattr(store, "list_keys"):
                self._sweep(store, prefix)
        if top_of(prefix) == _STORES and connection.descriptor is not None and hasattr(store, "list_keys"):
            self._delete_stores(store, prefix)
        if gone and not is_quiet(prefix):
            self._ring(connection, gone, store.add(self._layout.count(prefix), 0))

    def watch(self, connection: Connection, watcher: Watcher) -> None:
        """Have a watcher rung for every change at or under its prefix that a look from now on does not show."""
        # A writer looks at the count after the write; so first the key index, then the count.
        extend(connection.store, self._layout.watchers(watcher.prefix), KeyIndex.plus(" ".join(watcher)))
        connection.store.add(self._layout.count(watcher.prefix), WATCHERS)

    def unwatch(self, connection: Connection, watcher: Watcher) -> None:
        """Have it rung no more."""
        extend(connection.store, self._layout.watchers(watcher.prefix), KeyIndex.minus(" ".join(watcher)))
        connection.store.add(self._layout.count(watcher.prefix), WATCHERS)

    def _create(
        self, connection: Connection, path: str, value: bytes, attempt: Attempt
    ) -> tuple[PutResult, int | None]:
        """Create a key.

        It is announced before it is there, so that no client that lists the keys can miss it for good; and, unless
        it is a heartbeat, counted in between, so that a process that begins to watch after the count has seen the
        announcement.

        Returns:
            The result, and the count by which to ring; None: it is no longer of use.
        """
        store = connection.store
        began = time.monotonic()
        birth = nonce()
        name = f"{path} {birth}"
        self._indexes.announce(store, name)
        count = 0 if is_quiet(path) else store.add(self._layout.count(path), 1)
        new = frame(value, birth, count % WATCHERS)
        try:
            attempt.commit()
        except CancelledError:
            self._indexes.withdraw(store, name)
            raise
        found = store.compare_set(self._layout.value(path), b"", new.token.raw)
        if found != new.token.raw:
            self._indexes.withdraw(store, name)
            return PutResult(PutOutcome.CONFLICT, entry_of(found)), count
        if time.monotonic() - began < self._indexes.UNSETTLED / 2:
            return PutResult(PutOutcome.APPLIED, new), count
        # A purge may have taken the name for that of a dead writer; and a client that began to watch after the count
        # expects the key no more.
        self._indexes.announce(store, name)
        return PutResult(PutOutcome.APPLIED, new), None

    def _overwrite(self, store: Store, path: str, there: bytes, value: bytes, attempt: Attempt) -> PutResult:
        old = read_frame(there)
        new = frame(value, old.token.birth, old.order)
        attempt.commit()
        found = store.compare_set(self._layout.value(path), there, new.token.raw)
        if found == new.token.raw:
            return PutResult(PutOutcome.APPLIED, new)
        # A missing key answers with what was expected of it; a deleted one is empty.
        return PutResult(PutOutcome.CONFLICT, None if found == there else entry_of(found))

    def _delete_value(self, store: Store, path: str) -> bool:
        """Empty a value, which is as good as none; a key that vanished would block a client that reads it with
        others."""
        raw, key = peek(store, self._layout.value(path)), self._layout.value(path)
        while raw is not None and (found := store.compare_set(key, raw, b"")) != b"":
            raw = None if found == raw else found
        if raw is None:
            return False
        self._indexes.withdraw(store, f"{path} {read_frame(raw).token.birth}")
        return True

    def _sweep(self, store: Store, top: str) -> None:
        """Remove what deleting has left of everything below a top folder. (torch lists keys from 2.10 on.)

        Its own key indexes become empty and stay, and so does its count: a writer may be about to lengthen them.
        """
        index = self._layout.index(top)
        if dead := names_in(store, index):
            # Their writers died between two calls, of a creation or of a removal, or are still at it.
            time.sleep(self._indexes.UNSETTLED)
        for name in dead:
            if peek(store, self._layout.value(path_of(name))) is None:
                self._indexes.withdraw(store, name)
        for key in store.list_keys():
            # A key is announced in the top folder first, and withdrawn from there first, too.
            idle = key.startswith(f"{index}/") and not {*names_in(store, key)} & {*names_in(store, index)}
            if idle or contains(self._layout.value(top), key):
                store.delete_key(key)
        for key in (index, self._layout.watchers(top)):
            raw = peek(store, key)
            if raw is not None and not KeyIndex.parse(raw).names:
                store.compare_set(key, raw, b"")

    def _delete_stores(self, store: Store, prefix: str) -> None:
        """Remove the round stores at or under a prefix."""
        values, queues = f"{self._layout.root}store/{prefix}/", queues_key(self._layout.root, prefix)
        for key in store.list_keys():
            if contains(queues, key):
                place = key.removeprefix(queues_key(self._layout.root, ""))
                for queue in _queues(peek(store, key) or b""):
                    while store.queue_len(name := store_key(self._layout.root, place, queue)):
                        with suppress(stores().QueueEmptyError):
                            store.queue_pop(name, False)
                store.delete_key(key)
            elif key.startswith(values):
                store.delete_key(key)

    def _put_on_page(
        self, connection: Connection, path: str, value: bytes, expect: Token | Expect, attempt: Attempt
    ) -> PutResult:
        put = self._page.put(connection.store, path, value, expect, attempt.commit)
        if put.outcome is PutOutcome.APPLIED:
            self._ring(connection, [path], connection.store.add(self._layout.count(path), 0))
        return put

    def _ring(self, connection: Connection, paths: list[str], count: int) -> None:
        """Ring for a change at `paths`, which are below one top folder, whose counter says `count`."""
        version = count // WATCHERS
        if not version:
            return
        top, store = top_of(paths[0]), connection.store
        session, seen, watchers = self._watchers_seen.get(top, ("", 0, []))
        if (session, seen) != (connection.session.id, version):
            # A line that does not name a watcher is left out; what was written stands all the same.
            lines = [name.split(" ") for name in names_in(store, self._layout.watchers(top))]
            watchers = [Watcher(*words) for words in lines if len(words) == len(Watcher._fields)]
            self._watchers_seen[top] = (connection.session.id, version, watchers)
        wakeups = {one.wakeup for one in watchers if any(contains(one.prefix, path) for path in paths)}
        if wakeups:
            store.multi_set(list(wakeups), [b"1"] * len(wakeups))


def _queues(raw: bytes) -> Iterator[str]:
    """The names of queues, of which each stands on a line. What rdzv has not written names none."""
    for line in raw.splitlines():
        with suppress(ValueError, RecursionError):
            if isinstance(name := json.loads(line), str):
                yield name
