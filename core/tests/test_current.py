"""What a program that ``rdzv run`` has started is given."""

import pytest

import rdzv
from rdzv import BackendPlugin, Capability, RendezvousParameterError, RendezvousParameters
from rdzv.current import World, variables

from .memory import MemoryBackend, MemoryService


class LeaselessBackend(MemoryBackend):
    """The same service without leases: the core puts something before each value."""

    capabilities = frozenset({Capability.WATCH})


@pytest.mark.parametrize("kind", [MemoryBackend, LeaselessBackend])
def test_the_store_of_a_backend_that_brings_none_is_its_nodes(
    kind: type[MemoryBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = MemoryService()

    plugin = BackendPlugin(
        "Brings no store.", (), lambda params: (kind(service, params.run_id), None), kind, default_endpoint=""
    )
    monkeypatch.setitem(rdzv.registered_backends, "memory", plugin)
    params = RendezvousParameters("memory", "", "job", 1, 1)
    with rdzv.get_rendezvous_handler(params) as handler:
        info = handler.next_rendezvous()
        for name, value in variables(params, info, local_rank=0, processes=1, restarts=0).items():
            monkeypatch.setenv(name, value)
        info.store.set("from", "the node")
        store = rdzv.current().store
        assert store.get("from") == b"the node"
        store.set("from", "the program")
        assert info.store.get("from") == b"the program"


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({}, "RANK is not set"),
        ({"RANK": "first"}, "RANK is 'first', no number"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
    ],
)
def test_a_process_that_no_agent_has_started_gets_an_error(environ: dict[str, str], what: str) -> None:
    with pytest.raises(
        RendezvousParameterError, match=f"The variable {what}: this process was not started by an agent"
    ):
        World.from_env(environ)
