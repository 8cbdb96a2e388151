"""From the operating system's errors to rdzv's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rdzv_core import (
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
)


@contextmanager
def translated(place: Path) -> Iterator[None]:
    """Let out only errors of rdzv's.

    They tell rdzv whether trying again makes sense.

    Args:
        place: What is used inside.
    """
    try:
        yield
    except RendezvousError:
        raise
    except PermissionError as error:
        raise RendezvousDeniedError(
            f"'{place}' may not be used: {error}."
        ) from error
    except OSError as error:
        raise RendezvousConnectionError(
            f"'{place}' cannot be used: {error}."
        ) from error
