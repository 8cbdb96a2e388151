"""Which keys a run has: the key indexes of its folders, in which a key is announced before it is there."""

from typing import Final

from rdzv_transport import contains

from .layout import Layout, folders_of, indexed_in
from .store import Store, extend, peek
from .values import KeyIndex


class Indexes:
    """The key indexes of one run. Their names are a path and a birth, with a blank between them."""

    UNSETTLED: Final = 1.0
    """Seconds for which a key that is announced and missing is expected to appear: its writer is at it, or dead.

    A writer that took half of it announces the key again when it is there."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def announce(self, store: Store, name: str) -> None:
        """Add a name to the indexes that its path belongs to."""
        for folder in folders_of(path_of(name)):
            extend(store, self._layout.index(folder), KeyIndex.plus(name))

    def withdraw(self, store: Store, name: str) -> None:
        """Remove it from there."""
        for folder in folders_of(path_of(name)):
            extend(store, self._layout.index(folder), KeyIndex.minus(name))

    def announced(self, store: Store, prefix: str) -> tuple[str, ...]:
        """The names whose paths are at or under a prefix, as far as its own index lists them."""
        return names_at(prefix, names_in(store, self._layout.index(indexed_in(prefix))))

    def announced_itself(self, store: Store, key: str) -> tuple[str, ...]:
        """The names of a key whose own index lists only what is under it: it stands in that of the folder above."""
        folder = folders_of(key)[-1]
        if folder == indexed_in(key):
            return ()
        return tuple(name for name in names_in(store, self._layout.index(folder)) if path_of(name) == key)


def path_of(name: str) -> str:
    """The path of a name in an index."""
    return name.partition(" ")[0]


def names_at(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those names of an index whose paths are at or under a prefix."""
    return tuple(name for name in names if contains(prefix, path_of(name)))


def names_in(store: Store, key: str) -> tuple[str, ...]:
    """What is on a key index."""
    raw = peek(store, key)
    roll = KeyIndex.parse(raw)
    if roll.shorter is not None and raw is not None:
        # If another client appended meanwhile this changes nothing, and is tried again another time.
        store.compare_set(key, raw, roll.shorter)
    return roll.names
