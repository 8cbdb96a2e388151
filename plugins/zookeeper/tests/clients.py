"""What the tests do with clients, again and again."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from rdzv.backend import Snapshot
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv_zookeeper import ZooKeeperBackend

_T = TypeVar("_T")

CALL = 10.0


class Connect(Protocol):
    """Makes clients of one run, and closes them in the end."""

    def __call__(self, endpoint: str, **options: object) -> ZooKeeperBackend: ...


def patiently(call: Callable[[], _T], seconds: float = 30) -> _T:
    """Try again, as the core does, what fails because the service is away."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except RendezvousConnectionError as error:
            if isinstance(error, RendezvousDeniedError) or time.monotonic() >= deadline:
                raise
            time.sleep(0.05)


def follow(backend: ZooKeeperBackend, prefix: str, since: Snapshot, key: str, value: bytes, seconds: float) -> Snapshot:
    """Wait as the core does, through failures, until `key` holds `value`."""
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        entry = since.entries.get(key)
        if entry is not None and entry.value == value:
            return since
        try:
            since = backend.wait(prefix, since, timeout=remaining)
        except RendezvousConnectionError:
            time.sleep(0.05)
    raise AssertionError(f"'{key}' did not become {value!r} within {seconds} s, but {since.entries.get(key)}")


@contextmanager
def in_background(work: Callable[[], _T]) -> Iterator[Future[_T]]:
    """Do something in another thread meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def watching(server: Any, count: int = 1) -> Callable[[], bool]:
    """Whether the server has set so many watches."""
    return lambda: bool(server.watches() >= count)
