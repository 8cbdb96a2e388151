"""Which process serves the store: one that can, for its own run, and for as long as it is needed."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import in_background
from rdzv_conformance.processes import Link, Processes
from rdzv_conformance.servers import free_ports
from rdzv_core.backend import ANY, PutOutcome
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv_c10d import C10dRendezvousBackend
from rdzv_c10d.hosting import SharedNameError, try_to_host

from .clients import CALL, Connect, tcp_client


@pytest.fixture
def endpoint() -> str:
    """Where no process listens."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def _serve(endpoint: str, link: Link) -> None:
    """A process that serves the store until the test lets it go on, and releases it then."""
    backend = tcp_client(endpoint, "run", is_host=None)
    backend.put("host", b"here", expect=ANY, timeout=CALL)
    link.send()
    link.receive()
    backend.close()


def test_the_first_serves_and_the_others_are_clients(endpoint: str, processes: Processes, connect: Connect) -> None:
    host = processes.fork(lambda link: _serve(endpoint, link))
    host.receive()
    for is_host in (None, False):
        entry = connect(endpoint, is_host=is_host).read("host", timeout=CALL)
        assert entry is not None
        assert entry.value == b"here"
    with pytest.raises(RendezvousConnectionError, match=f"cannot serve the store at {endpoint}.*in use"):
        connect(endpoint, is_host=True).read("host", timeout=1)


def test_all_at_once_find_one_host(endpoint: str, processes: Processes, connect: Connect) -> None:
    def meet(_: None, number: int) -> int:
        with closing(tcp_client(endpoint, "run", is_host=None)) as backend:
            backend.put(f"nodes/{number}", b"", expect=ANY, timeout=CALL)
            seen = backend.read_all("nodes", timeout=CALL)
            while len(seen.entries) < 4:
                seen = backend.wait("nodes", seen, timeout=CALL)
        _await_end_of_linger()
        return len(seen.entries)

    assert processes.together(lambda: None, meet, 4) == [4] * 4


def test_a_client_that_must_not_serve_says_that_no_process_does(endpoint: str, connect: Connect) -> None:
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match=f"No process serves a store at {endpoint}.*refused"):
        connect(endpoint, is_host=False).read("key", timeout=CALL)
    assert time.monotonic() - began < 1


def test_another_machines_address_is_not_served(connect: Connect) -> None:
    # For documentation: no machine has it (RFC 5737).
    backend = connect("192.0.2.1:29400", is_host=None)
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError):
        backend.read("key", timeout=0.5)
    assert time.monotonic() - began < 1


def test_a_name_that_this_machine_does_not_know_is_named(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    backend = connect("n1:29400", is_host=None)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(RendezvousConnectionError, match=r"Does this machine know the name 'n1'\? .* give its address"):
        backend.read("key", timeout=CALL)


def test_a_virtual_address_is_served_by_who_must(connect: Connect) -> None:
    (port,) = free_ports(1, "")
    backend = connect(f"192.0.2.1:{port}", is_host=True)
    backend.put("key", b"x", expect=ANY, timeout=CALL)
    assert connect(f"127.0.0.1:{port}").read("key", timeout=CALL) is not None


def test_a_name_is_served_on_all_addresses(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    # As Debian's machines see their own name: the others see another address.
    resolve = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve("127.0.1.1" if host == "node1.test" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    (port,) = free_ports(1, "")
    connect(f"node1.test:{port}", is_host=None).put("key", b"x", expect=ANY, timeout=CALL)
    assert connect(f"127.0.0.1:{port}").read("key", timeout=CALL) is not None


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What the addresses of names are, beside the real ones."""
    known: dict[str, list[str]] = {}
    resolve = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        return [found for address in known.get(host, [host]) for found in resolve(address, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize("others", [["192.0.2.1"], ["192.0.2.1", "2001:db8::1"]])
def test_a_name_of_several_machines_is_served_by_who_must(
    connect: Connect, names: dict[str, list[str]], others: list[str]
) -> None:
    """Each of them could listen at one of its addresses, and would have a store of its own."""
    (port,) = free_ports(1, "")
    for addresses in (["127.0.0.1", *others], [*others, "127.0.0.1"]):
        names["all.test"] = addresses
        with pytest.raises(SharedNameError, match=r"'all\.test', but 192\.0\.2\.1 is another machine's.*is_host=true"):
            try_to_host(Endpoint("all.test", port), "test", must=False, mark=lambda store: None)
    names["all.test"] = ["127.0.0.1"]
    backend = connect(f"all.test:{port}", is_host=False)
    with pytest.raises(RendezvousConnectionError, match="Is its host up"):
        backend.read("key", timeout=CALL)
    names["all.test"] = ["127.0.0.1", *others]
    connect(f"all.test:{port}", is_host=True).put("key", b"x", expect=ANY, timeout=CALL)
    # A node that does not serve is a client.
    assert connect(f"all.test:{port}", is_host=None).read("key", timeout=CALL) is not None


def test_a_kind_of_address_that_a_machine_lacks_makes_no_name_anothers(
    connect: Connect, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as IPv6 in a container that has none, while the name of the node has such an address, too."""
    monkeypatch.setattr("rdzv_c10d.hosting._has_route", lambda family, address: False)
    (port,) = free_ports(1, "")
    names["node1.test"] = ["2001:db8::1", "127.0.0.1"]
    connect(f"node1.test:{port}", is_host=None).put("key", b"x", expect=ANY, timeout=CALL)


def test_an_address_is_served_alone(endpoint: str, connect: Connect) -> None:
    connect(endpoint, is_host=None).read("key", timeout=CALL)
    with pytest.raises(RendezvousConnectionError):
        connect(endpoint.replace("127.0.0.1", "127.0.0.2")).read("key", timeout=CALL)


def test_another_runs_store_is_refused(endpoint: str, connect: Connect) -> None:
    connect(endpoint, "first", is_host=None).put("key", b"x", expect=ANY, timeout=CALL)
    for is_host in (None, False):
        stranger = connect(endpoint, "second", is_host=is_host)
        for _ in range(2):
            with pytest.raises(RendezvousDeniedError, match=r"'rdzv/first'.*'rdzv/second'"):
                stranger.put("key", b"y", expect=ANY, timeout=CALL)


def test_the_store_ends_with_its_last_user(endpoint: str, connect: Connect) -> None:
    one, other = connect(endpoint, is_host=None), connect(endpoint, is_host=None)
    for backend in (one, other):
        backend.put("key", b"x", expect=ANY, timeout=CALL)
    one.close()
    assert other.read("key", timeout=CALL) is not None
    other.close()
    assert connect(endpoint, "next run", is_host=None).read("key", timeout=CALL) is None


def test_who_serves_goes_on_while_others_are_connected_and_says_so(
    endpoint: str,
    processes: Processes,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("rdzv_c10d.hosting._UNNOTICED", 0.0)

    def work(link: Link) -> None:
        with closing(tcp_client(endpoint, "run")) as backend:
            backend.read("key", timeout=CALL)
            link.send()
            link.receive()
            backend.put("key", b"the last", expect=ANY, timeout=CALL)

    host = connect(endpoint, is_host=None)
    host.read("key", timeout=CALL)
    worker = processes.fork(work)
    worker.receive()
    began = time.monotonic()
    host.close()
    assert time.monotonic() - began < 1
    eventually(lambda: "waits for them for up to 10 s more" in caplog.text, "a word")
    worker.send()
    worker.result()
    _await_end_of_linger()


def test_who_comes_back_serves_on(endpoint: str, processes: Processes, connect: Connect) -> None:
    def stay(link: Link) -> None:
        with closing(tcp_client(endpoint, "run")) as backend:
            backend.put("key", b"kept", expect=ANY, timeout=CALL)
            link.send()
            link.receive()

    first = connect(endpoint, is_host=None, linger=0.3)
    first.read("key", timeout=CALL)
    worker = processes.fork(stay)
    worker.receive()
    first.close()
    again = connect(endpoint, is_host=None, linger=0.3)
    again.read("key", timeout=CALL)
    _await_end_of_linger()
    time.sleep(0.4)
    entry = again.read("key", timeout=CALL)
    assert entry is not None
    assert entry.value == b"kept"
    worker.send()
    worker.result()


def test_but_not_for_ever(endpoint: str, processes: Processes, connect: Connect) -> None:
    def stay(link: Link) -> str:
        with closing(tcp_client(endpoint, "run")) as backend:
            since = backend.read_all("key", timeout=CALL)
            link.send()
            try:
                backend.wait("key", since, timeout=CALL)
            except RendezvousConnectionError:
                return "told"
        return "not told"

    host = connect(endpoint, is_host=None, linger=0.3)
    host.read("key", timeout=CALL)
    worker = processes.fork(stay)
    worker.receive()
    host.close()
    assert worker.result(2) == "told"
    _await_end_of_linger()


def test_when_the_host_is_killed_all_learn_it_at_once_and_one_of_them_takes_over(
    endpoint: str, processes: Processes, connect: Connect
) -> None:
    host = processes.fork(lambda link: _serve(endpoint, link))
    host.receive()
    heir, other = connect(endpoint, is_host=None), connect(endpoint, is_host=False)
    with _waiting_for_the_end(other), _waiting_for_the_end(heir):
        host.kill()
    eventually(lambda: _try_to_write(heir), "the heir to serve")
    assert other.read_all("host", timeout=CALL).entries.keys() == {"host/heir"}, "a new store is empty"


def test_a_fork_does_not_keep_the_store_alive(endpoint: str, processes: Processes, connect: Connect) -> None:
    """The child has copies of the host's sockets; were they open, no client would see the host's end."""

    def serve_and_fork(link: Link) -> None:
        backend = tcp_client(endpoint, "run", is_host=None)
        backend.put("host", b"x", expect=ANY, timeout=CALL)
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        link.send(pid)
        link.receive()

    host = processes.fork(serve_and_fork)
    orphan = host.receive()
    try:
        heir = connect(endpoint, is_host=None)
        with _waiting_for_the_end(heir):
            host.kill()
        eventually(lambda: _try_to_write(heir), "the heir to serve")
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_forked_child_of_the_host_is_a_client(endpoint: str, processes: Processes, connect: Connect) -> None:
    backend = connect(endpoint, is_host=None)
    backend.put("key", b"of the parent", expect=ANY, timeout=CALL)

    def child(link: Link) -> str:
        entry = backend.read("key", timeout=CALL)
        backend.put("key", b"of the child", expect=ANY, timeout=CALL)
        backend.close()
        return "" if entry is None else entry.value.decode()

    assert processes.fork(child).result() == "of the parent"
    entry = backend.read("key", timeout=CALL)
    assert entry is not None
    assert entry.value == b"of the child"


@contextmanager
def _waiting_for_the_end(backend: C10dRendezvousBackend) -> Iterator[None]:
    """Wait for what the host has written; it must be told within a second that this is gone."""
    since = backend.read_all("host", timeout=CALL)
    assert since.entries
    assert backend.wait("host", since, timeout=0.1) is since
    with in_background(lambda: backend.wait("host", since, timeout=CALL)) as told:
        yield
        with suppress(RendezvousConnectionError):
            assert not told.result(1).entries.keys() & since.entries.keys()


def _try_to_write(backend: C10dRendezvousBackend) -> bool:
    try:
        return backend.put("host/heir", b"", expect=ANY, timeout=1).outcome is PutOutcome.APPLIED
    except RendezvousConnectionError:
        return False


def _await_end_of_linger() -> None:
    eventually(lambda: "rdzv-c10d-linger" not in {thread.name for thread in threading.enumerate()}, "the store to end")
