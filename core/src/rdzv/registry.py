"""From a backend's name to a handler."""

from collections.abc import Callable
from typing import Any, Final

from . import plugins
from .backend import RendezvousBackend
from .engine.handler import create_handler
from .errors import RendezvousError, RendezvousParameterError
from .handler import RendezvousHandler
from .parameters import RendezvousParameters
from .settings import CORE_OPTIONS

__all__ = [
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "create_backend",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]

RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]
"""Makes the handler of one backend."""


class RendezvousMismatchError(RendezvousError, RuntimeError):
    """A creator made a handler of another backend than the one it is registered for."""


class RendezvousHandlerRegistry:
    """Which creator makes the handlers of which backend.

    Args:
        default: Makes those of the backends without a creator; None: they are refused.
    """

    def __init__(self, default: RendezvousHandlerCreator | None = None) -> None:
        self._registry: dict[str, RendezvousHandlerCreator] = {}
        self._default = default

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Let `creator` make the handlers of `backend`. Doing so twice is the same as once.

        Raises:
            RendezvousParameterError: The name is empty, or another creator has it.
        """
        if not backend:
            raise RendezvousParameterError("The rendezvous backend name must be a non-empty string.")
        current = self._registry.setdefault(backend, creator)
        if current != creator:
            raise RendezvousParameterError(
                f"The rendezvous backend '{backend}' cannot be registered with '{creator}' as it is already "
                f"registered with '{current}'."
            )

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make a handler for `params`.

        Raises:
            RendezvousParameterError: No creator has the name `params.backend`, or it refuses `params`.
            RuntimeError: The creator made a handler of another backend.
        """
        creator = self._registry.get(params.backend, self._default)
        if creator is None:
            raise RendezvousParameterError(
                f"The rendezvous backend '{params.backend}' is not registered. Did you forget to call `register`?"
            )
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RendezvousMismatchError(
                f"The rendezvous backend '{handler.get_backend()}' does not match the requested backend "
                f"'{params.backend}'."
            )
        return handler


def create_backend(params: RendezvousParameters) -> tuple[RendezvousBackend, Any]:
    """Make the backend that `params` describe, and the store if it brings one, without contacting the service.

    Raises:
        RendezvousParameterError: The backend is unknown, needs an endpoint, or one of the options is known neither to
            rdzv nor to it.
        RendezvousError: The plugin is broken, or a library that it needs is missing.
    """
    return plugins.create_backend(params, CORE_OPTIONS)


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
            parameter cannot be used, or neither the core nor the backend knows one of the options
            (the message names the nearest right one).
        RendezvousError: The backend's plugin is broken, or a library that it needs is missing.
    """
    return rendezvous_handler_registry.create_handler(params)
