"""A fault proxy passes bytes on; partitioned, it holds them back, and then they come late or are lost."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from rdzv_conformance.chaos import namespaces
from rdzv_conformance.chaos.proxies import serve_proxies
from rdzv_conformance.fixtures import processes as processes
from rdzv_conformance.processes import Link, Processes, Worker

SOON = 10.0
NOT_YET = 0.3


@pytest.fixture
def proxies(processes: Processes) -> Worker:
    # Before there is a thread: it forks.
    return processes.fork(serve_proxies)


@pytest.fixture
def echo(proxies: Worker) -> Iterator[tuple[str, int]]:
    """A service that says what it hears."""

    def answer() -> None:
        connections = []
        with contextlib.suppress(OSError):
            while True:
                connections.append(listening.accept()[0])
                threads.append(threading.Thread(target=repeat, args=(connections[-1],)))
                threads[-1].start()

    def repeat(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(100):
                connection.sendall(data)

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads.append(threading.Thread(target=answer))
        threads[0].start()
        yield listening.getsockname()
        proxies.ask("close", "agent")
        listening.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()


@pytest.fixture
def client(proxies: Worker, echo: tuple[str, int]) -> Iterator[socket.socket]:
    """A connection through a fault proxy."""
    (endpoint,) = proxies.ask("open", "agent", [echo], None)
    host, _, port = endpoint.partition(":")
    with socket.create_connection((host, int(port)), SOON) as connection:
        assert say(connection, b"hello") == b"hello"
        yield connection


def say(connection: socket.socket, words: bytes) -> bytes:
    connection.sendall(words)
    return connection.recv(100)


def say_late(proxies: Worker, connection: socket.socket, words: bytes) -> None:
    """Get no answer before the line is healed, and then the right one."""
    connection.settimeout(NOT_YET)
    with pytest.raises(TimeoutError):
        say(connection, words)
    proxies.ask("heal", "agent", False)
    connection.settimeout(SOON)
    assert connection.recv(100) == words


@pytest.mark.parametrize("what", ["everything", "requests", "replies"])
def test_what_was_held_back_comes_late(proxies: Worker, client: socket.socket, what: str) -> None:
    proxies.ask("partition", "agent", what)
    say_late(proxies, client, b"late")
    assert say(client, b"again") == b"again"


def test_what_was_held_back_is_lost(proxies: Worker, client: socket.socket) -> None:
    proxies.ask("partition", "agent", "everything")
    client.sendall(b"lost")
    proxies.ask("heal", "agent", True)
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(100) == b""


def test_what_is_slow_comes_later_until_it_is_not(proxies: Worker, client: socket.socket) -> None:
    proxies.ask("slow", "agent", NOT_YET)
    began = time.monotonic()
    assert say(client, b"late") == b"late"
    assert time.monotonic() - began >= NOT_YET
    proxies.ask("slow", "agent", 0.0)
    assert say(client, b"on") == b"on"


def test_a_new_connection_waits_for_the_end_of_the_cut(proxies: Worker, client: socket.socket) -> None:
    proxies.ask("partition", "agent", "requests")
    with socket.create_connection(client.getpeername(), SOON) as new:
        say_late(proxies, new, b"new")


@pytest.mark.skipif(not namespaces.are_possible(), reason="making network namespaces takes Linux, and root")
def test_the_wire_of_a_namespace_can_be_cut(processes: Processes, proxies: Worker, echo: tuple[str, int]) -> None:
    agent = processes.fork(_live_alone)
    agent.receive()
    agent.send(proxies.ask("open", "agent", [echo], agent.pid))
    assert agent.receive() == "hello"
    proxies.ask("partition", "agent", "wire")
    agent.send()
    assert agent.receive() == "nothing"
    proxies.ask("heal", "agent", False)
    agent.send()
    assert agent.receive() == "late"


def _live_alone(link: Link) -> str:
    namespaces.isolate()
    link.send()
    host, _, port = link.receive()[0].partition(":")
    with socket.create_connection((host, int(port)), SOON) as connection:
        link.send(say(connection, b"hello").decode())
        link.receive()
        connection.settimeout(NOT_YET)
        try:
            link.send(say(connection, b"late").decode())
        except TimeoutError:
            link.send("nothing")
        link.receive()
        connection.settimeout(SOON)
        return connection.recv(100).decode()
