"""Threads that work for the callers of a backend."""

import threading
from collections.abc import Callable

from .errors import RendezvousConnectionError

__all__ = ["start_thread"]


def start_thread(work: Callable[..., None], *arguments: object, name: str) -> threading.Thread:
    """Have a thread of its own do some work; it does not keep the process alive.

    Raises:
        RendezvousConnectionError: The system has no room for another thread, which may be so for a moment.
    """
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise RendezvousConnectionError(f"The thread '{name}' cannot start: {error}.") from error
    return thread
