"""Where the keys of one run are in a store.

Below ``<prefix>/<run id>/``:

======================  ================================================================================
``page/<v>``            everything in the folder of the state register, as the write number v has left it (a `Page`);
                        or, in the place of an old one, the number of a later one
``page``                a copy of one of them, as a rule of the last one
``value/<path>``        any other key (a `Frame`)
``log/<top>``           the writes of all keys below a top folder (see `Logs`)
``count/<top>``         how many keys were created there
``watchers``            whose wakeup keys are rung for changes beside the page (a `Names` of a `Watcher` each)
``store/<path>//<key>`` a key of the round store at a path, as its user has written it (see `RoundStore`)
``queues/<path>``       which queues that store has, a line of JSON each
======================  ================================================================================

The folder of the state is what every node watches and few write: in one value it costs one call to read and one to
write, and to wait for a change is to wait for a key (see `SharedPage`). Everywhere else many write at once, each its
own key, and one value would be fought over: there a key has a value of its own, and the log of its top folder tells of
all.
"""

from dataclasses import dataclass
from typing import Final

from rdzv_core.backend import STATE_KEY
from rdzv_transport import contains

_PAGE: Final = STATE_KEY.rpartition("/")[0]
_QUIET: Final = "heartbeats"
"""A top folder whose changes ring for no client: one that waits there looks now and then."""


@dataclass(frozen=True)
class Layout:
    """The keys of the run whose keys begin with `root`."""

    root: str

    def page(self) -> str:
        """The key of the page's copy, and what those of its versions begin with."""
        return f"{self.root}page"

    def value(self, path: str) -> str:
        """The key of any other path."""
        return f"{self.root}value/{path}"

    def log(self, path: str) -> str:
        """The key of the log that a path belongs to."""
        return f"{self.root}log/{top_of(path)}"

    def count(self, path: str) -> str:
        """The key of the counter that a path belongs to."""
        return f"{self.root}count/{top_of(path)}"

    def watchers(self) -> str:
        """The key of the watchers."""
        return f"{self.root}watchers"


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
