"""What stands in ZooKeeper, and that a condition holds across the incarnations of a key, whatever ended one."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.servers import ZooKeeperServer
from rdzv_core.backend import ABSENT, ANY, MAX_PAYLOAD, Entry, Lease, PutOutcome, PutResult
from rdzv_core.envelope import Envelope
from rdzv_core.errors import RendezvousParameterError, RendezvousStateError

from rdzv_zookeeper import ZooKeeperBackend

from .clients import CALL, Connect


@pytest.fixture
def backend(shared_zookeeper: ZooKeeperServer, connect: Connect, request: pytest.FixtureRequest) -> ZooKeeperBackend:
    """A client of a run of the test's own."""
    return connect(shared_zookeeper.get_endpoint(), run_id=request.node.name)


@pytest.fixture(scope="module")
def kazoo(shared_zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """Another client's view of ZooKeeper."""
    client = KazooClient(shared_zookeeper.get_endpoint())
    client.start()
    yield client
    client.stop()
    client.close()


def _root(backend: ZooKeeperBackend) -> str:
    return backend._layout.root


def _write(backend: ZooKeeperBackend, key: str, value: bytes = b"x", lease: Lease | None = None) -> Entry:
    put = backend.put(key, value, expect=ABSENT, lease=lease, timeout=CALL)
    assert put.outcome is PutOutcome.APPLIED
    assert put.entry is not None
    return put.entry


def test_a_run_in_zookeeper(backend: ZooKeeperBackend, kazoo: KazooClient) -> None:
    with closing(backend):
        lease = backend.open_lease(5, timeout=CALL)
        entry = _write(backend, "control/state", b"the state")
        _write(backend, "nodes/me", b"here", lease)
        root = _root(backend)
        assert root.startswith("/rdzv/test_a_run_in_zookeeper")
        incarnation = entry.token.incarnation
        assert sorted(kazoo.get_children(f"{root}/control")) == ["state", f"state@{incarnation}"]
        data, stat = kazoo.get(f"{root}/control/state")
        assert data == f"{incarnation} 0\nthe state".encode()
        assert entry.order == 2 * stat.czxid
        owners = {kazoo.exists(f"{root}/nodes/{node}").ephemeralOwner for node in kazoo.get_children(f"{root}/nodes")}
        assert len(owners) == 1
        assert 0 not in owners
        lease.revoke(CALL)
        assert kazoo.get_children(f"{root}/nodes") == []
        for prefix in ("control", "nodes", "store"):
            backend.delete(prefix, timeout=CALL)
        assert kazoo.exists(root) is None, "something of the run is left"


@pytest.mark.parametrize("end", ["delete", "revoke", "expire"])
def test_a_token_is_dead_when_its_key_has_another_incarnation(
    shared_zookeeper: ZooKeeperServer, connect: Connect, end: str
) -> None:
    """ZooKeeper's version is the same in both incarnations."""
    backend, other = (connect(shared_zookeeper.get_endpoint(), run_id=end) for _ in range(2))
    lease = backend.open_lease(1, timeout=CALL)
    old = _write(backend, "key", b"x", None if end == "delete" else lease)
    if end == "delete":
        backend.delete("key", timeout=CALL)
    elif end == "revoke":
        lease.revoke(CALL)
    eventually(lambda: backend.read("key", timeout=CALL) is None, "the first incarnation to end")
    for owner in (None, other.open_lease(10, timeout=CALL)):
        new = _write(other, "key", b"x", owner)
        assert new.token.number == old.token.number
        for mine in (None, backend.open_lease(10, timeout=CALL)):
            put = backend.put("key", b"y", expect=old.token, lease=mine, timeout=CALL)
            assert put == PutResult(PutOutcome.CONFLICT, new)
        other.delete("key", timeout=CALL)


def test_no_token_survives_deletes_that_race_with_it(backend: ZooKeeperBackend) -> None:
    """Every conditional write that was applied was of the incarnation that it had seen."""
    stop = threading.Event()

    def delete_and_create() -> None:
        while not stop.is_set():
            backend.delete("race/key", timeout=CALL)
            backend.put("race/key", b"fresh", expect=ABSENT, timeout=CALL)

    def overwrite(number: int) -> int:
        applied = 0
        for turn in range(150):
            there = backend.read("race/key", timeout=CALL)
            if there is None:
                continue
            put = backend.put("race/key", b"%d.%d" % (number, turn), expect=there.token, timeout=CALL)
            if put.outcome is PutOutcome.APPLIED:
                assert put.entry is not None
                assert put.entry.token.incarnation == there.token.incarnation
                assert put.entry.token.number == there.token.number + 1
                assert put.entry.order == there.order
                applied += 1
        return applied

    with ThreadPoolExecutor(5) as pool:
        deleting = pool.submit(delete_and_create)
        applied = list(pool.map(overwrite, range(4)))
        stop.set()
        deleting.result(CALL)
    assert sum(applied) > 0


def test_a_lease_that_changes_keeps_the_order(backend: ZooKeeperBackend) -> None:
    one, two = backend.open_lease(10, timeout=CALL), backend.open_lease(10, timeout=CALL)
    first = _write(backend, "order/first", b"", one)
    second = _write(backend, "order/second")
    for lease in (two, None, one, None, None):
        put = backend.put("order/first", b"again", expect=first.token, lease=lease, timeout=CALL)
        assert put.outcome is PutOutcome.APPLIED
        assert put.entry == backend.read("order/first", timeout=CALL)
        assert put.entry is not None
        first = put.entry
        assert first.order < second.order
    one.revoke(CALL)
    two.revoke(CALL)
    assert backend.read("order/first", timeout=CALL) == first


def test_a_key_above_others_begins_when_it_is_put(backend: ZooKeeperBackend) -> None:
    below = _write(backend, "a/b/c")
    assert backend.read("a/b", timeout=CALL) is None
    assert backend.read_all("a", timeout=CALL).entries == {"a/b/c": below}
    beside = _write(backend, "a/x")
    late = _write(backend, "a/b", b"")
    later = _write(backend, "a/y")
    assert below.order < beside.order < late.order < later.order
    put = backend.put("a/b", b"more", expect=late.token, timeout=CALL)
    assert put.outcome is PutOutcome.APPLIED
    assert put.entry is not None
    assert put.entry.order == late.order
    backend.delete("a/b/c", timeout=CALL)
    assert backend.read_all("a", timeout=CALL).entries == {"a/x": beside, "a/b": put.entry, "a/y": later}


def test_nothing_can_stand_under_a_leased_key(backend: ZooKeeperBackend) -> None:
    lease = backend.open_lease(10, timeout=CALL)
    _write(backend, "leased", b"", lease)
    with pytest.raises(RendezvousParameterError, match=r"leased/under.*lease"):
        backend.put("leased/under", b"", expect=ANY, timeout=CALL)
    _write(backend, "parent/child")
    with pytest.raises(RendezvousParameterError, match=r"parent.*lease.*under it"):
        backend.put("parent", b"", expect=ABSENT, lease=lease, timeout=CALL)
    # What is left behind when the last child has gone is no obstacle.
    backend.delete("parent/child", timeout=CALL)
    _write(backend, "parent", b"", lease)


def test_what_is_not_ours_is_shown_as_it_is(backend: ZooKeeperBackend, kazoo: KazooClient) -> None:
    """rdzv finds out that it is none of its envelopes; the other keys are not concerned."""
    mine = _write(backend, "foreign/mine")
    kazoo.create(f"{_root(backend)}/foreign/theirs", b"\x80\x04garbage")
    there = backend.read("foreign/theirs", timeout=CALL)
    assert there is not None
    assert there.value == b"\x80\x04garbage"
    assert backend.read_all("foreign", timeout=CALL).entries == {"foreign/mine": mine, "foreign/theirs": there}
    assert backend.put("foreign/theirs", b"x", expect=ABSENT, timeout=CALL) == PutResult(PutOutcome.CONFLICT, there)
    put = backend.put("foreign/theirs", b"ours now", expect=there.token, timeout=CALL)
    assert put.outcome is PutOutcome.APPLIED
    assert backend.put("foreign/theirs", b"x", expect=there.token, timeout=CALL) == PutResult(
        PutOutcome.CONFLICT, put.entry
    )
    backend.delete("foreign", timeout=CALL)
    assert backend.read_all("foreign", timeout=CALL).entries == {}


def test_an_incarnation_node_that_was_removed_is_reported(backend: ZooKeeperBackend, kazoo: KazooClient) -> None:
    entry = _write(backend, "single")
    kazoo.delete(f"{_root(backend)}/single@{entry.token.incarnation}")
    with pytest.raises(RendezvousStateError, match=r"has lost .*delete it"):
        backend.put("single", b"y", expect=entry.token, timeout=CALL)
    backend.delete("single", timeout=CALL)
    assert backend.read("single", timeout=CALL) is None


def test_the_largest_value_is_refused_before_it_is_sent(backend: ZooKeeperBackend) -> None:
    assert len(Envelope.wrap(bytes(MAX_PAYLOAD), writer="x" * 50).pack()) < MAX_PAYLOAD + 1024
    with pytest.raises(RendezvousParameterError, match=r"1048576 bytes; ZooKeeper takes 10\d+"):
        backend.put("large", bytes(1 << 20), expect=ABSENT, timeout=CALL)
    assert backend.read("large", timeout=CALL) is None
    # Right below the limit the server takes it.
    largest = bytes(0xFFFFF - 8192)
    assert _write(backend, "large", largest).value == largest


def test_a_lease_that_zookeeper_does_not_grant(shared_zookeeper: ZooKeeperServer, backend: ZooKeeperBackend) -> None:
    before = shared_zookeeper.sessions()
    with pytest.raises(RendezvousParameterError, match=r"no lease of 3600.0 s, but at most 60.0 s.*maxSessionTimeout"):
        backend.open_lease(3600, timeout=CALL)
    assert shared_zookeeper.sessions() <= before + 1
