"""The way that users come: by the plugin's entry point, with an endpoint and options, and from a program of a node."""

import os
from collections.abc import Callable
from contextlib import closing

import pytest
import rdzv
from rdzv.current import variables
from rdzv.registry import create_backend
from rdzv_core.backend import ANY, KeyValueBackend
from rdzv_core.errors import RendezvousParameterError

from ..processes import Link, Processes
from .base import CALL, KEY, PARAMETERS, SERVER, Clients, Conformance, Verdict, leave_out

Parameters = Callable[[str], rdzv.RendezvousParameters]
"""What the fixture ``parameters`` gives: how a user configures the backend for the run of that id, for one node."""


class EntryConformance(Conformance):
    """What the installed plugin makes is what `connect` makes, and all that a user's program needs."""

    @pytest.fixture
    def params(self, request: pytest.FixtureRequest, client: KeyValueBackend, run_id: str) -> rdzv.RendezvousParameters:
        """How a user configures it: as the fixture ``parameters`` says, else by name and the server's endpoint."""
        name, own = client.name, hasattr(type(self), PARAMETERS)
        try:
            rdzv.load_backend_plugin(name)
        except RendezvousParameterError as error:
            if own:
                raise
            why = f"no plugin '{name}' is installed, so it cannot be chosen: {error}"
            leave_out(request.node, Verdict.NOT_TRIED, why)
        if own:
            parameters: Parameters = request.getfixturevalue(PARAMETERS)
            return parameters(run_id)
        if not hasattr(type(self), SERVER):
            why = (
                f"{type(self).__name__} brings neither a fixture `{PARAMETERS}`, which says how users configure the "
                f"backend, nor a `{SERVER}`, so the installed plugin was not used"
            )
            leave_out(request.node, Verdict.NOT_TRIED, why)
        return rdzv.RendezvousParameters(name, request.getfixturevalue(SERVER).get_endpoint(), run_id, 1, 1)

    def test_plugin_makes_this_backend(self, params: rdzv.RendezvousParameters, client: KeyValueBackend) -> None:
        """What the entry point makes has this name, is what it says, and shares the keys of what `connect` makes."""
        described = rdzv.load_backend_plugin(client.name)
        backend, _ = create_backend(params)
        assert isinstance(backend, KeyValueBackend), f"create_backend made {backend!r}, which is no KeyValueBackend"
        with closing(backend):
            assert isinstance(backend, described.backend_type), "backend_type is not what create_backend makes"
            assert backend.name == client.name, "the plugin and the backend differ in their names"
            assert backend.capabilities == client.capabilities, "the plugin's backend declares something else"
            client.put(KEY, b"x", expect=ANY, timeout=CALL)
            there = backend.read(KEY, timeout=CALL)
            assert there == client.read(KEY, timeout=CALL), "the plugin's backend does not see the keys of `connect`'s"

    def test_program_has_the_store_of_its_node(
        self, params: rdzv.RendezvousParameters, clients: Clients, processes: Processes
    ) -> None:
        """`rdzv.current().store`, in a process that a node starts, has the keys of the node's own round."""

        def program(link: Link) -> list[str]:
            os.environ.update(link.receive())
            store = rdzv.current().store
            assert store is not None, "rdzv.current().store is None"
            assert store.check(["node"]), "a program sees another store than its node"
            store.set("program", "its value")
            return [store.get("node").decode(), str(store.add("count", 1))]

        started = processes.fork(program)
        with rdzv.get_rendezvous_handler(params) as handler:
            info = handler.next_rendezvous()
            info.store.set("node", "the node's value")
            info.store.add("count", 1)
            started.send(variables(params, info, local_rank=0, processes=1, restarts=0))
            assert started.result() == ["the node's value", "2"], "what a node has stored reaches its program changed"
            assert info.store.check(["program"]), "a node sees another store than its program"
            assert info.store.get("program") == b"its value", "what a program has stored reaches its node changed"
