"""Which address of this machine the others get."""

import time
from types import SimpleNamespace

import pytest
from rdzv_conformance.http_proxy import FaultProxy, answer
from rdzv_conformance.servers import ConsulServer
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError

from rdzv_consul import ConsulBackend, backend

from .clients import CALL, Connect


def test_an_agent_of_this_machine_names_the_network(
    shared_consul: ConsulServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reached by a loopback address, which is of no use to the others: the way to Consul's leader counts."""
    asked: list[Endpoint] = []

    def towards(endpoints: tuple[Endpoint, ...], timeout: float) -> str:
        asked.extend(endpoints)
        return "192.0.2.7"

    monkeypatch.setattr(backend, "source_address", towards)
    client = connect(shared_consul.get_endpoint())
    client.read("key", timeout=CALL)
    assert client.local_address == client.local_address == "192.0.2.7"
    host, _, port = str(shared_consul.get_client().call("GET", "status/leader")).partition(":")
    assert asked == [Endpoint(host, int(port))]


@pytest.mark.parametrize("silent", [False, True], ids=["to the end", "then no answer"])
def test_without_a_leader_the_way_out_is_named(silent: bool, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = FaultProxy(0)

    def rest(seconds: float) -> None:
        if silent:
            proxy.partition()
        time.sleep(seconds)

    monkeypatch.setattr(ConsulBackend, "register_timeout", 2.0)
    monkeypatch.setattr(backend, "time", SimpleNamespace(monotonic=time.monotonic, sleep=rest))
    proxy.answer = answer("200 OK", b'""')
    try:
        with pytest.raises(RendezvousConnectionError, match=r"no leader for 2\.0 s.*local_addr"):
            _ = connect(proxy.endpoint).local_address
    finally:
        proxy.close()
