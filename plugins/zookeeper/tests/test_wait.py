"""Waiting: what it costs, and that it never misses the last state, whatever happens to the server."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.interrupts import check_interrupted_waits
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.servers import ZooKeeperServer
from rdzv_core import turns
from rdzv_core.backend import ABSENT, ANY, PutOutcome, Snapshot
from rdzv_core.errors import RendezvousConnectionError
from rdzv_transport import prefixes

from rdzv_zookeeper import cache, channel, session, wire

from .clients import CALL, Connect, watching, with_retries

PER_PREFIX = 2
"""How many watches ZooKeeper counts for one of rdzv: one for the nodes, one for their children."""


class Counter:
    """Counts what clients ask a server for."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._own = self._measure_own()
        self._before = server.calls().total()

    def count(self) -> int:
        """How many requests came since the last count."""
        now = self._server.calls().total()
        count, self._before = now - self._before - self._own, now
        return count

    def _measure_own(self) -> int:
        first = self._server.calls().total()
        return self._server.calls().total() - first


def test_one_flight_starts_a_watch_and_each_change_costs_one_request(
    quiet_zookeeper: ZooKeeperServer, connect: Connect
) -> None:
    waiter, writer = (connect(quiet_zookeeper.get_endpoint(), run_id="cost") for _ in range(2))
    for client in (waiter, writer):
        client.read("other", timeout=CALL)
    for number in range(3):
        writer.put(f"nodes/{number}", b"", expect=ANY, timeout=CALL)
    counter = Counter(quiet_zookeeper)
    seen = waiter.read_all("nodes", timeout=CALL)
    # Watch, barrier, the node and its children; then each of them.
    assert counter.count() == 4 + 3
    tokens = {key: entry.token for key, entry in seen.entries.items()}
    for number in range(20):
        key, value = f"nodes/{number % 3}", b"%d" % number
        put = writer.put(key, value, expect=tokens[key], timeout=CALL)
        assert put.entry is not None
        tokens[key] = put.entry.token
        seen = follow(waiter, "nodes", seen, key, value, CALL)
        seen = waiter.wait("nodes", seen, timeout=0.001)
    assert counter.count() == 20 + 20
    for _ in range(10):
        assert waiter.read_all("nodes", timeout=CALL).entries == seen.entries
    assert counter.count() == 10
    assert quiet_zookeeper.watches() == PER_PREFIX


def test_a_new_key_is_read_once_though_two_events_tell_of_it(
    quiet_zookeeper: ZooKeeperServer, connect: Connect
) -> None:
    waiter, writer = (connect(quiet_zookeeper.get_endpoint(), run_id="new keys") for _ in range(2))
    writer.put("nodes/first", b"", expect=ABSENT, timeout=CALL)
    seen = waiter.read_all("nodes", timeout=CALL)
    counter = Counter(quiet_zookeeper)
    for number in range(20):
        writer.put(f"nodes/{number}", b"x", expect=ABSENT, timeout=CALL)
        seen = follow(waiter, "nodes", seen, f"nodes/{number}", b"x", CALL)
        seen = waiter.wait("nodes", seen, timeout=0.02)
    # Now and then the second event is late.
    assert counter.count() <= 20 + 20 + 4


def test_a_fresh_look_has_what_changed_before_a_late_answer(
    quiet_zookeeper: ZooKeeperServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = (connect(quiet_zookeeper.get_endpoint(), run_id="late answers") for _ in range(2))
    writer.put("nodes/a", b"old", expect=ABSENT, timeout=CALL)
    reader.read_all("nodes", timeout=CALL)
    # As if each answer came later than that.
    monkeypatch.setattr(cache, "_QUIET", -1.0)
    exchange, puts = channel.Channel.exchange, [b"new"]

    def exchange_after_a_put(self: channel.Channel, requests: Sequence[Any], *arguments: Any) -> Any:
        if wire.BARRIER in requests and puts:
            writer.put("nodes/a", puts.pop(), expect=ANY, timeout=CALL)
        return exchange(self, requests, *arguments)

    monkeypatch.setattr(channel.Channel, "exchange", exchange_after_a_put)
    assert reader.read_all("nodes", timeout=CALL).entries["nodes/a"].value == b"new"


def test_a_folder_that_is_made_with_a_key_is_not_read(quiet_zookeeper: ZooKeeperServer, connect: Connect) -> None:
    waiter, writer = (connect(quiet_zookeeper.get_endpoint(), run_id="new folders") for _ in range(2))
    writer.put("first", b"", expect=ABSENT, timeout=CALL)
    waiter.read("other", timeout=CALL)
    counter = Counter(quiet_zookeeper)
    for number in range(10):
        seen = waiter.read_all(f"top{number}", timeout=CALL)
        writer.put(f"top{number}/a", b"x", expect=ABSENT, timeout=CALL)
        follow(waiter, f"top{number}", seen, f"top{number}/a", b"x", CALL)
    # Watch, barrier, the node and its children; the folder, since nothing was there, and the write; the key. Now
    # and then the second event is late.
    assert counter.count() <= 10 * (4 + 2 + 1) + 2


def test_a_first_write_costs_two_requests_and_a_lost_one_as_well(
    quiet_zookeeper: ZooKeeperServer, connect: Connect
) -> None:
    first, second = (connect(quiet_zookeeper.get_endpoint(), run_id="first writes") for _ in range(2))
    with_prefix = connect(quiet_zookeeper.get_endpoint(), run_id="has made the prefix")
    with_prefix.put("key", b"", expect=ANY, timeout=CALL)
    for client in (first, second):
        client.read("other", timeout=CALL)
    counter = Counter(quiet_zookeeper)
    # The run, its folder and the key, in one transaction.
    first.put("nodes/1", b"", expect=ABSENT, timeout=CALL)
    assert counter.count() == 2
    first.put("control/leader", b"", expect=ABSENT, timeout=CALL)
    assert counter.count() == 2
    second.put("nodes/2", b"", expect=ABSENT, timeout=CALL)
    assert counter.count() == 1
    assert second.put("control/leader", b"", expect=ABSENT, timeout=CALL).outcome is PutOutcome.CONFLICT
    assert counter.count() == 2


def test_an_idle_wait_costs_a_request_in_a_third_of_its_sessions_time(
    quiet_zookeeper: ZooKeeperServer, connect: Connect
) -> None:
    backend = connect(quiet_zookeeper.get_endpoint(), request_timeout=0.5)
    since = backend.read_all("key", timeout=CALL)
    outlasts = backend.link.session.identity.timeout
    assert outlasts >= 3.0
    counter = Counter(quiet_zookeeper)
    assert backend.wait("key", since, timeout=outlasts * 0.9) is since
    assert counter.count() <= 3


def test_neighbours_do_not_wake_a_waiter(shared_zookeeper: ZooKeeperServer, connect: Connect) -> None:
    backend = connect(shared_zookeeper.get_endpoint(), run_id="neighbours")
    backend.put("p", b"", expect=ANY, timeout=CALL)
    since = backend.read_all("p", timeout=CALL)
    for neighbour in ("p-x", "p.x", "p0", "px", "o/p"):
        backend.put(neighbour, b"", expect=ANY, timeout=CALL)
    assert backend.wait("p", since, timeout=0.3) is since


def test_waits_for_many_keys_leave_few_watches(quiet_zookeeper: ZooKeeperServer, connect: Connect) -> None:
    backend = connect(quiet_zookeeper.get_endpoint())
    for number in range(100):
        prefix = f"once/{number}"
        backend.wait(prefix, backend.read_all(prefix, timeout=CALL), timeout=0.001)
    assert PER_PREFIX <= quiet_zookeeper.watches() <= PER_PREFIX * (cache._IDLE_CACHES + 1)


def test_a_prefix_that_was_given_up_is_watched_again(
    shared_zookeeper: ZooKeeperServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though threads use some, and give up others, all the time."""
    monkeypatch.setattr(cache, "_IDLE_CACHES", 2)
    waiter, writer = (connect(shared_zookeeper.get_endpoint(), run_id="given up") for _ in range(2))

    def ping_pong(number: int) -> None:
        seen: dict[str, Snapshot] = {}
        for turn in range(30):
            prefix = f"key/{(number + turn) % 6}/{number}"
            value = b"%d" % turn
            since = seen.get(prefix) or waiter.read_all(prefix, timeout=CALL)
            with in_background(lambda: writer.put(prefix, value, expect=ANY, timeout=CALL)):  # noqa: B023
                began = time.monotonic()
                seen[prefix] = follow(waiter, prefix, since, prefix, value, CALL)
                assert time.monotonic() - began < 2, "a change was found by chance"

    with in_background(lambda: ping_pong(1)) as one, in_background(lambda: ping_pong(2)) as two:
        ping_pong(0)
        one.result(60)
        two.result(60)


def test_another_clients_snapshot_is_not_undone(shared_zookeeper: ZooKeeperServer, connect: Connect) -> None:
    """A wait from a newer snapshot than the client knows is not answered with the older one."""
    one, other = (connect(shared_zookeeper.get_endpoint(), run_id="newer") for _ in range(2))
    since = other.read_all("key", timeout=CALL)
    for number in range(100):
        one.put("key", b"%d" % number, expect=ANY, timeout=CALL)
        newest = one.read_all("key", timeout=CALL)
        assert other.wait("key", newest, timeout=0.001) is newest
    assert other.wait("key", since, timeout=CALL).entries == newest.entries


def test_an_idle_wait_keeps_its_session(quiet_zookeeper: ZooKeeperServer, connect: Connect) -> None:
    backend = connect(quiet_zookeeper.get_endpoint(), request_timeout=0.3)
    since = backend.read_all("key", timeout=CALL)
    with in_background(lambda: backend.wait("key", since, timeout=1.6)) as waited:
        eventually(watching(quiet_zookeeper), "the watch")
        (session,) = _sessions(quiet_zookeeper)
        assert waited.result() is since
        assert _sessions(quiet_zookeeper) == [session]
    # No call waits any more: the session ends, and the next call makes another one.
    eventually(lambda: quiet_zookeeper.sessions() == 0, "the session to end", 10)
    backend.put("key", b"x", expect=ABSENT, timeout=CALL)
    assert backend.wait("key", since, timeout=CALL).entries["key"].value == b"x"


def _sessions(server: ZooKeeperServer) -> list[str]:
    return [proxy for proxy in server.ask("dump").splitlines() if proxy.startswith("\t0x")]


def test_a_frozen_server(zookeeper: ZooKeeperServer, connect: Connect) -> None:
    """Calls end when their time is up, and a put does not know how; a wait that was promised more tells sooner."""
    waiter, caller = (connect(zookeeper.get_endpoint(), run_id="frozen", request_timeout=0.5) for _ in range(2))
    since = waiter.read_all("key", timeout=CALL)
    lease = caller.open_lease(30, timeout=CALL)
    caller.read("key", timeout=CALL)
    with in_background(lambda: follow(waiter, "key", since, "key", b"after", 30)) as followed:
        zookeeper.pause()
        try:
            assert caller.put("key", b"x", expect=ANY, timeout=0.2).outcome is PutOutcome.UNKNOWN
            for timeout in (0.05, 0.5):
                for call in (
                    lambda timeout: caller.read("key", timeout=timeout),
                    lambda timeout: caller.read_all("key", timeout=timeout),
                    lambda timeout: caller.delete("key", timeout=timeout),
                    lambda timeout: caller.open_lease(5, timeout=timeout),
                    lambda timeout: lease.keep_alive(timeout),
                ):
                    began = time.monotonic()
                    with pytest.raises(RendezvousConnectionError):
                        call(timeout)
                    assert time.monotonic() - began < timeout + 0.5
            began = time.monotonic()
            with pytest.raises(RendezvousConnectionError):
                waiter.wait("key", since, timeout=20)
            assert time.monotonic() - began < 5
        finally:
            zookeeper.resume()
        with_retries(lambda: caller.put("key", b"after", expect=ANY, timeout=CALL))
        followed.result(30)
        assert with_retries(lambda: lease.keep_alive(CALL))


def test_an_interrupt_anywhere_leaves_the_prefix_to_the_next_wait(
    quiet_zookeeper: ZooKeeperServer, connect: Connect
) -> None:
    waiter, writer = (connect(quiet_zookeeper.get_endpoint(), run_id="interrupted") for _ in range(2))
    assert check_interrupted_waits(waiter, writer, (cache, session, channel, turns, prefixes), CALL) > 10
