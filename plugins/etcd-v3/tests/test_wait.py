"""Waiting: what it costs, and that it never misses the last state, whatever happens to the server."""

import threading

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.freezes import check_freeze_is_outlasted, check_silence_is_noticed
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.processes import Link, Processes
from rdzv_conformance.servers import EtcdServer
from rdzv_core.backend import ABSENT, ANY
from rdzv_core.errors import RendezvousConnectionError

from .clients import CALL, Connect, watching


def test_one_call_starts_a_watch_and_none_keeps_it(etcd: EtcdServer, connect: Connect) -> None:
    waiter, writer = connect(etcd.get_endpoint()), connect(etcd.get_endpoint())
    seen = waiter.read_all("nodes", timeout=CALL)
    before = etcd.calls()
    for number in range(20):
        value = b"%d" % number
        writer.put(f"nodes/{number % 3}", value, expect=ANY, timeout=CALL)
        seen = follow(waiter, "nodes", seen, f"nodes/{number % 3}", value, CALL)
        seen = waiter.wait("nodes", seen, timeout=0.001)
    assert etcd.calls() - before == {"Txn": 20, "Watch": 1}


def test_waiting_takes_no_thread(shared_etcd: EtcdServer, connect: Connect) -> None:
    backend = connect(shared_etcd.get_endpoint())
    before = threading.active_count()
    backend.wait("key", backend.read_all("key", timeout=CALL), timeout=0.1)
    assert threading.active_count() == before


def test_a_fork_amid_a_wait_opens_no_watch_again(etcd: EtcdServer, connect: Connect) -> None:
    """The child closes its copy of the connection, and the parent does not even notice."""
    backend = connect(etcd.get_endpoint())
    since = backend.read_all("shared", timeout=CALL)

    def child(link: Link) -> None:
        seen = backend.wait("shared", since, timeout=0.05)
        backend.put("shared", b"from the child", expect=ANY, timeout=CALL)
        follow(backend, "shared", seen, "shared", b"from the child", CALL)
        backend.close()

    with in_background(lambda: follow(backend, "shared", since, "shared", b"x", 30)) as followed:
        eventually(lambda: etcd.calls()["Watch"] == 1, "the watch")
        with Processes() as processes:
            for _ in range(5):
                processes.fork(child).result()
        backend.put("shared", b"x", expect=ANY, timeout=CALL)
        followed.result(30)
    # One watch of the parent's and one of each child's: none was opened again.
    assert etcd.calls()["Watch"] == 1 + 5


def test_a_snapshot_that_was_read_meanwhile_costs_nothing(etcd: EtcdServer, connect: Connect) -> None:
    backend = connect(etcd.get_endpoint())
    backend.wait("key", backend.read_all("key", timeout=CALL), timeout=0.05)
    backend.put("key", b"1", expect=ABSENT, timeout=CALL)
    since = backend.read_all("key", timeout=CALL)
    before = etcd.calls()
    assert backend.wait("key", since, timeout=0.2) is since
    assert not etcd.calls() - before


def test_a_compacted_history_is_read_again(etcd: EtcdServer, connect: Connect) -> None:
    backend = connect(etcd.get_endpoint())
    backend.put("nodes/gone", b"", expect=ANY, timeout=CALL)
    since = backend.read_all("nodes", timeout=CALL)
    backend.delete("nodes/gone", timeout=CALL)
    for number in range(10):
        put = backend.put("nodes/a", b"%d" % number, expect=ANY, timeout=CALL)
    assert put.entry
    etcd.get_client().call("kv/compaction", revision=str(put.entry.token))
    now = backend.wait("nodes", since, timeout=CALL)
    assert now.entries == {"nodes/a": backend.read("nodes/a", timeout=CALL)}


def test_an_open_watch_survives_a_compaction(etcd: EtcdServer, connect: Connect) -> None:
    waiter, writer = connect(etcd.get_endpoint()), connect(etcd.get_endpoint())
    since = waiter.read_all("key", timeout=CALL)
    with in_background(lambda: follow(waiter, "key", since, "key", b"last", CALL)) as followed:
        for number in range(20):
            put = writer.put("key", b"%d" % number, expect=ANY, timeout=CALL)
            assert put.entry
            etcd.get_client().call("kv/compaction", revision=str(put.entry.token))
        writer.put("key", b"last", expect=ANY, timeout=CALL)
        followed.result(CALL)


def test_a_frozen_server(etcd: EtcdServer, connect: Connect) -> None:
    check_freeze_is_outlasted(etcd, lambda: connect(etcd.get_endpoint()), watching, 5)


def test_a_server_that_stays_frozen_is_noticed(etcd: EtcdServer, connect: Connect) -> None:
    check_silence_is_noticed(etcd, connect(etcd.get_endpoint(), request_timeout=0.5), watching, 20)


def test_any_timeout_will_do(shared_etcd: EtcdServer, connect: Connect) -> None:
    for timeout in (1e9, float("inf")):
        backend = connect(shared_etcd.get_endpoint(), request_timeout=timeout)
        since = backend.read_all("patient", timeout=timeout)
        with in_background(lambda: backend.wait("patient", since, timeout=timeout)) as waited:  # noqa: B023
            put = backend.put("patient", b"x", expect=ANY, timeout=timeout)
            assert waited.result(CALL).entries == {"patient": put.entry}
    for timeout in (0.0, -1.0):
        assert backend.wait("patient", since, timeout=timeout).entries == {"patient": put.entry}
        with pytest.raises(RendezvousConnectionError, match="no time"):
            backend.read("patient", timeout=timeout)
