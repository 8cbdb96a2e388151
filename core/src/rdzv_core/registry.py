"""Which creator makes the handlers of which backend: PyTorch's registry."""

from collections.abc import Callable

from .errors import RendezvousError, RendezvousParameterError
from .handler import RendezvousHandler
from .parameters import RendezvousParameters

__all__ = ["RendezvousHandlerCreator", "RendezvousHandlerRegistry"]

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
