"""What a backend declares about itself."""

import ipaddress

from rdzv_core.backend import Capability, KeyValueBackend

from .base import CALL, Conformance


class CapabilitiesConformance(Conformance):
    """A backend declares what its service can do, and why it cannot do the rest."""

    def test_every_capability_is_declared_or_unsupported_with_a_reason(self, client: KeyValueBackend) -> None:
        """Nothing is left open: each capability is either declared, or the reason for its lack is given."""
        for capability in Capability:
            declared, reason = capability in client.capabilities, client.unsupported.get(capability)
            assert declared or reason is not None, f"{capability} is neither declared nor unsupported"
            assert not (declared and reason is not None), f"{capability} is declared and unsupported at once"
            assert declared or (reason and reason.strip()), f"{capability} is unsupported without a reason"

    def test_name_is_reported(self, client: KeyValueBackend) -> None:
        """A backend has a name."""
        assert client.name, "the name is empty"
        assert isinstance(client.name, str)

    def test_local_address_is_an_address(self, client: KeyValueBackend) -> None:
        """`local_address` is an address that others can use as it is, not a name to be looked up."""
        client.read("suite/key", timeout=CALL)
        ipaddress.ip_address(client.local_address.partition("%")[0])

    def test_shortest_lease_is_a_time(self, client: KeyValueBackend) -> None:
        """`min_lease_ttl` is a number of seconds."""
        assert 0 <= client.min_lease_ttl < 3600, f"min_lease_ttl is {client.min_lease_ttl}"
