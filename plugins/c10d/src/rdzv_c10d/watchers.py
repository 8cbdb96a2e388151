"""Who is rung for changes beside the page: a list to which each watcher adds itself before it looks.

A writer rings after the write, and looks at the list after the write, too: whom it does not find there looks later, and
sees it. Those whom it knows already it rings first. One that has gone meanwhile leaves a wakeup key that no process
removes: it may as well be about to come back, and would miss what rings for it.
"""

from collections.abc import Iterable, Set
from typing import NamedTuple

from rdzv_transport import contains

from .layout import Layout
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
        # Those that were there, in which session of the store, and what it held.
        self._known: tuple[str, bytes | None, tuple[Watcher, ...]] = "", None, ()

    def add(self, connection: Connection, watcher: Watcher) -> None:
        """Have a watcher rung for every change at or under its prefix that a look from now on does not show."""
        extend(connection.store, self._layout.watchers(), Names.plus(" ".join(watcher)))

    def remove(self, connection: Connection, watcher: Watcher) -> None:
        """Have it rung no more."""
        extend(connection.store, self._layout.watchers(), Names.minus(" ".join(watcher)))

    def meet(self, connection: Connection) -> None:
        """Learn who is there, with the first call to a store: then the first write rings without a look, too."""
        if self._known[0] != connection.session.id:
            self._read(connection)

    def ring(self, connection: Connection, paths: list[str], likely: Set[str]) -> None:
        """Ring for a change at some paths; then all that was appended on this connection is done.

        Args:
            connection: On which the change was written.
            paths: Where it is.
            likely: Some wakeup keys that are rung without a look whether their processes watch.
        """
        session, _, known = self._known
        rung = likely | (_wakeups(known, paths) if session == connection.session.id else set())
        _ring(connection, rung)
        _ring(connection, _wakeups(self._read(connection), paths) - rung)

    def clear(self, connection: Connection) -> None:
        """Forget those that were removed, if that were all."""
        raw = peek(connection.store, self._layout.watchers())
        if raw is not None and not Names.parse(raw).names:
            connection.store.compare_set(self._layout.watchers(), raw, b"")

    def _read(self, connection: Connection) -> tuple[Watcher, ...]:
        key = self._layout.watchers()
        raw = peek(connection.store, key)
        session, before, known = self._known
        if (session, before) == (connection.session.id, raw):
            return known
        names = Names.parse(raw)
        if names.shorter is not None and raw is not None:
            # If another client appended meanwhile this changes nothing, and is tried again another time.
            connection.store.compare_set(key, raw, names.shorter)
        # A line that does not name a watcher is left out; what was written stands all the same.
        lines = [name.split(" ") for name in names.names]
        watchers = tuple(Watcher(*words) for words in lines if len(words) == len(Watcher._fields))
        self._known = connection.session.id, raw, watchers
        return watchers


def _ring(connection: Connection, wakeups: Set[str]) -> None:
    if wakeups:
        connection.store.multi_set([*wakeups], [b"1"] * len(wakeups))


def _wakeups(watchers: Iterable[Watcher], paths: list[str]) -> set[str]:
    return {one.wakeup for one in watchers if any(contains(one.prefix, path) for path in paths)}
