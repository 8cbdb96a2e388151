"""Waiting: what it costs, and that it never misses the last state, whatever happens to the server."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.freezes import check_freeze_is_outlasted, check_silence_is_noticed
from rdzv_conformance.meanwhile import follow, in_background, open_files
from rdzv_conformance.servers import EtcdServer
from rdzv_core.backend import ABSENT, ANY

from rdzv_etcd_v2 import events

from .clients import CALL, Connect, request, watching


def test_a_change_costs_no_call(etcd: EtcdServer, connect: Connect) -> None:
    """However many threads wait, and however often their waits end."""
    waiter, writer = connect(etcd.get_endpoint()), connect(etcd.get_endpoint())
    put = writer.put("cost/0", b"", expect=ANY, timeout=CALL)
    seen = waiter.read_all("cost", timeout=CALL)
    before = etcd.calls()
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            value = b"%d" % number
            waits = [pool.submit(follow, waiter, "cost", seen, "cost/0", value, CALL) for _ in range(8)]
            for _ in range(5):
                assert waiter.wait("cost", seen, timeout=0.001) is seen
            assert put.entry
            if number == 0:
                eventually(lambda: etcd.calls()["v2 WATCH"] > before["v2 WATCH"], "the stream")
            put = writer.put("cost/0", value, expect=put.entry.token, timeout=CALL)
            seen = [wait.result() for wait in waits][-1]
    calls = etcd.calls() - before
    assert calls["v2 PUT"] == 20
    assert calls["v2 WATCH"] == 1
    # What may have happened before the stream began is read.
    assert calls["v2 QGET"] <= 1


def test_a_burst_costs_few_calls(etcd: EtcdServer, connect: Connect) -> None:
    """What has piled up before the stream began is read at once."""
    waiter, writer = connect(etcd.get_endpoint()), connect(etcd.get_endpoint())
    since = waiter.read_all("burst", timeout=CALL)
    for number in range(200):
        writer.put(f"burst/{number}", b"", expect=ABSENT, timeout=CALL)
    before = etcd.calls()
    while len(since.entries) < 200:
        since = waiter.wait("burst", since, timeout=CALL)
    assert sum((etcd.calls() - before).values()) <= 3


def test_a_stream_that_is_not_taken_is_opened_again(etcd: EtcdServer, connect: Connect) -> None:
    """etcd keeps a hundred changes beside what the sockets hold; then the stream ends without a word."""
    waiter, writer = connect(etcd.get_endpoint()), connect(etcd.get_endpoint())
    since = waiter.read_all("full", timeout=CALL)
    with watching(etcd, lambda: waiter.wait("full", since, timeout=0.5)) as waited:
        waited.result(CALL)
    for number in range(400):
        writer.put(f"full/{number % 3}", b"%d" % number * 20_000, expect=ANY, timeout=CALL)
    before = etcd.calls()
    follow(waiter, "full", since, "full/0", b"%d" % 399 * 20_000, CALL)
    calls = etcd.calls() - before
    assert calls["v2 WATCH"] <= 2, calls
    assert calls["v2 QGET"] == 1


def test_waits_for_many_keys_leave_few_streams(shared_etcd: EtcdServer, connect: Connect) -> None:
    backend = connect(shared_etcd.get_endpoint())
    backend.read("key", timeout=CALL)
    files = open_files()
    for number in range(30):
        prefix = f"once/{number}"
        backend.wait(prefix, backend.read_all(prefix, timeout=CALL), timeout=0.005)
    assert open_files() - files <= 9, "a stream that no call waits for has a connection still"


def test_a_last_write_of_another_program_begins_no_stream_after_the_other(etcd: EtcdServer, connect: Connect) -> None:
    """A stream begins with the last write of all where that came after what is known."""
    backend = connect(etcd.get_endpoint())
    since = backend.read_all("quiet", timeout=CALL)
    request(etcd, "PUT", "/rdzv/run/quiet/foreign", value="1")
    before = etcd.calls()
    assert backend.wait("quiet", since, timeout=1) is since
    calls = etcd.calls() - before
    assert (calls["v2 WATCH"], calls["v2 QGET"]) == (2, 1)


def test_a_history_that_was_forgotten(etcd: EtcdServer, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd remembers a thousand changes of all its keys; an open stream outlasts that."""
    monkeypatch.setattr(events, "_SILENCE", 1.0)
    waiter, writer = connect(etcd.get_endpoint()), connect(etcd.get_endpoint())
    since = waiter.read_all("forgotten", timeout=CALL)
    # So many writes take longer than a call where the machine is busy.
    with watching(etcd, lambda: waiter.wait("forgotten", since, timeout=10 * CALL)) as waited:
        for number in range(1100):
            request(etcd, "PUT", "/unrelated", value=str(number))
        assert not waited.done()
        writer.put("forgotten", b"1", expect=ANY, timeout=CALL)
        now = waited.result(CALL)
    assert now.entries["forgotten"].value == b"1"
    # An old snapshot, and a stream that does not reach back to it.
    time.sleep(1.2)
    for number in range(1100):
        request(etcd, "PUT", "/unrelated", value=str(number))
    writer.put("forgotten", b"2", expect=ANY, timeout=CALL)
    for client in (waiter, connect(etcd.get_endpoint())):
        assert client.wait("forgotten", now, timeout=CALL).entries["forgotten"].value == b"2"
    with in_background(
        lambda: follow(connect(etcd.get_endpoint()), "forgotten", since, "forgotten", b"3", CALL)
    ) as one:
        writer.put("forgotten", b"3", expect=ANY, timeout=CALL)
        one.result(CALL)


def test_a_frozen_server(etcd: EtcdServer, connect: Connect) -> None:
    check_freeze_is_outlasted(etcd, lambda: connect(etcd.get_endpoint()), watching, 5)


def test_a_server_that_stays_frozen_is_noticed(
    etcd: EtcdServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_SILENCE", 1.0)
    check_silence_is_noticed(etcd, connect(etcd.get_endpoint(), read_timeout=0.5), watching, 5)
