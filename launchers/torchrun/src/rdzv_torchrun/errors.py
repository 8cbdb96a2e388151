"""rdzv's errors as torch's, which is what torchrun and those who call a handler catch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import rdzv
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic import rendezvous

_RENDEZVOUS: Final = {
    rdzv.RendezvousClosedError: rendezvous.RendezvousClosedError,
    rdzv.RendezvousConnectionError: rendezvous.RendezvousConnectionError,
    rdzv.RendezvousGracefulExitError: rendezvous.RendezvousGracefulExitError,
    rdzv.RendezvousStateError: rendezvous.RendezvousStateError,
    rdzv.RendezvousTimeoutError: rendezvous.RendezvousTimeoutError,
    rdzv.RendezvousError: rendezvous.RendezvousError,
}
"""The more special ones first."""


def as_rendezvous_errors() -> AbstractContextManager[None]:
    """Raise torch's error of the same name; a `RendezvousParameterError` stays the ValueError that it is."""
    return _errors_as(_rendezvous_error)


def as_store_errors() -> AbstractContextManager[None]:
    """Raise what torch's own stores raise; a `RendezvousParameterError` stays the ValueError that it is."""
    return _errors_as(_store_error)


@contextmanager
def _errors_as(translate: Callable[[rdzv.RendezvousError], Exception]) -> Iterator[None]:
    try:
        yield
    except rdzv.RendezvousParameterError:
        raise
    except rdzv.RendezvousError as error:
        raise translate(error) from error


def _rendezvous_error(error: rdzv.RendezvousError) -> Exception:
    kind = next(theirs for ours, theirs in _RENDEZVOUS.items() if isinstance(error, ours))
    return kind(str(error))


def _store_error(error: rdzv.RendezvousError) -> Exception:
    if isinstance(error, rdzv.RendezvousTimeoutError):
        # The word that torch's own errors have, and by which programs know them.
        return DistStoreError(f"timeout: {error}")
    kind = DistNetworkError if isinstance(error, rdzv.RendezvousConnectionError) else DistStoreError
    return kind(str(error))
