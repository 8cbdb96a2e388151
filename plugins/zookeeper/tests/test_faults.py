"""What happens between us and ZooKeeper: replies that are lost, answers that are not its own, outages."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import unanswered_names
from rdzv_conformance.servers import ZooKeeperServer
from rdzv_core.backend import ABSENT, ANY, PutOutcome, PutResult
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv_zookeeper.cache import PrefixCaches

from .clients import CALL, Connect, with_retries
from .proxy import FaultProxy


@pytest.fixture
def proxy(shared_zookeeper: ZooKeeperServer) -> Iterator[FaultProxy]:
    proxy = FaultProxy(shared_zookeeper.get_port())
    yield proxy
    proxy.close()


def test_a_read_whose_reply_is_lost_goes_elsewhere(
    shared_zookeeper: ZooKeeperServer, proxy: FaultProxy, connect: Connect
) -> None:
    backend = connect(f"{proxy.endpoint},{shared_zookeeper.get_endpoint()}", run_id="elsewhere")
    backend.read("anything", timeout=CALL)
    proxy.loses_replies = True
    assert backend.read("anything", timeout=CALL) is None
    requests = proxy.requests
    # The endpoint that failed is the last now.
    backend.read("anything", timeout=CALL)
    assert proxy.requests == requests


def test_a_connection_that_broke_while_idle_is_replaced(proxy: FaultProxy, connect: Connect) -> None:
    backend = connect(proxy.endpoint, run_id="idle")
    lease = backend.open_lease(10, timeout=CALL)
    session = lease._session.identity.number
    for number in range(5):
        put = backend.put("idle", b"%d" % number, expect=ANY, lease=lease, timeout=CALL)
        assert put.outcome is PutOutcome.APPLIED
        assert put.entry is not None
        assert put.entry.token.owner == session
        proxy.disconnect()
        idle = list(backend.link.client.sockets._open)
        eventually(lambda: not any(sock.is_silent() for sock in idle), "the end of the connection")  # noqa: B023
    assert lease.keep_alive(CALL)


def test_an_event_that_cannot_be_taken_in_is_not_missed(
    shared_zookeeper: ZooKeeperServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(caches: PrefixCaches, path: str, created: bool) -> None:
        monkeypatch.undo()
        raise OverflowError(path)

    monkeypatch.setattr(PrefixCaches, "_note", fail)
    waiter, writer = (connect(shared_zookeeper.get_endpoint(), run_id="event") for _ in range(2))
    since = waiter.read_all("missed", timeout=CALL)
    writer.put("missed", b"x", expect=ANY, timeout=CALL)
    with pytest.raises(OverflowError):
        waiter.wait("missed", since, timeout=CALL)
    assert waiter.wait("missed", since, timeout=CALL).entries["missed"].value == b"x"


_NOT_ZOOKEEPER = {
    "text": b"SSH-2.0-OpenSSH\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "zeros": bytes(64),
    "short": struct.pack("!i", 3) + b"abc",
    "nonsense": struct.pack("!i", 40) + b"\xff" * 40,
    "unasked": struct.pack("!iiqi", 16, 777, 1, 0),
    "bad error": struct.pack("!iiqi", 16, 1, 1, -12345),
    "torn event": struct.pack("!iiqiii", 24, -1, -1, 0, 1, 3),
    "ended session": struct.pack("!iiiqi", 36, 0, 0, 0, 16) + bytes(16),
    "huge": struct.pack("!i", 0x7FFFFFFF),
}


@pytest.mark.parametrize("answer", _NOT_ZOOKEEPER.values(), ids=_NOT_ZOOKEEPER.keys())
@pytest.mark.parametrize("when", ["connecting", "connected"])
def test_an_answer_that_is_not_zookeepers(proxy: FaultProxy, connect: Connect, answer: bytes, when: str) -> None:
    backend = connect(proxy.endpoint, run_id="corrupt")
    since = backend.read_all("corrupt", timeout=CALL)
    calls: list[Callable[[], object]] = [
        lambda: backend.read("corrupt", timeout=0.15),
        lambda: backend.read_all("corrupt", timeout=0.15),
        lambda: backend.delete("corrupt", timeout=0.15),
        lambda: backend.open_lease(5, timeout=0.15),
        lambda: backend.put("corrupt", b"x", expect=ABSENT, timeout=0.15),
    ]
    for call in calls:
        if when == "connecting":
            proxy.disconnect()
        else:
            proxy.answer = None
            backend.read("corrupt", timeout=CALL)
        proxy.answer = answer
        try:
            assert call() == PutResult(PutOutcome.UNKNOWN)
        except RendezvousConnectionError:
            continue
    proxy.answer = None
    assert backend.read("corrupt", timeout=CALL) is None
    assert backend.wait("corrupt", since, timeout=0.1).entries == {}


@pytest.mark.parametrize("answer", ["text", "HTTP", "short"])
def test_something_else_at_the_endpoint_is_named_at_once(proxy: FaultProxy, connect: Connect, answer: str) -> None:
    proxy.answer = _NOT_ZOOKEEPER[answer]
    with pytest.raises(RendezvousDeniedError, match=rf"cannot be used: {proxy.endpoint}.*not ZooKeeper"):
        connect(proxy.endpoint).read("key", timeout=CALL)


def test_something_that_says_nothing_is_doubted(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(
            RendezvousConnectionError, match=rf"not answer within 0\.3 s: {endpoint}.*is it ZooKeeper\?"
        ):
            connect(endpoint).read("key", timeout=0.3)
    with pytest.raises(RendezvousConnectionError, match=f"could not be used: {endpoint}: .*refused") as refused:
        connect(endpoint).read("key", timeout=CALL)
    assert " s:" not in str(refused.value), "no retry has waited"


def test_an_outage_ends_no_session_that_the_ensemble_honours(zookeeper: ZooKeeperServer, connect: Connect) -> None:
    """It lasts longer than the lease; but the ensemble was away as well, and counts anew when it is back."""
    backend, other = (connect(zookeeper.get_endpoint(), run_id="outage") for _ in range(2))
    lease = backend.open_lease(1, timeout=CALL)
    put = backend.put("alive", b"x", expect=ABSENT, lease=lease, timeout=CALL)
    zookeeper.kill()
    began = time.monotonic()
    back = threading.Timer(2.5 * lease.ttl, zookeeper.restart)
    back.start()
    failures = 0
    while time.monotonic() < began + 2.5 * lease.ttl + 2.5:
        try:
            assert lease.keep_alive(0.5), "an outage ended the session"
        except RendezvousConnectionError:
            failures += 1
        time.sleep(0.2)
    back.join()
    assert failures > 5
    assert other.read("alive", timeout=CALL) == put.entry


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_nothing_is_written_after_the_caller_got_an_error(
    zookeeper: ZooKeeperServer, connect: Connect, harm: str
) -> None:
    """Requests are not kept until ZooKeeper is back."""
    backend, other = (connect(zookeeper.get_endpoint(), run_id=harm) for _ in range(2))
    backend.put("key", b"before", expect=ANY, timeout=CALL)
    if harm == "kill":
        zookeeper.kill()
    else:
        backend.close()
        backend = connect(zookeeper.get_endpoint(), run_id=harm)
        zookeeper.pause()
    for number in range(3):
        with pytest.raises(RendezvousConnectionError):
            backend.put(f"{number}", b"late", expect=ANY, timeout=0.2)
    if harm == "kill":
        zookeeper.restart()
    else:
        zookeeper.resume()
    with_retries(lambda: backend.put("after", b"", expect=ANY, timeout=CALL))
    assert [other.read(f"{number}", timeout=CALL) for number in range(3)] == [None] * 3


def test_a_name_that_does_not_exist(connect: Connect) -> None:
    with pytest.raises(RendezvousConnectionError, match=r"nowhere\.invalid:2181.*not connected"):
        connect("nowhere.invalid").read("key", timeout=5)


def test_a_name_that_is_not_resolved_is_said(connect: Connect) -> None:
    with unanswered_names(), pytest.raises(RendezvousConnectionError, match=r"not resolved within 0\.5 s"):
        connect("service.test").read("key", timeout=0.5)
