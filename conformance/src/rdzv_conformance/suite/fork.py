"""Forks: a process that was forked from one with a client uses it, or closes it, and its parent does not notice."""

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from rdzv.backend import ANY, KeyValueBackend, Outcome, Snapshot

from ..processes import Link, Processes
from .base import CALL, ROOT, Clients, Conformance

__all__ = ["ForkConformance"]

_TURNS = 50
_CHILDREN = 3
_WAITED = "suite/waited"


class ForkConformance(Conformance):
    """Both sides of a fork."""

    def test_client_works_on_both_sides_of_a_fork(self, clients: Clients, processes: Processes) -> None:
        """Parent and child may go on with the same client object at once: each gets its own answers."""
        client = clients()
        _use(client, "before")
        since = client.read_all(ROOT, timeout=CALL)

        def child(link: Link) -> int:
            link.send()
            _use(client, "child")
            return len(client.wait(ROOT, since, timeout=CALL).entries)

        worker = processes.fork(child)
        worker.receive()
        _use(client, "parent")
        assert worker.result() >= 2
        assert client.read_all(ROOT, timeout=CALL).entries.keys() == {"suite/before", "suite/child", "suite/parent"}

    @pytest.mark.parametrize("uses", [True, False], ids=["uses it", "only closes it"])
    def test_child_disturbs_no_wait_of_its_parent(self, clients: Clients, processes: Processes, uses: bool) -> None:
        """While the parent waits, children use and close the client that they inherited: the wait goes on."""
        client, other = clients(), clients()
        since = client.read_all(_WAITED, timeout=CALL)

        def child(link: Link) -> None:
            if uses:
                _use(client, "child")
                client.wait(_WAITED, since, timeout=0.05)
            client.close()

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(_wait_for, client, since, b"x")
            try:
                for _ in range(_CHILDREN):
                    processes.fork(child).result()
                    _assert_waits(waiting)
                _use(client, "parent")
                _assert_waits(waiting)
            finally:
                other.put(_WAITED, b"x", expect=ANY, timeout=CALL)
            waiting.result(CALL)


def _use(client: KeyValueBackend, name: str) -> None:
    """Write and read; every answer must be one's own."""
    for number in range(_TURNS):
        value = b"%d of %s" % (number, name.encode())
        put = client.put(f"suite/{name}", value, expect=ANY, timeout=CALL)
        assert put.outcome is Outcome.WON, f"a put of the {name} side of a fork answered {put}"
        entry = client.read(f"suite/{name}", timeout=CALL)
        assert entry is not None, f"the {name} side of a fork does not read what it has written"
        assert entry.value == value, "one side of the fork got the other side's answer"


def _wait_for(client: KeyValueBackend, since: Snapshot, value: bytes) -> None:
    """Wait from snapshot to snapshot, without patience for errors: nothing here is out of reach."""
    while (entry := since.entries.get(_WAITED)) is None or entry.value != value:
        since = client.wait(_WAITED, since, timeout=6 * CALL)


def _assert_waits(waiting: Future[None]) -> None:
    if waiting.done():
        error = waiting.exception()
        pytest.fail(f"a child that used or closed its copy of the client ended its parent's wait: {error!r}")
