"""What a watch makes of a member that freezes or loses the others; the rest is in the suite (`cluster`)."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rdzv.backend import ANY
from rdzv.errors import RendezvousConnectionError
from rdzv_conformance.meanwhile import follow
from rdzv_conformance.servers import ConsulCluster, ConsulServer, require_service

from rdzv_consul import kv

from .clients import CALL, Connect, watching


@pytest.fixture(scope="module")
def members() -> Iterator[ConsulCluster]:
    require_service(ConsulServer)
    with ConsulCluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(members: ConsulCluster) -> Iterator[ConsulCluster]:
    """Three members that run, whatever the test before did to them."""
    yield members
    members.heal()


def test_the_leader_freezes(cluster: ConsulCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "_HELD", 2.0)
    leader = cluster.leader()
    waiter, writer = (connect(cluster.get_endpoint(leader), request_timeout=1.0) for _ in range(2))
    waiter.put("key", b"before", expect=ANY, timeout=CALL)
    since = waiter.read_all("key", timeout=CALL)
    with watching(leader, lambda: follow(waiter, "key", since, "key", b"after", 30)) as followed:
        leader.pause()
        _persist(lambda: writer.put("key", b"after", expect=ANY, timeout=CALL).entry)
        # Nothing but silence tells the waiter, who makes no calls.
        followed.result(30)
    # A put whose outcome was unknown may have been applied after the one that was answered.
    entry = _persist(lambda: writer.read("key", timeout=CALL))
    assert entry.value == b"after"


def _persist(call: Callable[[], Any], seconds: float = 20) -> Any:
    """Call until there is a result, as the core does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if (result := call()) is not None:
                return result
        except RendezvousConnectionError:
            time.sleep(0.05)
    raise AssertionError(f"no result within {seconds} s")
