"""PyTorch's registry, as PyTorch tests it."""

import re
from typing import Any

import pytest

from rdzv_core.errors import RendezvousError
from rdzv_core.handler import RendezvousHandler, RendezvousInfo
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.registry import RendezvousHandlerRegistry


class Handler(RendezvousHandler):
    def __init__(self, params: RendezvousParameters) -> None:
        self.params = params

    def get_backend(self) -> str:
        return "dummy"

    def next_rendezvous(self) -> RendezvousInfo:
        raise NotImplementedError

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.params.run_id

    def shutdown(self) -> bool:
        return True


def make(backend: str = "dummy", endpoint: str = "node1:1", **options: Any) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint, "job-7", 1, 1, **options)


def test_a_registered_creator_makes_the_handler() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("dummy", Handler)
    registry.register("dummy", Handler)
    params = make()
    handler = registry.create_handler(params)
    assert isinstance(handler, Handler)
    assert handler.params is params


def test_a_name_has_one_creator() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("dummy", Handler)

    def other(params: RendezvousParameters) -> RendezvousHandler:
        return Handler(params)

    message = (
        f"The rendezvous backend 'dummy' cannot be registered with '{other}' as it is already registered "
        f"with '{Handler}'."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        registry.register("dummy", other)
    assert isinstance(registry.create_handler(make()), Handler)


def test_a_name_is_needed() -> None:
    with pytest.raises(ValueError, match=r"^The rendezvous backend name must be a non-empty string.$"):
        RendezvousHandlerRegistry().register("", Handler)


def test_an_unregistered_name_is_refused() -> None:
    message = "The rendezvous backend 'dummy' is not registered. Did you forget to call `register`?"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RendezvousHandlerRegistry().create_handler(make())


def test_a_handler_of_another_backend_is_refused() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("other", Handler)
    message = "The rendezvous backend 'dummy' does not match the requested backend 'other'."
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$") as caught:
        registry.create_handler(make("other"))
    assert isinstance(caught.value, RendezvousError)
