"""The address of this machine that faces the service: rank 0's, where the user gives none."""

import socket

import pytest
from rdzv_core.backend import ANY

from .base import CALL, KEY
from .server import ServerConformance, ServerHarness


class AddressesConformance(ServerConformance):
    """`local_address`, whose default is that of a service for the processes of one machine."""

    @pytest.mark.parametrize("at", ["127.0.0.1", "::1"], ids=["IPv4", "IPv6"])
    @pytest.mark.parametrize("asked", [False, True], ids=["new", "connected"])
    def test_address_that_faces_the_service(self, harness: ServerHarness, at: str, asked: bool) -> None:
        """The source address of this machine on the way to the endpoint: the other nodes meet rank 0 there."""
        if at == "::1" and not _has_ipv6():
            pytest.skip("this machine has no IPv6 loopback")
        client = harness.client(harness.proxy(at).endpoint)
        if asked:
            client.put(KEY, b"x", expect=ANY, timeout=CALL)
        there = client.local_address
        assert there == at, f"the service is reached at {at}, and local_address is {there!r}: override it"


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
