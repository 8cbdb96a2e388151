"""How many round trips lie one after the other in what a node waits for: flights, whatever the clock says."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from kazoo.protocol.serialization import GetChildren, GetData  # type: ignore[import-untyped]
from rdzv_conformance.meanwhile import follow
from rdzv_conformance.servers import ZooKeeperServer
from rdzv_core.backend import ABSENT, ANY

from rdzv_zookeeper import cache, channel, wire

from .clients import CALL, Connect

_T = TypeVar("_T")


class Flights:
    """Counts what is sent in one go, and awaited before anything else is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        send, answered = channel.Channel.send, wire.Line.next

        def sent(self_: channel.Channel, *arguments: Any, **options: Any) -> Any:
            self.count += 1
            return send(self_, *arguments, **options)

        def answer(self_: wire.Line, deadline: float) -> bytes:
            self.count += 1
            return answered(self_, deadline)

        monkeypatch.setattr(channel.Channel, "send", sent)
        monkeypatch.setattr(wire.Line, "next", answer)

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
        # The session, and the run with it.
        assert flights.of(lambda: client.read_all("control", timeout=CALL))[0] == 1  # noqa: B023
    leases = [client.open_lease(10, timeout=CALL) for client in (leader, member)]
    assert flights.count == 1 + 1 + 2

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
    # What a run usually has is asked for along with the session.
    late = connect(endpoint, run_id="flights")
    count, control = flights.of(lambda: late.read_all("control", timeout=CALL))
    assert count == 1
    assert sorted(control.entries) == ["control/leader", "control/state"]
    for lease in leases:
        lease.revoke(CALL)


@pytest.mark.parametrize("number", [1, 255, 256, 257, 600])
def test_what_is_asked_along_with_a_session_may_take_more_than_one_flight(
    shared_zookeeper: ZooKeeperServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    session = connect(shared_zookeeper.get_endpoint()).link.session
    flights = Flights(monkeypatch)
    # The kind of an answer tells which request it belongs to.
    requests = [(GetData if place % 3 else GetChildren)("/zookeeper", False) for place in range(number)]
    deadline = time.monotonic() + CALL
    count, replies = flights.of(
        lambda: session.use(lambda one: one.exchange(requests, deadline), deadline, first=requests)
    )
    assert count == (number + 255) // 256
    assert [type(reply.result) for reply in replies] == [tuple if place % 3 else list for place in range(number)]


def test_what_is_asked_besides_keeps_to_the_room_of_a_flight(
    shared_zookeeper: ZooKeeperServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connect(shared_zookeeper.get_endpoint()).link.session
    deadline = time.monotonic() + CALL
    ours = session.channel(deadline)
    send, flights, owed = ours.send, list[int](), list[int]()

    def noted(requests: Any, *arguments: Any, **options: Any) -> Any:
        answers = send(requests, *arguments, **options)
        flights.append(len(requests))
        owed.append(sum(not answer.done() for _, _, answer in list(ours._pending)))
        return answers

    monkeypatch.setattr(ours, "send", noted)
    news = [GetData("/zookeeper", False)] * 300

    def more() -> list[Any]:
        new = news[:] if flights else []
        del news[: len(new)]
        return new

    replies = ours.exchange([GetChildren("/zookeeper", False)] * 10, deadline, more)
    assert flights == [10, 256, 44]
    assert max(owed) <= 256
    assert [type(reply.result) for reply in replies] == [list] * 10 + [tuple] * 300


def test_a_prefix_that_always_changes_is_read_in_time(
    shared_zookeeper: ZooKeeperServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_QUIET", 0.1)
    reader = connect(shared_zookeeper.get_endpoint(), run_id="restless")
    reader.put("nodes/a", b"x", expect=ABSENT, timeout=CALL)
    seen = reader.read_all("nodes", timeout=CALL)
    ours = reader.link.session.channel(time.monotonic() + CALL)
    send, path = ours.send, reader.link._layout.path("nodes/a")

    def changed(requests: Any, *arguments: Any, **options: Any) -> Any:
        answers = send(requests, *arguments, **options)
        reader.link._note(path, False)
        return answers

    monkeypatch.setattr(ours, "send", changed)
    assert reader.read_all("nodes", timeout=CALL).entries == seen.entries


def test_what_changes_while_a_read_is_on_its_way_is_read_before_its_answer(
    quiet_zookeeper: ZooKeeperServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = (connect(quiet_zookeeper.get_endpoint(), run_id="one after the other") for _ in range(2))
    for key in "ab":
        writer.put(f"nodes/{key}", b"old", expect=ABSENT, timeout=CALL)
    seen = reader.read_all("nodes", timeout=CALL)
    ours = reader.link.session.channel(time.monotonic() + CALL)
    asked: list[list[str]] = []
    held: list[bytes] = []
    send, receive = channel.Channel.send, wire.Line.receive

    def change_another(self: channel.Channel, requests: Any, *arguments: Any, **options: Any) -> Any:
        answers = send(self, requests, *arguments, **options)
        if self is ours:
            asked.append([request.path.rpartition("/")[2] for request in requests])
            if len(asked) == 1:
                writer.put("nodes/b", b"new", expect=ANY, timeout=CALL)
        return answers

    def only_events(self: wire.Line, deadline: float) -> list[bytes]:
        frames = receive(self, 0.0 if held and len(asked) > 1 else deadline)
        if self is not ours.line:
            return frames
        events = [frame for frame in frames if wire.read_header(frame).xid == wire.EVENT_XID]
        held.extend(frame for frame in frames if frame not in events)
        answers = held[:] if len(asked) > 1 else []
        del held[: len(answers)]
        return events + answers

    monkeypatch.setattr(channel.Channel, "send", change_another)
    monkeypatch.setattr(wire.Line, "receive", only_events)
    writer.put("nodes/a", b"new", expect=ANY, timeout=CALL)
    now = reader.wait("nodes", seen, timeout=CALL)
    assert {key: entry.value for key, entry in now.entries.items()} == {"nodes/a": b"new", "nodes/b": b"new"}
    assert asked == [["a"], ["b"]]
