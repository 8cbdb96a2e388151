"""How a process learns of changes beside the page: it has a wakeup key of its own that does not exist, and waits for it
to appear.

A writer creates the wakeup keys of all who watch that part (see `Watchers`), without waiting for an
answer. The owner looks, and removes the key meanwhile. A TCPStore can wait for nothing but that a key appears, and a
wait that ends by its timeout makes torch print a warning; so one wakeup key serves all waits of a process, and to
end them its owner rings it itself.
"""

import time
from typing import ClassVar

from .listener import Listener, await_key
from .pool import Check, ConnectionPool
from .store import Connection
from .values import nonce


class WakeupKey(Listener):
    """One wakeup key, and the thread that listens to it while a thread waits.

    Attributes:
        key: The store's key.
        rings: How often it has rung, or may have.
    """

    thread: ClassVar[str] = "rdzv-c10d-wakeup"

    def __init__(self, connections: ConnectionPool) -> None:
        super().__init__(connections)
        self.key = f"rdzv-c10d/wakeup/{nonce()}"
        self.rings = 0
        # Whether a look has begun since it rang last.
        self._is_looked_at = False

    def begin_look(self) -> int:
        """Call it before a look, which sees all for what it has rung so far; returns how often that was."""
        with self._lock:
            self._is_looked_at = True
            return self.rings

    def await_wakeup(self, heard: int, until: float, check_open: Check) -> None:
        """Return when `rings` is not `heard` any more, or at that moment (on the monotonic clock)."""
        with self._lock:
            while self.rings == heard and (remaining := until - time.monotonic()) > 0:
                check_open()
                self._changed.wait(remaining)

    def wake(self, rung: bool = True) -> None:
        """Wake all that wait for a ring: as if it had rung, or only to ask whether they are still open."""
        with self._lock:
            self.rings += rung
            self._is_looked_at = self._is_looked_at and not rung
            self._changed.notify_all()

    def ring(self, connection: Connection) -> None:
        """Create this wakeup key."""
        connection.store.set(self.key, b"1")

    def _hear_next(self, connection: Connection) -> None:
        await_key(connection, self.key)
        # At once, though perhaps no thread waits now: the next one need not wait for this.
        self.wake()
        connection.check_room()
        connection.store.delete_key(self.key)
        with self._lock:
            # What has rung before the deletion was not heard.
            if self._is_looked_at:
                self.wake()
