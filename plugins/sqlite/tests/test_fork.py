"""A fork in the middle of anything: parent and child go on, each with a connection of its own."""

from contextlib import closing
from pathlib import Path

from rdzv_conformance.processes import Link, Processes
from rdzv_core.backend import ANY

from rdzv_sqlite import SqliteBackend

from .clients import Connect


def test_locks_of_a_child_are_its_own(connect: Connect, path: Path, processes: Processes) -> None:
    # The last client that closes removes the log. If the child only believed in its locks, the parent
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
