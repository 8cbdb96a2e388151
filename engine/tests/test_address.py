"""Which address a ``local_addr`` stands for, and which are refused."""

import errno
import ipaddress
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import ifaddr
import pytest
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError

from rdzv.engine import aside
from rdzv.engine.address import announced, interface_addresses, own_address

from .test_rendezvous import Run

FOREIGN = "203.0.113.5"
"""For documentation: no machine has it (RFC 5737)."""


@pytest.fixture
def run() -> Iterator[Run]:
    """A run on a backend that can do everything."""
    with closing(Run("memory")) as run:
        yield run


HAS = {
    "lo": ["127.0.0.1", "::1"],
    "data": ["fe80::3", "169.254.7.7", "fd00:98::3", "10.98.0.3", "10.98.0.4"],
    "mgmt": ["10.97.0.3"],
    "bare": ["fe80::4"],
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine has instead."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(HAS)))
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: [_adapter(name, has) for name, has in HAS.items()])


def _adapter(name: str, addresses: list[str]) -> ifaddr.Adapter:
    ips = [ifaddr.IP((text, 0, 0) if ":" in text else text, 24, name) for text in addresses]
    return ifaddr.Adapter(name, name, ips)


def _refuse() -> NoReturn:
    raise OSError(errno.EPERM, "Operation not permitted")


class TestInterfaces:
    def test_they_are_those_of_this_machine(self) -> None:
        found = {(each.interface, str(each.address)) for each in interface_addresses()}
        lines = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
        there = {(name, ipaddress.ip_address(bytes.fromhex(raw))) for raw, *_, name in lines}
        six = {(name, str(address)) for name, address in there if not address.is_link_local}
        assert {(name, text) for name, text in found if ":" in text} == six
        assert ("lo", "127.0.0.1") in found

    @pytest.mark.usefixtures("machine")
    def test_those_that_reach_furthest_come_first(self) -> None:
        assert [str(each) for each in interface_addresses()] == [
            "10.98.0.3 (data)",
            "10.98.0.4 (data)",
            "10.97.0.3 (mgmt)",
            "fd00:98::3 (data)",
            "169.254.7.7 (data)",
            "127.0.0.1 (lo)",
            "::1 (lo)",
        ]


@pytest.mark.usefixtures("machine")
class TestMeaning:
    @pytest.mark.parametrize(
        ("given", "address"),
        [
            ("data", "10.98.0.3"),
            ("mgmt", "10.97.0.3"),
            ("lo", "127.0.0.1"),
            ("10.98.0.0/16", "10.98.0.3"),
            ("10.98.0.77/16", "10.98.0.3"),
            ("10.98.0.4/32", "10.98.0.4"),
            ("10.0.0.0/8", "10.98.0.3"),
            ("169.254.0.0/16", "169.254.7.7"),
            ("fd00::/8", "fd00:98::3"),
            ("0.0.0.0/0", "10.98.0.3"),
            ("::/0", "fd00:98::3"),
        ],
    )
    def test_of_an_interface_or_a_network_it_is_the_one_that_reaches_furthest(self, given: str, address: str) -> None:
        assert own_address(given) == own_address(given, behind_nat=True) == address

    @pytest.mark.parametrize("name", ["data.", "data.example", "dat", "DATA", "node1", "localhost"])
    def test_another_name_is_a_hosts(self, name: str) -> None:
        assert own_address(name) == name

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                "10.99.0.0/16",
                "This machine has no address in the network '10.99.0.0/16' that others could use; it has ",
            ),
            (
                "fe80::/10",
                "no address in the network 'fe80::/10' that others could use; it has 10.98.0.3 (data), 10.98",
            ),
            ("bare", "This machine has no address on its interface 'bare' that others could use; it has 10.98.0.3 (d"),
            ("10.98.0.0/33", "The local_addr '10.98.0.0/33' is no network: "),
            ("data/16", "The local_addr 'data/16' is no network: "),
            ("10.0.0.1:80", "The local_addr '10.0.0.1:80' is no address of a machine"),
            ("0.0.0.0", "The local_addr '0.0.0.0' is no address of a machine"),
        ],
    )
    def test_what_is_none_is_refused_with_what_there_is(self, given: str, message: str) -> None:
        for behind_nat in (False, True):
            with pytest.raises(RendezvousParameterError, match=re.escape(message)):
                own_address(given, behind_nat)


def test_where_addresses_cannot_be_listed_one_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ifaddr, "get_adapters", _refuse)
    with pytest.raises(RendezvousParameterError, match=r"cannot be listed \(.*permitted\): give the address itself"):
        own_address("127.0.0.0/8")
    assert own_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(RendezvousParameterError, match=r"is no address of this machine\. If the others"):
        own_address(FOREIGN)


def test_where_interfaces_cannot_be_listed_a_name_is_a_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", _refuse)
    assert own_address("lo") == "lo"


@pytest.mark.parametrize(
    ("name", "outcome", "warned"),
    [
        ("data", socket.gaierror(socket.EAI_NONAME, "Name or service not known"), True),
        ("data", UnicodeError("label too long"), True),
        ("data", None, False),
        ("127.0.0.1", OSError("is not asked"), False),
    ],
)
def test_a_name_that_is_not_known_is_warned_of(
    name: str,
    outcome: Exception | None,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def look_up(host: str, *_: object) -> list[object]:
        assert host == "data"
        if outcome is not None:
            raise outcome
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert announced(name) == name
    for thread in threading.enumerate():
        if thread.name == "rdzv-look-up-data":
            thread.join(10)
    aside.flush()
    assert (
        f"by the name 'data', which is no interface of this machine, and which its resolver does not know ({outcome})"
        in caplog.text
    ) is warned
    assert ("give another local_addr; this machine has " in caplog.text) is warned


def test_a_resolver_that_is_silent_is_not_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: told.wait(60))
    try:
        assert run.node(1, 1, address="data.example").next_rendezvous().world_size == 1
        assert not told.is_set()
    finally:
        told.set()


def test_without_room_for_a_thread_there_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise RendezvousConnectionError("no thread")

    monkeypatch.setattr("rdzv.engine.address.start_thread", no_room)
    assert announced("data") == "data"


def test_who_gives_no_address_has_none_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[object]()
    monkeypatch.setattr("rdzv.engine.address.start_thread", lambda *work, **_: started.append(work))
    assert announced(None) is None
    assert not started


def test_an_address_is_tried_at_a_port_that_the_system_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    ports, look_up = list[object](), socket.getaddrinfo

    def noting(host: str, port: int, **how: Any) -> object:
        ports.append(port)
        return look_up(host, port, **how)

    monkeypatch.setattr(socket, "getaddrinfo", noting)
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert ports == [0]


@pytest.mark.parametrize("given", ["127.0.0.1", "127.0.0.7", "::1", "::ffff:127.0.0.1", "fe80::1"])
def test_an_address_of_this_machine_is_taken(given: str) -> None:
    # That of a link, without its interface, is on none or on several.
    assert own_address(given) == given


@pytest.mark.parametrize(
    "given",
    [
        FOREIGN,
        "2001:db8::5",
        f"::ffff:{FOREIGN}",
        "fe80::1%lo",
        "fe80::1%no-such",
        "127.255.255.255",
        "255.255.255.255",
    ],
)
def test_an_address_of_another_machine_is_refused_but_behind_nat(given: str) -> None:
    with pytest.raises(RendezvousParameterError) as refused:
        own_address(given)
    said = str(refused.value)
    assert said.startswith(f"The local_addr '{given}' is no address of this machine; it has ")
    assert "127.0.0.1 (lo)" in said
    assert said.endswith("give the option behind_nat=yes.")
    assert own_address(given, behind_nat=True) == given
