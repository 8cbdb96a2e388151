"""Waiting: woken by the FIFO, awake without it, cheap while nothing happens."""

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from rdzv_conformance.interrupts import check_interrupted_waits
from rdzv_conformance.processes import Link, Processes
from rdzv_core import turns
from rdzv_core.backend import ANY, Entry, Snapshot
from rdzv_core.errors import RendezvousConnectionError

from rdzv_sqlite import SqliteBackend, lookout
from rdzv_sqlite.database import Database, Transaction
from rdzv_sqlite.lookout import Lookout
from rdzv_sqlite.notifier import COUNT, FifoNotifier

from .clients import Connect, check_close_ends


@pytest.fixture
def only_the_notifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process looks unless it is notified."""
    monkeypatch.setattr(lookout, "_LOOK", 60.0)


@pytest.fixture
def threads(connect: Connect) -> Iterator[ThreadPoolExecutor]:
    """Threads for waiting; they end with the clients."""
    threads = ThreadPoolExecutor(16)
    yield threads
    threads.shutdown(wait=False, cancel_futures=True)


def await_looks(transactions: list[float], count: int) -> None:
    """Until this process has looked at its databases so often."""
    deadline = time.monotonic() + 5
    while len(transactions) < count and time.monotonic() < deadline:
        time.sleep(0.01)


def start_waiting(threads: ThreadPoolExecutor, client: SqliteBackend, prefix: str = "key") -> Future[Snapshot]:
    """Wait on another thread."""
    seen = client.read_all(prefix, timeout=5)
    return threads.submit(client.wait, prefix, seen, timeout=30)


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When this process looked at a database."""
    moments: list[float] = []
    begin = Database.transaction

    def counted(self: Database, timeout: float, *, write: bool = False) -> AbstractContextManager[Transaction]:
        moments.append(time.monotonic())
        return begin(self, timeout, write=write)

    monkeypatch.setattr(Database, "transaction", counted)
    return moments


@pytest.mark.usefixtures("only_the_notifier")
class TestCost:
    """What a change costs those that wait for others, or that are many."""

    def test_what_others_do_elsewhere_wakes_no_waiter(
        self, connect: Connect, threads: ThreadPoolExecutor, processes: Processes, transactions: list[float]
    ) -> None:
        def write(link: Link) -> None:
            link.receive()
            with closing(connect()) as client:
                lease = client.open_lease(60, timeout=5)
                for number in range(50):
                    client.put(f"nodes/0/{number}", b"", expect=ANY, lease=lease, timeout=5)
                client.delete("nodes/0/7", timeout=5)
                lease.revoke(5)
                client.put("control/state", b"", expect=ANY, timeout=5)

        writer = processes.fork(write)
        waiting = [start_waiting(threads, connect(), "control") for _ in range(8)]
        await_looks(transactions, 8 + 1)
        writer.send()
        writer.result()
        for one in waiting:
            assert list(one.result(5).entries) == ["control/state"]
        # Each read the prefix before it waited; one looked when it began to watch, and one heard the ring.
        assert len(transactions) <= 8 + 1 + 2

    def test_a_change_is_read_once_for_all_that_wait(
        self, connect: Connect, threads: ThreadPoolExecutor, transactions: list[float]
    ) -> None:
        waiting = [start_waiting(threads, connect()) for _ in range(12)]
        await_looks(transactions, 12 + 1)
        connect().put("key", b"", expect=ANY, timeout=5)
        snapshots = [one.result(5) for one in waiting]
        assert all(snapshot is snapshots[0] for snapshot in snapshots)
        assert len(transactions) <= 12 + 1 + 1 + 2


@pytest.mark.usefixtures("only_the_notifier")
class TestNotifier:
    """Without ever looking by themselves, waiters learn of what others do."""

    def test_same_client_wakes(self, connect: Connect, threads: ThreadPoolExecutor) -> None:
        client = connect()
        waiting = start_waiting(threads, client)
        client.put("key", b"", expect=ANY, timeout=5)
        assert list(waiting.result(5).entries) == ["key"]

    def test_other_process_wakes_all(self, connect: Connect, threads: ThreadPoolExecutor, processes: Processes) -> None:
        def write(link: Link) -> None:
            link.receive()
            with closing(connect()) as client:
                client.put("key", b"", expect=ANY, timeout=5)

        writer = processes.fork(write)
        clients = [connect() for _ in range(4)]
        waiting = [start_waiting(threads, client) for client in clients for _ in range(3)]
        writer.send()
        writer.result()
        for one in waiting:
            assert list(one.result(5).entries) == ["key"]

    def test_another_name_of_the_file_wakes(self, connect: Connect, path: Path, threads: ThreadPoolExecutor) -> None:
        link = path.with_name("link.db")
        link.symlink_to(path.name)
        waiting = start_waiting(threads, connect())
        with closing(SqliteBackend(os.path.relpath(link), "run")) as writer:
            writer.put("key", b"", expect=ANY, timeout=5)
        assert list(waiting.result(5).entries) == ["key"]

    def test_watch_is_handed_over_when_its_keep_alive_loop_leaves(
        self, connect: Connect, threads: ThreadPoolExecutor
    ) -> None:
        clients = [connect() for _ in range(4)]
        waiting = [start_waiting(threads, client) for client in clients]
        for client, one in zip(clients[:3], waiting, strict=False):
            client.close()
            with pytest.raises(RendezvousConnectionError, match="is closed"):
                one.result(5)
        connect().put("key", b"", expect=ANY, timeout=5)
        assert list(waiting[3].result(5).entries) == ["key"]

    def test_keep_alive_loop_that_runs_out_of_time_hands_over(
        self, connect: Connect, threads: ThreadPoolExecutor
    ) -> None:
        keeper, other = connect(), connect()
        seen = keeper.read_all("key", timeout=5)
        first = threads.submit(keeper.wait, "key", seen, timeout=0.3)
        waiting = start_waiting(threads, other)
        assert first.result(5) is seen
        keeper.put("key", b"", expect=ANY, timeout=5)
        assert list(waiting.result(5).entries) == ["key"]

    def test_changes_elsewhere_end_no_wait(self, connect: Connect, threads: ThreadPoolExecutor) -> None:
        client = connect()
        waiting = start_waiting(threads, client, "a/b")
        for key in ("a", "a/bc", "a/b0", "a/b.c", "a/a/b"):
            client.put(key, b"", expect=ANY, timeout=5)
        client.delete("a/bc", timeout=5)
        client.put("a/b/c", b"", expect=ANY, timeout=5)
        assert list(waiting.result(5).entries) == ["a/b/c"]

    def test_close_ends_every_wait(self, connect: Connect, threads: ThreadPoolExecutor) -> None:
        client = connect()
        check_close_ends(client, [start_waiting(threads, client) for _ in range(8)])


def test_change_without_a_ring_is_noticed(connect: Connect, path: Path, threads: ThreadPoolExecutor) -> None:
    # As if the writer had been killed between its commit and the ring.
    client = connect()
    client.put("key", b"old", expect=ANY, timeout=5)
    waiting = start_waiting(threads, client)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET revision = revision + 1")
        connection.execute("UPDATE entry SET value = CAST('new' AS BLOB), version = (SELECT revision FROM meta)")
    assert waiting.result(5).entries["key"].value == b"new"


def test_what_comes_and_goes_between_two_looks_is_no_news_to_them_alone(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    # A key that another thread has seen is gone before the next look, which finds what the one before it found.
    present, looking, may_look, asked = Snapshot({}, 7), threading.Event(), threading.Event(), threading.Event()

    def look(before: Snapshot | None) -> Snapshot:
        looking.set()
        may_look.wait(5)
        return before if before is not None and before.revision == present.revision else present

    def soon() -> float:
        return time.monotonic() + 60

    lookout = Lookout(FifoNotifier(str(tmp_path / "fifo")), 0)
    first = threads.submit(lookout.wait, present, look, lambda: None, soon())
    assert looking.wait(5)
    seen, present = Snapshot({"key": Entry(b"", 8, 8)}, 8), Snapshot({}, 9)
    # It asks under the lock under which the first tells what it has found.
    second = threads.submit(lookout.wait, seen, look, asked.set, soon())
    assert asked.wait(5)
    may_look.set()
    assert second.result(5) is present
    present = Snapshot({"key": Entry(b"", 10, 10)}, 10)
    assert first.result(5) is present


def test_an_interrupt_anywhere_leaves_the_prefix_to_the_next_wait(connect: Connect) -> None:
    assert check_interrupted_waits(connect(), connect(), (lookout, turns), 5) > 10


def test_a_fifo_has_the_rights_of_the_database(connect: Connect, path: Path) -> None:
    client = connect()
    since = client.read_all("key", timeout=5)
    path.chmod(0o660)
    before = os.umask(0o077)
    try:
        client.wait("key", since, timeout=0.01)
    finally:
        os.umask(before)
    (fifo,) = path.parent.glob("rdzv.db.fifo.*")
    assert stat.filemode(fifo.stat().st_mode) == "prw-rw----"


def test_a_fifo_that_cannot_be_used_is_said_once_and_makes_news_late(
    connect: Connect, path: Path, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    client.put("key", b"", expect=ANY, timeout=5)
    for number in range(COUNT):
        # A name that leads to itself can neither be opened nor made.
        os.symlink(f"rdzv.db.fifo.{number}", f"{path}.fifo.{number}")
    for number in range(2):
        waiting = threads.submit(client.wait, "key", client.read_all("key", timeout=5), timeout=5)
        client.put("key", b"%d" % number, expect=ANY, timeout=5)
        assert waiting.result(5).entries["key"].value == b"%d" % number
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"news of the database '{path}' come a tenth of a second late"
    ]


def test_fifo_that_was_removed_is_made_again(connect: Connect, path: Path, threads: ThreadPoolExecutor) -> None:
    client = connect()
    for number in range(3):
        waiting = start_waiting(threads, client)
        for fifo in path.parent.glob("rdzv.db.fifo.*"):
            fifo.unlink()
        client.put("key", b"%d" % number, expect=ANY, timeout=5)
        assert waiting.result(5).entries["key"].value == b"%d" % number


def test_idle_waiters_cost_next_to_nothing(connect: Connect, processes: Processes) -> None:
    def wait(link: Link) -> float:
        clients = [connect() for _ in range(16)]
        idle = [
            threading.Thread(target=client.wait, args=("key", Snapshot()), kwargs={"timeout": 3}) for client in clients
        ]
        for thread in idle:
            thread.start()
        time.sleep(0.5)  # what starting them cost does not count
        began = time.process_time()
        time.sleep(2)
        cost = time.process_time() - began
        for thread in idle:
            thread.join()
        return cost / 2

    assert processes.fork(wait).result() < 0.02


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not list a process's open files")
def test_nothing_is_left_open(connect: Connect, threads: ThreadPoolExecutor) -> None:
    before = set(os.listdir("/proc/self/fd"))
    clients = [connect() for _ in range(3)]
    waiting = [start_waiting(threads, client) for client in clients]
    clients[0].put("key", b"", expect=ANY, timeout=5)
    for client, one in zip(clients, waiting, strict=True):
        one.result(5)
        client.close()
    assert set(os.listdir("/proc/self/fd")) == before
