"""A store whose host is stopped, killed or replaced; something else at the endpoint; bytes that are not ours."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import follow, in_background, with_retries
from rdzv_conformance.proxy import FaultProxy
from rdzv_core.backend import ABSENT, ANY, PutOutcome, Snapshot
from rdzv_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError

from rdzv_c10d import C10dRendezvousBackend
from rdzv_c10d.logs import Logs
from rdzv_c10d.store import stores

from .clients import CALL, Connect, ForkedStore

_CALLS: dict[str, Callable[[C10dRendezvousBackend, float], Any]] = {
    "read": lambda backend, timeout: backend.read("nodes/a", timeout=timeout),
    "read_all": lambda backend, timeout: backend.read_all("nodes", timeout=timeout),
    "delete": lambda backend, timeout: backend.delete("nodes/none", timeout=timeout),
    "put": lambda backend, timeout: backend.put("nodes/a", b"x", expect=ANY, timeout=timeout),
    "wait": lambda backend, timeout: backend.wait("nodes", Snapshot(), timeout=timeout),
}


@pytest.mark.parametrize("warm", [True, False], ids=["connected", "new"])
def test_a_stopped_host_makes_no_call_wait_longer_than_asked(server: ForkedStore, connect: Connect, warm: bool) -> None:
    backend = connect(server.endpoint)
    if warm:
        for call in _CALLS.values():
            call(backend, CALL)
    server.pause()
    try:
        for name, call in _CALLS.items():
            began = time.monotonic()
            # A waiter learns of a silence only when it is time to look.
            with (
                pytest.raises(RendezvousConnectionError, match="did not answer in time")
                if name != "wait"
                else nullcontext()
            ):
                call(backend, 0.5)
            assert time.monotonic() - began < 1, name
    finally:
        server.resume()
    backend.put("nodes/a", b"after", expect=ANY, timeout=CALL)
    entry = backend.read("nodes/a", timeout=CALL)
    assert entry is not None
    assert entry.value == b"after"


@pytest.mark.parametrize("byte", [b"\xff", b"9", b"\0"], ids=ascii)
def test_answers_without_end_are_an_outage(server: ForkedStore, connect: Connect, byte: bytes) -> None:
    """torch takes them for lengths, which no memory has, and says so by errors of Python's own."""
    with FaultProxy(int(server.endpoint.rpartition(":")[2])) as proxy:
        backend = connect(proxy.endpoint)
        for call in _CALLS.values():
            call(backend, CALL)
        proxy.flood = byte * 4096
        for name, call in _CALLS.items():
            began = time.monotonic()
            # A put says it by its outcome, and a wait learns of nothing.
            with suppress(RendezvousError):
                call(backend, 0.5)
            assert time.monotonic() - began < 5, name
        proxy.flood = b""
        proxy.disconnect()
        with_retries(lambda: backend.put("nodes/a", b"after", expect=ANY, timeout=CALL))
        entry = backend.read("nodes/a", timeout=CALL)
    assert entry is not None
    assert entry.value == b"after"


def test_a_write_that_is_not_waited_for_any_more_is_not_begun(server: ForkedStore, connect: Connect) -> None:
    backend = connect(server.endpoint)
    backend.read("nodes/a", timeout=CALL)
    server.pause()
    try:
        with pytest.raises(RendezvousConnectionError):
            backend.put("nodes/a", b"late", expect=ABSENT, timeout=0.3)
    finally:
        server.resume()
    # The worker that was stuck is the first to be used again.
    since = backend.read_all("nodes", timeout=CALL)
    assert backend.wait("nodes", since, timeout=0.3).entries == {}


def test_a_write_on_its_way_is_of_unknown_outcome(server: ForkedStore, connect: Connect) -> None:
    backend = connect(server.endpoint)
    entry = backend.put("nodes/a", b"x", expect=ABSENT, timeout=CALL).entry
    assert entry is not None
    server.pause()
    try:
        assert backend.put("nodes/a", b"y", expect=entry.token, timeout=0.3).outcome is PutOutcome.UNKNOWN
    finally:
        server.resume()
    # No log tells of it before it is met.
    eventually(lambda: (read := backend.read("nodes/a", timeout=CALL)) is not None and read.value == b"y", "the write")
    follow(backend, "nodes", Snapshot(), "nodes/a", b"y", CALL)


def test_many_calls_to_a_stopped_host_take_few_threads(server: ForkedStore, connect: Connect) -> None:
    backend = connect(server.endpoint)
    backend.read("key", timeout=CALL)
    before = threading.active_count()
    server.pause()
    try:
        with ThreadPoolExecutor(20) as pool:
            calls = [pool.submit(backend.read, "key", timeout=0.5) for _ in range(40)]
            for call in calls:
                assert isinstance(call.exception(CALL), RendezvousConnectionError)
        # The connections that were not answered are given up, and others are being made.
        assert threading.active_count() - before <= 9
    finally:
        server.resume()
    assert backend.read("key", timeout=CALL) is None


def test_when_the_host_dies_waiters_learn_it_at_once(server: ForkedStore, connect: Connect) -> None:
    backend = connect(server.endpoint)
    since = backend.read_all("key", timeout=CALL)
    assert backend.wait("key", since, timeout=0.1) is since
    with in_background(lambda: backend.wait("key", since, timeout=60)) as waiting:
        began = time.monotonic()
        server.kill()
        with pytest.raises(RendezvousConnectionError):
            waiting.result(CALL)
        assert time.monotonic() - began < 1
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="No process serves"):
        backend.read("key", timeout=CALL)
    assert time.monotonic() - began < 1, "a client tried a dead host for longer than it takes to be refused"


def test_after_a_restart_all_go_on_with_an_empty_store(server: ForkedStore, connect: Connect) -> None:
    waiter, writer = connect(server.endpoint), connect(server.endpoint)
    token = writer.put("control/state", b"old", expect=ABSENT, timeout=CALL).entry
    assert token is not None
    since = waiter.read_all("control", timeout=CALL)
    with in_background(lambda: follow(waiter, "control", since, "control/state", b"new", 30)) as followed:
        server.kill()
        time.sleep(1)
        server.restart()
        # Nothing that was known of the old store counts in the new one.
        assert writer.put("control/state", b"stale", expect=token.token, timeout=CALL).outcome is not PutOutcome.APPLIED
        assert writer.read_all("control", timeout=CALL).entries == {}
        new = writer.put("control/state", b"new", expect=ABSENT, timeout=CALL)
        assert new.outcome is PutOutcome.APPLIED
        assert followed.result(30).entries == {"control/state": new.entry}


def test_something_else_at_the_endpoint_makes_no_call_wait_longer_than_asked(connect: Connect) -> None:
    # It takes connections and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        backend = connect(endpoint)
        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError, match=rf"{endpoint} did not answer in time.*is it a TCPStore\?"):
            backend.read("key", timeout=0.5)
        assert time.monotonic() - began < 1
        backend.close()
        assert time.monotonic() - began < 2


def test_something_that_hangs_up_at_the_endpoint_is_named(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()

        pool.submit(hang_up)
        try:
            endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(RendezvousConnectionError, match=rf"listens at {endpoint} .*is it a TCPStore\?"):
                connect(endpoint).read("key", timeout=CALL)
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def test_a_name_that_does_not_exist(connect: Connect) -> None:
    with pytest.raises(RendezvousConnectionError, match=r"nowhere\.invalid:1"):
        connect("nowhere.invalid:1").read("key", timeout=CALL)


@pytest.mark.parametrize(
    "garbage", [b"garbage", b"\xff\xfe", b"{}", b"[" * 5000, b'{"created":1,"keys":{"a":7}}', b"1 2 x\n"]
)
@pytest.mark.parametrize("where", ["page", "page/1", "value/nodes/a", "log/nodes", "watchers", "rdzv-c10d/store"])
def test_bytes_that_are_not_ours(connect: Connect, server_with: Any, where: str, garbage: bytes) -> None:
    endpoint = server_with(where if "-" in where else f"rdzv/run/{where}", garbage)
    backend = connect(endpoint)
    # A wait lasts until its time is over if it finds nothing wrong.
    limits = {"read": CALL, "read_all": CALL, "wait": 0.3, "put": CALL}
    errors = [_error(lambda: _CALLS[name](backend, limit)) for name, limit in limits.items()]  # noqa: B023 - called at once
    errors.append(_error(lambda: backend.read("control/state", timeout=CALL)))
    told = [str(error) for error in errors if isinstance(error, RendezvousStateError)]
    assert told, "bytes of strangers were taken for ours"
    assert all("by rdzv-c10d" in text for text in told)
    assert len(told) == sum(error is not None for error in errors)


def _error(call: Callable[[], object]) -> RendezvousError | None:
    try:
        call()
    except RendezvousError as error:
        return error
    return None


@pytest.fixture
def server_with() -> Any:
    """A store that holds something."""
    made = []

    def serve(key: str, value: bytes) -> str:
        store = stores().TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set(key, value)
        made.append(store)
        return f"127.0.0.1:{store.port}"

    yield serve
    made.clear()


def test_values_that_change_during_every_reading_are_not_listed(
    server: ForkedStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, other = connect(server.endpoint), connect(server.endpoint)
    long = b"x" * 2000
    backend.put("nodes/0", long, expect=ABSENT, timeout=CALL)
    read = Logs._read_values

    def disturbed(self: Logs, *arguments: Any) -> Any:
        other.put("nodes/0", long, expect=ANY, timeout=CALL)
        return read(self, *arguments)

    monkeypatch.setattr(Logs, "_read_values", disturbed)
    with pytest.raises(RendezvousConnectionError, match=r"'nodes' was changed during each of \d+ readings"):
        backend.read_all("nodes", timeout=CALL)
