"""The keys of one run in a store, and how they are read and written: the functions that run on a connection.

Below ``<prefix>/<run id>/``:

======================  ================================================================================
``page``                everything in the folder of the state register, in one value (a `Page`)
``value/<path>``        any other key (see `frame`)
``index/<folder>``      which keys are, or may be, in a folder (a `KeyIndex` of paths and their births)
``count/<top>``         how many keys were created below a top folder, and how often its watchers changed
``watchers/<top>``      whose wakeup keys are rung for changes there (a `KeyIndex` of a `Watcher` each)
``store/<path>//<key>`` a key of the round store at a path, as its user has written it (see `RoundStore`)
``queues/<path>``       which queues that store has, a line of JSON each
======================  ================================================================================

The folder of the state is what every node watches and few write: in one value it costs one call to
read and one to write. Everywhere else many write at once, each its own key, and one value would be
fought over. What stands there is listed by the key indexes of some of its folders: that of the top folder, and from
the third level on all of them. So a node's record is announced by one call, and a round's store can be listed alone.

Heartbeats are written all the time, and looked at, but not waited for: nothing rings for them, a heartbeat costs one
call, and no count says in which order they were created.
"""

import json
import time
from collections.abc import Iterable, Mapping, Set
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Final, NamedTuple

from rdzv_core.backend import ABSENT, ANY, STATE_KEY, Entry, Expect, PutOutcome, PutResult, Token
from rdzv_core.errors import RendezvousConnectionError
from rdzv_transport import contains

from .store import Connection, Store, extend, peek, stores
from .values import KeyIndex, Page, Version, frame, nonce, read_frame

_PAGE: Final = STATE_KEY.rpartition("/")[0]
_QUIET: Final = "heartbeats"
"""A top folder whose changes ring for no client: one that waits there looks now and then."""
_STORES: Final = "rounds"
"""The top folder under which the round stores are."""
_UNINDEXED: Final = 2
"""The level on which folders have no key index of their own: what they hold stands in the one above."""
_READINGS: Final = 20
"""So often keys that can only be read one by one are read, until two readings agree."""
_PAUSE: Final = 1e-5
"""Seconds for each key in which no other is made before they are read again: about as long as that takes."""
_PAUSES: Final = 10
"""So often that is waited for."""
_WATCHERS: Final = 1 << 32
"""What a change of the watchers adds to a counter; the creations are below."""
_ONE_BY_ONE: Final = 8
"""So many keys, one of which is on its way, are not looked for by halves any more."""
_LISTED: Final = 16
"""Of how many prefixes it is known what is there."""
_UNSETTLED: Final = 1.0
"""Seconds for which a key that is announced and missing is expected to appear: its writer is at it, or dead.

A writer that took half of it announces the key again when it is there."""


class Listing(NamedTuple):
    """What is at or under a prefix.

    Attributes:
        entries: By path.
        settled: False while a key is being created whose writer may not know of a watcher that looks just now.
    """

    entries: Mapping[str, Entry]
    settled: bool


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
        self.root = root
        self._page_seen: bytes | None = None
        self._page_parsed: tuple[bytes | None, Page] = (None, Page())
        self._watchers_seen: dict[str, tuple[str, int, list[Watcher]]] = {}
        self._missing: dict[str, dict[str, float]] = {}
        # What was announced at or under a prefix when all of it was there, in which session of the store.
        self._listed: dict[str, tuple[str, tuple[str, ...]]] = {}

    def read(self, connection: Connection, path: str) -> Entry | None:
        """Read one key."""
        store = connection.store
        if _is_on_page(path):
            return self._read_page(store).entries.get(path)
        return _entry(peek(store, self._value(path)))

    def read_all(self, connection: Connection, prefix: str, deadline: float) -> Listing:
        """Read everything at or under `prefix`, as it was at one moment (see `_READINGS`).

        Args:
            connection: Where.
            prefix: What.
            deadline: On the monotonic clock, in seconds: no pause between two readings lasts longer.
        """
        store = connection.store
        if _is_on_page(prefix):
            page = self._read_page(store).entries
            return Listing({path: page[path] for path in page if contains(prefix, path)}, True)
        now, missed = time.monotonic(), self._missing.get(prefix, {})
        overdue = {_path(name) for name, since in missed.items() if now - since > _UNSETTLED}
        session, listed = self._listed.get(prefix, ("", ()))
        before: tuple[tuple[str, ...], dict[str, bytes | None]] | None = None
        known = frozenset(listed) if session == connection.session.id else frozenset[str]()
        # What was there is there still, as a rule; and mostly nothing has come: then one call will do.
        announced = listed if known and store.has_extended_api() else self._announced(store, prefix)
        for reading in range(_READINGS):
            paths = dict.fromkeys(map(_path, announced))
            if "/" in prefix:
                paths[prefix] = None
            known_paths = {_path(name) for name in known}
            raws, beside = self._read_values(connection, prefix, [*paths], overdue | {prefix}, known_paths)
            # Nothing was created meanwhile; or no value changed between two readings: no version comes twice.
            if beside == announced or before == (announced, raws):
                break
            before = announced, raws
            if reading and not is_quiet(prefix):
                # What came since the last list is read now; what comes all the time is waited for.
                self._await_quiet(store, prefix, _PAUSE * len(paths), deadline)
                beside = None
            announced = beside or self._announced(store, prefix)
        else:
            raise RendezvousConnectionError(
                f"'{prefix}' was changed during each of {_READINGS} readings, so no moment of it is known"
            )
        entries = {path: entry for path in sorted(raws) if (entry := _entry(raws[path])) is not None}
        expected = announced if prefix in entries else (*announced, *self._announced_itself(store, prefix))
        missing = {name: missed.get(name, now) for name in expected if _path(name) not in entries}
        if missing:
            self._missing[prefix] = missing
        else:
            self._missing.pop(prefix, None)
        self._remember(prefix, connection.session.id, announced if not missing else ())
        return Listing(entries, all(_path(name) in overdue for name in missing))

    def put(
        self, connection: Connection, path: str, value: bytes, expect: Token | Expect, attempt: Attempt
    ) -> PutResult:
        """Write one key under a condition."""
        if _is_on_page(path):
            return self._put_on_page(connection, path, value, expect, attempt)
        store, key = connection.store, self._value(path)
        # A caller that expects something is mostly right: then the write itself is all it takes.
        raw = expect.raw if isinstance(expect, Version) else None
        known = raw is not None or expect is ABSENT
        if not known:
            raw = peek(store, key)
        while True:
            if not (known or _matches(_entry(raw), expect)):
                return PutResult(PutOutcome.CONFLICT, _entry(raw))
            if raw is None:
                put, count = self._create(connection, path, value, attempt)
            else:
                put, count = self._overwrite(store, path, raw, value, attempt), None
            if put.outcome is PutOutcome.APPLIED:
                if not is_quiet(path):
                    self._ring(connection, [path], store.add(self._count(path), 0) if count is None else count)
                return put
            known = False
            raw = put.entry.token.raw if put.entry is not None else None

    def delete(self, connection: Connection, prefix: str) -> None:
        """Remove everything at or under `prefix`."""
        store = connection.store
        if _is_on_page(prefix):
            gone = self._delete_from_page(store, prefix)
        else:
            paths = dict.fromkeys(_path(name) for name in self._announced(store, prefix))
            if "/" in prefix:
                paths[prefix] = None
            gone = [path for path in paths if self._delete_value(store, path)]
            if "/" not in prefix and hasattr(store, "list_keys"):
                self._sweep(store, prefix)
        if _top(prefix) == _STORES and connection.descriptor is not None and hasattr(store, "list_keys"):
            self._delete_stores(store, prefix)
        if gone and not is_quiet(prefix):
            self._ring(connection, gone, store.add(self._count(prefix), 0))

    def watch(self, connection: Connection, watcher: Watcher) -> None:
        """Have a watcher rung for every change at or under its prefix that a look from now on does not show."""
        # A writer looks at the count after the write; so first the key index, then the count.
        extend(connection.store, self._watchers(watcher.prefix), KeyIndex.plus(" ".join(watcher)))
        connection.store.add(self._count(watcher.prefix), _WATCHERS)

    def unwatch(self, connection: Connection, watcher: Watcher) -> None:
        """Have it rung no more."""
        extend(connection.store, self._watchers(watcher.prefix), KeyIndex.minus(" ".join(watcher)))
        connection.store.add(self._count(watcher.prefix), _WATCHERS)

    # One key, one value.

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
        self._announce(store, path, name)
        count = 0 if is_quiet(path) else store.add(self._count(path), 1)
        new = frame(value, birth, count % _WATCHERS)
        try:
            attempt.commit()
        except CancelledError:
            self._withdraw(store, path, name)
            raise
        found = store.compare_set(self._value(path), b"", new.token.raw)
        if found != new.token.raw:
            self._withdraw(store, path, name)
            return PutResult(PutOutcome.CONFLICT, _entry(found)), count
        if time.monotonic() - began < _UNSETTLED / 2:
            return PutResult(PutOutcome.APPLIED, new), count
        # A purge may have taken the name for that of a dead writer; and a client that began to watch after the count
        # expects the key no more.
        self._announce(store, path, name)
        return PutResult(PutOutcome.APPLIED, new), None

    def _overwrite(self, store: Store, path: str, there: bytes, value: bytes, attempt: Attempt) -> PutResult:
        old = read_frame(there)
        new = frame(value, old.token.birth, old.order)
        attempt.commit()
        found = store.compare_set(self._value(path), there, new.token.raw)
        if found == new.token.raw:
            return PutResult(PutOutcome.APPLIED, new)
        # A missing key answers with what was expected of it; a deleted one is empty.
        return PutResult(PutOutcome.CONFLICT, None if found == there else _entry(found))

    def _delete_value(self, store: Store, path: str) -> bool:
        """Empty a value, which is as good as none; a key that vanished would block a client that reads it with
        others."""
        raw, key = peek(store, self._value(path)), self._value(path)
        while raw is not None and (found := store.compare_set(key, raw, b"")) != b"":
            raw = None if found == raw else found
        if raw is None:
            return False
        self._withdraw(store, path, f"{path} {read_frame(raw).token.birth}")
        return True

    def _announce(self, store: Store, path: str, name: str) -> None:
        for folder in _folders(path):
            extend(store, self._index(folder), KeyIndex.plus(name))

    def _withdraw(self, store: Store, path: str, name: str) -> None:
        for folder in _folders(path):
            extend(store, self._index(folder), KeyIndex.minus(name))

    def _sweep(self, store: Store, top: str) -> None:
        """Remove what deleting has left of everything below a top folder. (torch lists keys from 2.10 on.)

        Its own key indexes become empty and stay, and so does its count: a writer may be about to lengthen them.
        """
        index = self._index(top)
        if dead := _names(store, index):
            # Their writers died between two calls, of a creation or of a removal, or are still at it.
            time.sleep(_UNSETTLED)
        for name in dead:
            if peek(store, self._value(_path(name))) is None:
                self._withdraw(store, _path(name), name)
        for key in store.list_keys():
            # A key is announced in the top folder first, and withdrawn from there first, too.
            idle = key.startswith(f"{index}/") and not {*_names(store, key)} & {*_names(store, index)}
            if idle or contains(self._value(top), key):
                store.delete_key(key)
        for key in (index, self._watchers(top)):
            raw = peek(store, key)
            if raw is not None and not KeyIndex.parse(raw).names:
                store.compare_set(key, raw, b"")

    def _delete_stores(self, store: Store, prefix: str) -> None:
        """Remove the round stores at or under a prefix."""
        values, queues = f"{self.root}store/{prefix}/", queues_key(self.root, prefix)
        for key in store.list_keys():
            if contains(queues, key):
                place = key.removeprefix(queues_key(self.root, ""))
                for line in (peek(store, key) or b"").splitlines():
                    while store.queue_len(name := store_key(self.root, place, json.loads(line))):
                        with suppress(stores().QueueEmptyError):
                            store.queue_pop(name, False)
                store.delete_key(key)
            elif key.startswith(values):
                store.delete_key(key)

    def _announced(self, store: Store, prefix: str) -> tuple[str, ...]:
        return _names_at(prefix, _names(store, self._index(_indexed(prefix))))

    def _announced_itself(self, store: Store, key: str) -> tuple[str, ...]:
        """The names of a key whose own index lists only what is under it: it stands in that of the folder above."""
        folder = _folders(key)[-1]
        if folder == _indexed(key):
            return ()
        return tuple(name for name in _names(store, self._index(folder)) if _path(name) == key)

    def _read_values(
        self, connection: Connection, prefix: str, paths: list[str], doubtful: Iterable[str], known: Set[str]
    ) -> tuple[dict[str, bytes | None], tuple[str, ...] | None]:
        """What the store holds of each, read together if they exist, and then what was announced at that moment.

        Args:
            connection: Where.
            prefix: What they are at or under.
            paths: Which, in the order in which they were announced.
            doubtful: Those that probably do not exist.
            known: Those that were there lately.
        """
        store = connection.store
        together = [path for path in paths if path not in doubtful]
        raws: dict[str, bytes | None] = {}
        announced: tuple[str, ...] | None = None if together else ()
        if together and store.has_extended_api():
            new = [path for path in together if path not in known]
            there = {*known, *self._those_there(store, new)}
            together = [path for path in together if path in there]
            found = self._read_together(connection, [self._index(_indexed(prefix)), *map(self._value, together)])
            if found:
                index, *values = found
                announced = _names_at(prefix, KeyIndex.parse(index).names)
                raws = dict(zip(together, values, strict=True))
        raws |= {path: peek(store, self._value(path)) for path in paths if path not in raws}
        return raws, announced

    def _those_there(self, store: Store, paths: list[str]) -> list[str]:
        """Of keys that were announced those that are there; some beside one that is on its way may be missing.

        Where many are made at once some are always on their way, the last ones as a rule: the others are not read one
        by one for that.
        """
        if not paths or store.check([*map(self._value, paths)]):
            return paths
        if len(paths) <= _ONE_BY_ONE:
            return []
        half = len(paths) // 2
        return self._those_there(store, paths[:half]) + self._those_there(store, paths[half:])

    def _read_together(self, connection: Connection, keys: list[str]) -> list[bytes]:
        """The values of several keys at one moment; nothing if one of them is not there.

        They were there a moment ago, and only who removes the whole run removes keys. A client whose waits have no
        limit makes sure of it nevertheless: torch waits for a key that is missing.
        """
        store = connection.store
        if connection.descriptor is None and not store.check(keys):
            return []
        try:
            found: list[bytes] = store.multi_get(keys)
        except stores().DistStoreError:
            return []
        return found

    def _await_quiet(self, store: Store, prefix: str, pause: float, deadline: float) -> None:
        """Wait until no key is made below a top folder for so many seconds, or no longer: while many are made at once
        each reading of them all would find one more."""
        count = store.add(self._count(prefix), 0) % _WATCHERS
        for _ in range(_PAUSES):
            if time.monotonic() + pause >= deadline:
                return
            time.sleep(pause)
            before, count = count, store.add(self._count(prefix), 0) % _WATCHERS
            if count == before:
                return

    def _remember(self, prefix: str, session: str, announced: tuple[str, ...]) -> None:
        self._listed.pop(prefix, None)
        if announced:
            self._listed[prefix] = session, announced
            for oldest in list(self._listed)[:-_LISTED]:
                self._listed.pop(oldest, None)

    # The page.

    def _read_page(self, store: Store) -> Page:
        self._page_seen = raw = peek(store, self._page())
        return self._parse_page(raw)

    def _parse_page(self, raw: bytes | None) -> Page:
        known, page = self._page_parsed
        if raw != known:
            page = Page.parse(raw)
            self._page_parsed = raw, page
        return page

    def _put_on_page(
        self, connection: Connection, path: str, value: bytes, expect: Token | Expect, attempt: Attempt
    ) -> PutResult:
        # What was seen last is probably there still: then one call will do.
        store, raw, fresh = connection.store, self._page_seen, False
        while True:
            page = self._parse_page(raw)
            if _matches(page.entries.get(path), expect):
                new = page.written(path, value)
                attempt.commit()
                raw, won = self._write_page(store, raw, new)
                if won:
                    self._ring(connection, [path], store.add(self._count(path), 0))
                    return PutResult(PutOutcome.APPLIED, new.entries[path])
            elif fresh:
                return PutResult(PutOutcome.CONFLICT, page.entries.get(path))
            else:
                raw = self._page_seen = peek(store, self._page())
            fresh = True

    def _delete_from_page(self, store: Store, prefix: str) -> list[str]:
        raw, won, gone = peek(store, self._page()), False, [""]
        while gone and not won:
            page = self._parse_page(raw)
            gone = [path for path in page.entries if contains(prefix, path)]
            if gone:
                left = {path: entry for path, entry in page.entries.items() if path not in gone}
                raw, won = self._write_page(store, raw, Page(left, page.created))
        return gone

    def _write_page(self, store: Store, there: bytes | None, new: Page) -> tuple[bytes | None, bool]:
        """Replace the page if it is the expected one; returns what is there now, and whether it was replaced."""
        raw = new.pack()
        found = store.compare_set(self._page(), there or b"", raw)
        won = found == raw
        # A missing page answers with what was expected of it.
        self._page_seen = None if found == there and not won else found
        return self._page_seen, won

    # The wakeup keys.

    def _ring(self, connection: Connection, paths: list[str], count: int) -> None:
        """Ring for a change at `paths`, which are below one top folder, whose counter says `count`."""
        version = count // _WATCHERS
        if not version:
            return
        top, store = _top(paths[0]), connection.store
        session, seen, watchers = self._watchers_seen.get(top, ("", 0, []))
        if (session, seen) != (connection.session.id, version):
            # What is no watcher is not rung; what was written stands all the same.
            lines = [name.split(" ") for name in _names(store, self._watchers(top))]
            watchers = [Watcher(*words) for words in lines if len(words) == len(Watcher._fields)]
            self._watchers_seen[top] = (connection.session.id, version, watchers)
        wakeups = {one.wakeup for one in watchers if any(contains(one.prefix, path) for path in paths)}
        if wakeups:
            store.multi_set(list(wakeups), [b"1"] * len(wakeups))

    # Where things are.

    def _page(self) -> str:
        return f"{self.root}page"

    def _value(self, path: str) -> str:
        return f"{self.root}value/{path}"

    def _index(self, folder: str) -> str:
        return f"{self.root}index/{folder}"

    def _count(self, path: str) -> str:
        return f"{self.root}count/{_top(path)}"

    def _watchers(self, path: str) -> str:
        return f"{self.root}watchers/{_top(path)}"


def _top(path: str) -> str:
    return path.partition("/")[0]


def _path(name: str) -> str:
    """The path of a name in an index."""
    return name.partition(" ")[0]


def store_key(root: str, place: str, key: str) -> str:
    """Where a round store keeps a key. No place has an empty segment, so none has another's keys."""
    return f"{root}store/{place}//{key}"


def queues_key(root: str, place: str) -> str:
    """Where a round store lists its queues."""
    return f"{root}queues/{place}"


def is_quiet(path: str) -> bool:
    """Whether no client is rung for changes there."""
    return _top(path) == _QUIET


def _folders(path: str) -> list[str]:
    """The folders in whose index a path stands. One without a folder stands in its own."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts)) if length != _UNINDEXED] or [path]


def _indexed(prefix: str) -> str:
    """The folder in whose index all stands that is under a prefix."""
    return _top(prefix) if prefix.count("/") + 1 == _UNINDEXED else prefix


def _names_at(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those names of an index whose paths are at or under a prefix."""
    return tuple(name for name in names if contains(prefix, _path(name)))


def _is_on_page(path: str) -> bool:
    return contains(_PAGE, path)


def _entry(raw: bytes | None) -> Entry | None:
    return read_frame(raw) if raw else None


def _matches(there: Entry | None, expect: Token | Expect) -> bool:
    if expect is ANY:
        return True
    if expect is ABSENT or there is None:
        return expect is ABSENT and there is None
    return isinstance(expect, Version) and bool(expect == there.token)


def _names(store: Store, key: str) -> tuple[str, ...]:
    """What is on a key index."""
    raw = peek(store, key)
    roll = KeyIndex.parse(raw)
    if roll.shorter is not None and raw is not None:
        # If another client appended meanwhile this changes nothing, and is tried again another time.
        store.compare_set(key, raw, roll.shorter)
    return roll.names
