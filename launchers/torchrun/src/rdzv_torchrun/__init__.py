"""torchrun on every backend of rdzv.

torch loads this module whenever its elastic part is imported, whichever backend is used then. So it
imports nothing: neither torch nor rdzv, and no plugin.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

__all__ = ["create_handler", "handler"]


def handler() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """The entry point of the group ``torchrun.handlers``, for every backend alike.

    A package that brings a backend adds the backend's name to that group, with this function, and
    can then be chosen by ``torchrun --rdzv-backend``.
    """
    return create_handler


def create_handler(params: "RendezvousParameters") -> "RendezvousHandler":
    """Make the handler that torchrun asks for.

    Args:
        params: torch's. The backend is a name of rdzv's, or one with ``rdzv-`` in front; or ``rdzv``,
            and the option ``plugin`` is the name. Every other option goes to rdzv.

    Raises:
        ValueError: The backend is unknown (the message says what to install), or a parameter or an
            option cannot be used.
        torch.distributed.elastic.rendezvous.RendezvousError: The backend's plugin is broken.
    """
    from .rendezvous import create_handler

    return create_handler(params)
