"""Nodes go, while others are cut off: nothing is taken from those who stay, and nothing stays for ever."""

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rdzv import DynamicRendezvousHandler, RendezvousTimeoutError

from .memory import Fault
from .test_rendezvous import Run
from .waiting import wait_until

MANY = 1000


@pytest.fixture(params=["memory", "leaseless"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """A run on a service with leases, and on one without; each node can be cut off from either."""
    with contextlib.closing(Run(request.param)) as run:
        yield run


def leader(run: Run) -> int:
    """The number of the node that leads."""

    def find() -> list[int]:
        handlers = enumerate(run.handlers)
        return [number for number, node in handlers if node._node.leading and not node._lifetime.has_ended]

    found: list[int] = wait_until(find)
    return found[0]


def stores(run: Run) -> set[str]:
    """The keys of the rounds' stores."""
    return {key for key in run.all_keys() if key.startswith("rounds/")}


def gather(run: Run, *nodes: DynamicRendezvousHandler) -> int:
    """One more round, in whose store every member writes a key; returns its number."""
    infos = run.gather(*nodes)
    for info in infos:
        info.store.set(f"rank{info.rank}", b"here")
    return infos[0].round


def cut_off_then_alone(run: Run) -> tuple[Any, Any]:
    """A member that was cut off for longer than the time to live, during which the only other one has left."""
    stays, leaves = nodes = run.nodes(2, 2, 2)
    infos = run.gather(*nodes)
    for info in infos:
        info.store.set(f"rank{info.rank}", b"here")
    run.backends[0].disconnect("it is cut off")
    wait_until(lambda: leaves.view.status and leaves.view.status.departures)
    leaves.leave("drained")
    run.backends[0].reconnect()
    wait_until(stays._node.has_valid_lease)
    return stays, infos[0]


def test_member_that_was_cut_off_finds_its_round_and_its_store(run: Run) -> None:
    stays, info = cut_off_then_alone(run)
    assert stays._node.in_running_round()
    assert info.store.check(["rank0", "rank1"])


def test_what_was_kept_for_a_member_is_removed_two_rounds_later(run: Run) -> None:
    stays, _ = cut_off_then_alone(run)
    run.crash(stays)
    assert {key.split("/")[1] for key in stores(run)} == {"1"}
    others = run.nodes(2, 2, 2)
    assert [gather(run, *others) for _ in range(2)] == [2, 3]
    wait_until(lambda: {key.split("/")[1] for key in stores(run)} == {"2", "3"})
    for node in others:
        node.shutdown()
    assert run.all_keys() == {"control/state"}


def test_last_of_those_who_all_say_that_they_leave_removes_everything_but_state_and_news(run: Run) -> None:
    nodes = run.nodes(3, 2, 3)
    gather(run, *nodes)
    for node in nodes:
        node.leave("drained")
    # What they have said of themselves, and the leader's tombstone, go with their leases. Where these are counted the
    # bytes stay, and the next leader writes over its own.
    left = {key for key in run.all_keys() if not key.startswith(("heartbeats/", "nodes/"))}
    assert left - {"control/leader"} == {"control/state", "control/status"}


def test_next_leader_removes_what_one_that_died_has_not(run: Run) -> None:
    nodes = run.nodes(3, 2, 3)
    for expected in (1, 2):
        assert gather(run, *nodes) == expected
    dies = leader(run)
    run.backends[dies].fail("delete", *[Fault.REQUEST_LOST] * MANY)
    assert gather(run, *nodes) == 3
    run.crash(nodes.pop(dies))
    wait_until(lambda: all(node.num_nodes_waiting() for node in nodes))
    assert gather(run, *nodes) == 4
    wait_until(lambda: {key.split("/")[1] for key in stores(run)} == {"3", "4"})
    for node in nodes:
        node.shutdown()
    assert run.all_keys() == {"control/state"}


def test_next_leader_removes_what_an_attempt_has_left_that_one_that_died_has_followed(run: Run) -> None:
    for node in (old := run.nodes(2, 2, 2)):
        run.join(node)
    wait_until(lambda: all(node._node.in_running_round() for node in old))
    for node in old:
        run.crash(node)
    # The leases of the old leader and of the old nodes end one after the other, each maybe late on a busy machine.
    new = run.nodes(3, 2, 3, attempt=1, join=60.0)
    for backend in run.backends:
        backend.fail("delete", *[Fault.REQUEST_LOST] * MANY)
    assert gather(run, *new) == 2
    run.crash(run.handlers[leader(run)])
    alive = [node for node in new if not node._lifetime.has_ended]
    for backend in run.backends:
        backend._faults["delete"].clear()
    wait_until(
        lambda: not [key for key in run.all_keys() if key.startswith(("nodes/0/", "heartbeats/0/", "control/pending"))]
    )
    assert {node._node.run.state.attempt for node in alive} == {1}


def test_node_that_has_left_does_not_count_as_here(run: Run) -> None:
    leaves, waits = nodes = run.nodes(2, 2, 2, join=1.0)
    run.gather(*nodes)
    leaves.leave("python ended with exit code 1")
    with pytest.raises(RendezvousTimeoutError) as raised:
        waits.next_rendezvous()
    assert f"1 of at least 2 nodes is here ({waits.view.node_id}), 1 is missing." in str(raised.value)
    assert "is running" not in str(raised.value)


def test_timeout_beside_a_running_world_says_that_it_runs(run: Run) -> None:
    run.gather(*run.nodes(2, 2, 2))
    with pytest.raises(
        RendezvousTimeoutError, match=r"3 of at least 2 nodes are here.* Round 1 is running with 2 nodes\."
    ):
        run.node(2, 2, join=0.3).next_rendezvous()


def test_node_whose_world_has_left_for_good_waits_no_longer_than_its_alone_timeout(run: Run) -> None:
    leaves, waits = nodes = run.nodes(2, 2, 2, join=300, alone=0.5)
    run.gather(*nodes)
    leaves.leave("python ended with exit code 1")
    gone = leaves.view.node_id
    told = rf"'{gone}' has left: python ended with exit code 1\. No other node has come for 0\.5 s: look at why "
    with pytest.raises(RendezvousTimeoutError, match=told) as raised:
        run.join(waits)[0].result(30)
    assert re.fullmatch(r"gave up after \d\.\d s: 1 of at least 2 nodes", raised.value.summary)


def test_node_whose_world_is_lost_waits_as_long_as_joining_may_take(run: Run) -> None:
    dies, waits = nodes = run.nodes(2, 2, 2, join=8.0, alone=0.1)
    run.gather(*nodes)
    run.crash(dies)
    with pytest.raises(RendezvousTimeoutError) as raised:
        run.join(waits)[0].result(30)
    # It may only be cut off, or be replaced.
    assert f"'{dies.view.node_id}' is gone: " in str(raised.value)
    assert "alone_timeout" not in str(raised.value)


def test_any_arrival_lets_a_node_that_is_alone_wait_anew(run: Run) -> None:
    *leave, waits = nodes = run.nodes(3, 3, 3, join=300, alone=3.0)
    run.gather(*nodes)
    for node in leave:
        node.leave("drained")
    waiting = run.join(waits)[0]
    wait_until(lambda: waits._node.countdown.alone_since is not None)
    passing = run.node(3, 3, join=300)
    run.join(passing)
    wait_until(lambda: waits._node.countdown.alone_since is None)
    passing.leave("it was only passing")
    left_at = time.monotonic()
    with pytest.raises(RendezvousTimeoutError, match="alone_timeout"):
        waiting.result(30)
    assert time.monotonic() - left_at > 2.9


def test_node_that_was_in_no_world_waits_as_long_as_joining_may_take(run: Run) -> None:
    nodes = run.nodes(2, 2, 2, alone=0.1)
    run.gather(*nodes)
    for node in nodes:
        node.leave("drained")
    late = run.node(2, 2, join=1.5, alone=0.1)
    began = time.monotonic()
    with pytest.raises(RendezvousTimeoutError) as raised:
        late.next_rendezvous()
    assert time.monotonic() - began >= 1.5
    assert "alone_timeout" not in str(raised.value)


def test_outage_ends_no_wait_early(run: Run) -> None:
    leaves, waits = nodes = run.nodes(2, 2, 2, join=300, alone=1.5)
    run.gather(*nodes)
    leaves.leave("drained")
    waiting = run.join(waits)[0]
    wait_until(lambda: waits._node.countdown.alone_since is not None)
    run.backends[1].disconnect()
    wait_until(lambda: waits._node.connection.error is not None and waits._node.countdown.alone_since is None)
    run.backends[1].reconnect()
    with pytest.raises(RendezvousTimeoutError, match="alone_timeout"):
        waiting.result(30)
