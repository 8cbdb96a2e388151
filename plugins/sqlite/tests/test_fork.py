"""A fork in the middle of anything: parent and child go on, each with a connection of its own."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rdzv.backend import ANY, Snapshot
from rdzv_conformance.processes import Link, Processes

from rdzv_sqlite import SqliteBackend

Connect = Callable[[], SqliteBackend]


def test_child_and_parent_go_on(connect: Connect, processes: Processes) -> None:
    client = connect()
    client.put("before", b"", expect=ANY, timeout=5)

    def work(link: Link) -> list[str]:
        client.put("child", b"", expect=ANY, timeout=5)
        link.send()
        link.receive()
        return sorted(client.read_all("parent", timeout=5).entries)

    child = processes.fork(work)
    child.receive()
    assert client.read("child", timeout=5) is not None
    client.put("parent", b"", expect=ANY, timeout=5)
    child.send()
    assert child.result() == ["parent"]


def test_locks_of_a_child_are_its_own(connect: Connect, path: Path, processes: Processes) -> None:
    # Whoever closes last takes the log away. If the child only believed in its locks, the parent
    # would take it away under the child's feet.
    client = connect()
    client.put("before", b"", expect=ANY, timeout=5)

    def work(link: Link) -> None:
        client.put("child/1", b"", expect=ANY, timeout=5)
        link.send()
        link.receive()
        client.put("child/2", b"", expect=ANY, timeout=5)
        link.send()
        link.receive()

    child = processes.fork(work)
    child.receive()
    client.close()
    assert path.with_name("rdzv.db-wal").exists()
    child.send()
    child.receive()
    with closing(SqliteBackend(str(path), "run")) as other:
        assert sorted(other.read_all("child", timeout=5).entries) == ["child/1", "child/2"]
    child.send()
    child.result()


def test_fork_while_threads_write_and_wait(connect: Connect, processes: Processes) -> None:
    client = connect()
    stop = threading.Event()

    def write(name: str) -> None:
        while not stop.is_set():
            client.put(f"busy/{name}", b"", expect=ANY, timeout=5)

    def wait() -> None:
        seen = Snapshot()
        while not stop.is_set():
            seen = client.wait("busy", seen, timeout=0.1)

    threads = [threading.Thread(target=write, args=(str(index),)) for index in range(3)]
    threads.append(threading.Thread(target=wait))
    for thread in threads:
        thread.start()

    def work(link: Link) -> int:
        seen = client.read_all("busy", timeout=5)
        newer = client.wait("busy", seen, timeout=5)
        client.put("child", b"", expect=ANY, timeout=5)
        client.close()
        return int(newer.revision > seen.revision)

    try:
        for _ in range(10):
            assert processes.fork(work).result(10) == 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    before = client.read_all("busy", timeout=5).revision
    client.put("after", b"", expect=ANY, timeout=5)
    assert client.read_all("busy", timeout=5).revision > before
