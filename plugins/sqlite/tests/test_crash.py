"""Whatever dies or stops at whatever moment: the file is whole, and what the owner held goes in time."""

import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from rdzv_conformance.processes import Link, Processes, Worker
from rdzv_core.backend import ABSENT, ANY, KeyValueBackend, PutOutcome, Snapshot

from rdzv_sqlite import SqliteBackend

TTL = 0.5


def count_up(path: Path, link: Link) -> None:
    """Write 1, 2, 3... to two keys, reporting each number before it is written."""
    backend = SqliteBackend(str(path), "run")
    number = 0
    while True:
        number += 1
        backend.put("a", b"%d" % number, expect=ANY, timeout=5)
        backend.put("b", b"%d" % number, expect=ANY, timeout=5)
        link.send(number)


def own_a_key(path: Path, link: Link) -> dict[str, object]:
    """Hold a key until the test lets it go on; then report what became of the right to it."""
    backend = SqliteBackend(str(path), "run")
    lease = backend.open_lease(TTL, timeout=5)
    backend.put("nodes/owner", b"", expect=ABSENT, lease=lease, timeout=5)
    link.send()
    link.receive()
    found: dict[str, object] = {
        "alive": lease.keep_alive(5),
        "put": backend.put("nodes/owner", b"", expect=ANY, lease=lease, timeout=5).outcome.value,
    }
    backend.close()
    return found


def await_absence(client: KeyValueBackend) -> float:
    """Wait until no node is there; the seconds it took."""
    began = time.monotonic()
    seen = client.read_all("nodes", timeout=5)
    while seen.entries and time.monotonic() < began + 10:
        seen = client.wait("nodes", seen, timeout=10)
    assert not seen.entries
    return time.monotonic() - began


def start_owner(path: Path, processes: Processes) -> Worker:
    owner = processes.fork(lambda link: own_a_key(path, link))
    owner.receive()
    return owner


def test_writer_killed_at_any_instant_leaves_the_file_whole(path: Path, processes: Processes) -> None:
    for _ in range(10):
        writer = processes.fork(lambda link: count_up(path, link))
        told = [writer.receive() for _ in range(random.randrange(1, 200))][-1]
        writer.kill()
        with closing(SqliteBackend(str(path), "run")) as client:
            first, second = client.read("a", timeout=1), client.read("b", timeout=1)
            assert first is not None
            assert second is not None
            assert int(second.value) >= told
            assert int(first.value) - int(second.value) in (0, 1)
            assert client.put("a", b"", expect=first.token, timeout=1).outcome is PutOutcome.APPLIED
            client.delete("b", timeout=1)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_keys_of_a_killed_owner_go_when_its_lease_ends(path: Path, processes: Processes) -> None:
    owner = start_owner(path, processes)
    owner.kill()
    with closing(SqliteBackend(str(path), "run")) as client:
        assert await_absence(client) < TTL + 1


def test_owner_that_was_stopped_for_too_long_has_lost_everything_for_good(path: Path, processes: Processes) -> None:
    owner = start_owner(path, processes)
    owner.pause()
    with closing(SqliteBackend(str(path), "run")) as client:
        await_absence(client)
        owner.resume()
        owner.send()
        assert owner.result() == {"alive": False, "put": "conflict"}
        assert client.read_all("nodes", timeout=5).entries == {}


def test_all_waiters_agree_on_the_moment_of_an_expiry(path: Path, processes: Processes) -> None:
    def watch(link: Link) -> list[object]:
        with closing(SqliteBackend(str(path), "run")) as client:
            seen: Snapshot = client.read_all("nodes", timeout=5)
            link.send()
            gone = client.wait("nodes", seen, timeout=10)
            # No client that looks after this may see the key.
            return [sorted(gone.entries), gone.revision]

    owner = start_owner(path, processes)
    watchers = [processes.fork(watch) for _ in range(4)]
    for watcher in watchers:
        watcher.receive()
    owner.kill()
    results = [watcher.result() for watcher in watchers]
    assert results[0][0] == []
    assert all(result == results[0] for result in results)
