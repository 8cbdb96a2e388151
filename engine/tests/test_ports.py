"""The port that a node offers for a world, and what keeps others from it."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError

from rdzv.engine.ports import Ports

from .test_rendezvous import Run

ANY = range(0)


def soon() -> float:
    """A deadline before the second try."""
    return time.monotonic() + 0.1


@contextmanager
def two_free_ports() -> Iterator[range]:
    """Two ports in a row that none has, below those which the system gives a socket that asks for any; other processes
    that run these tests begin at others."""
    for step in range(5000):
        first = 20000 + (os.getpid() + step) % 5000 * 2
        ports = Ports(range(first, first + 2)), Ports(range(first, first + 2))
        try:
            with ports[0].reserved("::", soon()), ports[1].reserved("::", soon()):
                pass
        except RendezvousConnectionError:
            continue
        finally:
            for each in ports:
                each.release()
        yield range(first, first + 2)
        return


@pytest.fixture
def two() -> Iterator[range]:
    """See `two_free_ports`."""
    with two_free_ports() as ports:
        yield ports


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_port_is_kept_and_then_free(address: str, family: socket.AddressFamily, wanted: bool, two: range) -> None:
    def take(port: int) -> None:
        with socket.socket(family, socket.SOCK_STREAM) as taken:
            taken.bind((address, port))

    ports = [Ports(two if wanted else ANY), Ports(two if wanted else ANY)]
    with ports[0].reserved(address, soon()) as one, ports[1].reserved(address, soon()) as other:
        assert one != other
        assert (one in two) is (other in two) is wanted
        with pytest.raises(OSError, match="in use") as taken:
            take(one)
        assert taken.value.errno == errno.EADDRINUSE
    take(one)
    for each in ports:
        each.release()


def test_a_port_is_kept_only_where_the_others_look_for_it() -> None:
    """IPv6 may be off, or the port another program's there."""
    with (
        Ports(ANY).reserved("127.0.0.1", soon()) as port,
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as other,
    ):
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::", port))


def test_of_a_port_that_is_any_nothing_is_kept_after_the_wait() -> None:
    before = set(os.listdir("/proc/self/fd"))
    ports = Ports(ANY)
    with ports.reserved("127.0.0.1", soon()):
        assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_machine_without_any_port_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    monkeypatch.setattr(socket.socket, "bind", take)
    with (
        pytest.raises(RendezvousConnectionError, match=r"no port for a world: .*in use.* \(ulimit -n, ip_local_port"),
        Ports(ANY).reserved("127.0.0.1", soon()),
    ):
        pass


def test_the_first_free_port_of_a_range_is_taken(two: range) -> None:
    with closing(_listener(two[0])):
        ports = Ports(two)
        with ports.reserved("127.0.0.1", soon()) as port:
            assert port == two[1]
        ports.release()


@pytest.mark.parametrize(("one", "other"), [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_until_its_node_goes_no_other_node_takes_a_wanted_port(one: str, other: str, two: range) -> None:
    first, second, third = (Ports(two) for _ in range(3))
    with first.reserved(one, soon()) as taken:
        pass
    # Its program has not begun to listen.
    with second.reserved(other, soon()) as free:
        assert {taken, free} == {*two}
    message = rf"No port from {two[0]} to {two[1]} \(master_port\) can be taken .*in use.* give a range with a port for"
    with pytest.raises(RendezvousConnectionError, match=message), third.reserved(other, soon()):
        pass
    first.release()
    with third.reserved(other, soon()) as free:
        assert free == taken
    for each in (second, third):
        each.release()


def test_a_node_takes_its_own_port_again_where_its_last_program_has_just_ended(two: range) -> None:
    ports = Ports(two[:1])
    for _ in range(2):
        with ports.reserved("127.0.0.1", soon()) as port:
            assert port == two[0]
        # The side that closes first keeps the port for a minute.
        with closing(_listener(port)) as server, closing(socket.create_connection(("127.0.0.1", port))) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    ports.release()


def test_a_port_that_is_freed_in_time_is_waited_for(two: range) -> None:
    server = _listener(two[0])
    asked: list[float] = []

    class Wait(Ports):
        def _take(self, family: socket.AddressFamily) -> Any:
            asked.append(time.monotonic())
            if len(asked) == 2:
                server.close()
            return super()._take(family)

    ports, told = Wait(two[:1]), list[str]()
    with ports.reserved("127.0.0.1", time.monotonic() + 15, lambda error: told.append(str(error))) as port:
        assert port == two[0]
    assert len(asked) == 2
    taken, over = told
    assert (taken.startswith("No port from"), over) == (True, "None")
    ports.release()


def test_a_wait_that_came_to_nothing_claims_nothing(two: range) -> None:
    ports, others = Ports(two[:1]), Ports(two[:1])
    with pytest.raises(KeyboardInterrupt), ports.reserved("127.0.0.1", soon()):
        raise KeyboardInterrupt
    with others.reserved("127.0.0.1", soon()) as port:
        assert port == two[0]
    others.release()


def test_a_process_that_has_died_claims_nothing(two: range) -> None:
    code = (
        "import math, os; from rdzv.engine.ports import Ports\n"
        f"with Ports(range({two[0]}, {two[0] + 1})).reserved('127.0.0.1', math.inf) as port: pass\n"
        "os._exit(9)"
    )
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (died.returncode, died.stderr) == (9, "")
    ports = Ports(two[:1])
    with ports.reserved("127.0.0.1", soon()) as port:
        assert port == two[0]
    ports.release()


def test_nodes_of_one_machine_get_different_ports_and_leave_them_when_they_end(two: range) -> None:
    wanted = f"{two[0]}-{two[1]}"
    with closing(Run("memory")) as run:
        nodes = run.nodes(2, 2, 2, master_port=wanted)
        infos = run.gather(*nodes)
        assert {where.master_port for info in infos if (where := info.bootstrap_store_info)} <= {*two}
        assert {node._node.registration.record.port for node in nodes} == {*two}
        for node in nodes:
            node.leave()
    with closing(Run("memory")) as run:
        again = run.nodes(2, 2, 2, master_port=wanted)
        run.gather(*again)
        assert {node._node.registration.record.port for node in again} == {*two}


@pytest.mark.parametrize(
    ("given", "ports"),
    [("1", range(1, 2)), ("65535", range(65535, 65536)), ("29500-29501", range(29500, 29502)), ("7-7", range(7, 8))],
)
def test_a_port_or_a_range_is_read(given: str, ports: range) -> None:
    with closing(Run("memory")) as run:
        assert run.node(1, 1, master_port=given).settings.ports == ports
        assert run.node(1, 1).settings.ports == ANY


@pytest.mark.parametrize("given", ["", "0", "0-5", "65536", "5-65536", "6-5", "-5", "5-", "5-6-7", " 5", "٣", "http"])
def test_what_is_no_port_is_refused(given: str) -> None:
    message = r"'master_port' cannot be .*: a port or a range of them, from 1 to 65535, is expected, such as 29500 or"
    with closing(Run("memory")) as run, pytest.raises(RendezvousParameterError, match=message):
        run.node(1, 1, master_port=given)


def _listener(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), reuse_port=False)
