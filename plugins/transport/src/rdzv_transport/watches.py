"""The watches of one client: what each prefix is waited for with, however many threads wait."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from rdzv_core.backend import Snapshot

from .prefixes import Prefixes
from .sockets import LONGEST

_IDLE: Final = 4
"""How many prefixes keep their watch though no call waits for them now."""


class Watch(Protocol):
    """What is known of one prefix, and what keeps it up to date."""

    def wait(self, since: Snapshot, deadline: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""

    def close(self) -> None:
        """Give up what is under way; the next wait begins anew."""


class Watches:
    """See above.

    Args:
        make: Makes the watch of a prefix.
    """

    def __init__(self, make: Callable[[str], Watch]) -> None:
        self._watches = Prefixes(make, lambda watch: watch.close(), idle=_IDLE)

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        deadline = time.monotonic() + min(timeout, LONGEST)
        with self._watches.using(prefix) as watch:
            return watch.wait(since, deadline)

    def close(self) -> None:
        """Close every watch that no call waits for."""
        self._watches.close()
