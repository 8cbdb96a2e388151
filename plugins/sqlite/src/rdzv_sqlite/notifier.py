"""How a writer wakes the waiters in every process of the machine, within a millisecond and for nothing while idle.

Beside the database stands a FIFO through which no byte ever goes: a reader learns that the other
end hung up as soon as any writer has opened and closed it since that reader came (see
``poll(2)``, POLLHUP). So every waiter hears every ring, and a ring needs no list of waiters.

It is a hint, not a promise: a writer that is killed between its commit and the ring leaves the
waiters to their next look (see `SqliteBackend.wait`).
"""

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rdzv.errors import RendezvousConnectionError


class FifoNotifier:
    """The FIFO of one database.

    Args:
        path: Of the FIFO; it is made when a process listens for the first time, and stays.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def notify(self) -> None:
        """Wake every process that listens; there may be none."""
        with suppress(OSError):
            os.close(os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    @contextmanager
    def listen(self) -> Iterator[Callable[[float], bool]]:
        """Hear every ring from here on.

        Yields:
            A function that returns when it is notified, or after so many seconds; whether it was.

        Raises:
            RendezvousConnectionError: The FIFO cannot be made or opened.
        """
        try:
            ear = self._open()
        except OSError as error:
            raise RendezvousConnectionError(f"The FIFO '{self._path}' cannot be used: {error}.") from error
        try:
            poll = select.poll()
            # A hang-up needs no asking for; asking for data would spin on a file that is no FIFO.
            poll.register(ear, 0)
            yield lambda seconds: bool(poll.poll(seconds * 1000))
        finally:
            os.close(ear)

    def _open(self) -> int:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(self._path, flags)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.mkfifo(self._path)
            return os.open(self._path, flags)
