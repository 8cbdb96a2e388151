"""How many round trips lie one after the other in what a node waits for: flights, whatever the clock says."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from rdzv_conformance.meanwhile import follow
from rdzv_conformance.servers import ZooKeeperServer
from rdzv_core.backend import ABSENT

from rdzv_zookeeper import channel, wire

from .clients import CALL, Connect

_T = TypeVar("_T")


class Flights:
    """Counts what is sent in one go, and awaited before anything else is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        exchange, ask = channel.Channel.exchange, wire.Line.ask

        def exchanged(self_: channel.Channel, requests: Sequence[Any], deadline: float) -> Any:
            self.count += bool(requests)
            return exchange(self_, requests, deadline)

        def asked(self_: wire.Line, *request: Any) -> Any:
            self.count += 1
            return ask(self_, *request)

        monkeypatch.setattr(channel.Channel, "exchange", exchanged)
        monkeypatch.setattr(wire.Line, "ask", asked)

    def of(self, call: Callable[[], _T]) -> tuple[int, _T]:
        """How many a call takes; and its result."""
        before = self.count
        result = call()
        return self.count - before, result


def test_an_arrival_in_flights(
    quiet_zookeeper: ZooKeeperServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node of a run, then another one."""
    endpoint = quiet_zookeeper.get_endpoint()
    connect(endpoint, run_id="has made the prefix").put("key", b"", expect=ABSENT, timeout=CALL)
    leader, member = (connect(endpoint, run_id="flights") for _ in range(2))
    flights = Flights(monkeypatch)
    for client in (leader, member):
        # The session, and the run.
        assert flights.of(lambda: client.read_all("control", timeout=CALL))[0] == 2  # noqa: B023
    leases = [client.open_lease(10, timeout=CALL) for client in (leader, member)]
    assert flights.count == 2 + 2 + 2

    def put(client: Any, key: str, **options: Any) -> Callable[[], Any]:
        return lambda: client.put(key, b"x", expect=ABSENT, timeout=CALL, **options)

    # Their folders are made along.
    assert flights.of(put(leader, "nodes/0/a", lease=leases[0]))[0] == 1
    assert flights.of(put(leader, "control/leader", lease=leases[0]))[0] == 1
    # The folder with what is under it, then the records.
    count, nodes = flights.of(lambda: leader.read_all("nodes", timeout=CALL))
    assert count == 2
    assert list(nodes.entries) == ["nodes/0/a"]
    control = member.read_all("control", timeout=CALL)
    # Though others have made the folders meanwhile.
    assert flights.of(put(member, "nodes/0/b", lease=leases[1]))[0] == 1
    assert flights.of(lambda: follow(leader, "nodes", nodes, "nodes/0/b", b"x", CALL))[0] == 1
    assert flights.of(put(leader, "control/state"))[0] == 1
    assert flights.of(lambda: follow(member, "control", control, "control/state", b"x", CALL))[0] == 1
    for lease in leases:
        lease.revoke(CALL)
