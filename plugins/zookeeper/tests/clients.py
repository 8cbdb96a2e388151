"""What the tests do with clients, again and again."""

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv_zookeeper import ZooKeeperBackend

_T = TypeVar("_T")

CALL = 10.0


class Connect(Protocol):
    """Makes clients of one run, and closes them in the end."""

    def __call__(self, endpoint: str, **options: object) -> ZooKeeperBackend: ...


def with_retries(call: Callable[[], _T], seconds: float = 30) -> _T:
    """Try again, as rdzv does, what fails because the service is away."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except RendezvousConnectionError as error:
            if isinstance(error, RendezvousDeniedError) or time.monotonic() >= deadline:
                raise
            time.sleep(0.05)


def watching(server: Any, count: int = 1) -> Callable[[], bool]:
    """Whether the server has set so many watches."""
    return lambda: bool(server.watches() >= count)
