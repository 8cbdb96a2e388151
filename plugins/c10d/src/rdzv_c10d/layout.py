"""Where the keys of one run are in a store.

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
"""

from dataclasses import dataclass
from typing import Final

from rdzv_core.backend import STATE_KEY
from rdzv_transport import contains

_PAGE: Final = STATE_KEY.rpartition("/")[0]
_QUIET: Final = "heartbeats"
"""A top folder whose changes ring for no client: one that waits there looks now and then."""
_UNINDEXED: Final = 2
"""The level on which folders have no key index of their own: what they hold stands in the one above."""

WATCHERS: Final = 1 << 32
"""What a change of the watchers adds to a counter; the creations are below."""


@dataclass(frozen=True)
class Layout:
    """The keys of the run whose keys begin with `root`."""

    root: str

    def page(self) -> str:
        """The key of the page."""
        return f"{self.root}page"

    def value(self, path: str) -> str:
        """The key of any other path."""
        return f"{self.root}value/{path}"

    def index(self, folder: str) -> str:
        """The key of a folder's index."""
        return f"{self.root}index/{folder}"

    def count(self, path: str) -> str:
        """The key of the counter that a path belongs to."""
        return f"{self.root}count/{top_of(path)}"

    def watchers(self, path: str) -> str:
        """The key of the watchers that a path belongs to."""
        return f"{self.root}watchers/{top_of(path)}"


def top_of(path: str) -> str:
    """The top folder of a path."""
    return path.partition("/")[0]


def is_on_page(path: str) -> bool:
    """Whether a path, or all at or under it, stands on the page."""
    return contains(_PAGE, path)


def is_quiet(path: str) -> bool:
    """Whether no client is rung for changes there."""
    return top_of(path) == _QUIET


def store_key(root: str, place: str, key: str) -> str:
    """Where a round store keeps a key. No place has an empty segment, so none has another's keys."""
    return f"{root}store/{place}//{key}"


def queues_key(root: str, place: str) -> str:
    """Where a round store lists its queues."""
    return f"{root}queues/{place}"


def folders_of(path: str) -> list[str]:
    """The folders in whose index a path stands. One without a folder stands in its own."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts)) if length != _UNINDEXED] or [path]


def indexed_in(prefix: str) -> str:
    """The folder in whose index all stands that is under a prefix."""
    return top_of(prefix) if prefix.count("/") + 1 == _UNINDEXED else prefix
