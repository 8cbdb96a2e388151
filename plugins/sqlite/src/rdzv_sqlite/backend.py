"""The adapter: rdzv's keys and leases as rows of one SQLite database."""

import math
import secrets
import time
from collections.abc import Mapping
from typing import ClassVar, Final

from rdzv_core import Capability, Entry, Expect, KeyValueBackend, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.errors import RendezvousParameterError, RendezvousStateError
from rdzv_core.keys import escape

from .database import CommitError, Database, Transaction
from .notifier import fifo_of
from .paths import default_path

# As bytes: the name of a key that others have written may be no text.
_READ: Final = "SELECT value, version, created FROM entry WHERE key = ?"
_READ_ALL: Final = (
    "SELECT key, value, version, created FROM entry "
    "WHERE key = CAST(? AS TEXT) OR key >= CAST(? AS TEXT) AND key < CAST(? AS TEXT)"
)
_DELETE: Final = "DELETE FROM entry WHERE key = CAST(? AS TEXT) OR key >= CAST(? AS TEXT) AND key < CAST(? AS TEXT)"


class SqliteBackend(KeyValueBackend):
    """A rendezvous backend for the processes of one machine: a file, and no server.

    Args:
        path: Of the database; it is made when it is not there, in a folder that is. All processes
            that give the same one meet. Empty: one of this user's, in the system's temp folder.
        run_id: Which run.
        prefix: What the keys of every run begin with.
        create: Whether a database that is not there is made; without, every call raises
            `RendezvousParameterError` until it is there.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.WATCH, Capability.LEASE, Capability.DURABLE})
    unsupported: ClassVar[Mapping[Capability, str]] = {
        Capability.MULTI_ENDPOINT: "The database is one file; it fails only with the machine.",
        Capability.TLS: "Nothing crosses a network.",
        Capability.AUTH: "The permissions of the file decide who may use it.",
    }
    min_lease_ttl: ClassVar[float] = 0.1
    creates_at_once = 128

    def __init__(self, path: str, run_id: str, *, prefix: str = "rdzv", create: bool = True) -> None:
        self._database = Database(path or default_path(), create=create)
        self._root = f"{prefix}/{escape(run_id)}/"

    @property
    def name(self) -> str:
        return "sqlite"

    @property
    def path(self) -> str:
        """The absolute path of the database."""
        return self._database.path

    def read(self, key: str, *, timeout: float) -> Entry | None:
        with self._database.transaction(timeout) as transaction:
            return self._find(transaction, key)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        with self._database.transaction(timeout) as transaction:
            return self._snapshot(transaction, prefix)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        if lease is not None and not isinstance(lease, SqliteLease):
            raise RendezvousParameterError(f"The lease {lease!r} of '{key}' is not one of this backend's.")
        try:
            with self._database.transaction(timeout, write=True) as transaction:
                there = self._find(transaction, key)
                if not _matches(there, expect) or (lease is not None and not lease.stands(transaction)):
                    return PutResult(PutOutcome.CONFLICT, there)
                version = transaction.next_revision([fifo_of(self._root, key)])
                entry = Entry(value, version, version if there is None else there.order)
                self._write(transaction, key, entry, lease)
        except CommitError:
            return PutResult(PutOutcome.UNKNOWN)
        return PutResult(PutOutcome.APPLIED, entry)

    def delete(self, prefix: str, *, timeout: float) -> None:
        with self._database.transaction(timeout, write=True) as transaction:
            removed = transaction.execute(_DELETE, self._under(prefix))
            if removed.rowcount:
                transaction.next_revision([fifo_of(self._root, prefix)])

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        try:
            with self._database.transaction(timeout, write=True) as transaction:
                there = self._find(transaction, key)
                if there is None or not _matches(there, token):
                    return PutOutcome.CONFLICT
                transaction.execute("DELETE FROM entry WHERE key = ?", (self._root + key,))
                transaction.next_revision([fifo_of(self._root, key)])
        except CommitError:
            return PutOutcome.UNKNOWN
        return PutOutcome.APPLIED

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        try:
            with self._database.transaction(timeout, write=True) as transaction:
                if any(self._find(transaction, key) for key in values):
                    return PutOutcome.CONFLICT
                version = transaction.next_revision([fifo_of(self._root, key) for key in values])
                for key, value in values.items():
                    self._write(transaction, key, Entry(value, version, version), None)
        except CommitError:
            return PutOutcome.UNKNOWN
        return PutOutcome.APPLIED

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        deadline = time.monotonic() + timeout

        def look(before: Snapshot | None) -> Snapshot:
            with self._database.transaction(deadline - time.monotonic()) as transaction:
                if before is not None and transaction.revision == before.revision:
                    return before
                return self._snapshot(transaction, prefix)

        with self._database.shared.lookout(self._root + prefix, fifo_of(self._root, prefix)) as lookout:
            return lookout.wait(since, look, self._database.check_open, deadline)

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        lease = SqliteLease(self._database, self._root, max(ttl, self.min_lease_ttl))
        lease.open(timeout)
        return lease

    def close(self) -> None:
        self._database.close()

    def _under(self, prefix: str) -> tuple[bytes, bytes, bytes]:
        """The path of `prefix`, and what everything under it lies between ("0" is the character after "/")."""
        path = (self._root + prefix).encode("utf-8", "surrogateescape")
        return path, path + b"/", path + b"0"

    def _find(self, transaction: Transaction, key: str) -> Entry | None:
        row = transaction.execute(_READ, (self._root + key,)).fetchone()
        return None if row is None else self._entry(*row)

    def _write(self, transaction: Transaction, key: str, entry: Entry, lease: "SqliteLease | None") -> None:
        row = self._root + key, entry.value, entry.token, entry.order, lease.id if lease else None
        transaction.execute("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?)", row)

    def _snapshot(self, transaction: Transaction, prefix: str) -> Snapshot:
        rows = transaction.execute(_READ_ALL, self._under(prefix))
        entries = {key.removeprefix(self._root): self._entry(*row) for key, *row in rows}
        return Snapshot(entries, transaction.revision)

    def _entry(self, *row: object) -> Entry:
        match row:
            case (bytes(value), int(version), int(created)):
                return Entry(value, version, created)
        raise RendezvousStateError(f"The database '{self.path}' is corrupt: a row of its entries holds other types.")


class SqliteLease(Lease):
    """A lease: a row with the moment when it ends. The first client after that moment removes it and its keys."""

    def __init__(self, database: Database, root: str, ttl: float) -> None:
        super().__init__(ttl)
        self._database = database
        self._root = root
        self._nanoseconds = math.ceil(ttl * 1e9)
        self.id = secrets.randbits(62)

    def open(self, timeout: float) -> None:
        """Make the row."""
        with self._database.transaction(timeout, write=True) as transaction:
            row = self.id, self._nanoseconds, transaction.now + self._nanoseconds
            transaction.execute("INSERT INTO lease VALUES (?, ?, ?)", row)

    def keep_alive(self, timeout: float) -> bool:
        with self._database.transaction(timeout, write=True) as transaction:
            ends = transaction.now + self._nanoseconds
            return transaction.execute("UPDATE lease SET ends = ? WHERE id = ?", (ends, self.id)).rowcount == 1

    def revoke(self, timeout: float) -> None:
        with self._database.transaction(timeout, write=True) as transaction:
            keys = [key for (key,) in transaction.execute("SELECT key FROM entry WHERE lease = ?", (self.id,))]
            if transaction.execute("DELETE FROM lease WHERE id = ?", (self.id,)).rowcount:
                transaction.next_revision(fifo_of(self._root, key.removeprefix(self._root)) for key in keys)

    def stands(self, transaction: Transaction) -> bool:
        """Whether it has not ended."""
        return transaction.execute("SELECT 1 FROM lease WHERE id = ?", (self.id,)).fetchone() is not None


def _matches(there: Entry | None, expect: Token | Expect) -> bool:
    if expect is Expect.ANY:
        return True
    if expect is Expect.ABSENT or there is None:
        return expect is Expect.ABSENT and there is None
    return type(expect) is int and expect == there.token
