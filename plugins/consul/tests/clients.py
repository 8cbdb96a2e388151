"""What the tests do with clients, again and again."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from rdzv.backend import Snapshot
from rdzv.errors import RendezvousConnectionError
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.servers import ConsulServer

from rdzv_consul import ConsulBackend

CALL = 10.0


class Connect(Protocol):
    """Makes clients of one run, and closes them in the end."""

    def __call__(self, endpoint: str, **options: object) -> ConsulBackend: ...


def follow(backend: ConsulBackend, prefix: str, since: Snapshot, key: str, value: bytes, seconds: float) -> Snapshot:
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
def in_background(work: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Do something in another thread meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


@contextmanager
def watching(server: ConsulServer, work: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Do something in another thread meanwhile, whose query has reached the server by now."""
    before = server.queries_begun()
    with in_background(work) as future:
        eventually(lambda: server.queries_begun() > before, "the query")
        yield future
