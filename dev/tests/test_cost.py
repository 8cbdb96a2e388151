"""What gathering costs, counted by the server itself."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rdzv import RendezvousHandler, RendezvousParameters, get_rendezvous_handler
from rdzv_conformance.servers import EtcdServer, require_service


@pytest.mark.parametrize("nodes", [8, 64])
def test_joining_costs_at_most_six_calls_a_node(nodes: int) -> None:
    require_service(EtcdServer)
    with EtcdServer() as server, ThreadPoolExecutor(nodes) as pool:
        params = RendezvousParameters("etcd-v3", server.get_endpoint(), "cost", nodes, nodes, keep_alive_interval=60)
        handlers = [get_rendezvous_handler(params) for _ in range(nodes)]
        together = threading.Barrier(nodes)
        before = server.calls()

        def join(handler: RendezvousHandler) -> int:
            together.wait()
            return handler.next_rendezvous().rank

        for round_number in (1, 2):
            assert sorted(pool.map(join, handlers)) == list(range(nodes))
            spent = server.calls() - before
            # The leader's own reads, its second watch and its writes do not grow with the nodes.
            assert spent.total() <= 6 * nodes * round_number + 15, dict(spent)
        assert all(pool.map(lambda handler: handler.leave(), handlers))
