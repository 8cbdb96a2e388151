"""Who is rung for changes below a top folder: a list to which each watcher adds itself before it looks.

A writer rings after the write, and looks at the list after the write, too: whom it does not find there looks later, and
sees it. Those whom it knows already it need not look for first.
"""

from collections.abc import Iterable
from typing import NamedTuple

from rdzv_transport import contains

from .layout import Layout, top_of
from .store import Connection, extend, peek
from .values import Names


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


class Watchers:
    """The watchers of one run. Keeps nothing but short cuts; any number of threads may use it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # Those that were there, by top folder, and in which session of the store.
        self._known: dict[str, tuple[str, tuple[Watcher, ...]]] = {}

    def add(self, connection: Connection, watcher: Watcher) -> None:
        """Have a watcher rung for every change at or under its prefix that a look from now on does not show."""
        self._append(connection, watcher, Names.plus(" ".join(watcher)))

    def remove(self, connection: Connection, watcher: Watcher) -> None:
        """Have it rung no more."""
        self._append(connection, watcher, Names.minus(" ".join(watcher)))

    def ring(self, connection: Connection, paths: Iterable[str]) -> None:
        """Ring for a change at paths below one top folder; then all that was appended on this connection is done."""
        paths = list(paths)
        top = top_of(paths[0])
        session, known = self._known.get(top, ("", ()))
        rung = _wakeups(known, paths) if session == connection.session.id else set()
        if rung:
            connection.store.multi_set([*rung], [b"1"] * len(rung))
        known = self._read(connection, top)
        self._known[top] = connection.session.id, known
        wakeups = _wakeups(known, paths)
        if new := wakeups - rung:
            connection.store.multi_set([*new], [b"1"] * len(new))
        for gone in rung - wakeups:
            connection.store.delete_key(gone)

    def clear(self, connection: Connection, top: str) -> None:
        """Forget those that were removed, if that were all."""
        raw = peek(connection.store, self._layout.watchers(top))
        if raw is not None and not Names.parse(raw).names:
            connection.store.compare_set(self._layout.watchers(top), raw, b"")

    def _append(self, connection: Connection, watcher: Watcher, line: bytes) -> None:
        extend(connection.store, self._layout.watchers(watcher.prefix), line)

    def _read(self, connection: Connection, top: str) -> tuple[Watcher, ...]:
        key = self._layout.watchers(top)
        raw = peek(connection.store, key)
        names = Names.parse(raw)
        if names.shorter is not None and raw is not None:
            # If another client appended meanwhile this changes nothing, and is tried again another time.
            connection.store.compare_set(key, raw, names.shorter)
        # A line that does not name a watcher is left out; what was written stands all the same.
        lines = [name.split(" ") for name in names.names]
        return tuple(Watcher(*words) for words in lines if len(words) == len(Watcher._fields))


def _wakeups(watchers: Iterable[Watcher], paths: list[str]) -> set[str]:
    return {one.wakeup for one in watchers if any(contains(one.prefix, path) for path in paths)}
