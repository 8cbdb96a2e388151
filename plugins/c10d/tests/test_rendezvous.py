"""The whole: nodes on one machine, of which one serves the store."""

import time

from rdzv import RendezvousParameters, get_rendezvous_handler
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.processes import Link, Processes, Worker
from rdzv_conformance.servers import free_ports

from .clients import is_served


def _live(link: Link, endpoint: str) -> bool:
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
    host = processes.fork(lambda link: _live(link, endpoint))
    eventually(lambda: is_served(endpoint), "the first node to serve the store")
    others = [processes.fork(lambda link: _live(link, endpoint)) for _ in range(2)]
    assert sorted(_world(node, 3) for node in (host, *others)) == [0, 1, 2]
    host.kill()
    assert sorted(_world(node, 2) for node in others) == [0, 1]
