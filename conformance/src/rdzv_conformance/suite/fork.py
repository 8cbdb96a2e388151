"""Forks: a process that was forked from one with a client uses it, or closes it, and its parent does not notice."""

import threading
from concurrent.futures import Future
from functools import partial

import pytest
from rdzv_core.backend import ANY, Capability, KeyValueBackend, PutOutcome, Snapshot
from rdzv_core.threads import in_thread

from ..meanwhile import holds, wait_briefly, wait_for
from ..processes import Link, Processes, Worker
from .base import CALL, ROOT, Clients, Conformance, requires
from .calls import result_of

_TURNS = 50
_FEW_TURNS = 20
_CHILDREN = 3
_FORKS = 10
_THREADS = 3
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
                wait_briefly(client, _WAITED, since)
            client.close()

        waiting = in_thread(partial(_wait_for, client, since, b"x"), "wait")
        try:
            for _ in range(_CHILDREN):
                processes.fork(child).result()
                _assert_waits(waiting)
            _use(client, "parent")
            _assert_waits(waiting)
        finally:
            other.put(_WAITED, b"x", expect=ANY, timeout=CALL)
        result_of(waiting, "the parent's wait", CALL)

    def test_fork_amid_calls_and_waits(self, clients: Clients, processes: Processes) -> None:
        """While threads of the parent call and wait, it forks: both sides go on, each with answers of its own."""
        client = clients()
        since = client.read_all(_WAITED, timeout=CALL)
        stop = threading.Event()

        def work(name: str) -> None:
            while not stop.is_set():
                _use(client, name, 1)

        def child(link: Link) -> None:
            _use(client, "child", _FEW_TURNS)
            wait_briefly(client, _WAITED, since)
            client.put(_WAITED, b"from the child", expect=ANY, timeout=CALL)
            _wait_for(client, Snapshot(), b"from the child")
            client.close()

        waiting = in_thread(partial(_wait_for, client, since, b"x"), "wait")
        working = [in_thread(partial(work, f"parent/{number}"), "work") for number in range(_THREADS)]
        try:
            for _ in range(_FORKS):
                _result_of(processes.fork(child))
                _assert_waits(waiting)
        finally:
            stop.set()
            client.put(_WAITED, b"x", expect=ANY, timeout=CALL)
        result_of(waiting, "the parent's wait", CALL)
        for one in working:
            result_of(one, "a put or a read of the parent's", CALL)

    @requires(Capability.LEASE)
    def test_lease_belongs_to_no_process(self, client: KeyValueBackend, processes: Processes) -> None:
        """Parent and child keep one lease alive, in turn, and put keys on it; one revokes it, and both have lost it."""
        lease = client.open_lease(10, timeout=CALL)
        put = client.put("suite/parent", b"x", expect=ANY, lease=lease, timeout=CALL)

        def child(link: Link) -> list[bool]:
            kept = []
            for number in range(_CHILDREN):
                kept.append(lease.keep_alive(CALL))
                client.put(f"suite/child/{number}", b"x", expect=ANY, lease=lease, timeout=CALL)
                link.send()
                link.receive()
            return kept

        worker = processes.fork(child)
        for _ in range(_CHILDREN):
            worker.receive()
            assert lease.keep_alive(CALL), "the parent's lease has ended when its child used it"
            worker.send()
        assert worker.result() == [True] * _CHILDREN, "a child learned that its parent's lease has ended"
        assert client.read("suite/parent", timeout=CALL) == put.entry
        assert len(client.read_all("suite/child", timeout=CALL).entries) == _CHILDREN, "a child's leased keys are gone"
        lease.revoke(CALL)
        assert client.read_all(ROOT, timeout=CALL).entries == {}, "keys outlive the lease that was revoked"


def _result_of(child: Worker) -> None:
    try:
        child.result()
    except TimeoutError:
        pytest.fail("a child that was forked amid calls hangs: does it wait for a lock that a thread held meanwhile?")


def _use(client: KeyValueBackend, name: str, turns: int = _TURNS) -> None:
    """Write and read; every answer must be one's own."""
    for number in range(turns):
        value = b"%d of %s" % (number, name.encode())
        put = client.put(f"suite/{name}", value, expect=ANY, timeout=CALL)
        assert put.outcome is PutOutcome.APPLIED, f"a put of the {name} side of a fork answered {put}"
        entry = client.read(f"suite/{name}", timeout=CALL)
        assert entry is not None, f"the {name} side of a fork does not read what it has written"
        assert entry.value == value, "one side of the fork got the other side's answer"


def _wait_for(client: KeyValueBackend, since: Snapshot, value: bytes) -> None:
    """Wait without patience for errors: nothing here is out of reach."""
    wait_for(client, _WAITED, since, holds(_WAITED, value), f"{value!r}", 6 * CALL)


def _assert_waits(waiting: Future[None]) -> None:
    if waiting.done():
        error = waiting.exception()
        pytest.fail(f"a child that used or closed its copy of the client ended its parent's wait: {error!r}")
