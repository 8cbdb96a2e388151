"""What the tests do with clients, again and again."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import in_background
from rdzv_conformance.servers import ConsulServer

from rdzv_consul import ConsulBackend

CALL = 10.0


class Connect(Protocol):
    """Makes clients of one run, and closes them in the end."""

    def __call__(self, endpoint: str, **options: object) -> ConsulBackend: ...


@contextmanager
def watching(server: ConsulServer, work: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Do something in another thread meanwhile, whose query has reached the server by now."""
    before = server.queries_begun()
    with in_background(work) as future:
        eventually(lambda: server.queries_begun() > before, "the query")
        yield future
