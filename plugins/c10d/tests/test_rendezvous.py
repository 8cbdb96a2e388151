"""The whole: nodes on one machine, of which one serves the store."""

import time

from rdzv import RendezvousParameters, get_rendezvous_handler
from rdzv.inspector import RunInspector
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.processes import Link, Processes, Worker
from rdzv_conformance.servers import free_ports

from rdzv_c10d.store import stores

from .clients import CALL, ForkedStore, is_served


def _run_node(link: Link, endpoint: str) -> bool:
    """Be a node until the job is done; tells of each world: rank and size."""
    params = RendezvousParameters("c10d", endpoint, "job", 2, 3, keep_alive_interval=0.3, last_call_timeout=0.5)
    handler = get_rendezvous_handler(params)
    while not handler.is_closed():
        info = handler.next_rendezvous()
        link.send([info.rank, info.world_size])
        while not (handler.is_closed() or handler.num_nodes_waiting()):
            if info.world_size == 2 and info.rank == 0:
                time.sleep(1)
                handler.set_closed()
            time.sleep(0.01)
    return handler.shutdown()


def _world(node: Worker, size: int) -> int:
    """The rank of a node in the next world of that size."""
    rank, found = node.receive()
    while found != size:
        rank, found = node.receive()
    return int(rank)


def test_the_job_goes_on_when_the_node_that_serves_the_store_is_killed(processes: Processes) -> None:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    host = processes.fork(lambda link: _run_node(link, endpoint))
    # It imports torch first.
    eventually(lambda: is_served(endpoint), "the first node to serve the store", 60)
    others = [processes.fork(lambda link: _run_node(link, endpoint)) for _ in range(2)]
    assert sorted(_world(node, 3) for node in (host, *others)) == [0, 1, 2]
    host.kill()
    assert sorted(_world(node, 2) for node in others) == [0, 1]


def test_a_purge_removes_what_two_attempts_have_left(shared_store: ForkedStore, processes: Processes) -> None:
    def params(attempt: int) -> RendezvousParameters:
        return RendezvousParameters(
            "c10d", shared_store.endpoint, "twice", 1, 1, is_host=False, keep_alive_interval=0.3, attempt=attempt
        )

    def join(link: Link, attempt: int) -> None:
        info = get_rendezvous_handler(params(attempt)).next_rendezvous()
        info.store.set("greeting", b"hello")
        link.send()
        link.receive()

    for attempt in range(2):
        node = processes.fork(lambda link: join(link, attempt))  # noqa: B023 - called at once
        node.receive(30)
        node.kill()
    with RunInspector(params(0)) as observer:
        observer.close("the test", "over", CALL)
        assert observer.purge(CALL) == ()
    host, _, port = shared_store.endpoint.partition(":")
    store = stores().TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    left = {key.removeprefix("rdzv/twice/") for key in store.list_keys() if key.startswith("rdzv/twice/")}
    tops = ("control", "nodes", "rounds", "heartbeats")
    left = {key for key in left if not key.startswith("page/")}
    assert left <= {"page", "watchers"} | {f"{kind}/{top}" for kind in ("log", "count") for top in tops[1:]}
    assert {store.get(f"rdzv/twice/log/{top}") for top in ("nodes", "heartbeats")} == {b""}
