"""One database file: transactions that all processes of the machine agree on, whichever of them dies when.

Three things make it so. SQLite's write-ahead log takes back what was not committed. The kernel
frees the locks of the dead. And every transaction first ends the leases whose time is over, so
that no client sees a key after another has seen it removed.
"""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakSet

from rdzv_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError

from . import schema
from .notifier import COUNT
from .paths import (
    LOGS,
    check_access,
    check_content,
    explain,
    is_default,
    make_default_folder,
    missing,
    resolve,
    share_logs,
)
from .shared import Shared, shared

_SLICE: Final = 0.1
"""Seconds for which a call waits without looking whether it was closed."""

_TOUCH: Final = 3600.0
"""Seconds after which the files of an open database are touched: cleaners of temporary folders remove old ones."""

_UNUSABLE: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})
_UNSOUND: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT}
)

_Identity = tuple[int, int]
"""Which file it is: its device and its inode."""


class CommitError(RendezvousConnectionError):
    """The disk failed in the middle of a commit: it may or may not have happened."""


class Transaction:
    """What is read and written within one happens at one moment.

    Attributes:
        execute: Run one SQL statement.
        now: That moment, in nanoseconds of the machine's clock.
        revision: The number of the last change that it sees.
        rings: By which FIFOs to tell of those that it made.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.execute = connection.execute
        # Not the boot-time clock: while a machine sleeps its owners do, and none of them is to blame.
        self.now = time.monotonic_ns()
        self.revision, self._ends = schema.read_moment(connection)
        self.rings: set[int] = set()

    @property
    def due(self) -> bool:
        """Whether a lease has run out and still stands in the file."""
        return self._ends is not None and self._ends <= self.now

    def end_leases(self) -> None:
        """End the leases that are due; their keys go with them."""
        if self.due:
            self.execute("DELETE FROM lease WHERE ends <= ?", (self.now,))
            # Of runs that this client knows nothing of, too.
            self.next_revision(range(COUNT))

    def next_revision(self, fifos: Iterable[int]) -> int:
        """Count a change, which these FIFOs tell of; no number is ever given twice in the life of the file."""
        self.revision += 1
        self.rings.update(fifos)
        self.execute("UPDATE meta SET revision = ?", (self.revision,))
        return self.revision


class Database:
    """The file at `path`, for all threads of this process. Nothing is touched before the first transaction.

    It has one connection with a lock around each transaction: these take some fifty microseconds,
    so a connection per thread measures the same, and would need more files.
    """

    def __init__(self, path: str, *, create: bool = True) -> None:
        self.path = resolve(path)
        self.lock = threading.RLock()
        self._is_default = is_default(path)
        self._create = create
        self._connection: sqlite3.Connection | None = None
        self._file: _Identity | None = None
        self._logs: list[_Identity | None] = []
        self._next_touch = 0.0
        self._closed = False
        with _registering:
            _all.add(self)

    @property
    def shared(self) -> Shared:
        """What it shares with the other backends of this process."""
        return shared(self.path)

    @contextmanager
    def transaction(self, timeout: float, *, write: bool = False) -> Iterator[Transaction]:
        """Read, or read and write, at one moment. An exception inside takes everything back.

        Raises:
            RendezvousConnectionError: The file could not be had within `timeout` seconds, or `close` was called.
            CommitError: The disk failed; what was written may be there or not.
            RendezvousStateError: The file is corrupt, or not ours.
        """
        deadline = time.monotonic() + timeout
        if not write:
            with self._begun("BEGIN", deadline) as transaction:
                if not transaction.due:
                    yield transaction
                    return
        with self._turn(deadline), self._begun("BEGIN IMMEDIATE", deadline) as transaction:
            transaction.end_leases()
            yield transaction
        for fifo in transaction.rings:
            self.shared.notifier.notify(fifo)

    def check_open(self) -> None:
        """Raise `RendezvousConnectionError` after `close`."""
        if self._closed:
            raise RendezvousConnectionError(f"The backend of the database '{self.path}' is closed.")

    def close(self) -> None:
        """Let go of the file; calls in progress raise."""
        self._closed = True
        self.shared.wake_all(self.check_open)
        with self.lock:
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection; the next transaction opens another. To be called under `lock`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _turn(self, deadline: float) -> Iterator[None]:
        """Wait until no other thread of this process writes; then only processes compete for the file."""
        turn = self.shared.turn
        while not turn.acquire(timeout=max(0.0, min(_SLICE, deadline - time.monotonic()))):
            self._check_time(deadline)
        try:
            yield
        finally:
            turn.release()

    @contextmanager
    def _begun(self, statement: str, deadline: float) -> Iterator[Transaction]:
        while True:
            with self.lock, self._errors_explained():
                try:
                    if (transaction := self._begin(statement)) is not None:
                        yield transaction
                        self._commit(transaction)
                        return
                except BaseException:
                    # Ctrl-C just after it began, too.
                    self._take_back()
                    raise
            self._check_time(deadline)
            # SQLite's own waiting grows to steps of 100 ms, and starves those who came first.
            time.sleep(random.uniform(0.0005, 0.003))  # noqa: S311 - no secret

    def _begin(self, statement: str) -> Transaction | None:
        """Begin a transaction; None if another process has the file to itself at the moment."""
        self.check_open()
        try:
            if (connection := self._connected()) is None:
                return None
            connection.execute(statement)
            return Transaction(connection)
        except sqlite3.OperationalError as error:
            if _code(error) not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL}:
                raise
            self._take_back()
            return None

    def _commit(self, transaction: Transaction) -> None:
        try:
            transaction.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_IOERR:
                raise
            raise CommitError(f"The disk failed while '{self.path}' was written: {error}.") from error

    def _take_back(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.disconnect()

    def _connected(self) -> sqlite3.Connection | None:
        """The connection to the file; None if other threads of this process open it at the moment."""
        if self._connection is not None and self._file == _identity(self.path):
            self._check_logs()
            self._touch()
            return self._connection
        # Never opened, or the file was removed: a client that goes on with it would be alone.
        self.disconnect()
        opening = self.shared.opening
        if not opening.acquire(timeout=_SLICE):
            return None
        try:
            return self._open()
        finally:
            opening.release()

    def _open(self) -> sqlite3.Connection:
        if not self._create and not os.path.exists(self.path):
            raise missing(self.path)
        if self._is_default:
            make_default_folder()
        check_access(self.path)
        check_content(self.path)
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            # Others may have written keys that are no text: they are shown as such, and a purge removes them.
            connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
            schema.prepare(connection)
            share_logs(self.path)
        except BaseException:
            connection.close()
            raise
        self._connection, self._file, self._logs = connection, _identity(self.path), self._find_logs()
        return connection

    def _find_logs(self) -> list[_Identity | None]:
        return [_identity(f"{self.path}{suffix}") for suffix in LOGS]

    def _check_logs(self) -> None:
        """Refuse to go on with a log that others do not find: they would be alone with the same database."""
        if self._find_logs() != self._logs:
            raise RendezvousStateError(
                f"What SQLite keeps beside the database '{self.path}' ({', '.join(LOGS)}) was removed or replaced "
                "while it was in use, perhaps by a cleaner of temporary folders. End every process that uses the "
                "database, and begin anew with one where no file is removed."
            )

    def _touch(self) -> None:
        """Have the files look used, once in a while."""
        if time.monotonic() < self._next_touch:
            return
        self._next_touch = time.monotonic() + _TOUCH
        for suffix in ("", *LOGS):
            with suppress(OSError):
                os.utime(f"{self.path}{suffix}")
        self.shared.notifier.touch()

    def _check_time(self, deadline: float) -> None:
        self.check_open()
        if time.monotonic() >= deadline:
            raise RendezvousConnectionError(
                f"The database '{self.path}' stayed locked until the time for the call was over. "
                "Look for a stopped process that has it open: a dead one holds nothing."
            )

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self.disconnect()
            raise self._explain(error) from error

    def _explain(self, error: sqlite3.Error) -> RendezvousError:
        code = _code(error)
        if code in _UNSOUND:
            return RendezvousStateError(f"'{self.path}' is corrupt or no database of rdzv: {error}. Move it away.")
        reason = explain(self.path) if code in _UNUSABLE else None
        return reason or RendezvousConnectionError(f"The database '{self.path}' cannot be used: {error}.")


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for an error of Python's own."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _identity(path: str) -> _Identity | None:
    """Which file is at `path`; None if there is none."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


# SQLite remembers per process which locks it holds on a file; a fork copies that memory, and the locks stay behind. A
# child that opened the same file again would rely on locks that are not held. So before a fork every connection is
# closed, between two transactions; both sides connect again.

_all: Final[WeakSet[Database]] = WeakSet()
_registering: Final = threading.RLock()
_held: Final[list[Database]] = []


def _before_fork() -> None:
    _registering.acquire()
    for database in list(_all):
        database.lock.acquire()
        _held.append(database)
        database.disconnect()


def _after_fork() -> None:
    while _held:
        _held.pop().lock.release()
    _registering.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
