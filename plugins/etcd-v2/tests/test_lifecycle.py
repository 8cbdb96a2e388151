"""Threads, forks and ends: nothing is shared with a child, nothing leaks, nothing outlasts `close`."""

import os
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from rdzv.backend import ANY, Outcome
from rdzv.errors import RendezvousConnectionError
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.processes import Link, Processes
from rdzv_conformance.servers import EtcdServer

from .clients import CALL, Connect, watching


def test_calls_at_once_leave_few_connections(shared_etcd: EtcdServer, connect: Connect) -> None:
    backend = connect(shared_etcd.get_endpoint())
    before = len(os.listdir("/dev/fd"))
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda number: backend.put(f"at/{number}", b"x" * 9999, expect=ANY, timeout=CALL), range(320)))
    assert len(os.listdir("/dev/fd")) - before <= 4


def test_close_ends_every_call_in_progress(etcd: EtcdServer, connect: Connect) -> None:
    backend = connect(etcd.get_endpoint())
    backend.put("closing", b"", expect=ANY, timeout=CALL)
    since = backend.read_all("closing", timeout=CALL)
    with (
        ThreadPoolExecutor(4) as pool,
        watching(etcd, lambda: backend.wait("closing", since, timeout=60.0)) as waited,
    ):
        calls: list[Future[Any]] = [waited, pool.submit(backend.wait, "other", since, timeout=60.0)]
        etcd.pause()
        try:
            calls.append(pool.submit(backend.read, "closing", timeout=60.0))
            put = pool.submit(backend.put, "closing", b"x", expect=ANY, timeout=60.0)
            # Whether they have been sent yet or not: they must end.
            time.sleep(0.1)
            began = time.monotonic()
            backend.close()
            for call in calls:
                with pytest.raises(RendezvousConnectionError):
                    call.result(CALL)
            assert put.exception(CALL) or put.result().outcome is Outcome.UNKNOWN
            assert time.monotonic() - began < 1
        finally:
            etcd.resume()


def test_close_ends_a_connection_that_is_being_made(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        host, port = listener.getsockname()
        # The listener's queue is full: whoever connects now hears nothing.
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((host, port))
        backend = connect(f"{host}:{port}")
        with in_background(lambda: backend.read("key", timeout=60)) as read:
            time.sleep(0.1)
            assert not read.done()
            began = time.monotonic()
            backend.close()
            with pytest.raises(RendezvousConnectionError):
                read.result(CALL)
            assert time.monotonic() - began < 1
        for filler in fillers:
            filler.close()


def test_a_fork_amid_calls_and_waits(etcd: EtcdServer, connect: Connect) -> None:
    """Parent and child go on, each with connections of its own; the parent's wait does not even notice."""
    backend = connect(etcd.get_endpoint())
    backend.put("shared", b"", expect=ANY, timeout=CALL)
    since = backend.read_all("shared", timeout=CALL)
    stop = threading.Event()

    def work() -> int:
        count = 0
        while not stop.is_set():
            assert backend.put("parent", b"%d" % count, expect=ANY, timeout=CALL).outcome is Outcome.WON
            entry = backend.read("parent", timeout=CALL)
            assert entry
            assert entry.value == b"%d" % count
            count += 1
        return count

    def child(link: Link) -> None:
        for number in range(50):
            value = b"%d" % number
            assert backend.put("child", value, expect=ANY, timeout=CALL).outcome is Outcome.WON
            entry = backend.read("child", timeout=CALL)
            assert entry
            assert entry.value == value
        seen = backend.wait("shared", since, timeout=0.05)
        backend.put("shared", b"from the child", expect=ANY, timeout=CALL)
        follow(backend, "shared", seen, "shared", b"from the child", CALL)
        backend.close()

    with (
        ThreadPoolExecutor(1) as pool,
        Processes() as processes,
        watching(etcd, lambda: follow(backend, "shared", since, "shared", b"from the child", 30)) as followed,
    ):
        working = pool.submit(work)
        for _ in range(5):
            processes.fork(child).result()
        followed.result(30)
        stop.set()
        assert working.result() > 0
