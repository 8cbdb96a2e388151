"""A node of torchrun that has to go: an operator says so, and torch's agents act by what they ask anyway."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import rdzv
from rdzv.inspector import RunInspector
from rdzv_conformance.deadlines import eventually
from torch.distributed.elastic import rendezvous

from rdzv_torchrun.rendezvous import TorchrunHandler


def test_it_ends_and_the_others_go_on(
    node: Callable[..., TorchrunHandler], threads: ThreadPoolExecutor, database: str
) -> None:
    stays, goes = (node(1, 2, node_name=name, last_call_timeout="60") for name in ("stays", "goes"))
    first = list(threads.map(lambda one: one.next_rendezvous(), (stays, goes)))
    assert [info.world_size for info in first] == [2, 2]
    params = rdzv.RendezvousParameters("sqlite", database, "job", 1, 2)
    with RunInspector(params) as inspector:
        assert len(inspector.drain("goes", 1.0, "spot", 10.0)) == 1
        eventually(lambda: all(one.num_nodes_waiting() for one in (stays, goes)), "the agents to ask for another world")
        with pytest.raises(rendezvous.RendezvousGracefulExitError, match="drained: spot"):
            goes.next_rendezvous()
        # As torchrun does when it ends: the run goes on.
        assert goes.shutdown()
        assert stays.next_rendezvous().world_size == 1
        assert not stays.is_closed()
        status = inspector.status(10.0)
        assert [one.left for one in status.nodes if one.rank is None] in ([], ["drained: spot"])
        assert status.failed_first == ()
