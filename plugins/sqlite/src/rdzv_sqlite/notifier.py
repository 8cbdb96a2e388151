"""How a writer wakes the waiters in every process of the machine, within a millisecond and for nothing while idle.

Beside the database stand FIFOs through which no byte ever goes: a reader learns that the other
end hung up as soon as any writer has opened and closed it since that reader came (see
``poll(2)``, POLLHUP). So every waiter hears every ring, and a ring needs no list of waiters.

The folders of keys are spread over a few FIFOs, so that who waits for one hears little of the others.

It is a hint, not a promise: a writer that is killed between its commit and the ring leaves the
waiters to their next look (see `lookout`).
"""

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from zlib import crc32

from rdzv_core.errors import RendezvousConnectionError

COUNT: Final = 16
"""How many FIFOs a database has at most; only those exist for which a process has listened."""


def fifo_of(root: str, key: str) -> int:
    """The number of the FIFO that tells of changes at or under a key of a run, and above it."""
    folder = key.partition("/")[0]
    # A sum: the folders of a run that are waited for most never share one.
    return (crc32(root.encode()) + crc32(folder.encode())) % COUNT


class FifoNotifier:
    """The FIFOs of one database.

    Args:
        path: Of the FIFOs, without their numbers; each is made when a process listens for the first time, and stays.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def notify(self, number: int) -> None:
        """Wake every process that listens at this FIFO; there may be none."""
        with suppress(OSError):
            os.close(os.open(f"{self._path}.{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    @contextmanager
    def listen(self, number: int) -> Iterator[Callable[[float], bool]]:
        """Hear every ring of this FIFO from here on.

        Yields:
            A function that returns when it is notified, or after so many seconds; whether it was.

        Raises:
            RendezvousConnectionError: The FIFO cannot be made or opened.
        """
        path = f"{self._path}.{number}"
        try:
            ear = _open(path)
        except OSError as error:
            raise RendezvousConnectionError(f"The FIFO '{path}' cannot be used: {error}.") from error
        try:
            poll = select.poll()
            # A hang-up needs no asking for; asking for data would spin on a file that is not a FIFO.
            poll.register(ear, 0)
            yield lambda seconds: bool(poll.poll(seconds * 1000))
        finally:
            os.close(ear)


def _open(path: str) -> int:
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            # It may be removed again meanwhile.
            with suppress(FileExistsError):
                os.mkfifo(path)
