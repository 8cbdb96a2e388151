"""How a writer wakes the waiters in every process of the machine, within a millisecond and for nothing while idle.

Beside the database stand FIFOs through which no byte ever goes: a reader learns that the other
end hung up as soon as any writer has opened and closed it since that reader came (see
``poll(2)``, POLLHUP). So every waiter hears every ring, and a ring needs no list of waiters.

The folders of keys are spread over a few FIFOs, so that who waits for one hears little of the others.

It is a hint, not a promise: a writer that is killed between its commit and the ring leaves the
waiters to their next look (see `lookout`).
"""

import logging
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from zlib import crc32

from .paths import share

COUNT: Final = 16
"""How many FIFOs a database has at most; only those exist for which a process has listened."""


logger = logging.getLogger(__name__)


def fifo_of(root: str, key: str) -> int:
    """The number of the FIFO that tells of changes at or under a key of a run, and above it."""
    folder = key.partition("/")[0]
    # A sum: the folders of a run that are waited for most never share one.
    return (crc32(root.encode()) + crc32(folder.encode())) % COUNT


class FifoNotifier:
    """The FIFOs of one database.

    Args:
        database: Its path. A FIFO has the rights of the database; it is made when a process listens for the first time,
            and stays.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._is_deaf = False

    def notify(self, number: int) -> None:
        """Wake every process that listens at this FIFO; there may be none."""
        with suppress(OSError):
            os.close(os.open(self._path(number), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    @contextmanager
    def listen(self, number: int) -> Iterator[Callable[[float], bool]]:
        """Hear every ring of this FIFO from here on. One that cannot be made or opened rings for nothing.

        Yields:
            A function that returns when it is notified, or after so many seconds; whether it was.
        """
        try:
            ear = self._open(self._path(number))
        except OSError as error:
            self._warn(error)
            yield _hear_nothing
            return
        try:
            poll = select.poll()
            # A hang-up needs no asking for; asking for data would spin on a file that is not a FIFO.
            poll.register(ear, 0)
            yield lambda seconds: bool(poll.poll(seconds * 1000))
        finally:
            os.close(ear)

    def touch(self) -> None:
        """Have the FIFOs look used to those who remove old files."""
        for number in range(COUNT):
            with suppress(OSError):
                os.utime(self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._database}.fifo.{number}"

    def _open(self, path: str) -> int:
        while True:
            try:
                return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                # It may be removed again meanwhile.
                with suppress(FileExistsError):
                    self._make(path)

    def _make(self, path: str) -> None:
        os.mkfifo(path)
        # As SQLite does with its log: who may write the database may ring and listen, whatever the umask of this user.
        with suppress(OSError):
            share(path, self._database)
            os.chmod(path, stat.S_IMODE(os.stat(self._database).st_mode))

    def _warn(self, error: OSError) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            logger.warning(
                "news of the database '%s' come a tenth of a second late: its FIFO cannot be used: %s",
                self._database,
                error,
            )


def _hear_nothing(seconds: float) -> bool:
    time.sleep(seconds)
    return False
