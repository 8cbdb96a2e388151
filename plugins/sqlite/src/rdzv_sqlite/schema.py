"""What the database file holds, and how a connection is made ready for it."""

import secrets
import sqlite3
import time
from typing import Final

from rdzv_core.errors import RendezvousParameterError, RendezvousStateError

_APPLICATION: Final = int.from_bytes(b"RDZV")
_VERSION: Final = 1

_TABLES: Final = (
    "CREATE TABLE meta (revision INTEGER NOT NULL)",
    "CREATE TABLE lease (id INTEGER PRIMARY KEY, ttl INTEGER NOT NULL, ends INTEGER NOT NULL)",
    "CREATE INDEX lease_by_end ON lease (ends)",
    "CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,"
    " created INTEGER NOT NULL, lease INTEGER REFERENCES lease (id) ON DELETE CASCADE)",
    "CREATE INDEX entry_by_lease ON entry (lease) WHERE lease IS NOT NULL",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
"""Times are nanoseconds of the machine's monotonic clock, which starts anew at every boot."""


def prepare(connection: sqlite3.Connection) -> None:
    """Make a new connection ready, and the file if it is new.

    Raises:
        RendezvousStateError: The file holds something else.
        RendezvousParameterError: Its file system cannot serve several processes.
    """
    ours = _is_ours(connection)
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise RendezvousParameterError(
            f"The file system of '{_path(connection)}' has no shared memory, which SQLite's write-ahead log needs. "
            "Give a path on a local disk as the endpoint."
        )
    # What is committed survives every crash of a process; a power failure may take back the last commits.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    if not ours:
        _create(connection)
    _end_leases_of_earlier_boots(connection)


def read_moment(connection: sqlite3.Connection) -> tuple[int, int | None]:
    """The number of the last change, and when the next lease ends (None: there is no lease).

    Raises:
        RendezvousStateError: The file is not as we made it.
    """
    match connection.execute("SELECT revision, (SELECT min(ends) FROM lease) FROM meta").fetchone():
        case (int(revision), (int() | None) as ends):
            return revision, ends
    raise RendezvousStateError(f"The database '{_path(connection)}' is corrupt: its counters are missing.")


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Whether the file is a database of rdzv; False if it is empty."""
    connection.execute("BEGIN")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.execute("COMMIT")
    if (application, version, objects) == (0, 0, 0):
        return False
    if application != _APPLICATION:
        raise RendezvousStateError(f"'{_path(connection)}' is a database of another program. Give another path.")
    if version != _VERSION:
        raise RendezvousStateError(
            f"The database '{_path(connection)}' has version {version} of the tables, and this rdzv-sqlite knows "
            f"version {_VERSION}. Use one release everywhere, or give another path."
        )
    return True


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not objects:
        for statement in _TABLES:
            connection.execute(statement)
        # The start is random, so that a token of a file that was removed fits nothing in its successor.
        connection.execute("INSERT INTO meta VALUES (?)", (secrets.randbits(20) << 32,))
    connection.execute("COMMIT")


def _end_leases_of_earlier_boots(connection: sqlite3.Connection) -> None:
    # The clock began anew at boot. A lease that began in its future is older than that; one that
    # this misses is over within its time to live, as if its owner had died just now.
    future = "FROM lease WHERE ends - ttl > ?"
    (found,) = connection.execute(f"SELECT count(*) {future}", (time.monotonic_ns(),)).fetchone()
    if found:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"DELETE {future}", (time.monotonic_ns(),))
        connection.execute("UPDATE meta SET revision = revision + 1")
        connection.execute("COMMIT")


def _path(connection: sqlite3.Connection) -> str:
    """The file's path, for messages."""
    path: str = connection.execute("PRAGMA database_list").fetchone()[2]
    return path
