"""The file: whose it is, what a broken one leads to, and who waits for whom."""

import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from rdzv_conformance.processes import Link, Processes
from rdzv_core.backend import ABSENT, ANY, PutOutcome
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

from rdzv_sqlite import SqliteBackend, schema

from .clients import Connect, check_close_ends

_PUT = """
import sys
from contextlib import closing
from rdzv_core.backend import ANY, PutOutcome
from rdzv_sqlite import SqliteBackend

with closing(SqliteBackend(sys.argv[1], "run")) as client:
    assert client.put("key", b"y", expect=ANY, timeout=5).outcome is PutOutcome.APPLIED
"""


def tamper(path: Path, *statements: str) -> None:
    """Change the database behind its back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_token_of_a_deleted_key_never_fits_again(connect: Connect) -> None:
    client = connect()
    old = client.put("key", b"same", expect=ABSENT, timeout=5).entry
    client.delete("key", timeout=5)
    new = client.put("key", b"same", expect=ABSENT, timeout=5).entry
    assert old is not None
    assert new is not None
    assert client.put("key", b"", expect=old.token, timeout=5).outcome is PutOutcome.CONFLICT
    assert new.order > old.order


@pytest.mark.parametrize("foreign", [True, 1.0, "1", b"1", None, (1,), object()], ids=lambda one: type(one).__name__)
def test_foreign_token_fits_nothing(connect: Connect, foreign: object) -> None:
    client = connect()
    client.put("key", b"", expect=ABSENT, timeout=5)
    tamper(Path(client.path), "UPDATE entry SET version = 1")
    assert client.put("key", b"", expect=foreign, timeout=5).outcome is PutOutcome.CONFLICT


class TestWrongFile:
    """What is not ours is left as it is."""

    @pytest.mark.parametrize("content", [b"x", b"just text\n" * 1000], ids=["tiny", "large"])
    def test_no_database(self, connect: Connect, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(RendezvousStateError, match=r"rdzv\.db"):
            connect().put("key", b"", expect=ANY, timeout=5)
        assert path.read_bytes() == content

    def test_database_of_another_program(self, connect: Connect, path: Path) -> None:
        tamper(path, "CREATE TABLE theirs (a)")
        content = path.read_bytes()
        with pytest.raises(RendezvousStateError, match="another program"):
            connect().put("key", b"", expect=ANY, timeout=5)
        assert path.read_bytes() == content

    def test_other_version(self, connect: Connect, path: Path) -> None:
        with closing(connect()) as client:
            client.read("key", timeout=5)
        tamper(path, "PRAGMA user_version = 99")
        with pytest.raises(RendezvousStateError, match="version 99"):
            connect().read("key", timeout=5)

    def test_damaged_pages(self, connect: Connect, path: Path) -> None:
        with closing(connect()) as client:
            for number in range(20):
                client.put(f"key/{number}", b"x" * 2000, expect=ANY, timeout=5)
        content = path.read_bytes()
        path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
        with pytest.raises(RendezvousStateError, match=r"rdzv\.db"):
            connect().read_all("key", timeout=5)

    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE entry SET value = 'text'",
            "UPDATE entry SET version = 'text'",
            "DELETE FROM meta",
            "UPDATE meta SET revision = 'text'",
            "DROP TABLE lease",
        ],
    )
    def test_damaged_rows(self, connect: Connect, path: Path, damage: str) -> None:
        client = connect()
        client.put("key", b"", expect=ANY, timeout=5)
        tamper(path, damage)
        with pytest.raises(RendezvousStateError, match=r"rdzv\.db"):
            client.read("key", timeout=5)
        with pytest.raises(RendezvousStateError, match=r"rdzv\.db"):
            connect().read_all("key", timeout=5)


def test_call_that_failed_in_the_middle_locks_no_other_out(connect: Connect, path: Path) -> None:
    client = connect()
    client.put("key", b"", expect=ANY, timeout=5)
    tamper(path, "UPDATE entry SET value = 'text'")
    with pytest.raises(RendezvousStateError, match="corrupt"):
        client.put("key", b"", expect=ANY, timeout=5)
    assert connect().put("other", b"", expect=ANY, timeout=1).outcome is PutOutcome.APPLIED
    assert client.put("other", b"", expect=ANY, timeout=1).outcome is PutOutcome.APPLIED


def test_an_interrupt_just_after_a_transaction_began_takes_it_back(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()

    def interrupt(connection: sqlite3.Connection) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(schema, "read_moment", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.put("key", b"", expect=ABSENT, timeout=5)
    assert client.read("key", timeout=5) is None
    assert client.put("key", b"", expect=ABSENT, timeout=5).outcome is PutOutcome.APPLIED


def test_file_that_was_removed_is_made_again_for_all(connect: Connect, path: Path) -> None:
    client, other = connect(), connect()
    lost = client.put("key", b"", expect=ABSENT, timeout=5).entry
    lease = client.open_lease(60, timeout=5)
    path.unlink()
    assert other.put("key", b"new", expect=ABSENT, timeout=5).outcome is PutOutcome.APPLIED
    found = client.read("key", timeout=5)
    assert found is not None
    assert found.value == b"new"
    assert lost is not None
    assert client.put("key", b"", expect=lost.token, timeout=5).outcome is PutOutcome.CONFLICT
    assert not lease.keep_alive(5)


@pytest.mark.parametrize("gone", [["rdzv.db-shm"], ["rdzv.db-wal"], ["rdzv.db-wal", "rdzv.db-shm"]], ids="+".join)
def test_a_log_that_was_removed_is_noticed_by_all_who_have_it_open(
    connect: Connect, path: Path, gone: list[str]
) -> None:
    client, other = connect(), connect()
    client.put("key", b"x", expect=ANY, timeout=5)
    since = other.read_all("", timeout=5)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.wait, "key", since, timeout=60)
        for name in gone:
            (path.parent / name).unlink()
        with pytest.raises(RendezvousStateError, match="removed or replaced while it was in use"):
            waiting.result(5)
    if len(gone) == 2:
        # Another process makes new ones, and is not joined by those who have the old. (A fork would have them connect.)
        subprocess.run([sys.executable, "-c", _PUT, str(path)], check=True)
    for one in (client, other):
        with pytest.raises(RendezvousStateError, match="End every process that uses the database"):
            one.put("key", b"z", expect=ANY, timeout=5)


def test_an_open_database_does_not_grow_old(connect: Connect, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect()
    client.wait("key", client.read_all("key", timeout=5), timeout=0.01)  # makes a FIFO
    files = [path, *(file for file in path.parent.iterdir() if file != path)]
    assert {file.name.partition(".fifo")[0] for file in files} == {"rdzv.db", "rdzv.db-wal", "rdzv.db-shm"}
    for file in files:
        os.utime(file, (0, 0))
    client.read("key", timeout=5)
    assert path.stat().st_mtime == 0, "it was touched before its time"
    passed = time.monotonic() + 3601
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    client.read("key", timeout=5)
    assert all(file.stat().st_mtime > 0 for file in files)


def test_lease_of_an_earlier_boot_is_over(connect: Connect, path: Path) -> None:
    client = connect()
    lease = client.open_lease(10, timeout=5)
    client.put("key", b"", expect=ABSENT, lease=lease, timeout=5)
    client.close()
    # The machine had run for years when the lease was opened.
    tamper(path, f"UPDATE lease SET ends = ends + {10**17}")
    assert connect().read("key", timeout=5) is None


@pytest.fixture
def locked(connect: Connect, path: Path) -> Iterator[SqliteBackend]:
    """A client of a database to which another writes without an end."""
    client = connect()
    client.put("key", b"", expect=ANY, timeout=5)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield client


def test_put_to_a_locked_file_ends_in_time(locked: SqliteBackend) -> None:
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="stayed locked"):
        locked.put("key", b"", expect=ANY, timeout=0.3)
    assert 0.3 <= time.monotonic() - began < 1


def test_locked_file_can_be_read(locked: SqliteBackend) -> None:
    assert locked.read("key", timeout=1) is not None


def test_close_ends_puts_to_a_locked_file(locked: SqliteBackend) -> None:
    with ThreadPoolExecutor() as threads:
        puts = [threads.submit(locked.put, "key", b"", expect=ANY, timeout=30) for _ in range(4)]
        check_close_ends(locked, puts)


def test_put_that_the_disk_refuses_is_unknown_and_harmless(path: Path, processes: Processes) -> None:
    def write(link: Link) -> list[object]:
        with closing(SqliteBackend(str(path), "run")) as client:
            client.put("key", b"before", expect=ANY, timeout=5)
            size = path.with_name("rdzv.db-wal").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, resource.RLIM_INFINITY))
            refused = client.put("key", bytes(100_000), expect=ANY, timeout=5)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            kept = client.read("key", timeout=5)
            after = client.put("key", b"after", expect=kept.token if kept else ABSENT, timeout=5)
            return [refused.outcome.value, kept.value.decode() if kept else None, after.outcome.value]

    assert processes.fork(write).result() == ["unknown", "before", "applied"]


def test_threads_that_open_a_new_file_at_once_do_so_once_each(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    prepare = schema.prepare

    def counted(connection: sqlite3.Connection) -> None:
        opened.append(connection)
        prepare(connection)

    monkeypatch.setattr(schema, "prepare", counted)
    clients = [connect() for _ in range(32)]
    with ThreadPoolExecutor(32) as threads:
        for read in [threads.submit(client.read, "key", timeout=10) for client in clients]:
            assert read.result() is None
    assert len(opened) == 32


def test_processes_that_come_and_go_meet_no_error(path: Path, processes: Processes) -> None:
    # The first to open makes the tables, the last to close removes the log.
    def come_and_go(name: str) -> int:
        for _ in range(50):
            with closing(SqliteBackend(str(path), "run")) as client:
                client.put(f"key/{name}", b"", expect=ANY, timeout=10)
        return len(client.path)

    workers = [processes.fork(lambda link, name=str(index): come_and_go(name)) for index in range(4)]  # type: ignore[misc]
    for worker in workers:
        worker.result()
    with closing(SqliteBackend(str(path), "run")) as client:
        assert len(client.read_all("key", timeout=5).entries) == 4
    assert sorted(file.name for file in path.parent.iterdir()) == ["rdzv.db"]


def test_a_key_that_is_no_text_is_read_and_removed(connect: Connect, path: Path) -> None:
    client = connect()
    client.put("nodes/0/a", b"", expect=ANY, timeout=5)
    for name in ("FF", "302FFF", ""):
        tamper(path, f"INSERT INTO entry SELECT key || CAST(X'2F{name}' AS TEXT), value, 1, 1, NULL FROM entry LIMIT 1")
    found = ["nodes/0/a", "nodes/0/a/", "nodes/0/a/0/\udcff", "nodes/0/a/\udcff"]
    assert sorted(client.read_all("nodes", timeout=5).entries) == found
    for key in found[1:]:
        client.delete(key, timeout=5)
        assert key not in client.read_all("nodes", timeout=5).entries
    client.put("nodes/b", b"", expect=ANY, timeout=5)
    assert list(client.read_all("nodes/b", timeout=5).entries) == ["nodes/b"]
