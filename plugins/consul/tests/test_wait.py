"""Waiting: what it costs, and that it never misses the last state, whatever happens to the server."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rdzv_conformance.freezes import check_freeze_is_outlasted, check_silence_is_noticed
from rdzv_conformance.meanwhile import follow, in_background, open_files
from rdzv_conformance.servers import ConsulServer
from rdzv_core.backend import ABSENT, ANY
from rdzv_transport import polls

from rdzv_consul import kv

from .clients import CALL, Connect, watching


def test_a_change_costs_one_query(consul: ConsulServer, connect: Connect) -> None:
    """However many threads wait, and however often their waits end."""
    waiter, writer = connect(consul.get_endpoint()), connect(consul.get_endpoint())
    writer.put("nodes/0", b"", expect=ANY, timeout=CALL)
    seen = waiter.read_all("nodes", timeout=CALL)
    before = consul.calls()
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            value = b"%d" % number
            waits = [pool.submit(follow, waiter, "nodes", seen, "nodes/0", value, CALL) for _ in range(8)]
            for _ in range(5):
                assert waiter.wait("nodes", seen, timeout=0.001) is seen
            writer.put("nodes/0", value, expect=ANY, timeout=CALL)
            seen = [wait.result() for wait in waits][-1]
    calls = consul.calls() - before
    assert calls["PUT txn"] == 20
    # A slow machine reads once more at the beginning, or asks anew after ten seconds.
    assert 20 <= calls["GET kv"] <= 25


def test_a_snapshot_that_was_read_meanwhile_costs_nothing(consul: ConsulServer, connect: Connect) -> None:
    backend = connect(consul.get_endpoint())
    backend.put("key", b"0", expect=ABSENT, timeout=CALL)
    backend.wait("key", backend.read_all("key", timeout=CALL), timeout=0.05)
    backend.put("key", b"1", expect=ANY, timeout=CALL)
    since = backend.read_all("key", timeout=CALL)
    before = consul.calls()
    assert backend.wait("key", since, timeout=0.3) is since
    assert sum((consul.calls() - before).values()) <= 1, "the query that the change answered may count only now"


def test_waiting_for_nothing_beside_a_busy_key_is_one_call(
    consul: ConsulServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consul answers a query for an empty prefix at every write nearby."""
    # Longer than a write takes on a busy machine.
    monkeypatch.setattr(polls, "PAUSE", 0.2)
    waiter, writer = connect(consul.get_endpoint()), connect(consul.get_endpoint())
    since = waiter.read_all("nothing", timeout=CALL)
    before = consul.calls()
    began = time.monotonic()
    with in_background(lambda: waiter.wait("nothing", since, timeout=1)) as waited:
        number = 0
        while not waited.done():
            writer.put("busy", b"%d" % number, expect=ANY, timeout=CALL)
            number += 1
        assert waited.result() is since
    most = (time.monotonic() - began) / polls.PAUSE
    calls = consul.calls() - before
    assert calls["GET kv"] <= most + 2
    assert number > most


def test_waits_for_many_keys_leave_few_queries(shared_consul: ConsulServer, connect: Connect) -> None:
    backend = connect(shared_consul.get_endpoint())
    backend.read("key", timeout=CALL)
    files = open_files()
    for number in range(30):
        prefix = f"once/{number}"
        backend.wait(prefix, backend.read_all(prefix, timeout=CALL), timeout=0.005)
    assert open_files() - files <= 9, "a query that no call waits for has a connection still"


def test_a_query_that_is_not_waited_for_is_not_repeated(consul: ConsulServer, connect: Connect) -> None:
    backend, writer = connect(consul.get_endpoint()), connect(consul.get_endpoint())
    since = backend.read_all("left", timeout=CALL)
    assert backend.wait("left", since, timeout=0.05) is since
    before = consul.calls()
    for number in range(3):
        writer.put("left", b"%d" % number, expect=ANY, timeout=CALL)
    assert (consul.calls() - before)["GET kv"] <= 1, "only the query that was in progress has been answered"
    # Old news are news all the same.
    follow(backend, "left", since, "left", b"2", CALL)


def test_a_frozen_server(consul: ConsulServer, connect: Connect) -> None:
    check_freeze_is_outlasted(consul, lambda: connect(consul.get_endpoint()), watching, 3)


def test_a_server_that_stays_frozen_is_noticed(
    consul: ConsulServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "_HELD", 1.0)
    check_silence_is_noticed(consul, connect(consul.get_endpoint(), request_timeout=0.5), watching, 5)


def test_an_index_that_falls_is_no_obstacle(
    consul: ConsulServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a snapshot of Consul's is restored, the server goes on with an older state, and a smaller index.

    It does not tell those who wait.
    """
    monkeypatch.setattr(kv, "_HELD", 1.0)
    waiter, writer = connect(consul.get_endpoint()), connect(consul.get_endpoint())
    writer.put("key", b"old", expect=ANY, timeout=CALL)
    saved = consul.get_client().request("GET", "snapshot")
    for number in range(20):
        writer.put("key", b"%d" % number, expect=ANY, timeout=CALL)
    since = waiter.read_all("key", timeout=CALL)
    with watching(consul, lambda: follow(waiter, "key", since, "key", b"old", CALL)) as followed:
        consul.get_client().request("PUT", "snapshot", saved)
        now = followed.result(CALL)
    assert now.entries == writer.read_all("key", timeout=CALL).entries
    writer.put("key", b"new", expect=ANY, timeout=CALL)
    follow(waiter, "key", now, "key", b"new", CALL)


def test_every_answer_is_confirmed_by_a_majority(consul: ConsulServer, connect: Connect) -> None:
    """By default a leader that was replaced may answer for a moment as if it were not."""

    def confirmed() -> int:
        metrics = consul.get_client().request("GET", "agent/metrics?format=prometheus").decode()
        return int(metrics.partition("\nconsul_rpc_consistentRead_count ")[2].split()[0])

    backend = connect(consul.get_endpoint())
    before = confirmed()
    backend.read("key", timeout=CALL)
    assert confirmed() - before == 1
    since = backend.read_all("key", timeout=CALL)
    between = confirmed()
    assert between - before >= 2
    backend.put("key", b"", expect=ANY, timeout=CALL)
    backend.wait("key", since, timeout=CALL)
    assert confirmed() - between >= 1
