import socket
import threading
import time
from typing import Any

import pytest

from rdzv_core.endpoints import Endpoint, check_address, parse_endpoints, source_address
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1", [("node1", 7)]),
        ("node1:2379", [("node1", 2379)]),
        (" node1 , node2:1,\t10.0.0.1:65535 ", [("node1", 7), ("node2", 1), ("10.0.0.1", 65535)]),
        ("my_node-1.example.org.:80", [("my_node-1.example.org.", 80)]),
        ("0xa.example:80", [("0xa.example", 80)]),
        ("localhost:00001", [("localhost", 1)]),
        ("::", [("::", 7)]),
        ("fe80::1", [("fe80::1", 7)]),
        ("fe80::1%eth0", [("fe80::1%eth0", 7)]),
        ("[fe80::1]", [("fe80::1", 7)]),
        ("[fe80::1%eth0.12]:2379", [("fe80::1%eth0.12", 2379)]),
        ("[2001:db8::1]:1,[::ffff:10.0.0.1]:2,::1:2379", [("2001:db8::1", 1), ("::ffff:10.0.0.1", 2), ("::1:2379", 7)]),
    ],
)
def test_endpoints_are_read(text: str, expected: list[tuple[str, int]]) -> None:
    endpoints = parse_endpoints(text, 7)
    assert [(endpoint.host, endpoint.port) for endpoint in endpoints] == expected
    assert parse_endpoints(",".join(map(str, endpoints)), 1) == endpoints


def test_a_port_may_be_left_open_where_that_is_said() -> None:
    assert parse_endpoints("localhost:0,[::1]:0", 7, any_port=True) == (Endpoint("localhost", 0), Endpoint("::1", 0))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a,,b", "empty"),
        ("a,", "empty"),
        ("a:", "port ''"),
        ("a:http", "port 'http'"),
        ("a:0", "port '0' is not a number from 1 to 65535"),
        ("[::1]:0", "port '0' is not a number from 1 to 65535"),
        ("a:65536", "port '65536' is not a number from 1 to 65535"),
        ("a:-1", "port '-1' is not a number from 1 to 65535"),
        ("a:+1", "port '+1'"),
        ("a:0x10", "port '0x10'"),
        ("a:٣", "port '٣'"),
        ("a: 1", "port ' 1'"),
        ("[::1", "brackets"),
        ("[::1]2379", "brackets"),
        ("[::1]]:2379", "brackets"),
        ("::1]", "not an IPv6 address"),
        ("[node1]:2379", "not an IPv6 address"),
        ("[]:2379", "not an IPv6 address"),
        ("1::2::3", "not an IPv6 address"),
        ("node1:23:79", "not an IPv6 address"),
        ("fe80::1%", "not an IPv6 address"),
        ("[fe80::1%eth 0]:1", "not a network interface"),
        ("http://a:1", "a scheme does not belong there; the backend's options choose TLS"),
        ("https://a:1/", "a scheme does not belong there"),
        ("a:1/team/jobs", "a path (a chroot) is the backend's option prefix"),
        ("zk://a:1/mesos", "and prefix a path (a chroot)"),
        ("unix:///run/consul.sock", "UNIX sockets are not supported"),
        ("/run/consul.sock", "UNIX sockets are not supported"),
        ("a:1;b:1", "commas separate several, not semicolons"),
        ("srv:example.test", "DNS is not asked for SRV records"),
        ("_etcd-client._tcp.example.test", "DNS is not asked for SRV records"),
        ("1.2.3.999", "not an IPv4 address"),
        ("1.2.3", "not an IPv4 address"),
        ("0x7f000001:1", "'0x7f000001' is not an IPv4 address"),
        ("0177.0.0.1:1", "'0177.0.0.1' is not an IPv4 address"),
        (40 * "0x1." + "z!:1", "is not a host name"),
        ("2379", "not an IPv4 address"),
        ("a b:1", "not a host name"),
        ("a..b:1", "not a host name"),
        (":2379", "not a host name"),
        ("a/path", "a path does not belong there"),
        ("a" * 64, "not a host name"),
        (".".join(["a" * 60] * 5), "not a host name"),
    ],
)
def test_a_malformed_endpoint_says_what_is_wrong_and_shows_a_right_one(text: str, wrong: str) -> None:
    with pytest.raises(RendezvousParameterError) as caught:
        parse_endpoints(text, 7)
    assert wrong in str(caught.value)
    assert "node1:2379" in str(caught.value)


def test_a_password_in_an_endpoint_is_refused_and_not_shown() -> None:
    with pytest.raises(RendezvousParameterError, match="options") as caught:
        parse_endpoints("me:geheim@node1:2379", 7)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_source_address_towards_this_machine_is_a_loopback_one(host: str) -> None:
    assert source_address([Endpoint(host, 2379)], timeout=10) in ("127.0.0.1", "::1")


def test_no_resolver_is_asked_for_this_machines_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def record(host: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        return resolve(host, *args, **kwargs)

    def refuse(*args: Any) -> None:
        raise AssertionError("this machine's own name was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", record)
    for name in ("gethostname", "getfqdn", "gethostbyname", "gethostbyaddr"):
        monkeypatch.setattr(socket, name, refuse)
    source_address([Endpoint("localhost", 1)], timeout=10)
    assert set(asked) == {"localhost"}


def test_nothing_is_sent_to_find_the_source_address() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.setblocking(False)
        source_address([Endpoint("127.0.0.1", listener.getsockname()[1])], timeout=10)
        with pytest.raises(BlockingIOError):
            listener.recv(1)


def test_an_endpoint_that_cannot_be_resolved_is_passed_over() -> None:
    endpoints = [Endpoint("no-such-name.invalid", 1), Endpoint("127.0.0.1", 1)]
    assert source_address(endpoints, timeout=20) == "127.0.0.1"


def test_without_a_route_every_endpoint_is_named() -> None:
    endpoints = [Endpoint("no-such-name.invalid", 1), Endpoint("fe80::1", 2)]
    with pytest.raises(
        RendezvousConnectionError, match=r"no-such-name\.invalid:1 .* nor to \[fe80::1\]:2 .*local_addr"
    ):
        source_address(endpoints, timeout=20)
    with pytest.raises(RendezvousConnectionError, match="none was given"):
        source_address([], timeout=1)


def test_a_hanging_resolver_costs_no_more_than_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    resolve = socket.getaddrinfo

    def hang(host: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs["flags"] == 0:
            released.wait(60)
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    started = time.monotonic()
    try:
        with pytest.raises(RendezvousConnectionError, match=r"dead1:1 \(its name was not resolved within 0\.2 s\)"):
            source_address([Endpoint("dead1", 1), Endpoint("dead2", 1)], timeout=0.4)
        assert time.monotonic() - started < 10
        # An address needs no resolver, and is reached although the name before it hangs.
        assert source_address([Endpoint("dead1", 1), Endpoint("127.0.0.1", 1)], timeout=0.4) == "127.0.0.1"
    finally:
        released.set()
        for thread in threading.enumerate():
            if thread.name.startswith("rdzv-resolve-"):
                thread.join(30)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0", "::", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0", "::%eth0", "224.0.0.1", "ff02::1%eth0", "::ffff:239.1.1.1"],
)
def test_an_address_that_stands_for_all_is_no_machines(address: str) -> None:
    with pytest.raises(RendezvousParameterError, match="give what the other nodes reach this one by"):
        check_address(address)
    # A server that listens there is another matter.
    assert parse_endpoints(f"[{address}]" if ":" in address else address, 1)


@pytest.mark.parametrize("address", ["0x0", "0", "127.1", "0x7f.0.0.1", "2130706433"])
def test_a_number_is_no_machines(address: str) -> None:
    with pytest.raises(RendezvousParameterError, match="give what the other nodes reach this one by"):
        check_address(address)


@pytest.mark.parametrize("address", ["10.0.0.7", "127.0.0.1", "::1", "fe80::1%eth0", "node1", "::ffff:10.0.0.7"])
def test_an_address_of_a_machine_is_taken(address: str) -> None:
    check_address(address)
