"""What tests do beside a service that fails, or while a call is under way."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from rdzv.backend import KeyValueBackend, Snapshot
from rdzv.errors import RendezvousConnectionError

__all__ = ["follow", "in_background"]

_T = TypeVar("_T")


def follow(backend: KeyValueBackend, prefix: str, since: Snapshot, key: str, value: bytes, seconds: float) -> Snapshot:
    """Wait as the core does, through failures, until a key holds a value.

    Args:
        backend: Whom to ask.
        prefix: What to wait for.
        since: What is known of it.
        key: The key.
        value: Its value in the end.
        seconds: How long.

    Raises:
        AssertionError: It did not within `seconds`.
    """
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
