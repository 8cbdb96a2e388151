"""Backends as users make them: by a plugin's name and options."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from rdzv.backend import KeyValueBackend
from rdzv.parameters import RendezvousParameters
from rdzv.plugins import create_backend

__all__ = ["Create", "creating"]


class Create(Protocol):
    """Makes a backend for the run of that id, by options."""

    def __call__(self, endpoint: str, run_id: str = ..., **options: Any) -> KeyValueBackend: ...


@contextmanager
def creating(backend: str) -> Iterator[Create]:
    """Gives what makes backends by options, as a user does; they are closed in the end."""
    with ExitStack() as opened:

        def create(endpoint: str, run_id: str = "run", **options: Any) -> KeyValueBackend:
            made, _ = create_backend(RendezvousParameters(backend, endpoint, run_id, 1, 1, **options))
            assert isinstance(made, KeyValueBackend)
            opened.callback(made.close)
            return made

        yield create
