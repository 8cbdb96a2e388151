"""A listing: everything at or under a prefix, as it was at one moment."""

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from rdzv_core.backend import Entry
from rdzv_core.errors import RendezvousConnectionError

from .indexes import Indexes, names_at, path_of
from .layout import WATCHERS, Layout, indexed_in, is_quiet
from .store import Connection, peek, stores
from .values import KeyIndex, entry_of

_READINGS: Final = 20
"""So often keys that can only be read one by one are read, until two readings agree."""
_PAUSE: Final = 1e-5
"""Seconds for each key in which no other is made before they are read again: about as long as that takes."""
_PAUSES: Final = 10
"""So often that is waited for."""
_ONE_BY_ONE: Final = 8
"""So many keys, one of which is on its way, are not looked for by halves any more."""
_LISTED: Final = 16
"""Of how many prefixes the last listing is kept."""


class Listing(NamedTuple):
    """What is at or under a prefix.

    Attributes:
        entries: By path.
        settled: False while a key is being created whose writer may not know of a watcher that looks just now.
    """

    entries: Mapping[str, Entry]
    settled: bool


class Reader:
    """Lists what is in one run. Keeps nothing but short cuts; any number of threads may use it."""

    def __init__(self, layout: Layout, indexes: Indexes) -> None:
        self._layout = layout
        self._indexes = indexes
        # When a key that is announced was missed first, by its name there, by prefix.
        self._missing: dict[str, dict[str, float]] = {}
        # What was announced at or under a prefix when all of it was there, in which session of the store.
        self._listed: dict[str, tuple[str, tuple[str, ...]]] = {}

    def read_all(self, connection: Connection, prefix: str, deadline: float) -> Listing:
        """Read everything at or under `prefix`, which is not on the page, as it was at one moment (see `_READINGS`).

        Args:
            connection: Where.
            prefix: What.
            deadline: On the monotonic clock, in seconds: no pause between two readings lasts longer.
        """
        now, missed = time.monotonic(), self._missing.get(prefix, {})
        overdue = {path_of(name) for name, since in missed.items() if now - since > self._indexes.UNSETTLED}
        session, listed = self._listed.get(prefix, ("", ()))
        known = listed if session == connection.session.id else ()
        reading = Reading(self._layout, self._indexes, connection, prefix, known, overdue | {prefix}, deadline)
        announced, raws = reading.find()
        entries = {path: entry for path in sorted(raws) if (entry := entry_of(raws[path])) is not None}
        itself = () if prefix in entries else self._indexes.announced_itself(connection.store, prefix)
        missing = {name: missed.get(name, now) for name in (*announced, *itself) if path_of(name) not in entries}
        self._remember(prefix, connection.session.id, announced, missing)
        return Listing(entries, all(path_of(name) in overdue for name in missing))

    def _remember(self, prefix: str, session: str, announced: tuple[str, ...], missing: dict[str, float]) -> None:
        self._listed.pop(prefix, None)
        if missing:
            self._missing[prefix] = missing
            return
        self._missing.pop(prefix, None)
        if announced:
            self._listed[prefix] = session, announced
            for oldest in list(self._listed)[:-_LISTED]:
                self._listed.pop(oldest, None)


@dataclass(frozen=True)
class Reading:
    """The search for one moment at which all of a listing stood there.

    Attributes:
        layout: Where the keys of the run are.
        indexes: Which it has.
        connection: By which they are read.
        prefix: What they are at or under.
        listed: The names that were announced, and there, when the prefix was listed last.
        doubtful: The paths that probably do not exist.
        deadline: See `Reader.read_all`.
    """

    layout: Layout
    indexes: Indexes
    connection: Connection
    prefix: str
    listed: tuple[str, ...]
    doubtful: Set[str]
    deadline: float

    def find(self) -> tuple[tuple[str, ...], dict[str, bytes | None]]:
        """Read until nothing was created meanwhile, or no value changed between two readings: no version comes twice.

        Returns:
            What is announced, and what the store holds for each path that may be there.
        """
        # What was there is there still, as a rule; and mostly nothing has come: then one call will do.
        fast = self.listed and self.connection.store.has_extended_api()
        announced = self.listed if fast else self._announced()
        before: tuple[tuple[str, ...], dict[str, bytes | None]] | None = None
        for reading in range(_READINGS):
            raws, beside = self.read_values(announced)
            if beside == announced or before == (announced, raws):
                return announced, raws
            before = announced, raws
            if reading and not is_quiet(self.prefix):
                # What came since the last list is read now; what comes all the time is waited for.
                self._await_quiet(_PAUSE * len(raws))
                beside = None
            announced = beside or self._announced()
        raise RendezvousConnectionError(
            f"'{self.prefix}' was changed during each of {_READINGS} readings, so no moment of it is known"
        )

    def _announced(self) -> tuple[str, ...]:
        return self.indexes.announced(self.connection.store, self.prefix)

    def read_values(self, names: tuple[str, ...]) -> tuple[dict[str, bytes | None], tuple[str, ...] | None]:
        """What the store holds for the paths of these names, read together if they exist, and then what was announced
        at that moment."""
        paths = dict.fromkeys(map(path_of, names))
        if "/" in self.prefix:
            paths[self.prefix] = None
        together = [path for path in paths if path not in self.doubtful]
        raws: dict[str, bytes | None] = {}
        announced: tuple[str, ...] | None = None if together else ()
        if together and self.connection.store.has_extended_api():
            known = {path_of(name) for name in self.listed}
            there = {*known, *self._those_there([path for path in together if path not in known])}
            together = [path for path in together if path in there]
            index = self.layout.index(indexed_in(self.prefix))
            if found := self.read_together([index, *map(self.layout.value, together)]):
                announced = names_at(self.prefix, KeyIndex.parse(found[0]).names)
                raws = dict(zip(together, found[1:], strict=True))
        raws |= {path: peek(self.connection.store, self.layout.value(path)) for path in paths if path not in raws}
        return raws, announced

    def _those_there(self, paths: list[str]) -> list[str]:
        """Of keys that were announced those that are there; some beside one that is on its way may be missing.

        Where many are made at once some are always on their way, the last ones as a rule: the others are not read one
        by one for that.
        """
        if not paths or self.connection.store.check([*map(self.layout.value, paths)]):
            return paths
        if len(paths) <= _ONE_BY_ONE:
            return []
        half = len(paths) // 2
        return self._those_there(paths[:half]) + self._those_there(paths[half:])

    def read_together(self, keys: list[str]) -> list[bytes]:
        """The values of several keys at one moment; nothing if one of them is not there.

        They were there a moment ago, and only who removes the whole run removes keys. A client whose waits have no
        limit makes sure of it nevertheless: torch waits for a key that is missing.
        """
        store = self.connection.store
        if self.connection.descriptor is None and not store.check(keys):
            return []
        try:
            found: list[bytes] = store.multi_get(keys)
        except stores().DistStoreError:
            return []
        return found

    def _await_quiet(self, pause: float) -> None:
        """Wait until no key is made below a top folder for so many seconds, or no longer: while many are made at once
        each reading of them all would find one more."""
        count = self._created()
        for _ in range(_PAUSES):
            if time.monotonic() + pause >= self.deadline:
                return
            time.sleep(pause)
            before, count = count, self._created()
            if count == before:
                return

    def _created(self) -> int:
        """How many keys were created below the top folder so far."""
        count: int = self.connection.store.add(self.layout.count(self.prefix), 0)
        return count % WATCHERS
