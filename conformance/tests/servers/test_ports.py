"""Free ports."""

import socket
from pathlib import Path

from rdzv_conformance.servers import free_ports


def test_ports_are_different_and_can_be_bound() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_ports_are_never_the_near_end_of_a_connection() -> None:
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(lowest <= port <= highest for port in free_ports(50))
