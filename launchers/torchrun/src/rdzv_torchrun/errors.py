"""rdzv's errors as torch's, which is what torchrun and those who call a handler catch."""

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def as_rendezvous_errors() -> Iterator[None]:
    """Raise torch's error of the same name; a `RendezvousParameterError` stays the ValueError that it is."""
    try:
        yield
    except rdzv.RendezvousParameterError:
        raise
    except rdzv.RendezvousError as error:
        kind = next(theirs for ours, theirs in _RENDEZVOUS.items() if isinstance(error, ours))
        raise kind(str(error)) from error


@contextmanager
def as_store_errors() -> Iterator[None]:
    """Raise what torch's own stores raise; a `RendezvousParameterError` stays the ValueError that it is."""
    try:
        yield
    except rdzv.RendezvousParameterError:
        raise
    except rdzv.RendezvousTimeoutError as error:
        # The word that torch's own errors have, and by which programs know them.
        raise DistStoreError(f"timeout: {error}") from error
    except rdzv.RendezvousError as error:
        kind = DistNetworkError if isinstance(error, rdzv.RendezvousConnectionError) else DistStoreError
        raise kind(str(error)) from error
