"""Following a prefix: a long poll for the next change, and a reading where polling does not tell enough.

etcd answers a poll with one change, and remembers the last thousand of all its keys. A change that happened while
we polled is merged into what we know; after any other the prefix is read, and everything that has happened
meanwhile is in it. So it is in silence, since nothing else shows that a member is frozen or lost the others.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

from rdzv.backend import Snapshot
from rdzv_transport import CancelToken

from .keys import Keys

__all__ = ["follow"]

_SILENCE: Final = 10.0
"""Seconds without a change after which the prefix is read."""

_PAUSE: Final = 0.02
"""Seconds before another poll where the last one ended too soon to be worth anything."""


def follow(keys: Keys) -> Callable[[str, Snapshot | None, CancelToken], Iterator[Snapshot]]:
    """How `rdzv_transport.Watches` follows a prefix of these keys."""

    def follow(prefix: str, start: Snapshot | None, cancel: CancelToken) -> Iterator[Snapshot]:
        # What another client has read may be of a service that has lost it since, and counts anew.
        now = start if start is not None and start.revision.index <= keys.newest else None
        while not cancel.cancelled:
            if now is None:
                now = keys.read_all(prefix, keys.client.patience, cancel)
                yield now
            began = time.monotonic()
            now = keys.changed(prefix, now, _SILENCE, cancel)
            if now is not None:
                yield now
            elif time.monotonic() - began < _PAUSE:
                time.sleep(_PAUSE)

    return follow
