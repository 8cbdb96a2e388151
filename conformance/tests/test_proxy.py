"""The fault proxy begins and ends its connections in any order."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.proxy import FaultProxy


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that takes connections when it is asked to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def _connect(proxy: FaultProxy) -> socket.socket:
    host, _, port = proxy.endpoint.partition(":")
    return socket.create_connection((host, int(port)), 5)


def test_a_connection_that_is_broken_while_it_is_held_back_never_reaches_the_server(server: socket.socket) -> None:
    with FaultProxy(server.getsockname()[1]) as proxy:
        proxy.partition()
        with _connect(proxy):
            eventually(lambda: len(proxy._open) == 1, "the proxy to take the connection")
            proxy.heal()
    with pytest.raises(BlockingIOError):
        server.accept()


def test_it_closes_while_connections_begin(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = FaultProxy(server.getsockname()[1])
    start, begins = threading.Thread.start, threading.Event()
    accepting = proxy._accepting

    def start_late(thread: threading.Thread) -> None:
        if threading.current_thread() is not accepting:
            # A connection that has reached the server starts the thread for the replies.
            begins.set()
            time.sleep(0.05)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    clients = [_connect(proxy) for _ in range(8)]
    assert begins.wait(5)
    proxy.close()
    assert not proxy._threads
    for client in clients:
        client.close()


def test_a_late_piece_waits_for_none_before_it(server: socket.socket) -> None:
    """As on a long line; one after the other, those here would take four seconds."""
    lag, pieces = 0.2, 20
    with FaultProxy(server.getsockname()[1]) as proxy:
        proxy.slow(lag)
        began = time.monotonic()
        with _connect(proxy) as client:
            server.setblocking(True)
            far = server.accept()[0]
            connected = time.monotonic()
            for number in range(pieces):
                far.sendall(b"%d," % number)
                time.sleep(0.01)  # so that they are not one piece
            far.close()
            with client.makefile("rb") as answer:
                first = answer.read(1)
                came = time.monotonic()
                rest = answer.read()
    assert first + rest == b"".join(b"%d," % number for number in range(pieces))
    assert connected - began >= lag
    assert came - connected >= lag
    assert time.monotonic() - connected < pieces * lag / 2
