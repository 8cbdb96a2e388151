"""Following a prefix: a query that Consul answers when there is something new, again and again.

Every answer is the whole state under the prefix, so that none is missed for good.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

from rdzv.backend import Snapshot
from rdzv_transport import CancelToken

from .kv import Keys

__all__ = ["follow"]

_PAUSE: Final = 0.02
"""Seconds before the next query if the last one brought nothing: while a prefix is empty, Consul wakes who
waits for it at every write nearby."""


def follow(keys: Keys) -> Callable[[str, Snapshot | None, CancelToken], Iterator[Snapshot]]:
    """How `rdzv_transport.Watches` follows a prefix of these keys."""

    def follow(prefix: str, start: Snapshot | None, cancel: CancelToken) -> Iterator[Snapshot]:
        known, after = None, 0 if start is None else start.revision.index
        while not cancel.cancelled:
            now = keys.read_all(prefix, keys.client.patience, after=after, cancel=cancel)
            yield now
            if known is not None and now.entries == known.entries:
                time.sleep(_PAUSE)
            known, after = now, now.revision.index

    return follow
