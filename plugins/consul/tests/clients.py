"""What the tests do with clients, again and again."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rdzv_conformance.meanwhile import once_counted
from rdzv_conformance.servers import ConsulServer

from rdzv_consul import ConsulBackend

CALL = 10.0


class Connect(Protocol):
    """Makes clients of one run, and closes them in the end."""

    def __call__(self, endpoint: str, **options: object) -> ConsulBackend: ...


def watching(server: ConsulServer, work: Callable[[], Any]) -> AbstractContextManager[Future[Any]]:
    """Do something in another thread meanwhile, whose query has reached the server by now."""
    return once_counted(work, server.queries_begun, "the query")
