"""From a backend's name to a handler of the engine."""

from typing import Any, Final

from rdzv_core import plugins
from rdzv_core.backend import RendezvousBackend
from rdzv_core.handler import RendezvousHandler
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.registry import RendezvousHandlerRegistry

from .engine.handler import create_handler
from .settings import HANDLER_OPTIONS

__all__ = ["create_backend", "get_rendezvous_handler", "rendezvous_handler_registry"]


def create_backend(params: RendezvousParameters) -> tuple[RendezvousBackend, Any]:
    """Make the backend that `params` describe, and the store if it brings one, without contacting the service.

    Raises:
        RendezvousParameterError: The backend is unknown, needs an endpoint, or one of the options is known neither to
            rdzv nor to it.
        RendezvousError: The plugin is broken, or a library that it needs is missing.
    """
    return plugins.create_backend(params, HANDLER_OPTIONS)


def _create_installed(params: RendezvousParameters) -> RendezvousHandler:
    backend, store = create_backend(params)
    return create_handler(store, backend, params)


rendezvous_handler_registry: Final[RendezvousHandlerRegistry] = RendezvousHandlerRegistry(_create_installed)
"""The registry that `get_rendezvous_handler` asks: creators that were registered by hand, then installed backends."""


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler that `params` describe, on any installed or registered backend.

    Nothing is contacted yet; the handler connects when it is used.

    Raises:
        RendezvousParameterError: The backend is unknown (the message says what to install), or a
            parameter cannot be used, or neither rdzv nor the backend knows one of the options
            (the message names the nearest right one).
        RendezvousError: The backend's plugin is broken, or a library that it needs is missing.
    """
    return rendezvous_handler_registry.create_handler(params)
